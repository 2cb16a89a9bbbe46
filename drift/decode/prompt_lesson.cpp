// prompt_lesson.cpp - a prompt teaches its bank before the first step: its tokens are read with rows, by both models.
//
// A prompt is text of the very domain that is to be answered in, the target reads it anyway, and each of its positions reveals p and
// q like a verified one. What is learned comes from the text before the answer only and is committed between steps, so q still
// depends on the past alone and the answer keeps its law.
#include <algorithm>

#include "drift/decode/stepper_impl.hpp"

namespace drift::decode {

bool Stepper::Impl::prompt_teaches(const SequenceConfig& config) const {
  if (!recalibrates(config.mode) || !config.recal->config().teach_prompt || config.recal->frozen()) return false;
  return target_info.can.prompt_rows && draft_info.can.prompt_rows;
}

// A multiple of a pass: who reads in passes of that size anyway reads the same tokens together, lessons or not, and gets the same bits.
std::size_t first_lesson(std::size_t end) {
  const std::size_t from = end - std::min(end, kPromptLesson);
  return (from + kLessonChunk - 1) / kLessonChunk * kLessonChunk;
}

Status Stepper::Impl::prefill_teaching(Sequence& s, std::size_t max_tokens, bool& done) {
  const std::size_t end = s.prompt_ - 1;
  const auto read = [](engine::Engine& engine, SeqId seq) { return static_cast<std::size_t>(engine.length(seq)); };
  const std::size_t before = std::min(read(target, s.target_), read(*draft, s.draft_));
  const std::size_t most = end - std::min(before, end) <= max_tokens ? end : before + max_tokens;  // as far as this call goes
  // Without rows up to where lessons begin, and where one of the two has read on alone.
  const std::size_t from = std::max({first_lesson(end), read(target, s.target_), read(*draft, s.draft_)});
  const std::size_t silent = std::min(most, from);
  while (read(target, s.target_) < silent) DRIFT_TRY(feed(target, s.target_, s.tokens_, silent, max_tokens, nodes, rows));
  while (read(*draft, s.draft_) < silent) DRIFT_TRY(feed(*draft, s.draft_, s.tokens_, silent, max_tokens, nodes, rows));
  for (std::size_t at = silent; at < most;) {
    const std::size_t count = std::min(kLessonChunk, most - at);
    DRIFT_TRY(teach_prompt(s, at, count));
    at += count;
  }
  done = most == end;
  return Status::ok();
}

// Both models read tokens [at, at + count), and the rows after each of them teach.
Status Stepper::Impl::teach_prompt(const Sequence& s, std::size_t at, std::size_t count) {
  const auto read = [&](engine::Engine& engine, SeqId seq, engine::Rows& out) -> Status {
    nodes.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const NodeIndex parent = i == 0 ? kPrefix : static_cast<NodeIndex>(i) - 1;
      nodes.push_back({seq, s.tokens_[at + i], static_cast<Pos>(at + i), parent, true});
    }
    DRIFT_TRY(engine.forward(nodes, out));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool by_target = &engine == &target && seq == s.target_;
      DRIFT_TRY(check_row(out.logits_row(i), by_target ? "target" : "draft", by_target ? target_info : draft_info));
    }
    return Status::ok();
  };
  const auto keep_read = [&](engine::Engine& engine, SeqId seq) {
    std::vector<NodeIndex> path(count);
    for (std::size_t i = 0; i < count; ++i) path[i] = static_cast<NodeIndex>(i);
    return engine.keep(seq, path);
  };
  DRIFT_TRY(read(*draft, s.draft_, rows));
  // Copied: target and draft may be one engine, whose rows live until its next call.
  prompt_rows.assign(count, {});
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const float> logits = rows.logits_row(i).first(common);
    prompt_rows[i].logits.assign(logits.begin(), logits.end());
    if (rows.hidden.empty()) continue;
    const std::span<const float> hidden = rows.hidden_row(i);
    prompt_rows[i].hidden.assign(hidden.begin(), hidden.end());
  }
  DRIFT_TRY(keep_read(*draft, s.draft_));
  DRIFT_TRY(read(target, s.target_, rows));
  recal::Recalibrator& recal = *s.config_.recal;
  const recal::Judging judging{s.config_.rule == spec::JudgeRule::kRejection, s.config_.sampler};
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const Token> context = std::span<const Token>(s.tokens_).first(at + i + 1);
    Status taught = recal.lookup({prompt_rows[i].hidden, context}, prompt_lookup);
    if (taught.is_ok()) {
      recal.bias(prompt_lookup, prompt_rows[i].logits, judging, prompt_bias);
      taught = recal.observe(prompt_lookup, prompt_bias, prompt_rows[i].logits, rows.logits_row(i).first(common), judging);
    }
    if (!taught.is_ok()) {
      recal.discard();
      return taught;
    }
  }
  const Status kept = keep_read(target, s.target_);
  if (!kept.is_ok()) {
    recal.discard();
    return kept;
  }
  recal.commit();
  return Status::ok();
}

}  // namespace drift::decode
