#include "engines/torch/model.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "drift/base/check.hpp"

namespace drift::engine {
namespace {

constexpr int kThreadsMax = 2;
constexpr double kDeviation = 0.02;

torch::Generator generator_of(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

}  // namespace

void use_threads(int threads) {
  const int count = std::clamp(threads, 1, kThreadsMax);
  // OpenBLAS over threads of its own would work beside LibTorch's; over OpenMP it shares them, and this call sets their number
  // too: so it comes first. Other BLAS libraries do not have the symbol.
  using SetThreads = void (*)(int);
  if (const auto set_blas_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads")))
    set_blas_threads(1);
  at::set_num_threads(count);
}

LlamaBlockImpl::LlamaBlockImpl(const ModelShape& shape) : shape_(shape) {
  attn_norm = register_module("attn_norm", RmsNorm(shape.width, shape.norm_eps));
  attn_q = register_module("attn_q", Linear(shape.width, shape.width, shape.qkv_bias));
  attn_k = register_module("attn_k", Linear(shape.width, shape.kv_width(), shape.qkv_bias));
  attn_v = register_module("attn_v", Linear(shape.width, shape.kv_width(), shape.qkv_bias));
  attn_output = register_module("attn_output", Linear(shape.width, shape.width, /*with_bias=*/false));
  ffn_norm = register_module("ffn_norm", RmsNorm(shape.width, shape.norm_eps));
  ffn_gate = register_module("ffn_gate", Linear(shape.width, shape.ffn, /*with_bias=*/false));
  ffn_up = register_module("ffn_up", Linear(shape.width, shape.ffn, /*with_bias=*/false));
  ffn_down = register_module("ffn_down", Linear(shape.ffn, shape.width, /*with_bias=*/false));
}

// x [batch, heads, time, head_width], each pair of elements turned by its position's angle (Su et al. 2021).
torch::Tensor LlamaBlockImpl::rotate(const torch::Tensor& x, const Rotation& rotation) const {
  if (shape_.rope == Rope::kInterleaved) {
    const torch::Tensor pairs = x.unflatten(-1, torch::IntArrayRef({shape_.head_width() / 2, 2}));
    const torch::Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
    return torch::stack({even * rotation.cosine - odd * rotation.sine, even * rotation.sine + odd * rotation.cosine}, -1)
        .flatten(-2);
  }
  const auto halves = x.chunk(2, -1);
  return torch::cat(
      {halves[0] * rotation.cosine - halves[1] * rotation.sine, halves[0] * rotation.sine + halves[1] * rotation.cosine}, -1);
}

torch::Tensor LlamaBlockImpl::attention(const torch::Tensor& x, const Rotation& rotation, KvCache* cache, std::size_t layer) {
  const std::int64_t batch = x.size(0), time = x.size(1), heads = shape_.heads, kv = shape_.kv_heads, head = shape_.head_width();
  const std::int64_t group = heads / kv;  // query heads that share a key head; query head h looks at key head h / group
  const auto split = [&](const torch::Tensor& y, std::int64_t count) {
    return y.view({batch, time, count, head}).transpose(1, 2);  // [batch, count, time, head]
  };
  const torch::Tensor query = rotate(split(attn_q->forward(x), heads), rotation) * (1 / std::sqrt(static_cast<double>(head)));
  torch::Tensor key = rotate(split(attn_k->forward(x), kv), rotation);
  torch::Tensor value = split(attn_v->forward(x), kv);
  if (cache != nullptr) std::tie(key, value) = cache->put(layer, key, value);
  const std::int64_t length = key.size(2);

  // The query heads of a group become rows of one product, so that keys and values are not repeated.
  torch::Tensor scores = torch::matmul(query.reshape({batch, kv, group * time, head}), key.transpose(-2, -1));
  if (rotation.mask.defined()) {
    scores = (scores.view({batch, kv, group, time, length}) + rotation.mask).view({batch, kv, group * time, length});
  }
  const torch::Tensor mixed = torch::matmul(torch::softmax(scores, -1), value);  // [batch, kv, group * time, head]
  return attn_output->forward(mixed.view({batch, heads, time, head}).transpose(1, 2).reshape({batch, time, shape_.width}));
}

torch::Tensor LlamaBlockImpl::forward(const torch::Tensor& x, const Rotation& rotation, KvCache* cache, std::size_t layer) {
  const torch::Tensor y = x + attention(attn_norm->forward(x), rotation, cache, layer);
  const torch::Tensor normed = ffn_norm->forward(y);
  return y + ffn_down->forward(torch::silu(ffn_gate->forward(normed)) * ffn_up->forward(normed));
}

LlamaNetImpl::LlamaNetImpl(const ModelShape& shape) : shape_(shape) {
  DRIFT_CHECK(check_shape(shape).is_ok(), "a network needs a checked shape");
  token_embd = register_module("token_embd", TokenEmbedding(shape.vocab, shape.width));
  const auto list = register_module("blk", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    blocks_.emplace_back(shape);
    list->push_back(blocks_.back());
  }
  output_norm = register_module("output_norm", RmsNorm(shape.width, shape.norm_eps));
  if (!shape.tied) output = register_module("output", Linear(shape.width, shape.vocab, /*with_bias=*/false));

  const torch::NoGradGuard no_grad;
  const std::int64_t half = shape.head_width() / 2;
  const torch::Tensor frequency =
      torch::pow(shape.rope_base, torch::arange(half, torch::kDouble) * (-1.0 / static_cast<double>(half)));
  const torch::Tensor angle = torch::outer(torch::arange(shape.context, torch::kDouble), frequency);
  cosine_ = torch::cos(angle).to(torch::kFloat);
  sine_ = torch::sin(angle).to(torch::kFloat);
}

void LlamaNetImpl::init_weights(std::uint64_t seed) {
  DRIFT_CHECK(!has_adapters(), "weights are initialised before adapters are added");
  const torch::NoGradGuard no_grad;
  const torch::Generator generator = generator_of(seed);
  const double into_residual = kDeviation / std::sqrt(2.0 * static_cast<double>(shape_.layers));
  token_embd->weight.normal_(0, kDeviation, generator);
  for (const NamedMatrix& named : matrices()) {
    const bool writes_residual = named.name.ends_with("attn_output") || named.name.ends_with("ffn_down");
    named.matrix->weight.normal_(0, writes_residual ? into_residual : kDeviation, generator);
    if (named.matrix->bias.defined()) named.matrix->bias.zero_();
  }
  for (const LlamaBlock& block : blocks_) {
    block->attn_norm->weight.fill_(1);
    block->ffn_norm->weight.fill_(1);
  }
  output_norm->weight.fill_(1);
  if (output) output->weight.normal_(0, kDeviation, generator);
}

Rotation LlamaNetImpl::rotation(std::int64_t past, std::int64_t time) const {
  Rotation rotation{cosine_.narrow(0, past, time), sine_.narrow(0, past, time), {}};
  if (time > 1) {
    const torch::Tensor hidden = torch::full({time, past + time}, -std::numeric_limits<float>::infinity());
    rotation.mask = torch::triu(hidden, past + 1);  // row i may look at positions 0 .. past + i
  }
  return rotation;
}

torch::Tensor LlamaNetImpl::hidden_states(const torch::Tensor& tokens, KvCache* cache) {
  DRIFT_CHECK(cache == nullptr || !torch::GradMode::is_enabled(), "a cache holds no gradients: use torch::NoGradGuard");
  const std::int64_t past = cache != nullptr ? cache->length() : 0, time = tokens.size(1);
  DRIFT_CHECK(time >= 1 && past + time <= shape_.context, "a text is empty or longer than the network's context");
  const Rotation shared = rotation(past, time);
  torch::Tensor x = token_embd->forward(tokens);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) x = blocks_[layer]->forward(x, shared, cache, layer);
  if (cache != nullptr) cache->advance(time);
  return output_norm->forward(x);
}

torch::Tensor LlamaNetImpl::logits(const torch::Tensor& hidden) {
  return output ? output->forward(hidden) : torch::linear(hidden, token_embd->weight);
}

NetOutput LlamaNetImpl::forward(const torch::Tensor& tokens, KvCache* cache) {
  const torch::Tensor hidden = hidden_states(tokens, cache);
  return {hidden, logits(hidden)};
}

std::vector<NamedMatrix> LlamaNetImpl::matrices() const {
  std::vector<NamedMatrix> all;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    const LlamaBlock& block = blocks_[i];
    all.insert(all.end(), {{prefix + "attn_q", block->attn_q},
                           {prefix + "attn_k", block->attn_k},
                           {prefix + "attn_v", block->attn_v},
                           {prefix + "attn_output", block->attn_output},
                           {prefix + "ffn_gate", block->ffn_gate},
                           {prefix + "ffn_up", block->ffn_up},
                           {prefix + "ffn_down", block->ffn_down}});
  }
  return all;
}

bool LlamaNetImpl::has_adapters() const { return blocks_.front()->attn_q->has_adapter(); }

void LlamaNetImpl::add_adapters(std::int64_t rank, double alpha, std::uint64_t seed) {
  DRIFT_CHECK(!has_adapters() && rank >= 1, "a network takes one set of adapters, of rank 1 or more");
  const std::uint64_t before = version();
  for (torch::Tensor& parameter : parameters()) parameter.set_requires_grad(false);
  const torch::Generator generator = generator_of(seed);
  for (NamedMatrix& named : matrices()) named.matrix->add_adapter(rank, alpha / static_cast<double>(rank), generator);
  version_base_ = before + 1;
}

void LlamaNetImpl::merge_adapters() {
  if (!has_adapters()) return;
  const std::uint64_t before = version();
  for (NamedMatrix& named : matrices()) named.matrix->merge_adapter();
  for (torch::Tensor& parameter : parameters()) parameter.set_requires_grad(true);
  version_base_ = before + 1;
}

// LibTorch counts the in-place changes of each tensor.
std::uint64_t LlamaNetImpl::tensor_versions() const {
  std::uint64_t sum = 0;
  for (const torch::Tensor& parameter : parameters()) sum += static_cast<std::uint64_t>(parameter._version());
  return sum;
}

std::uint64_t LlamaNetImpl::version() const { return version_base_ + tensor_versions(); }

LlamaNet copy_of(const LlamaNet& net) {
  const torch::NoGradGuard no_grad;
  LlamaNet copy(net->shape());
  if (net->has_adapters()) {
    const Linear first = net->matrices().front().matrix;
    const std::int64_t rank = first->lora_a.size(0);
    copy->add_adapters(rank, first->lora_scale * static_cast<double>(rank), /*seed=*/0);
  }
  const auto source = net->named_parameters();
  for (auto& item : copy->named_parameters()) item.value().copy_(source[item.key()]);
  return copy;
}

}  // namespace drift::engine
