// optimiser.hpp - Muon for the matrices inside a network, AdamW for embeddings and norms: what trains a small model fastest here.
//
// Muon (Jordan et al. 2024): a Nesterov step whose matrix is replaced by the nearest one with all singular values about equal.
// Threads: one; matrices are shared out over `workers` threads within step(), each wholly on one, so the result does not depend
// on their number. Memory: one copy of the matrices, two of the rest.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engines/torch/model.hpp"

namespace drift::train {

struct Rates {
  double muon = 0.02;       // of matrices
  double adam = 0.005;      // of everything else
  double momentum = 0.95;   // Muon's
  double weight_decay = 0;  // of matrices, times the rate
};

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

class Optimiser {
 public:
  // Over the parameters of `net` that want gradients, in their order. Matrices of attention, feed-forward and their adapters go to
  // Muon unless `all_adam`.
  Optimiser(const engine::LlamaNet& net, const Rates& rates, bool all_adam = false);

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  // One step along gradients in the order of parameters(), both rates times `scale`. Gradients are changed.
  void step(std::vector<torch::Tensor>& gradients, double scale, int workers);

  // What must be kept to go on exactly: views of the state, by name; write into them to restore. `steps` counts AdamW's.
  NamedTensors state() const;
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  struct Slot {
    bool muon = false;
    torch::Tensor first, second;  // momentum; AdamW's second moment
  };
  void step_one(std::size_t i, torch::Tensor& gradient, double scale);

  Rates rates_;
  std::vector<std::string> names_;
  std::vector<torch::Tensor> parameters_;
  std::vector<Slot> slots_;
  std::int64_t steps_ = 0;
};

// The nearest matrix to `x` whose singular values are about one (0.7 to 1.2), by five Newton-Schulz steps.
torch::Tensor orthogonalised(torch::Tensor x);

}  // namespace drift::train
