// Replaying: modes on the text of a trace, without its models. Acceptance, not speed.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/json_fields.hpp"
#include "cli/machine.hpp"
#include "cli/modes.hpp"
#include "cli/output_file.hpp"
#include "cli/progress.hpp"
#include "cli/trace_command.hpp"
#include "drift/decode/stepper.hpp"
#include "engines/replay/replay.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

struct PromptFigures {
  std::string id, domain;
  ReplayPlace place;
  trace::Metrics metrics;
};

// One mode on one order.
struct ModeFigures {
  const Variant* variant = nullptr;
  std::size_t order = 0;
  TraceFigures figures;
  std::vector<PromptFigures> prompts;  // those done
  std::uint64_t bank_entries = 0;      // of all memories together
};

// What can be told before anything is decoded.
Status check_mode(const trace::Header& header, const Variant& variant) {
  trace::Sampling sampling = header.sampling;
  sampling.rejection = variant.mode != decode::Mode::kOff && variant.settings.judge == spec::JudgeRule::kRejection;
  Status status = engine::check_replay(header, {sampling, /*trees=*/false, decode::learns(variant.mode)});
  if (status.is_ok() && decode::drafts(variant.mode) && !header.has_draft())
    status = {Code::kUnsupported, "this trace was recorded without a draft"};
  if (status.is_ok() && !variant.settings.model_draft.empty())
    status = {Code::kUnsupported, "a replay has the recorded draft and no other"};
  return status.is_ok() ? status : Status(status.code(), fmt::format("mode '{}': {}", variant.label, status.message()));
}

// One memory goes through texts of all traces, so these must be of one pair of models and one sampler.
Status check_alike(const trace::Header& first, const trace::Header& other, const std::string& file) {
  const char* differs = nullptr;
  if (!(other.target == first.target)) differs = "target";
  if (!(other.draft == first.draft) || other.hidden_width != first.hidden_width) differs = "draft";
  if (!(other.sampling == first.sampling)) differs = "sampler, seed or judge";
  if (differs == nullptr) return Status::ok();
  return {Code::kInvalid, fmt::format("trace {} has another {} than the first one; replay them apart", file, differs)};
}

// Proposals as CSV: what stands in a trace's own table of that name, for every mode and order.
class ProposalLines {
 public:
  explicit ProposalLines(OutputFile file) : file_(std::move(file)) {}
  Status begin() {
    return file_.write("label,order,trace,prompt,step,place,position,token,q,accepted,from_bank,gain,similarity,match\n");
  }
  Status put(const ModeFigures& mode, const ReplayPlace& at, const trace::StepEvent& event) {
    std::string lines;
    for (std::size_t i = 0; i < event.proposed.size(); ++i) {
      const trace::ProposedToken& p = event.proposed[i];
      lines += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", mode.variant->label, mode.order, at.trace, at.prompt,
                           event.step, i, event.first + static_cast<Pos>(i), p.token, p.q, p.accepted ? 1 : 0,
                           p.from_bank ? 1 : 0, p.gain, p.similarity, p.match);
    }
    return file_.write(lines);
  }
  Status finish() { return file_.finish(); }

 private:
  OutputFile file_;
};

// A trace with its engines.
struct Source {
  std::unique_ptr<trace::Reader> reader;
  std::unique_ptr<engine::ReplayEngine> target, draft;
  std::unique_ptr<decode::Stepper> stepper;

  static Result<Source> open(const std::string& file) {
    Source out;
    DRIFT_ASSIGN(out.reader, trace::Reader::open(file));
    if (out.reader->prompts() == 0) return Status(Code::kInvalid, fmt::format("trace {} holds no prompt", file));
    return out;
  }
  Status prepare() {
    DRIFT_ASSIGN(target, engine::ReplayEngine::make(*reader, trace::Side::kTarget));
    if (reader->header().has_draft()) {
      DRIFT_ASSIGN(draft, engine::ReplayEngine::make(*reader, trace::Side::kDraft));
    }
    stepper = std::make_unique<decode::Stepper>(*target, draft.get());
    return Status::ok();
  }
};

class Replaying {
 public:
  Replaying(std::vector<Source>& sources, ProposalLines* lines)
      : sources_(sources), lines_(lines), choices_(sources.front().reader->header().sampling.seed) {}

  // One mode on one order, its memories empty at the start. Fails with kCancelled (interrupted).
  Status run(const ReplayOrder& order, ModeFigures& out, Progress& progress, std::size_t done) {
    memories_.clear();
    for (std::size_t p = 0; p < order.size(); ++p) {
      progress.show(done + p, fmt::format("({})", out.variant->label));
      DRIFT_ASSIGN(Memory* const memory, memory_of(order[p].memory, *out.variant));
      DRIFT_TRY(run_prompt(out, order[p], *memory));
    }
    for (const auto& [name, memory] : memories_) out.bank_entries += memory.recal ? memory.recal->bank().size() : 0;
    return Status::ok();
  }

 private:
  struct Memory {
    std::unique_ptr<recal::Recalibrator> recal;
    std::unique_ptr<propose::SuffixMemory> suffix;
  };

  Result<Memory*> memory_of(const std::string& name, const Variant& variant) {
    const auto [found, fresh] = memories_.try_emplace(name);
    Memory& memory = found->second;
    if (fresh && decode::recalibrates(variant.mode)) {
      recal::RecalConfig config = variant.settings.recal;
      config.bank.key_dim = sources_.front().reader->header().hidden_width;
      config.bank.vocab = static_cast<std::uint32_t>(sources_.front().stepper->vocab());
      config.teach_prompt = false;  // a trace has no rows of prompts
      DRIFT_ASSIGN(memory.recal, recal::Recalibrator::create(config));
    }
    if (fresh && decode::remembers(variant.mode)) {
      DRIFT_ASSIGN(memory.suffix, propose::SuffixMemory::create(variant.settings.suffix_tokens));
    }
    return &memory;
  }

  decode::SequenceConfig config_of(const Variant& variant, const trace::Header& header, const trace::PromptRecord& record,
                                   const Memory& memory) {
    decode::SequenceConfig config;
    config.mode = variant.mode;
    config.rule = variant.mode == decode::Mode::kOff ? spec::JudgeRule::kMatch : variant.settings.judge;
    const trace::Sampling& s = header.sampling;
    config.sampler = {s.temperature, s.top_k, s.top_p, s.min_p};
    config.name = record.prompt.sequence;
    config.draft_tokens = variant.settings.draft_tokens;
    config.max_tokens = header.generate;
    config.recal = memory.recal.get();
    config.copy = variant.settings.copy;
    config.suffix = memory.suffix.get();
    config.choices = &choices_;
    // Which tokens end an answer is not recorded; which one ended this answer is.
    const Token end = record.ending == "end" ? record.emitted.back() : kNoToken;
    config.is_end = [end](Token token) { return token == end; };
    return config;
  }

  Status run_prompt(ModeFigures& out, const ReplayPlace& place, const Memory& memory) {
    Source& source = sources_[place.trace];
    DRIFT_ASSIGN(const trace::PromptRecord record, source.reader->prompt(place.prompt));
    DRIFT_TRY(source.target->select(place.prompt));
    if (source.draft) DRIFT_TRY(source.draft->select(place.prompt));
    decode::Stepper& stepper = *source.stepper;
    DRIFT_ASSIGN(const auto sequence,
                 stepper.open(record.prompt.tokens, config_of(*out.variant, source.reader->header(), record, memory)));
    PromptFigures figures{record.prompt.id, record.prompt.domain, place, {}};
    Status status = stepper.prefill(*sequence);
    decode::Sequence* const one[] = {sequence.get()};
    while (status.is_ok() && sequence->ending() == decode::Ending::kRunning) {
      status = interrupted() ? Status(Code::kCancelled, "interrupted") : stepper.step(one, events_);
      if (!status.is_ok()) break;
      figures.metrics.add(events_[0]);
      if (lines_ != nullptr) status = lines_->put(out, place, trace::recorded_part(events_[0]));
    }
    if (status.is_ok()) status = engine::check_replayed(record, sequence->emitted());
    stepper.close(*sequence);
    DRIFT_TRY(status);
    out.figures.total.merge(figures.metrics);
    out.figures.by_domain[figures.domain].merge(figures.metrics);
    out.prompts.push_back(std::move(figures));
    return Status::ok();
  }

  std::vector<Source>& sources_;
  ProposalLines* lines_;
  RngStream choices_;
  std::map<std::string, Memory> memories_;
  std::vector<trace::StepEvent> events_;
};

std::string replay_text(const std::vector<ModeFigures>& modes, bool several_orders) {
  std::string out = fmt::format("{:<14} {:>8} {:>8} {:>10} {:>11} {:>9} {:>9}\n", "mode", "tokens", "steps", "acceptance",
                                "conditional", "per block", "modelled");
  for (const ModeFigures& mode : modes) {
    const trace::Metrics& m = mode.figures.total;
    out += fmt::format("{:<14} {:>8} {:>8} {:>10.3f} {:>11.3f} {:>9.2f} {:>8.2f}x{}\n", mode.variant->label, m.tokens, m.steps,
                       m.acceptance(), m.acceptance_conditional(), m.mean_accepted_per_block(),
                       m.modelled_speedup(trace::kSeedDraftCost, trace::kSeedVerifyCost),
                       several_orders ? fmt::format("  order {}", mode.order) : "");
  }
  return out;
}

// Times would be those of reading the trace.
Json counts_json(const trace::Metrics& m) {
  Json out = figures_object(m);
  for (const char* time : {"time_ms", "tokens_per_s", "step_ms_p50", "step_ms_p99", "overhead_fraction"}) out.erase(time);
  return out;
}

Json mode_json(const ModeFigures& mode) {
  Json one;
  one["label"] = mode.variant->label;
  one["mode"] = decode::mode_name(mode.variant->mode);
  one["order"] = mode.order;
  one["settings"] = Json::object();
  for (const auto& [key, value] : effective_settings(mode.variant->settings, mode.variant->mode)) one["settings"][key] = value;
  one["bank_entries"] = mode.bank_entries;
  const trace::StepTimes& t = mode.figures.total.times;  // of DRIFT's own work, which is done here as in a live run
  one["own_ms"] = {{"lookup", 1e-6 * static_cast<double>(t.lookup_ns)},
                   {"bias", 1e-6 * static_cast<double>(t.bias_ns)},
                   {"residual", 1e-6 * static_cast<double>(t.residual_ns)},
                   {"commit", 1e-6 * static_cast<double>(t.commit_ns)}};
  one["total"] = counts_json(mode.figures.total);
  one["domains"] = Json::object();
  for (const auto& [domain, metrics] : mode.figures.by_domain) one["domains"][domain] = counts_json(metrics);
  one["prompts"] = Json::array();
  for (const PromptFigures& prompt : mode.prompts) {
    Json row{{"id", prompt.id}, {"domain", prompt.domain}, {"trace", prompt.place.trace}, {"prompt", prompt.place.prompt}};
    if (!prompt.place.memory.empty()) row["memory"] = prompt.place.memory;
    row.update(counts_json(prompt.metrics));
    one["prompts"].push_back(std::move(row));
  }
  return one;
}

std::string replay_json(const std::vector<Source>& sources, const std::vector<std::string>& files, bool partial,
                        const std::vector<ModeFigures>& modes) {
  Json out;
  out["schema"] = "drift.trace.replay/2";
  out["drift_version"] = program_version();
  out["files"] = files;
  out["partial"] = partial;
  out["traces"] = Json::array();
  for (const Source& source : sources) out["traces"].push_back(header_json(source.reader->header(), source.reader->partial()));
  out["modes"] = Json::array();
  for (const ModeFigures& mode : modes) out["modes"].push_back(mode_json(mode));
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// All prompts, file after file.
ReplayOrder whole_order(const std::vector<Source>& sources) {
  ReplayOrder order;
  for (std::size_t t = 0; t < sources.size(); ++t) {
    for (std::size_t p = 0; p < sources[t].reader->prompts(); ++p) order.push_back({t, p, {}});
  }
  return order;
}

Result<std::vector<ReplayOrder>> orders_of(const std::string& file, const std::vector<Source>& sources) {
  if (file.empty()) return std::vector<ReplayOrder>{whole_order(sources)};
  std::ifstream in(file, std::ios::binary);
  if (!in) return Status(Code::kNotFound, fmt::format("cannot read {}", text::printable(file)));
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::size_t> prompts;
  for (const Source& source : sources) prompts.push_back(source.reader->prompts());
  return parse_orders(content, file, prompts);
}

// A place as it is written: TRACE:PROMPT or TRACE:PROMPT@MEMORY.
bool read_place(std::string_view word, ReplayPlace& out) {
  const std::size_t at = word.find('@');
  if (at != std::string_view::npos) {
    out.memory = word.substr(at + 1);
    if (out.memory.empty()) return false;
  }
  const std::string_view numbers = word.substr(0, at);
  const std::size_t colon = numbers.find(':');
  if (colon == std::string_view::npos) return false;
  const auto number = [](std::string_view text, std::size_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  };
  return number(numbers.substr(0, colon), out.trace) && number(numbers.substr(colon + 1), out.prompt);
}

}  // namespace

Result<std::vector<ReplayOrder>> parse_orders(const std::string& content, const std::string& name,
                                              const std::vector<std::size_t>& prompts) {
  std::vector<ReplayOrder> orders;
  std::istringstream lines(content);
  std::string line;
  for (std::size_t n = 1; std::getline(lines, line); ++n) {
    if (line.starts_with('#')) continue;
    ReplayOrder order;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      ReplayPlace place;
      if (!read_place(word, place)) {
        return Status(Code::kInvalid, fmt::format("{}:{}: '{}' is no TRACE:PROMPT or TRACE:PROMPT@MEMORY", text::printable(name),
                                                  n, text::printable(word)));
      }
      if (place.trace >= prompts.size() || place.prompt >= prompts[place.trace]) {
        return Status(Code::kInvalid,
                      fmt::format("{}:{}: there is no {} (traces and prompts are counted from 0; there are {} traces)",
                                  text::printable(name), n, text::printable(word), prompts.size()));
      }
      order.push_back(std::move(place));
    }
    if (!order.empty()) orders.push_back(std::move(order));
  }
  if (orders.empty()) return Status(Code::kInvalid, fmt::format("{} holds no order", text::printable(name)));
  return orders;
}

Result<int> replay_trace(const ReplayOptions& options) {
  DRIFT_ASSIGN(const std::vector<Variant> variants, parse_modes(options.modes, options.settings));
  std::vector<Source> sources;
  for (const std::string& file : options.files) {
    DRIFT_ASSIGN(Source source, Source::open(file));
    sources.push_back(std::move(source));
    DRIFT_TRY(check_alike(sources.front().reader->header(), sources.back().reader->header(), file));
  }
  for (const Variant& variant : variants) DRIFT_TRY(check_mode(sources.front().reader->header(), variant));
  DRIFT_ASSIGN(const std::vector<ReplayOrder> orders, orders_of(options.orders, sources));
  std::vector<std::string> inputs = options.files;
  if (!options.orders.empty()) inputs.push_back(options.orders);
  if (!options.json.empty()) DRIFT_TRY(check_writable(options.json, inputs));
  std::optional<ProposalLines> lines;
  if (!options.proposals.empty()) {
    DRIFT_ASSIGN(OutputFile file, OutputFile::open(options.proposals, inputs, 0600));
    lines.emplace(std::move(file));
    DRIFT_TRY(lines->begin());
  }
  for (Source& source : sources) DRIFT_TRY(source.prepare());
  Replaying replaying(sources, lines ? &*lines : nullptr);
  std::size_t all = 0, done = 0;
  for (const ReplayOrder& order : orders) all += variants.size() * order.size();
  Progress progress(all, "runs");
  std::vector<ModeFigures> modes;
  bool partial = false;
  for (std::size_t r = 0; r < orders.size() * variants.size() && !partial; ++r) {
    ModeFigures& mode = modes.emplace_back();
    mode.variant = &variants[r % variants.size()];
    mode.order = r / variants.size();
    const Status status = replaying.run(orders[mode.order], mode, progress, done);
    done += orders[mode.order].size();
    partial = status.code() == Code::kCancelled;
    if (!status.is_ok() && !partial) {
      progress.finish();
      return Status(status.code(), fmt::format("mode '{}': {}", mode.variant->label, status.message()));
    }
  }
  progress.finish();
  if (lines) DRIFT_TRY(lines->finish());
  write_out(replay_text(modes, orders.size() > 1));
  if (!options.json.empty()) {
    DRIFT_TRY(write_file_atomically(options.json, replay_json(sources, options.files, partial, modes), inputs));
  }
  return partial ? kExitInterrupted : kExitOk;
}

}  // namespace drift::cli
