// stepper.hpp - the one decoding loop: a set of sequences goes one step forward.
//
// Stages of a step (docs/architecture.md): draft forward, lookup, bias, propose - repeated along the block - then target
// forward, judge, keep, residual, commit, emit. The stepper owns every branch; helpers are pure.
// In modes that copy, a position where an earlier occurrence of the text's end is found takes what followed there, and the
// draft does not run for it; it catches up when it is next asked (grow.cpp).
// The draft's KV of accepted tokens is kept: a token passes through the draft at most once and through the target once.
// A draft that learns (Mode::kOnlineKd) changes its weights between steps only.
// Threads: one. Requires: both engines, recalibrators, learners, suffix memories and choices outlive the sequences.
// Cost per step: at most `draft_tokens` draft forwards and one target forward for all given sequences together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/rng.hpp"
#include "drift/base/status.hpp"
#include "drift/engine/engine.hpp"
#include "drift/engine/learner.hpp"
#include "drift/propose/continuation.hpp"
#include "drift/propose/suffix_memory.hpp"
#include "drift/recal/recalibrator.hpp"
#include "drift/spec/distribution.hpp"
#include "drift/spec/draft_tree.hpp"
#include "drift/spec/judge.hpp"
#include "drift/spec/logit_edit.hpp"
#include "drift/trace/event.hpp"

namespace drift::decode {

enum class Mode {
  kOff,          // plain target
  kStatic,       // the draft as it is
  kDrift,        // the draft, recalibrated
  kOnlineKd,     // the draft, its weights distilled from the target between steps
  kLookup,       // prompt lookup: what followed in the text itself; no draft runs
  kSuffix,       // that, and the answers given before; no draft runs
  kDraftSuffix,  // as kSuffix where something matches, the draft as it is elsewhere
  kDriftSuffix,  // as kSuffix where something matches, the draft recalibrated elsewhere
};
constexpr bool drafts(Mode m) {
  return m == Mode::kStatic || m == Mode::kDrift || m == Mode::kOnlineKd || m == Mode::kDraftSuffix || m == Mode::kDriftSuffix;
}
constexpr bool recalibrates(Mode m) { return m == Mode::kDrift || m == Mode::kDriftSuffix; }
constexpr bool copies(Mode m) {
  return m == Mode::kLookup || m == Mode::kSuffix || m == Mode::kDraftSuffix || m == Mode::kDriftSuffix;
}
constexpr bool remembers(Mode m) { return copies(m) && m != Mode::kLookup; }
constexpr bool learns(Mode m) { return m == Mode::kOnlineKd; }

enum class Ending {
  kRunning,
  kEnd,      // an end token was emitted (it is the last of tokens())
  kLength,   // max_tokens were emitted
  kContext,  // the context is full
};

struct SequenceConfig {
  Mode mode = Mode::kStatic;
  spec::JudgeRule rule = spec::JudgeRule::kMatch;
  spec::SamplerConfig sampler;
  std::uint64_t name = 0;                   // stable name for random keys and events
  int draft_tokens = 3;                     // k per block, 0 .. kMaxDraftTokens (kernels like 3 or 7: 4 or 8 rows to verify)
  std::int64_t max_tokens = -1;             // to emit; -1: until an end token or the context's end
  recal::Recalibrator* recal = nullptr;     // modes that recalibrate; may be shared by sequences of one stepper
  engine::Learner* learner = nullptr;       // modes that learn: it trains this stepper's draft; may be shared likewise
  propose::CopyConfig copy;                 // modes that copy
  propose::SuffixMemory* suffix = nullptr;  // modes that remember; may be shared by sequences of one stepper
  Choices* choices = nullptr;               // required
  std::function<bool(Token)> is_end;        // may be empty
  bool record_margins = false;
  spec::LogitEdit* edit = nullptr;  // what the request changes about the logits of both models; none of it is learned
  int logprobs = -1;                // record the target's log-probabilities: of each emitted token and of so many best; -1: none
};

inline constexpr int kMaxDraftTokens = 32;
// Of a prompt at most so many tokens, its last, teach a bank that learns from prompts (RecalConfig::teach_prompt), so many a pass:
// each of a pass's rows is as wide as the vocabulary.
inline constexpr std::size_t kPromptLesson = 512;
inline constexpr std::size_t kLessonChunk = 64;
inline constexpr int kMaxLogprobs = 128;

class Sequence;

class Stepper {
 public:
  // `draft` may be null: then only modes without a draft. Fails with kInvalid if the engines' vocabularies leave nothing in common or the
  // draft has no hidden states where drift mode would need them (checked per sequence in open()).
  Stepper(engine::Engine& target, engine::Engine* draft);
  ~Stepper();

  // Makes a sequence over a prompt; no model runs yet. Fails with kInvalid (empty prompt, token out of range, bad config),
  // kLimit (prompt does not fit the context; no free sequence), kUnsupported (no draft, no hidden states).
  Result<std::unique_ptr<Sequence>> open(std::span<const Token> prompt, const SequenceConfig& config);
  // Feeds up to `max_tokens` of the prompt to the engines (they get all but its last token); sets done when nothing is left.
  // What is fed teaches the bank where it learns from prompts and both engines give rows there. Fails as the engines; nothing of the
  // pass that failed is learned then.
  Status prefill(Sequence& sequence, std::size_t max_tokens, bool& done);
  Status prefill(Sequence& sequence);  // all of it
  // Begins another text in the same sequence. What it has in common with the text before, from the start on, stays in both
  // engines' KV memory: only the rest must be prefilled (the next turn of a chat). Fails as open() does, nothing is changed then.
  Status restart(Sequence& sequence, std::span<const Token> prompt, const SequenceConfig& config);
  // The same prompt again with another config: compare runs every mode on one prefill. Of a prompt that teaches, that part must be
  // prefilled again.
  Status rewind(Sequence& sequence, const SequenceConfig& config);
  // One step for all sequences, which must be distinct, prefilled and running. events[i] belongs to sequences[i].
  // On failure no token is emitted and nothing is learned; the sequences concerned end up unusable and must be closed.
  Status step(std::span<Sequence* const> sequences, std::vector<trace::StepEvent>& events);
  // Frees the engines' memory. Where the mode remembers, the answer so far enters the suffix memory, as in restart() and rewind().
  void close(Sequence& sequence);

  std::size_t vocab() const;  // tokens both models know

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Sequence {
 public:
  std::span<const Token> tokens() const { return tokens_; }  // prompt and emitted
  std::span<const Token> emitted() const { return std::span<const Token>(tokens_).subspan(prompt_); }
  Ending ending() const { return ending_; }
  std::size_t prompt_size() const { return prompt_; }
  const SequenceConfig& config() const { return config_; }
  void stop() { ending_ = Ending::kLength; }  // the caller has seen enough (a stop string)

 private:
  friend class Stepper;
  SequenceConfig config_;
  std::vector<Token> tokens_;
  std::size_t prompt_ = 0;
  Ending ending_ = Ending::kRunning;
  std::uint64_t steps_ = 0;
  SeqId target_ = -1, draft_ = -1;

  // Scratch of the running step.
  spec::DraftTree tree_;
  std::vector<recal::Lookup> lookups_;          // [k]
  std::vector<recal::Bias> biases_;             // [k]
  std::vector<std::vector<float>> draft_rows_;  // [k][vocab], raw logits each proposal was made from
  std::vector<char> by_draft_;                  // [proposals] whether the draft made it, so that the three above belong to it
  std::vector<Token> text_;                     // decided tokens and proposals; modes that copy, levels keyed by contexts
  spec::Outcome outcome_;
  int block_ = 0;              // proposals wanted in this step; after growing, proposals made
  bool can_draft_ = false;     // every token the draft has not seen is in its vocabulary
  NodeIndex draft_fed_ = 0;    // nodes the draft was fed in this step
  std::size_t first_row_ = 0;  // row of this sequence's first node in the target pass
};

}  // namespace drift::decode
