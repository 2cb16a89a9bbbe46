// Recording: the prompts of a file through the stepper, everything it decides into one trace.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/machine.hpp"
#include "cli/modes.hpp"
#include "cli/output_file.hpp"
#include "cli/progress.hpp"
#include "cli/prompt_tokens.hpp"
#include "cli/trace_command.hpp"
#include "drift/decode/recorder.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

constexpr std::size_t kNameMax = 200;  // characters: at most 803 bytes

std::vector<std::string> inputs_of(const RecordOptions& options) {
  std::vector<std::string> files = options.prompts.files;
  files.insert(files.end(), {options.pair.target, options.pair.draft});
  for (const auto* adapters : {&options.pair.loras, &options.pair.loras_draft}) {
    for (const engine::LoraAdapter& adapter : *adapters) files.push_back(adapter.path);
  }
  return files;
}

Result<Variant> one_mode(const RecordOptions& options) {
  DRIFT_ASSIGN(std::vector<Variant> variants, parse_modes(options.mode, options.settings));
  if (variants.size() != 1) {
    return Status(Code::kInvalid, fmt::format("--mode '{}' names {} modes; a trace is of one", options.mode, variants.size()));
  }
  Variant& variant = variants.front();
  if (decode::learns(variant.mode))
    return Status(Code::kUnsupported,
                  "online-kd changes its draft while it runs: its rows are no function of the text, so it is not "
                  "recorded; record static");
  if (!variant.settings.model_draft.empty())
    return Status(Code::kInvalid, "a trace has one draft: give it with -md, not with model-draft");
  if (decode::drafts(variant.mode) && options.pair.draft.empty())
    return Status(Code::kInvalid, fmt::format("mode '{}' needs a draft: give one with -md, or record --mode off", variant.label));
  return std::move(variant);
}

trace::Model model_of(const engine::ModelInfo& info) { return {text::printable(info.name, kNameMax), info.content_hash, 0}; }

trace::Header header_of(const RecordOptions& options, const Variant& variant, const Pair& pair) {
  trace::Header header;
  header.program = program_version();
  header.target = model_of(pair.target->info());
  if (pair.draft) header.draft = model_of(pair.draft->info());
  header.mode = decode::mode_name(variant.mode);
  const spec::SamplerConfig& s = options.sampler;
  const bool rejection = variant.mode != decode::Mode::kOff && variant.settings.judge == spec::JudgeRule::kRejection;
  header.sampling = {s.temperature, s.top_k, s.top_p, s.min_p, options.seed, rejection};
  header.generate = options.generate;
  for (const auto& [key, value] : effective_settings(variant.settings, variant.mode)) header.settings[key] = value;
  return header;
}

// A trace has no rows of prompts, so nothing that is recorded may have learned from them.
Variant without_prompt_lessons(Variant variant) {
  variant.settings.recal.teach_prompt = false;
  return variant;
}

class Recording {
 public:
  Recording(const RecordOptions& options, Variant variant, Pair& pair)
      : options_(options),
        variant_(without_prompt_lessons(std::move(variant))),
        pair_(pair),
        recorder_(*pair.target, pair.draft.get(), header_of(options, variant_, pair)),
        choices_(options.seed) {}

  // Before the output is made: what can be refused is.
  Status prepare(const std::vector<Prompt>& prompts) {
    if (decode::recalibrates(variant_.mode)) {
      DRIFT_ASSIGN(const recal::RecalConfig config, complete(variant_.settings.recal, pair_));
      DRIFT_ASSIGN(recal_, recal::Recalibrator::create(config));
    }
    if (decode::remembers(variant_.mode)) {
      DRIFT_ASSIGN(suffix_, propose::SuffixMemory::create(variant_.settings.suffix_tokens));
    }
    config_ = config();
    DRIFT_TRY(recorder_.check(config_));
    for (const Prompt& prompt : prompts) {
      DRIFT_ASSIGN(std::vector<Token> tokens, prompt_tokens(prompt, pair_, options_.generate));
      prompts_.push_back(
          {prompt.id, prompt.domain, kind_name(prompt.kind), prompt.split, fixed_hash(prompt.id), std::move(tokens)});
    }
    return Status::ok();
  }

  // Interrupted: ok; what was done until then stands in the trace. So it does after a failure, which is told.
  Status run(trace::Writer& writer) {
    Progress progress(prompts_.size(), "prompts");
    Status status;
    for (const trace::Prompt& prompt : prompts_) {
      progress.show(writer.prompts(), fmt::format("({})", prompt.id));
      TraceFigures of_prompt;
      status = recorder_.record(prompt, config_, writer, interrupted,
                                [&](const trace::StepEvent& event) { of_prompt.total.add(event); });
      if (!status.is_ok()) break;
      figures_.total.merge(of_prompt.total);
      figures_.by_domain[prompt.domain].merge(of_prompt.total);
    }
    progress.finish();
    return status.code() == Code::kCancelled ? Status::ok() : status;
  }

  const trace::Header& header() const { return recorder_.header(); }
  const TraceFigures& figures() const { return figures_; }
  std::size_t prompts() const { return prompts_.size(); }

 private:
  decode::SequenceConfig config() {
    decode::SequenceConfig config;
    config.mode = variant_.mode;
    config.rule = header().sampling.rejection ? spec::JudgeRule::kRejection : spec::JudgeRule::kMatch;
    config.sampler = options_.sampler;
    config.draft_tokens = variant_.settings.draft_tokens;
    config.max_tokens = options_.generate;
    config.recal = recal_.get();
    config.copy = variant_.settings.copy;
    config.suffix = suffix_.get();
    config.choices = &choices_;
    config.is_end = [this](Token token) { return pair_.text->is_end(token); };
    return config;
  }

  const RecordOptions& options_;
  Variant variant_;
  Pair& pair_;
  decode::Recorder recorder_;
  RngStream choices_;
  std::unique_ptr<recal::Recalibrator> recal_;
  std::unique_ptr<propose::SuffixMemory> suffix_;
  decode::SequenceConfig config_;
  std::vector<trace::Prompt> prompts_;
  TraceFigures figures_;
};

}  // namespace

Result<int> record_trace(const RecordOptions& options) {
  DRIFT_TRY(options.sampler.validate());
  DRIFT_ASSIGN(Variant variant, one_mode(options));
  DRIFT_ASSIGN(const std::vector<Prompt> prompts, chosen_prompts(options.prompts));
  DRIFT_TRY(check_writable(options.out, inputs_of(options)));
  DRIFT_ASSIGN(Pair pair, load_pair(options.pair));
  pair.target->set_one_row_at_a_time(options.one_by_one);
  const std::string mode = variant.label;
  Recording recording(options, std::move(variant), pair);
  DRIFT_TRY(recording.prepare(prompts));
  // As private as the texts it tells of.
  DRIFT_ASSIGN(OutputFile file, OutputFile::open(options.out, inputs_of(options), 0600));
  if (file.temporary().empty())
    return Status(Code::kInvalid, fmt::format("{} is a device or a pipe; a trace needs a file", options.out));
  DRIFT_ASSIGN(auto writer, trace::Writer::create(file.temporary(), recording.header()));
  const Status status = recording.run(*writer);
  const std::size_t done = writer->prompts();
  if (done == 0) {
    if (!status.is_ok()) return status;
    note(fmt::format("no prompt was done; {} was not written", options.out));
    return kExitInterrupted;
  }
  const bool partial = done < recording.prompts();
  DRIFT_TRY(writer->finish(partial));
  DRIFT_TRY(file.finish());
  note(fmt::format("{} of {} prompts written to {}", done, recording.prompts(), options.out));
  write_out(figures_text(mode, recording.figures()));
  if (!status.is_ok()) return status;
  return partial ? kExitInterrupted : kExitOk;
}

}  // namespace drift::cli
