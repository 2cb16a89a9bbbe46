// torch_nets.hpp - small random networks whose logits are spread as a trained model's, with a tokenizer, for tests.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "drift/base/ids.hpp"
#include "engines/torch/engine.hpp"
#include "engines/torch/gguf_meta.hpp"
#include "engines/torch/gguf_read.hpp"
#include "engines/torch/gguf_write.hpp"
#include "engines/torch/model.hpp"

namespace drift::engine {

// Grouped heads (two queries to a key), widths that divide into q8_0's blocks.
inline ModelShape small_shape(Rope rope = Rope::kInterleaved) {
  ModelShape shape;
  shape.vocab = 320;
  shape.width = 64;
  shape.layers = 2;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.ffn = 96;
  shape.context = 128;
  shape.rope = rope;
  shape.qkv_bias = rope == Rope::kHalves;
  shape.tied = rope == Rope::kInterleaved;
  shape.rope_base = rope == Rope::kHalves ? 1e6 : 1e4;
  return shape;
}

// Every matrix keeps the size of what it maps, so that attention and rope really matter to the logits, whose deviation is about 3.
inline LlamaNet lively_net(const ModelShape& shape, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  LlamaNet net(shape);
  net->init_weights(seed);
  const auto rescale = [](torch::Tensor weight, double deviation) { weight.mul_(deviation / weight.std().item<double>()); };
  const double head = 3 / std::sqrt(static_cast<double>(shape.width));
  rescale(net->token_embd->weight, shape.tied ? head : 1.0);
  for (const NamedMatrix& named : net->matrices()) {
    rescale(named.matrix->weight, 1.5 / std::sqrt(static_cast<double>(named.matrix->weight.size(1))));
    if (named.matrix->bias.defined()) named.matrix->bias.copy_(named.matrix->weight.sum(1) * 0.3);
  }
  net->output_norm->weight.copy_(1 + 0.1 * torch::sin(torch::arange(shape.width)));
  if (!shape.tied) rescale(net->output->weight, head);
  return net;
}

// Random A and B for all adapters, large enough to change the logits clearly.
inline void fill_adapters(LlamaNet& net, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(seed);
  for (const NamedMatrix& named : net->matrices()) named.matrix->lora_b.normal_(0, 0.2);
}

// The byte tokens, then "ab", "ac", ... by merges, then two control tokens.
inline GgufMeta small_meta(std::int64_t vocab, const std::string& name = "random") {
  BpeTokenizer tokenizer;
  tokenizer.tokens = byte_tokens();
  for (char second = 'b'; static_cast<std::int64_t>(tokenizer.tokens.size()) < vocab - 2; ++second) {
    for (char first : {'a', 'e', 'o'}) {
      if (static_cast<std::int64_t>(tokenizer.tokens.size()) == vocab - 2) break;
      tokenizer.tokens.push_back({first, second});
      tokenizer.merges.push_back({first, ' ', second});
    }
  }
  tokenizer.types.assign(tokenizer.tokens.size(), TokenType::kNormal);
  for (const char* control : {"<|begin|>", "<|end|>"}) {
    tokenizer.tokens.emplace_back(control);
    tokenizer.types.push_back(TokenType::kControl);
  }
  tokenizer.bos = static_cast<std::int32_t>(vocab) - 2;
  tokenizer.eos = static_cast<std::int32_t>(vocab) - 1;
  Result<GgufMeta> meta = GgufMeta::of(tokenizer, name);
  EXPECT_TRUE(meta.is_ok()) << meta.status().message();
  return std::move(meta).value();
}

// `count` token ids, fixed by `stream`.
inline std::vector<Token> some_tokens(std::size_t count, std::int64_t vocab, std::uint64_t stream = 1) {
  std::vector<Token> tokens(count);
  std::uint64_t state = stream * 0x9e3779b97f4a7c15ULL;
  for (Token& token : tokens) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    token = static_cast<Token>((state >> 33) % static_cast<std::uint64_t>(vocab));
  }
  return tokens;
}

inline torch::Tensor as_tensor(const std::vector<Token>& tokens) { return torch::tensor(tokens, torch::kLong).unsqueeze(0); }

// A folder of its own for a test's files, gone afterwards.
class Folder {
 public:
  Folder() : path_(std::filesystem::path(testing::TempDir()) / ("drift_torch_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace drift::engine
