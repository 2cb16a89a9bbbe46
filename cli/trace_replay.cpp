// Replaying: modes on the text of a trace, without its models. Acceptance, not speed.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
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
  trace::Metrics metrics;
};

struct ModeFigures {
  Variant variant;
  TraceFigures figures;
  std::vector<PromptFigures> prompts;  // those done
  std::uint64_t bank_entries = 0;
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

class Replaying {
 public:
  explicit Replaying(const trace::Reader& reader) : reader_(reader), choices_(reader.header().sampling.seed) {}

  Status prepare() {
    DRIFT_ASSIGN(target_, engine::ReplayEngine::make(reader_, trace::Side::kTarget));
    if (reader_.header().has_draft()) {
      DRIFT_ASSIGN(draft_, engine::ReplayEngine::make(reader_, trace::Side::kDraft));
    }
    stepper_ = std::make_unique<decode::Stepper>(*target_, draft_.get());
    return Status::ok();
  }

  // All prompts in one mode, its memories empty at the start. Fails with kCancelled (interrupted).
  Status run(ModeFigures& out, Progress& progress, std::size_t done) {
    recal_.reset();
    suffix_.reset();
    const Variant& variant = out.variant;
    if (decode::recalibrates(variant.mode)) {
      recal::RecalConfig config = variant.settings.recal;
      config.bank.key_dim = reader_.header().hidden_width;
      config.bank.vocab = static_cast<std::uint32_t>(stepper_->vocab());
      DRIFT_ASSIGN(recal_, recal::Recalibrator::create(config));
    }
    if (decode::remembers(variant.mode)) {
      DRIFT_ASSIGN(suffix_, propose::SuffixMemory::create(variant.settings.suffix_tokens));
    }
    for (std::size_t p = 0; p < reader_.prompts(); ++p) {
      progress.show(done + p, fmt::format("({})", variant.label));
      DRIFT_TRY(run_prompt(out, p));
      if (recal_) out.bank_entries = recal_->bank().size();
    }
    return Status::ok();
  }

 private:
  decode::SequenceConfig config_of(const Variant& variant, const trace::PromptRecord& record) {
    const trace::Header& header = reader_.header();
    decode::SequenceConfig config;
    config.mode = variant.mode;
    config.rule = variant.mode == decode::Mode::kOff ? spec::JudgeRule::kMatch : variant.settings.judge;
    const trace::Sampling& s = header.sampling;
    config.sampler = {s.temperature, s.top_k, s.top_p, s.min_p};
    config.name = record.prompt.sequence;
    config.draft_tokens = variant.settings.draft_tokens;
    config.max_tokens = header.generate;
    config.recal = recal_.get();
    config.copy = variant.settings.copy;
    config.suffix = suffix_.get();
    config.choices = &choices_;
    // Which tokens end an answer is not recorded; which one ended this answer is.
    const Token end = record.ending == "end" ? record.emitted.back() : kNoToken;
    config.is_end = [end](Token token) { return token == end; };
    return config;
  }

  Status run_prompt(ModeFigures& out, std::size_t p) {
    DRIFT_ASSIGN(const trace::PromptRecord record, reader_.prompt(p));
    DRIFT_TRY(target_->select(p));
    if (draft_) DRIFT_TRY(draft_->select(p));
    DRIFT_ASSIGN(const auto sequence, stepper_->open(record.prompt.tokens, config_of(out.variant, record)));
    PromptFigures figures{record.prompt.id, record.prompt.domain, {}};
    Status status = stepper_->prefill(*sequence);
    decode::Sequence* const one[] = {sequence.get()};
    while (status.is_ok() && sequence->ending() == decode::Ending::kRunning) {
      status = interrupted() ? Status(Code::kCancelled, "interrupted") : stepper_->step(one, events_);
      if (status.is_ok()) figures.metrics.add(events_[0]);
    }
    if (status.is_ok()) status = engine::check_replayed(record, sequence->emitted());
    stepper_->close(*sequence);
    DRIFT_TRY(status);
    out.figures.total.merge(figures.metrics);
    out.figures.by_domain[figures.domain].merge(figures.metrics);
    out.prompts.push_back(std::move(figures));
    return Status::ok();
  }

  const trace::Reader& reader_;
  RngStream choices_;
  std::unique_ptr<engine::ReplayEngine> target_, draft_;
  std::unique_ptr<decode::Stepper> stepper_;
  std::unique_ptr<recal::Recalibrator> recal_;
  std::unique_ptr<propose::SuffixMemory> suffix_;
  std::vector<trace::StepEvent> events_;
};

std::string replay_text(const std::vector<ModeFigures>& modes) {
  std::string out = fmt::format("{:<14} {:>8} {:>8} {:>10} {:>11} {:>9} {:>9}\n", "mode", "tokens", "steps", "acceptance",
                                "conditional", "per block", "modelled");
  for (const ModeFigures& mode : modes) {
    const trace::Metrics& m = mode.figures.total;
    out += fmt::format("{:<14} {:>8} {:>8} {:>10.3f} {:>11.3f} {:>9.2f} {:>8.2f}x\n", mode.variant.label, m.tokens, m.steps,
                       m.acceptance(), m.acceptance_conditional(), m.mean_accepted_per_block(),
                       m.modelled_speedup(trace::kSeedDraftCost, trace::kSeedVerifyCost));
  }
  return out;
}

// Times would be those of reading the trace.
Json counts_json(const trace::Metrics& m) {
  Json out = figures_object(m);
  for (const char* time : {"time_ms", "tokens_per_s", "step_ms_p50", "step_ms_p99", "overhead_fraction"}) out.erase(time);
  return out;
}

std::string replay_json(const trace::Reader& reader, const std::string& file, bool partial,
                        const std::vector<ModeFigures>& modes) {
  Json out;
  out["schema"] = "drift.trace.replay/1";
  out["drift_version"] = program_version();
  out["file"] = file;
  out["partial"] = partial;
  out["trace"] = header_json(reader.header(), reader.partial());
  out["modes"] = Json::array();
  for (const ModeFigures& mode : modes) {
    Json one;
    one["label"] = mode.variant.label;
    one["mode"] = decode::mode_name(mode.variant.mode);
    one["settings"] = Json::object();
    for (const auto& [key, value] : effective_settings(mode.variant.settings, mode.variant.mode)) one["settings"][key] = value;
    one["bank_entries"] = mode.bank_entries;
    one["total"] = counts_json(mode.figures.total);
    one["domains"] = Json::object();
    for (const auto& [domain, metrics] : mode.figures.by_domain) one["domains"][domain] = counts_json(metrics);
    one["prompts"] = Json::array();
    for (const PromptFigures& prompt : mode.prompts) {
      Json row{{"id", prompt.id}, {"domain", prompt.domain}};
      row.update(counts_json(prompt.metrics));
      one["prompts"].push_back(std::move(row));
    }
    out["modes"].push_back(std::move(one));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<int> replay_trace(const ReplayOptions& options) {
  DRIFT_ASSIGN(std::vector<Variant> variants, parse_modes(options.modes, options.settings));
  DRIFT_ASSIGN(const auto reader, trace::Reader::open(options.file));
  for (const Variant& variant : variants) DRIFT_TRY(check_mode(reader->header(), variant));
  if (reader->prompts() == 0) return Status(Code::kInvalid, fmt::format("trace {} holds no prompt", options.file));
  if (!options.json.empty()) DRIFT_TRY(check_writable(options.json, {options.file}));
  Replaying replaying(*reader);
  DRIFT_TRY(replaying.prepare());
  Progress progress(variants.size() * reader->prompts(), "runs");
  std::vector<ModeFigures> modes;
  bool partial = false;
  for (std::size_t v = 0; v < variants.size() && !partial; ++v) {
    ModeFigures& mode = modes.emplace_back();
    mode.variant = std::move(variants[v]);
    const Status status = replaying.run(mode, progress, v * reader->prompts());
    partial = status.code() == Code::kCancelled;
    if (!status.is_ok() && !partial) {
      progress.finish();
      return Status(status.code(), fmt::format("mode '{}': {}", mode.variant.label, status.message()));
    }
  }
  progress.finish();
  write_out(replay_text(modes));
  if (!options.json.empty()) {
    DRIFT_TRY(write_file_atomically(options.json, replay_json(*reader, options.file, partial, modes), {options.file}));
  }
  return partial ? kExitInterrupted : kExitOk;
}

}  // namespace drift::cli
