// learn.hpp - losses, their gradients over a few threads, and what is measured on text held out.
//
// Rows are int64 [count, length + 1]: inputs, and one more token to predict.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engines/torch/model.hpp"
#include "train/optimiser.hpp"

namespace drift::train {

// Mean loss in nats a token, with a gradient.
torch::Tensor next_token_loss(engine::LlamaNet& net, const torch::Tensor& rows);

// What the student should say at each position: the target's logits on the same rows, [count, length, vocab]. No gradient.
torch::Tensor teacher_logits(engine::LlamaNet& target, const torch::Tensor& rows);

// KL(target || student) in nats a token, with a gradient for the student: the mean of that at temperature 1 and at 0.5, because
// drafts are used from 0 to 1 and the first alone spends most of its effort on the tail. Vocabularies are equal.
torch::Tensor distillation_loss(engine::LlamaNet& student, const torch::Tensor& rows, const torch::Tensor& teacher);

struct Gradient {
  std::vector<torch::Tensor> of;  // in the order of the optimiser's parameters
  double loss = 0;
};

// The gradient of the mean over all rows: each worker takes its share of them and `loss` gives the mean over a share. Shares are
// added in a fixed order. Requires: as many rows as workers at least.
Gradient gradient_of(const Optimiser& optimiser, const torch::Tensor& rows, int workers,
                     const std::function<torch::Tensor(const torch::Tensor& share)>& loss);

// Mean loss in nats a token over rows, without gradient.
double held_out_loss(engine::LlamaNet& net, const torch::Tensor& rows, int workers);

// How well a student stands in for the target on rows.
struct Agreement {
  double kl = 0;       // as distillation_loss
  double match = 0;    // share of positions where both put the same token first
  double overlap = 0;  // mean of sum_x min(p(x), q(x)) at temperature 1: what speculative sampling accepts there
};
Agreement agreement(engine::LlamaNet& target, engine::LlamaNet& student, const torch::Tensor& rows, int workers);

}  // namespace drift::train
