// serve.hpp - `drift serve`: an OpenAI-compatible server over one pair of models.
//
// The composition root of server/: it loads models and banks, gives the server its text, and ends it in order.
// Threads: the main one waits for signals; one decodes; HTTP has a pool of its own.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/pair.hpp"
#include "cli/settings.hpp"
#include "drift/spec/distribution.hpp"
#include "server/api/shape.hpp"
#include "server/http/http_server.hpp"
#include "server/schedule/banks.hpp"
#include "server/schedule/logit_rules.hpp"

namespace drift::cli {

struct ServeOptions {
  std::string config;  // read by serve_arguments()
  PairOptions pair;
  int slots = -1;  // -1: kDefaultSlots
  std::int64_t generate = -1;
  std::string mode;  // empty: drift with a draft, off without
  std::string spec_type;
  Settings settings;
  spec::SamplerConfig sampler;
  std::int64_t seed = -1;  // -1: a random one per request
  server::LogitRules rules;
  bool special = false;
  bool jinja = true;
  std::string chat_template, chat_template_file;  // empty: the model's own
  std::string grammar, grammar_file, schema, schema_file;
  server::api::Shape shape;  // of these, once they are read
  std::string alias;
  std::vector<std::string> api_keys;  // each may be a list, separated by commas
  std::string api_key_file;
  std::string cors_origins;
  bool cache_prompt = true;
  server::HttpConfig http;
  server::SchedulerConfig scheduler;
  std::string bank, bank_dir;
  bool bank_read_only = false;
  server::BanksConfig banks;
  std::string metrics_compat;
  std::string log_format;  // empty: text
  std::string log_file;
  std::int64_t shutdown_timeout_s = 30;
};

inline constexpr int kDefaultSlots = 4;

void add_serve_command(CLI::App& app, int& exit_code);

// The arguments of a command line that begins with "serve": llama-server's flags translated, then what the configuration file (--config)
// and the environment (DRIFT_*) add where no flag says otherwise. Warnings go to stderr. Requires: add_serve_command(app).
// Fails with kInvalid, kNotFound, kLimit naming the flag, the variable, or the file and line.
Result<std::vector<std::string>> serve_arguments(CLI::App& app, const std::vector<std::string>& arguments);

// Whether an address is of this machine alone: 127.0.0.0/8, ::1, localhost.
bool is_loopback(const std::string& host);

}  // namespace drift::cli
