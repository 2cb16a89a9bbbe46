// toy_learner.hpp - a draft that learns, small enough to enumerate: a table of logits by the last token, trained by gradient steps.
//
// The draft's logits are those of a base model plus the table's row of the last token. A commit that completes `every` new
// positions makes one step down the gradient of the mean KL(p || q) over them: row += rate * (p - q).
// Threads: one at a time. Requires: the learner outlives the models it gave out.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drift/engine/learner.hpp"
#include "drift/testing/reference.hpp"
#include "drift/testing/toy_engine.hpp"

namespace drift::testing {

class ToyLearner final : public engine::Learner {
 public:
  struct Lesson {
    std::vector<Token> context;
    std::vector<double> p;
    bool rejected = false;
  };

  ToyLearner(ToyModel base, std::size_t every, float rate) : base_(std::move(base)), every_(every), rate_(rate) { reset(); }

  // A draft that computes with the table as it stands at each forward.
  ToyModel model() {
    ToyModel m = base_;
    m.row = [this](std::span<const Token> context, std::span<float> logits, std::span<float> hidden) {
      row(context, logits, hidden);
    };
    return m;
  }

  // As new: an empty table, no lessons.
  void reset() {
    table_.assign(base_.vocab * base_.vocab, 0.0f);
    staged_.clear();
    buffer_.clear();
    stats_ = {};
  }

  Status observe(const engine::Verified& verified) override {
    if (verified.vocab != base_.vocab)
      return {Code::kInvalid, "toy learner: rows of " + std::to_string(verified.vocab) + " tokens"};
    const std::size_t count = verified.target.size();
    for (std::size_t i = 0; i < count; ++i) {
      const auto context = verified.text.first(verified.text.size() - (count - 1 - i));
      staged_.push_back(
          {{context.begin(), context.end()}, softmax({verified.target[i], verified.vocab}), verified.rejected && i + 1 == count});
    }
    return Status::ok();
  }

  Status commit() override {
    stats_.positions += staged_.size();
    for (Lesson& lesson : staged_) buffer_.push_back(std::move(lesson));
    staged_.clear();
    if (buffer_.size() < every_) return Status::ok();
    std::vector<float> step(table_.size(), 0.0f), logits(base_.vocab), hidden(base_.hidden_width);
    for (const Lesson& lesson : buffer_) {
      row(lesson.context, logits, hidden);
      const std::vector<double> q = softmax(logits);
      for (std::size_t v = 0; v < q.size(); ++v) step[place(lesson.context, v)] += rate_ * static_cast<float>(lesson.p[v] - q[v]);
    }
    for (std::size_t i = 0; i < step.size(); ++i) table_[i] += step[i] / static_cast<float>(buffer_.size());
    buffer_.clear();
    ++stats_.updates;
    return Status::ok();
  }

  void discard() override { staged_.clear(); }
  engine::LearnerStats stats() const override { return stats_; }

  const std::vector<Lesson>& staged() const { return staged_; }
  const std::vector<Lesson>& buffer() const { return buffer_; }  // waiting for an update
  const std::vector<float>& table() const { return table_; }     // [last token][token]

 private:
  std::size_t place(std::span<const Token> context, std::size_t v) const {
    return static_cast<std::size_t>(context.back()) * base_.vocab + v;
  }
  void row(std::span<const Token> context, std::span<float> logits, std::span<float> hidden) const {
    base_.row(context, logits, hidden);
    for (std::size_t v = 0; v < logits.size(); ++v) logits[v] += table_[place(context, v)];
  }

  ToyModel base_;
  std::size_t every_;
  float rate_;
  std::vector<float> table_;
  std::vector<Lesson> staged_, buffer_;
  engine::LearnerStats stats_;
};

}  // namespace drift::testing
