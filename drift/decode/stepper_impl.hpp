// stepper_impl.hpp - what stands behind Stepper. Internal to drift/decode.
//
// stepper.cpp opens sequences and runs the stages of a step; grow.cpp makes the proposals (stages 1 to 4); prompt_lesson.cpp learns
// from prompts.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "drift/decode/stepper.hpp"

namespace drift::decode {

// Adds the time between construction and destruction to a counter.
class Timer {
 public:
  explicit Timer(std::int64_t& to) : to_(to), from_(Clock::now()) {}
  ~Timer() { to_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - from_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t& to_;
  Clock::time_point from_;
};

// What a sequence is called in random keys.
std::uint64_t key_name(const SequenceConfig& config);

// A NaN in a row would make every later comparison false and choose some token silently: refused with kInternal.
Status check_row(std::span<const float> logits, const char* role, const engine::ModelInfo& info);

// Feeds tokens [engine.length(seq), end) of a sequence without asking for rows, at most `most` of them.
Status feed(engine::Engine& engine, SeqId seq, std::span<const Token> tokens, std::size_t end, std::size_t most,
            std::vector<engine::Node>& nodes, engine::Rows& rows);

// The first position of a prompt that teaches, if its first `end` tokens are prefilled.
std::size_t first_lesson(std::size_t end);

// What the draft said at a position of a prompt.
struct PromptRow {
  std::vector<float> logits;  // [common]
  std::vector<float> hidden;  // [hidden_width] or empty
};

struct Stepper::Impl {
  engine::Engine& target;
  engine::Engine* draft;
  engine::ModelInfo target_info;
  engine::ModelInfo draft_info;
  std::size_t common = 0;  // tokens both models know

  // Scratch shared by all steps; sized by the largest batch seen.
  std::vector<engine::Node> nodes;
  std::vector<std::size_t> drafting;  // places in `stepping` whose draft is asked at the current depth
  std::vector<Sequence*> stepping;    // the sequences of this step
  engine::Rows rows;
  spec::Sampler sampler;
  spec::Distribution dist;
  std::vector<float> edited_logits;
  std::vector<Token> path_tokens;
  propose::Continuations found;
  std::vector<recal::Recalibrator*> to_commit;
  std::vector<engine::Learner*> learning;
  std::vector<Token> lesson_text;
  std::vector<const float*> lesson_rows;
  std::vector<PromptRow> prompt_rows;  // [kLessonChunk]
  recal::Lookup prompt_lookup;
  recal::Bias prompt_bias;

  Impl(engine::Engine& t, engine::Engine* d);

  Status check(const SequenceConfig& config) const;
  Status check(std::span<const Token> prompt, const SequenceConfig& config) const;
  void remember(const Sequence& s);

  // prompt_lesson.cpp
  bool prompt_teaches(const SequenceConfig& config) const;
  Status prefill_teaching(Sequence& s, std::size_t max_tokens, bool& done);
  Status teach_prompt(const Sequence& s, std::size_t at, std::size_t count);

  // grow.cpp
  int block_length(const Sequence& s) const;
  bool draft_knows(const Sequence& s) const;
  void begin_block(Sequence& s);
  Status grow(std::vector<trace::StepEvent>& events, trace::StepTimes& times);
  bool propose_copy(Sequence& s, int depth, trace::StepEvent& event);
  Status catch_up(Sequence& s);
  Status draft_forward(int depth, trace::StepTimes& times);
  Status propose_draft(Sequence& s, std::size_t row, int depth, trace::StepEvent& event);
  void add(Sequence& s, const trace::ProposedToken& proposed, bool by_draft, trace::StepEvent& event);

  Status verify(trace::StepTimes& times);
  void judge(Sequence& s, trace::StepEvent& event);
  Status keep(Sequence& s);
  Status learn(Sequence& s, trace::StepEvent& event);
  Status teach_draft(const Sequence& s, std::size_t taught);
  Status commit_drafts(std::vector<trace::StepEvent>& events);
  Status forget(Status why);
  void commit(std::vector<trace::StepEvent>& events);
  void emit(Sequence& s, trace::StepEvent& event);
  void emit_margins(const Sequence& s, trace::StepEvent& event);
  void emit_logprobs(const Sequence& s, trace::StepEvent& event);
  std::span<const float> edited(const Sequence& s, NodeIndex last, std::span<const float> logits);
  void target_distribution(const Sequence& s, NodeIndex node, spec::Distribution& out);
  void spoil_q(Sequence& s);
  Status spoil_weights(Sequence& s);
  std::span<const float> target_row(const Sequence& s, NodeIndex node) const {
    return rows.logits_row(s.first_row_ + static_cast<std::size_t>(node + 1));
  }
};

}  // namespace drift::decode
