// run.hpp - `drift run`: one prompt, or a chat, streamed as it is decoded.
//
// Threads: one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/pair.hpp"
#include "cli/settings.hpp"
#include "drift/decode/stepper.hpp"
#include "drift/trace/metrics.hpp"

namespace drift::cli {

struct RunOptions {
  PairOptions pair;
  std::string prompt, file, system;
  bool has_prompt = false;
  std::int64_t generate = -1;
  std::string mode;  // empty: drift with a draft, off without
  Settings settings;
  spec::SamplerConfig sampler;
  std::uint64_t seed = 1;
  std::vector<std::string> stops;
  std::string bank;
  bool bank_read_only = false;
  bool show_draft = false;
  std::string colour = "auto";  // auto, always, never
  bool chat = false, raw = false, json = false;
};

// One answer.
struct Turn {
  trace::Metrics metrics;
  std::string text;
  std::string ending;  // end, length, context, stop, interrupted, closed
  std::size_t prompt_tokens = 0;
  double prefill_ms = 0;
  std::optional<double> plain_ms;  // measured time of one plain target step
};

// How many times faster plain decoding would have been; below 1: drafting won.
std::optional<double> plain_factor(const Turn& turn);
// "128 tokens, 12.3 tokens/s; ..." without a line end.
std::string figures_line(const Turn& turn, decode::Mode mode);
std::string run_json(const RunOptions& options, const Pair& pair, decode::Mode mode, const Turn& turn,
                     std::uint64_t bank_entries);

void add_run_command(CLI::App& app, int& exit_code);

}  // namespace drift::cli
