#include "train/optimiser.hpp"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "drift/base/check.hpp"
#include "train/workers.hpp"

namespace drift::train {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;  // AdamW's; a short second moment suits short runs
constexpr int kNewtonSchulzSteps = 5;

}  // namespace

torch::Tensor orthogonalised(torch::Tensor x) {
  // Coefficients of Jordan's quintic: they widen small singular values fastest and leave the large ones between 0.7 and 1.2.
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / (x.norm() + 1e-7);
  for (int i = 0; i < kNewtonSchulzSteps; ++i) {
    const torch::Tensor gram = torch::mm(x, x.t());
    x = torch::addmm(x, torch::addmm(gram, gram, gram, /*beta=*/b, /*alpha=*/c), x, /*beta=*/a, /*alpha=*/1);
  }
  return tall ? x.t() : x;
}

Optimiser::Optimiser(const engine::LlamaNet& net, const Rates& rates, bool all_adam) : rates_(rates) {
  for (const auto& item : net->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    Slot slot;
    // "blk.0.attn_q.weight", "blk.0.attn_q.lora_a": two dimensions; norms have one.
    slot.muon = !all_adam && item.key().starts_with("blk.") && item.value().dim() == 2;
    slot.first = torch::zeros_like(item.value().detach());
    if (!slot.muon) slot.second = torch::zeros_like(item.value().detach());
    names_.push_back(item.key());
    parameters_.push_back(item.value());
    slots_.push_back(std::move(slot));
  }
  DRIFT_CHECK(!parameters_.empty(), "an optimiser needs parameters that want gradients");
}

void Optimiser::step_one(std::size_t i, torch::Tensor& gradient, double scale) {
  torch::Tensor parameter = parameters_[i].detach();  // shares its memory
  Slot& slot = slots_[i];
  if (slot.muon) {
    slot.first.mul_(rates_.momentum).add_(gradient);
    const torch::Tensor update = orthogonalised(gradient.add_(slot.first, rates_.momentum));
    const double rate = rates_.muon * scale;
    const double shape =
        std::sqrt(std::max(1.0, static_cast<double>(parameter.size(0)) / static_cast<double>(parameter.size(1))));
    if (rates_.weight_decay > 0) parameter.mul_(1 - rate * rates_.weight_decay);
    parameter.add_(update, -rate * shape);
    return;
  }
  slot.first.mul_(kBeta1).add_(gradient, 1 - kBeta1);
  slot.second.mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
  const double t = static_cast<double>(steps_);
  const double correction1 = 1 - std::pow(kBeta1, t), correction2 = 1 - std::pow(kBeta2, t);
  const torch::Tensor denominator = (slot.second / correction2).sqrt_().add_(kEps);
  parameter.addcdiv_(slot.first, denominator, -rates_.adam * scale / correction1);
}

void Optimiser::step(std::vector<torch::Tensor>& gradients, double scale, int workers) {
  DRIFT_CHECK(gradients.size() == parameters_.size(), "one gradient a parameter");
  ++steps_;
  run_workers(workers, [&](int worker) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = static_cast<std::size_t>(worker); i < parameters_.size(); i += static_cast<std::size_t>(workers))
      step_one(i, gradients[i], scale);
  });
}

NamedTensors Optimiser::state() const {
  NamedTensors all;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    all.emplace_back(names_[i] + ".first", slots_[i].first);
    if (slots_[i].second.defined()) all.emplace_back(names_[i] + ".second", slots_[i].second);
  }
  return all;
}

}  // namespace drift::train
