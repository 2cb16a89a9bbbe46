// model.hpp - a decoder-only network of the llama or qwen2 architecture over LibTorch: to train, and to decode with a KV cache.
//
// Parameters carry the names of their GGUF tensors ("blk.0.attn_q.weight"), so reading and writing files is a walk over them.
// Numbers: float32 on the CPU. Threads: one at a time per network; see use_threads().
// Errors: LibTorch throws c10::Error on misuse; input from outside is checked before (check_shape, the file readers, TorchEngine).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engines/torch/kv_cache.hpp"
#include "engines/torch/layers.hpp"
#include "engines/torch/shape.hpp"

namespace drift::engine {

// Threads LibTorch and OpenBLAS use from the calling thread: 1 or 2. More is cut to 2: matrices this small lose more to waiting
// than they gain. Programs call it once at the start; TorchEngine does it for itself.
void use_threads(int threads);

// What the blocks of one forward share.
struct Rotation {
  torch::Tensor cosine, sine;  // [time, head_width / 2]
  torch::Tensor mask;          // [time, length]: 0 where a row may look, -inf elsewhere; undefined: each row may look everywhere
};

// One layer: x + attention(norm(x)), then + SwiGLU(norm(x)).
class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const ModelShape& shape);
  // x [batch, time, width]; `cache` may be null.
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation, KvCache* cache, std::size_t layer);

  RmsNorm attn_norm{nullptr}, ffn_norm{nullptr};
  Linear attn_q{nullptr}, attn_k{nullptr}, attn_v{nullptr}, attn_output{nullptr};
  Linear ffn_gate{nullptr}, ffn_up{nullptr}, ffn_down{nullptr};

 private:
  torch::Tensor attention(const torch::Tensor& x, const Rotation& rotation, KvCache* cache, std::size_t layer);
  torch::Tensor rotate(const torch::Tensor& x, const Rotation& rotation) const;
  ModelShape shape_;
};
TORCH_MODULE(LlamaBlock);

struct NetOutput {
  torch::Tensor hidden;  // [batch, time, width] after the last norm: what the output head sees
  torch::Tensor logits;  // [batch, time, vocab]
};

struct NamedMatrix {
  std::string name;  // of the GGUF tensor without ".weight": "blk.0.attn_q"
  Linear matrix{nullptr};
};

class LlamaNetImpl : public torch::nn::Module {
 public:
  // All matrices zero, all norms one: call init_weights() or read a file. Requires: check_shape(shape) is ok.
  explicit LlamaNetImpl(const ModelShape& shape);

  // Random weights, a pure function of the seed: normal with deviation 0.02, the two matrices of a layer that write into the
  // residual stream smaller by sqrt(2 layers); biases zero, norms one. Requires: no adapters.
  void init_weights(std::uint64_t seed);

  // tokens [batch, time], int64, each in [0, vocab). Causal over the whole text; with a cache, `tokens` continue what it holds.
  // Requires: time >= 1; the cache's length (or 0) + time <= context; with a cache: gradients off, and the cache's batch.
  NetOutput forward(const torch::Tensor& tokens, KvCache* cache = nullptr);
  // The two halves of forward(), for callers that need few rows of a wide vocabulary: hidden [batch, time, width] ...
  torch::Tensor hidden_states(const torch::Tensor& tokens, KvCache* cache = nullptr);
  // ... and hidden [.., width] -> logits [.., vocab].
  torch::Tensor logits(const torch::Tensor& hidden);

  // Low-rank adapters on every matrix of attention and feed-forward (not on embedding and head); everything else is frozen, so
  // that an optimiser over the parameters with requires_grad() trains only them. The output does not change yet.
  // Requires: no adapters yet, rank >= 1. `alpha`: the update is scaled by alpha / rank.
  void add_adapters(std::int64_t rank, double alpha, std::uint64_t seed);
  bool has_adapters() const;
  // Adds the adapters into their matrices and makes everything trainable again. Nothing happens without adapters.
  void merge_adapters();

  // Grows with every in-place change of a parameter (an optimiser's step, init_weights, a file read into it) and when adapters
  // are added or merged: equal stamps of one network mean equal weights. Cost: a walk over the parameters.
  std::uint64_t version() const;

  const ModelShape& shape() const { return shape_; }
  std::vector<NamedMatrix> matrices() const;  // of attention and feed-forward, layer by layer

  TokenEmbedding token_embd{nullptr};
  RmsNorm output_norm{nullptr};
  Linear output{nullptr};  // null if tied

 private:
  Rotation rotation(std::int64_t past, std::int64_t time) const;
  std::uint64_t tensor_versions() const;

  ModelShape shape_;
  std::vector<LlamaBlock> blocks_;
  torch::Tensor cosine_, sine_;  // [context, head_width / 2]
  std::uint64_t version_base_ = 0;
};
TORCH_MODULE(LlamaNet);

// A network of its own with the same weights, and the same adapters if there are any.
LlamaNet copy_of(const LlamaNet& net);

}  // namespace drift::engine
