// layers.hpp - what a llama block is made of: the linear map with an optional low-rank adapter, the norm, the token embedding.
//
// Parameters are called as in GGUF ("weight", "bias"), an adapter's "lora_a" and "lora_b".
// Threads: one at a time. Numbers: float32 on the CPU. Errors: LibTorch throws c10::Error when shapes do not fit.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>

namespace drift::engine {

// y = x W^T + bias, and with an adapter + scale * (x A^T) B^T (Hu et al. 2021, section 4.1).
class LinearImpl : public torch::nn::Module {
 public:
  // W and bias zero.
  LinearImpl(std::int64_t in, std::int64_t out, bool with_bias);
  torch::Tensor forward(const torch::Tensor& x) const;

  bool has_adapter() const { return lora_a.defined(); }
  // Adds A, uniform in +-1/sqrt(in), and B, zero: the output does not change yet. W and the bias are frozen.
  // Requires: no adapter here already, rank >= 1.
  void add_adapter(std::int64_t rank, double scale, torch::Generator generator);
  // W += scale * B A; the adapter is gone and W trainable again. Nothing happens without an adapter.
  void merge_adapter();

  torch::Tensor weight;          // [out, in]
  torch::Tensor bias;            // [out], or undefined
  torch::Tensor lora_a, lora_b;  // [rank, in] and [out, rank], or undefined
  double lora_scale = 0;         // alpha / rank
};
TORCH_MODULE(Linear);

// weight * x / sqrt(mean(x^2) + eps), over the last dimension (Zhang and Sennrich 2019).
class RmsNormImpl : public torch::nn::Module {
 public:
  // weight one.
  RmsNormImpl(std::int64_t width, double eps);
  torch::Tensor forward(const torch::Tensor& x) const;

  torch::Tensor weight;  // [width]

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

// The token embedding; tied models use it as output head as well.
class TokenEmbeddingImpl : public torch::nn::Module {
 public:
  // weight zero.
  TokenEmbeddingImpl(std::int64_t vocab, std::int64_t width);
  torch::Tensor forward(const torch::Tensor& tokens) const;

  torch::Tensor weight;  // [vocab, width]
};
TORCH_MODULE(TokenEmbedding);

}  // namespace drift::engine
