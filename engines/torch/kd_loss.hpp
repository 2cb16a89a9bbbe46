// kd_loss.hpp - divergences between a target's distribution, known on its likeliest tokens, and a draft's logits.
//
// The tokens outside the labels count as one outcome, with all their probability together. The divergence of these m + 1 outcomes
// is a lower bound of the full one, and zero mass is asked for nowhere that the target has mass.
// Threads: pure functions. Differentiable in the logits.
#pragma once

#include <torch/types.h>

#include "engines/torch/kd_config.hpp"

namespace drift::engine {

// The target's side of n positions.
struct KdLabels {
  torch::Tensor ids;    // [n, m], int64, different from each other within a row; undefined: all tokens in order
  torch::Tensor log_p;  // [n, m] log-probabilities over the whole vocabulary
};

// logits [n, vocab] -> the divergence of each position [n], in nats.
torch::Tensor kd_loss(KdLoss loss, const torch::Tensor& logits, const KdLabels& labels);

// The m likeliest tokens of raw target logits [n, vocab]; m = 0 or m >= vocab: all.
KdLabels kd_labels(const torch::Tensor& target_logits, std::int64_t m);

}  // namespace drift::engine
