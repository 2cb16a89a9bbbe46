#include "engines/torch/layers.hpp"

#include <cmath>

#include "drift/base/check.hpp"

namespace drift::engine {

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool with_bias) {
  weight = register_parameter("weight", torch::zeros({out, in}));
  if (with_bias) bias = register_parameter("bias", torch::zeros({out}));
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) const {
  torch::Tensor y = torch::linear(x, weight, bias);
  if (has_adapter()) y = y + lora_scale * torch::linear(torch::linear(x, lora_a), lora_b);
  return y;
}

void LinearImpl::add_adapter(std::int64_t rank, double scale, torch::Generator generator) {
  DRIFT_CHECK(!has_adapter() && rank >= 1, "a matrix takes one adapter of rank 1 or more");
  const std::int64_t in = weight.size(1), out = weight.size(0);
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  lora_a = register_parameter("lora_a", torch::empty({rank, in}).uniform_(-bound, bound, generator));
  lora_b = register_parameter("lora_b", torch::zeros({out, rank}));
  lora_scale = scale;
  weight.set_requires_grad(false);
  if (bias.defined()) bias.set_requires_grad(false);
}

void LinearImpl::merge_adapter() {
  if (!has_adapter()) return;
  const torch::NoGradGuard no_grad;
  weight.add_(torch::mm(lora_b, lora_a), lora_scale);
  weight.set_requires_grad(true);
  if (bias.defined()) bias.set_requires_grad(true);
  parameters_.erase("lora_a");
  parameters_.erase("lora_b");
  lora_a = torch::Tensor();
  lora_b = torch::Tensor();
  lora_scale = 0;
}

RmsNormImpl::RmsNormImpl(std::int64_t width, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::ones({width}));
}

torch::Tensor RmsNormImpl::forward(const torch::Tensor& x) const {
  return x * torch::rsqrt(x.square().mean(/*dim=*/-1, /*keepdim=*/true) + eps_) * weight;
}

TokenEmbeddingImpl::TokenEmbeddingImpl(std::int64_t vocab, std::int64_t width) {
  weight = register_parameter("weight", torch::zeros({vocab, width}));
}

torch::Tensor TokenEmbeddingImpl::forward(const torch::Tensor& tokens) const { return torch::embedding(weight, tokens); }

}  // namespace drift::engine
