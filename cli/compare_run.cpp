// Decoding of a comparison: one prefill per prompt, every mode rewound onto it, in an order that rotates with the prompt.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/compare.hpp"
#include "cli/console.hpp"
#include "cli/draft_set.hpp"
#include "cli/interruptible.hpp"
#include "cli/noise.hpp"
#include "cli/progress.hpp"
#include "cli/prompt_tokens.hpp"
#include "drift/decode/stepper.hpp"

namespace drift::cli {
namespace {

using Clock = std::chrono::steady_clock;
using decode::Mode;

constexpr std::size_t kNoisePositions = 1'000;  // wanted for a p99.9
constexpr std::size_t kCurveDepth = 128;        // tokens in the context while the cost curve is measured
constexpr int kCurveRepeats = 5;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

const char* ending_name(decode::Ending ending) {
  switch (ending) {
    case decode::Ending::kRunning: return "running";
    case decode::Ending::kEnd: return "end";
    case decode::Ending::kLength: return "length";
    case decode::Ending::kContext: return "context";
  }
  return "?";
}

std::map<std::string, std::uint64_t> level_entries(const recal::Recalibrator& r) {
  std::map<std::string, std::uint64_t> out;
  for (std::size_t i = 0; r.chain() != nullptr && i < recal::kLevels; ++i) {
    if (const bank::Bank* level = r.chain()->bank(static_cast<recal::Level>(i))) out[recal::kLevelNames[i]] = level->size();
  }
  return out;
}

class Comparison {
 public:
  Comparison(const CompareOptions& options, Pair& pair, CompareResult& result)
      : options_(options),
        pair_(pair),
        result_(result),
        drafts_(pair.draft ? std::optional<DraftSet>(frozen(pair)) : std::nullopt),
        stepper_(*pair.target, drafts_ ? &*drafts_ : nullptr),
        choices_(options.seed) {}

  Status run() {
    DRIFT_TRY(tokenize());
    if (!options_.bank.empty()) DRIFT_TRY(load_bank());
    result_.noise_missing = result_.reference.has_value() && !options_.one_by_one;
    result_.all_runs = result_.prompts.size() * result_.variants.size() * static_cast<std::size_t>(options_.repeats);
    Progress progress(result_.all_runs, "runs");
    margins_.resize(result_.prompts.size());
    for (int repeat = 0; repeat < options_.repeats && !result_.partial; ++repeat) {
      DRIFT_TRY(fresh_memories());
      DRIFT_TRY(fresh_drafts());
      for (std::size_t p = 0; p < result_.prompts.size() && !result_.partial; ++p) {
        DRIFT_TRY(run_prompt(p, repeat, progress));
      }
      note_learners();
    }
    progress.finish();
    for (std::size_t v = 0; v < banks_.size(); ++v) {
      if (!banks_[v]) continue;
      result_.variants[v].bank_entries = banks_[v]->bank().size();
      result_.variants[v].bank_bytes = banks_[v]->bytes();
      result_.variants[v].level_entries = level_entries(*banks_[v]);
    }
    for (std::size_t v = 0; v < suffixes_.size(); ++v) {
      if (!suffixes_[v]) continue;
      result_.variants[v].suffix_tokens = suffixes_[v]->tokens();
      result_.variants[v].suffix_bytes = suffixes_[v]->bytes();
    }
    find_differences();
    if (!result_.partial && result_.noise_missing) DRIFT_TRY(unless_interrupted(find_noise()));
    if (!result_.partial) DRIFT_TRY(unless_interrupted(find_curves()));
    return Status::ok();
  }

 private:
  static std::vector<engine::Engine*> frozen(const Pair& pair) {
    std::vector<engine::Engine*> all{pair.draft.get()};
    for (const Draft& draft : pair.more_drafts) all.push_back(draft.engine.get());
    return all;
  }

  Status tokenize() {
    for (const Prompt& prompt : result_.prompts) {
      DRIFT_ASSIGN(std::vector<Token> tokens, prompt_tokens(prompt, pair_, options_.generate));
      result_.infos.push_back({tokens.size(), {}});
      prompts_.push_back(std::move(tokens));
    }
    return Status::ok();
  }

  Status load_bank() {
    DRIFT_ASSIGN(auto file, bank::BankFile::open(options_.bank, bank::Access::kReadOnly));
    DRIFT_ASSIGN(stored_, file->load(pair_.fingerprint()));
    return Status::ok();
  }

  // Every mode that recalibrates owns a bank, every one that remembers a suffix memory. A repeat begins with them as they were at
  // the start: repeated prompts would flatter.
  Status fresh_memories() {
    banks_.clear();
    moving_.assign(result_.variants.size(), {});
    suffixes_.clear();
    for (const VariantResult& v : result_.variants) {
      suffixes_.emplace_back();
      if (!decode::remembers(v.variant.mode)) continue;
      DRIFT_ASSIGN(suffixes_.back(), propose::SuffixMemory::create(v.variant.settings.suffix_tokens));
    }
    for (const VariantResult& v : result_.variants) {
      banks_.emplace_back();
      if (!decode::recalibrates(v.variant.mode)) continue;
      DRIFT_ASSIGN(const recal::RecalConfig config, complete(v.variant.settings.recal, pair_));
      DRIFT_ASSIGN(banks_.back(), recal::Recalibrator::create(config));
      if (stored_) {
        const Status status = banks_.back()->restore(*stored_);
        if (!status.is_ok())
          return {status.code(), fmt::format("--bank {} in mode '{}': {}", options_.bank, v.variant.label, status.message())};
      }
    }
    return Status::ok();
  }

  // Every mode that trains its draft has weights of its own, as read from the file at the start of each repeat.
  Status fresh_drafts() {
    std::size_t place = 1 + pair_.more_drafts.size();
    learning_.resize(result_.variants.size());
    for (std::size_t v = 0; v < result_.variants.size(); ++v) {
      const Variant& variant = result_.variants[v].variant;
      if (!decode::learns(variant.mode)) continue;
      learning_[v].draft.learner.reset();  // the old ones go before the new ones come: memory for one is enough
      learning_[v].draft.engine.reset();
      const std::size_t other = result_.variants[v].draft;  // 0: none
      const std::string& file = other > 0 ? result_.more_drafts[other - 1].path : options_.pair.draft;
      const TorchDraftOptions from{file, static_cast<int>(pair_.context), options_.pair.torch_threads};
      auto loaded = load_learning_draft(from, pair_.vocab, variant.settings.kd);
      if (!loaded.is_ok())
        return {loaded.status().code(), fmt::format("mode '{}': {}", variant.label, loaded.status().message())};
      learning_[v].draft = std::move(loaded).value();
      learning_[v].place = place;
      drafts_->set(place++, *learning_[v].draft.engine);
    }
    return Status::ok();
  }

  void select_draft(std::size_t v) {
    if (drafts_) drafts_->select(learning_[v].draft.engine ? learning_[v].place : result_.variants[v].draft);
  }

  void note_learners() {
    for (std::size_t v = 0; v < learning_.size(); ++v) {
      if (!learning_[v].draft.learner) continue;
      engine::LearnerStats now = learning_[v].draft.learner->stats();
      if (const auto& before = result_.variants[v].learner) {
        now.positions += before->positions;
        now.updates += before->updates;
        now.skipped_updates += before->skipped_updates;
        now.update_ns += before->update_ns;
        now.update_ns_max = std::max(now.update_ns_max, before->update_ns_max);
        now.recomputed_tokens += before->recomputed_tokens;
      }
      result_.variants[v].learner = now;
    }
  }

  decode::SequenceConfig config_of(std::size_t v, std::size_t p, bool margins) {
    const Variant& variant = result_.variants[v].variant;
    decode::SequenceConfig config;
    config.mode = variant.mode;
    config.rule = variant.mode == Mode::kOff ? spec::JudgeRule::kMatch : variant.settings.judge;
    config.sampler = options_.sampler;
    config.name = fixed_hash(result_.prompts[p].id);  // the same draws in every mode
    config.draft_tokens = variant.settings.draft_tokens;
    config.max_tokens = options_.generate;
    config.recal = banks_[v].get();
    config.copy = variant.settings.copy;
    config.suffix = suffixes_[v].get();
    config.learner = learning_[v].draft.learner.get();
    config.choices = &choices_;
    config.is_end = [this](Token token) { return pair_.text->is_end(token); };
    config.record_margins = margins;
    return config;
  }

  Status run_prompt(std::size_t p, int repeat, Progress& progress) {
    // Opened with a mode that drafts, if there is one: its prefill fills both models.
    const std::size_t count = result_.variants.size();
    std::size_t opener = 0;
    while (opener + 1 < count && !decode::drafts(result_.variants[opener].variant.mode)) ++opener;
    select_draft(opener);
    DRIFT_ASSIGN(auto sequence, stepper_.open(prompts_[p], config_of(opener, p, false)));
    const Status status = run_variants(*sequence, p, repeat, progress);
    stepper_.close(*sequence);
    return status;
  }

  Status run_variants(decode::Sequence& sequence, std::size_t p, int repeat, Progress& progress) {
    result_.infos[p].prefill_ms.push_back(0);
    DRIFT_TRY(prefill(sequence, p));
    if (result_.partial) {
      result_.infos[p].prefill_ms.pop_back();
      return Status::ok();
    }
    const std::size_t count = result_.variants.size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t v = (i + p + static_cast<std::size_t>(repeat)) % count;
      progress.show(result_.done_runs, doing(p, v));
      DRIFT_TRY(run_variant(sequence, v, p, repeat));
      if (result_.partial) return Status::ok();
      ++result_.done_runs;
    }
    return Status::ok();
  }

  // Interrupted: ok, with result_.partial set.
  Status prefill(decode::Sequence& sequence, std::size_t p) {
    const auto start = Clock::now();
    for (bool done = false; !done;) {
      if (interrupted()) {
        result_.partial = true;
        return Status::ok();
      }
      DRIFT_TRY(stepper_.prefill(sequence, kPrefillChunk, done));
    }
    result_.infos[p].prefill_ms.back() += seconds_since(start) * 1e3;
    return Status::ok();
  }

  // For the line of progress. A stream tells how acceptance moves; another comparison which run is next.
  std::string doing(std::size_t p, std::size_t v) const {
    if (result_.segments.empty()) return fmt::format("({}, {})", result_.prompts[p].id, result_.variants[v].variant.label);
    const auto segment =
        std::find_if(result_.segments.rbegin(), result_.segments.rend(), [p](const Segment& s) { return s.first <= p; });
    std::string text = fmt::format("({} {}/{})", segment->domain, p - segment->first + 1, segment->count);
    for (std::size_t i = 0; i < moving_.size(); ++i) {
      if (const auto value = moving_[i].value()) text += fmt::format("  {} {:.3f}", result_.variants[i].variant.label, *value);
    }
    return text;
  }

  Status run_variant(decode::Sequence& sequence, std::size_t v, std::size_t p, int repeat) {
    const bool reference = result_.reference == v && repeat == 0;
    select_draft(v);
    DRIFT_TRY(stepper_.rewind(sequence, config_of(v, p, reference)));
    DRIFT_TRY(prefill(sequence, p));  // a draft that has not been selected on this prompt has not read it
    if (result_.partial) return Status::ok();
    PromptRun run;
    run.prompt = p;
    run.repeat = repeat;
    std::vector<trace::Margin> margins;
    decode::Sequence* const one[] = {&sequence};
    while (sequence.ending() == decode::Ending::kRunning) {
      if (interrupted()) {
        result_.partial = true;
        return Status::ok();  // a run cut off is not counted
      }
      DRIFT_TRY(stepper_.step(one, events_));
      run.metrics.add(events_[0]);
      if (reference) std::move(events_[0].margins.begin(), events_[0].margins.end(), std::back_inserter(margins));
    }
    run.tokens.assign(sequence.emitted().begin(), sequence.emitted().end());
    run.ending = ending_name(sequence.ending());
    if (reference) margins_[p] = std::move(margins);
    moving_[v].add(run.metrics);
    result_.variants[v].runs.push_back(std::move(run));
    return Status::ok();
  }

  void find_differences() {
    if (!result_.reference) return;
    const std::vector<PromptRun>& plain = result_.variants[*result_.reference].runs;
    for (VariantResult& v : result_.variants) {
      v.compared =
          v.variant.mode == Mode::kOff || v.variant.settings.judge == spec::JudgeRule::kMatch || options_.sampler.greedy();
      if (!v.compared) continue;
      for (PromptRun& run : v.runs) {
        const auto same =
            std::find_if(plain.begin(), plain.end(), [&](const PromptRun& r) { return r.prompt == run.prompt && r.repeat == 0; });
        if (same == plain.end()) continue;
        run.difference = first_difference(same->tokens, run.tokens, margins_[run.prompt], options_.sampler.greedy());
      }
    }
  }

  // Ctrl-C after the last run leaves the runs standing.
  Status unless_interrupted(const Status& status) {
    if (status.code() != Code::kCancelled) return status;
    if (stderr_is_terminal()) write_err("\r\033[K");
    result_.partial = true;
    return Status::ok();
  }

  // Fails with kCancelled (interrupted); what was measured until then is no yardstick and is dropped.
  Status find_noise() {
    std::map<std::size_t, Noise> found;
    for (const VariantResult& v : result_.variants) {
      if (v.variant.mode != Mode::kOff) found[static_cast<std::size_t>(v.variant.settings.draft_tokens) + 1];
    }
    if (!stderr_is_terminal()) note("measuring the float noise");
    Interruptible target(*pair_.target);
    for (auto& [rows, noise] : found) {
      std::vector<double> changes;
      for (const PromptRun& run : result_.variants[*result_.reference].runs) {
        if (changes.size() >= kNoisePositions || run.repeat != 0) break;
        if (stderr_is_terminal())
          write_err(
              fmt::format("\r\033[Kdrift: float noise of {} rows: {} of {} positions", rows, changes.size(), kNoisePositions));
        DRIFT_TRY(measure_noise(target, prompts_[run.prompt], run.tokens, margins_[run.prompt], options_.sampler, result_.vocab,
                                rows, changes));
      }
      noise.positions = changes.size();
      noise.p999 = changes.empty() ? 0 : quantile(std::move(changes), 0.999);
    }
    if (stderr_is_terminal()) write_err("\r\033[K");
    result_.noise = std::move(found);
    result_.noise_missing = false;
    return Status::ok();
  }

  // Fails with kCancelled (interrupted).
  Status find_curves() {
    if (pair_.context < control::kCurveRows) return Status::ok();  // the report says so
    const std::size_t depth = std::min(kCurveDepth, pair_.context - control::kCurveRows);
    note(fmt::format("measuring what 1 to {} tokens cost", control::kCurveRows));
    const bool slow = pair_.target->one_row_at_a_time();
    pair_.target->set_one_row_at_a_time(false);  // the curve is about real passes
    Interruptible target(*pair_.target);
    auto curve = control::measure_cost(target, prompts_[0], depth, kCurveRepeats);
    pair_.target->set_one_row_at_a_time(slow);
    if (!curve.is_ok()) return curve.status();
    result_.target_curve = *curve;
    if (pair_.draft) {
      Interruptible draft(*pair_.draft);
      DRIFT_ASSIGN(result_.draft_curve, control::measure_cost(draft, prompts_[0], depth, kCurveRepeats));
    }
    return Status::ok();
  }

  const CompareOptions& options_;
  Pair& pair_;
  CompareResult& result_;
  std::optional<DraftSet> drafts_;
  decode::Stepper stepper_;
  RngStream choices_;
  std::vector<std::vector<Token>> prompts_;
  std::vector<std::unique_ptr<recal::Recalibrator>> banks_;       // [variants], null unless the mode recalibrates
  std::vector<std::unique_ptr<propose::SuffixMemory>> suffixes_;  // [variants], null unless the mode remembers
  std::vector<MovingAcceptance> moving_;                          // [variants]
  std::optional<bank::StoredBank> stored_;
  struct Learning {
    LearningDraft draft;
    std::size_t place = 0;  // in drafts_
  };
  std::vector<Learning> learning_;                   // [variants], empty unless the mode trains its draft
  std::vector<std::vector<trace::Margin>> margins_;  // [prompts], of the reference's first repeat
  std::vector<trace::StepEvent> events_;
};

}  // namespace

Status run_modes(const CompareOptions& options, Pair& pair, CompareResult& result) {
  const auto start = Clock::now();
  result.load_before = load_average();
  Comparison comparison(options, pair, result);
  const Status status = comparison.run();
  result.load_after = load_average();
  result.wall_s = seconds_since(start);
  return status;
}

}  // namespace drift::cli
