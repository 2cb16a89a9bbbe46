#include "cli/trace_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/json_fields.hpp"
#include "cli/options.hpp"
#include "cli/output_file.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

constexpr const char* kRecordExamples =
    "Examples:\n"
    "  drift trace record -m target.gguf -md draft.gguf --prompts law.jsonl --split eval -o law.trace\n"
    "  drift trace record -m T -md D --prompts law.jsonl --mode drift:gain=earned --temp 0.8 --top-k 40 -o law.trace\n"
    "Prompts and modes are those of drift compare. What a trace holds, and how sqlite3, DuckDB and pandas read it: "
    "docs/trace-format.md.\n"
    "Ctrl-C keeps the prompts that are whole.";

constexpr const char* kReplayExamples =
    "Examples:\n"
    "  drift trace replay law.trace --modes static,drift,lookup\n"
    "  drift trace replay law.trace --modes a=drift:capacity=256,b=drift:capacity=65536 --json capacity.json\n"
    "  drift trace replay law.trace code.trace --modes static,drift --order orders.txt --proposals proposals.csv\n"
    "Several traces (of one pair and sampler) go through one bank. An order is one line of FILE:PROMPT or FILE:PROMPT@BANK, "
    "counted "
    "from 0.\n"
    "Sampler, seed and texts are the recorded ones. Refused: the rejection judge above temperature 0, online-kd, another draft.";

std::string size_text(std::uint64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6); }

std::string model_text(const trace::Model& model) {
  return fmt::format("{}  {}, rows of {} logits", text::printable(model.name), text::printable(model.hash), model.vocab);
}

// What all prompts of a trace add up to.
struct Sums {
  std::uint64_t prompt_tokens = 0, emitted = 0, steps = 0;
  std::map<std::string, std::uint64_t> domains, endings;  // prompts
};

Result<Sums> sums_of(const trace::Reader& reader) {
  Sums sums;
  for (std::size_t p = 0; p < reader.prompts(); ++p) {
    DRIFT_ASSIGN(const trace::PromptRecord record, reader.prompt(p));
    sums.prompt_tokens += record.prompt.tokens.size();
    sums.emitted += record.emitted.size();
    sums.steps += record.steps;
    ++sums.domains[record.prompt.domain];
    ++sums.endings[record.ending];
  }
  return sums;
}

std::string counts_text(const std::map<std::string, std::uint64_t>& counts) {
  std::string out;
  for (const auto& [name, count] : counts)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name.empty() ? "(none)" : text::printable(name), count);
  return out;
}

void put_figures_row(std::string& out, const std::string& name, const trace::Metrics& m) {
  const bool drafted = m.drafted > 0;
  out += fmt::format("{:<14} {:>8} {:>8} {:>10} {:>11} {:>9} {:>8.2f}\n", name.empty() ? "(none)" : text::printable(name),
                     m.tokens, m.steps, drafted ? fmt::format("{:.3f}", m.acceptance()) : "-",
                     drafted ? fmt::format("{:.3f}", m.acceptance_conditional()) : "-",
                     drafted ? fmt::format("{:.2f}", m.mean_accepted_per_block()) : "-", m.tokens_per_s());
}

std::string json_text(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

struct ReadOptions {
  std::string file, out, table, format = "csv";
  bool json = false;
};

Status show(const ReadOptions& options) {
  DRIFT_ASSIGN(const auto reader, trace::Reader::open(options.file));
  DRIFT_ASSIGN(const std::string text, options.json ? describe_trace_json(*reader) : describe_trace(*reader));
  write_out(text);
  return Status::ok();
}

Status stats(const ReadOptions& options) {
  DRIFT_ASSIGN(const auto reader, trace::Reader::open(options.file));
  DRIFT_ASSIGN(const TraceFigures figures, figures_of(*reader));
  write_out(options.json ? figures_json(reader->header(), reader->partial(), figures)
                         : figures_text(reader->header().mode, figures));
  return Status::ok();
}

Status verify(const ReadOptions& options) {
  DRIFT_ASSIGN(const auto reader, trace::Reader::open(options.file));
  DRIFT_TRY(reader->verify());
  write_out(fmt::format("{}: sound\n", text::printable(options.file)));
  return Status::ok();
}

Status export_to(const ReadOptions& options) {
  if (options.format != "csv" && options.format != "jsonl")
    return {Code::kInvalid, fmt::format("--format is '{}'; it must be csv or jsonl", options.format)};
  const ExportFormat format = options.format == "csv" ? ExportFormat::kCsv : ExportFormat::kJsonLines;
  DRIFT_ASSIGN(const auto reader, trace::Reader::open(options.file));
  const Status cancelled(Code::kCancelled, "interrupted; the export was not written to its end");
  if (options.out.empty() || options.out == "-") {
    DRIFT_ASSIGN(const bool whole, export_trace(*reader, options.table, format,
                                                [](const std::string& line) { return !interrupted() && write_out(line); }));
    return whole || out_is_broken() ? Status::ok() : cancelled;  // main() tells of a closed or full output
  }
  DRIFT_ASSIGN(OutputFile file, OutputFile::open(options.out, {options.file}, 0600));
  Status status;
  const auto whole = export_trace(*reader, options.table, format, [&](const std::string& line) {
    status = interrupted() ? cancelled : file.write(line);
    return status.is_ok();
  });
  if (!whole.is_ok()) return whole.status();
  return status.is_ok() ? file.finish() : status;
}

}  // namespace

Json figures_object(const trace::Metrics& m) {
  Json out;
  put_metrics(out, m);
  out["per_position"] = m.per_position();
  out["accepted_histogram"] = m.accepted_histogram;
  out["mean_length"] = m.mean_length();
  out["predicted_accepted"] = m.predicted_accepted();
  out["modelled_speedup"] = m.modelled_speedup(trace::kSeedDraftCost, trace::kSeedVerifyCost);
  out["step_ms_p50"] = m.step_percentile_ms(0.5);
  out["step_ms_p99"] = m.step_percentile_ms(0.99);
  out["overhead_fraction"] = m.overhead_fraction();
  return out;
}

Json header_json(const trace::Header& header, bool partial) {
  const trace::Sampling& s = header.sampling;
  Json out;
  out["program"] = header.program;
  out["partial"] = partial;
  out["target"] = {{"name", header.target.name}, {"hash", header.target.hash}, {"vocab", header.target.vocab}};
  out["draft"] = header.has_draft() ? Json{{"name", header.draft.name},
                                           {"hash", header.draft.hash},
                                           {"vocab", header.draft.vocab},
                                           {"hidden_width", header.hidden_width}}
                                    : Json(nullptr);
  out["row_tokens"] = header.row_tokens;
  out["context"] = header.context;
  out["mode"] = header.mode;
  out["judge"] = s.rejection ? "rejection" : "match";
  out["sampler"] = sampler_json({s.temperature, s.top_k, s.top_p, s.min_p}, s.seed);
  out["generate"] = header.generate;
  out["settings"] = Json::object();
  for (const auto& [key, value] : header.settings) out["settings"][key] = value;
  return out;
}

void TraceFigures::add(const std::string& domain, const trace::StepEvent& event) {
  total.add(event);
  by_domain[domain].add(event);
}

Result<TraceFigures> figures_of(const trace::Reader& reader) {
  TraceFigures figures;
  for (std::size_t p = 0; p < reader.prompts(); ++p) {
    DRIFT_ASSIGN(const trace::PromptRecord record, reader.prompt(p));
    DRIFT_ASSIGN(const std::vector<trace::StepEvent> steps, reader.steps(p));
    for (const trace::StepEvent& event : steps) figures.add(record.prompt.domain, event);
  }
  return figures;
}

std::string figures_text(const std::string& mode, const TraceFigures& figures) {
  std::string out = fmt::format("{:<14} {:>8} {:>8} {:>10} {:>11} {:>9} {:>8}\n", "domain", "tokens", "steps", "acceptance",
                                "conditional", "per block", "tokens/s");
  if (figures.by_domain.size() > 1) {
    for (const auto& [domain, metrics] : figures.by_domain) put_figures_row(out, domain, metrics);
  }
  put_figures_row(out, "all (" + mode + ")", figures.total);
  return out;
}

std::string figures_json(const trace::Header& header, bool partial, const TraceFigures& figures) {
  Json out;
  out["schema"] = "drift.trace.stats/1";
  out["mode"] = header.mode;
  out["partial"] = partial;
  out["total"] = figures_object(figures.total);
  out["domains"] = Json::object();
  for (const auto& [domain, metrics] : figures.by_domain) out["domains"][domain] = figures_object(metrics);
  return json_text(out);
}

Result<std::string> describe_trace(const trace::Reader& reader) {
  const trace::Header& h = reader.header();
  DRIFT_ASSIGN(const Sums sums, sums_of(reader));
  std::string text;
  const auto row = [&](const char* name, const std::string& value) { text += fmt::format("{:<14} {}\n", name, value); };
  row("made by", text::printable(h.program));
  row("target", model_text(h.target));
  row("draft", h.has_draft() ? fmt::format("{}, hidden states of {}", model_text(h.draft), h.hidden_width) : "none");
  row("rows", fmt::format("the {} largest logits of each", h.row_tokens));
  std::string settings;
  for (const auto& [key, value] : h.settings)
    settings += fmt::format("{}{}={}", settings.empty() ? "" : ", ", text::printable(key), text::printable(value));
  row("mode", fmt::format("{} ({})", text::printable(h.mode), settings));
  const trace::Sampling& s = h.sampling;
  row("sampler", fmt::format("temperature {}, top-k {}, top-p {}, min-p {}, seed {}, judge {}", s.temperature, s.top_k, s.top_p,
                             s.min_p, s.seed, s.rejection ? "rejection" : "match"));
  row("prompts", fmt::format("{}{}: {}", reader.prompts(), reader.partial() ? ", interrupted before the last" : "",
                             counts_text(sums.domains)));
  row("tokens", fmt::format("{} of prompts, {} of answers in {} steps; at most {} an answer", sums.prompt_tokens, sums.emitted,
                            sums.steps, h.generate));
  row("endings", counts_text(sums.endings));
  row("file", size_text(reader.file_bytes()));
  return text;
}

Result<std::string> describe_trace_json(const trace::Reader& reader) {
  DRIFT_ASSIGN(const Sums sums, sums_of(reader));
  Json out{{"schema", "drift.trace/1"}};
  out.update(header_json(reader.header(), reader.partial()));
  out["prompts"] = reader.prompts();
  out["prompt_tokens"] = sums.prompt_tokens;
  out["emitted"] = sums.emitted;
  out["steps"] = sums.steps;
  out["domains"] = sums.domains;
  out["endings"] = sums.endings;
  out["file_bytes"] = reader.file_bytes();
  return json_text(out);
}

namespace {

void add_record_command(CLI::App& command, int& exit_code) {
  const auto options = std::make_shared<RecordOptions>();
  CLI::App* record = command.add_subcommand("record", "Decode prompts in one mode and write every step and row");
  record->footer(kRecordExamples);
  add_pair_options(*record, options->pair);
  add_prompt_options(*record, options->prompts);
  add_int(*record, "-n,--predict", 1, 1 << 20, "tokens to generate per prompt [128]",
          [options](std::int64_t v) { options->generate = v; });
  add_text(*record, "--mode", "MODE", "the mode, as one piece of drift compare --modes [static]", options->mode);
  record->add_flag("--verify-rows-one-by-one", options->one_by_one, "decode every row of the target alone (slow)");
  add_text(*record, "-o,--out", "FILE", "the trace to write", options->out)->required();
  add_sampler_options(*record, options->sampler, options->seed);
  add_setting_options(*record, options->settings);
  record->callback([options, &exit_code] {
    const Result<int> code = record_trace(*options);
    exit_code = code.is_ok() ? code.value() : fail(code.status());
  });
}

}  // namespace

namespace {

void add_replay_command(CLI::App& command, int& exit_code) {
  const auto options = std::make_shared<ReplayOptions>();
  CLI::App* replay = command.add_subcommand("replay", "Acceptance of other modes on the recorded texts, without the models");
  replay->footer(kReplayExamples);
  replay->add_option("FILE", options->files, "The trace, or several")->required();
  replay->add_option("--modes", options->modes, "the modes, as drift compare has them [static,drift]")->type_name("LIST");
  add_text(*replay, "--json", "FILE", "also write the figures to this file", options->json);
  add_text(*replay, "--order", "FILE", "orders of prompts, one a line, each run from empty memories [all as recorded]",
           options->orders);
  add_text(*replay, "--proposals", "FILE", "also write every proposal, as CSV", options->proposals);
  add_setting_options(*replay, options->settings);
  replay->callback([options, &exit_code] {
    const Result<int> code = replay_trace(*options);
    exit_code = code.is_ok() ? code.value() : fail(code.status());
  });
}

}  // namespace

void add_trace_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("trace", "Record a run with all its rows; replay, look at, fold or export a trace");
  command->require_subcommand(1);
  add_record_command(*command, exit_code);
  add_replay_command(*command, exit_code);
  const auto options = std::make_shared<ReadOptions>();
  const auto add = [&](const char* name, const char* help, std::function<Status(const ReadOptions&)> action) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("FILE", options->file, "The trace")->required();
    sub->callback([options, action, &exit_code] {
      const Status status = action(*options);
      exit_code = status.is_ok() ? kExitOk : fail(status);
    });
    return sub;
  };
  add("show", "What it holds and how it was made", show)->add_flag("--json", options->json, "As JSON");
  add("stats", "Acceptance, lengths and times, as drift compare folds them", stats)->add_flag("--json", options->json, "As JSON");
  add("verify", "Check everything; changes nothing", verify);
  CLI::App* exported = add("export", "Write one of its tables as CSV or JSON lines", export_to);
  add_text(*exported, "--table", "NAME", trace_tables(), options->table)->required();
  add_text(*exported, "--format", "csv|jsonl", "csv: without blobs; jsonl: a row a line [csv]", options->format);
  add_text(*exported, "-o,--out", "FILE", "File to write; without it, or with -, the standard output", options->out);
}

}  // namespace drift::cli
