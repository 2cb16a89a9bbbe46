// trace_command.hpp - `drift trace record | replay | show | stats | verify | export`.
//
// Threads: one. trace_record.cpp decodes and writes, trace_replay.cpp decodes from the file, trace_export.cpp turns a trace into lines, trace_command.cpp does the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/json_fields.hpp"
#include "cli/pair.hpp"
#include "cli/prompts.hpp"
#include "cli/settings.hpp"
#include "drift/spec/distribution.hpp"
#include "drift/trace/file.hpp"
#include "drift/trace/metrics.hpp"

namespace CLI {
class App;
}

namespace drift::cli {

struct RecordOptions {
  PairOptions pair;
  PromptOptions prompts;
  std::int64_t generate = 128;
  std::string mode = "static";  // one piece of a mode list
  Settings settings;
  spec::SamplerConfig sampler = spec::greedy_sampler();
  std::uint64_t seed = 1;
  bool one_by_one = false;
  std::string out;
};

// Records, tells what came of it, and gives the exit code. Interrupted: the prompts done so far are kept in the file.
Result<int> record_trace(const RecordOptions& options);

struct ReplayOptions {
  std::vector<std::string> files;  // one or more; of one pair of models and one sampler
  std::string modes = "static,drift";
  Settings settings;  // defaults of every mode
  std::string json;
  std::string orders;     // a file of orders (parse_orders); empty: all prompts as recorded, file after file
  std::string proposals;  // where every proposal is written as CSV; empty: nowhere
};

// One prompt of an order.
struct ReplayPlace {
  std::size_t trace = 0;   // of the files
  std::size_t prompt = 0;  // of that trace
  std::string memory;      // prompts that name the same one share a bank and a suffix memory
};
using ReplayOrder = std::vector<ReplayPlace>;

// Orders from text: one a line, its places TRACE:PROMPT or TRACE:PROMPT@MEMORY between blanks, counted from 0; lines that begin
// with # and empty ones say nothing. `prompts`: how many each trace has; `name` is for messages. Fails with kInvalid naming the line.
Result<std::vector<ReplayOrder>> parse_orders(const std::string& content, const std::string& name,
                                              const std::vector<std::size_t>& prompts);

// Every mode on every order of the recorded texts, its memories empty at the start of each, with the recorded sampler and seed; tells acceptance, and gives the exit code.
// Fails as engine::check_replay and ReplayEngine.
Result<int> replay_trace(const ReplayOptions& options);

// What a trace folds to: the same fold as a comparison's.
struct TraceFigures {
  trace::Metrics total;
  std::map<std::string, trace::Metrics> by_domain;
  void add(const std::string& domain, const trace::StepEvent& event);
};
// Fails as trace::Reader.
Result<TraceFigures> figures_of(const trace::Reader& reader);
std::string figures_text(const std::string& mode, const TraceFigures& figures);
std::string figures_json(const trace::Header& header, bool partial, const TraceFigures& figures);

// The figures that a report of a trace gives for a fold.
Json figures_object(const trace::Metrics& metrics);
Json header_json(const trace::Header& header, bool partial);

// What `show` prints.
Result<std::string> describe_trace(const trace::Reader& reader);
Result<std::string> describe_trace_json(const trace::Reader& reader);

enum class ExportFormat { kCsv, kJsonLines };
// One table as lines, the first of CSV naming the columns. `sink` gets each line and says whether to go on. True: all was given.
// Fails with kInvalid (no such table), and as trace::Reader.
Result<bool> export_trace(const trace::Reader& reader, const std::string& table, ExportFormat format,
                          const std::function<bool(const std::string&)>& sink);
// "prompts, steps, ...".
std::string trace_tables();

void add_trace_command(CLI::App& app, int& exit_code);

}  // namespace drift::cli
