// labels.hpp - what a target says at each token of a text: its most probable next tokens.
//
// For a text that is there, prefill alone tells (label_rows); sampling.hpp has the target write one and labels that. Any engine
// serves, so a quantised target labels text as it will judge it later.
// Threads: the engine's. Memory: 8 bytes times `top` a token. Cost: one pass of the target over the text.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>

#include "drift/engine/engine.hpp"

namespace drift::train {

inline constexpr std::int64_t kLabelTop = 64;  // tokens kept; the rest of the distribution is kept as one number

struct Labels {
  torch::Tensor tokens;  // int32 [rows, length, top], the most probable first
  torch::Tensor log_p;   // float32, the same shape: logarithms of their probabilities

  Labels of(const torch::Tensor& rows) const;  // those of some rows, int64 [count]
};

// Rows with their number in front, int64 [rows, 1 + length + 1]: so that whoever gets some of them finds their labels.
torch::Tensor numbered(const torch::Tensor& rows, std::int64_t first);

// The labels of one row of logits: the `top` best tokens and their log-probabilities. Requires: as many logits at least.
void label_logits(std::span<const float> logits, std::span<Token> tokens, std::span<float> log_p);

// Rows are int64 [rows, length + 1]; each is a text of its own. `told` hears how many rows are done and returns false to stop.
// Requires: tokens within the engine's vocabulary, top <= that. Fails with kCancelled, kLimit (rows longer than its context), and
// as forward.
Result<Labels> label_rows(engine::Engine& target, const torch::Tensor& rows, std::int64_t top,
                          const std::function<bool(std::int64_t)>& told);

// KL(target || student) in nats a token over the labelled tokens and all others taken as one event: mean, with a gradient.
// logits [rows, length, vocab].
torch::Tensor labelled_loss(const torch::Tensor& logits, const Labels& labels);
// The same from the student's log-probabilities of the labelled tokens, [rows, length, top]: all it depends on.
torch::Tensor labelled_kl(const torch::Tensor& log_q, const Labels& labels);

}  // namespace drift::train
