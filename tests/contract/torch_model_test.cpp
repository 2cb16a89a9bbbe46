// The network by itself: shapes, causality, the cache, adapters, versions, training.
#include <gtest/gtest.h>

#include "tests/contract/torch_nets.hpp"

namespace drift::engine {
namespace {

constexpr double kTolerance = 1e-4;  // float32 sums of some hundred terms in another order, logits of size 3

double largest_difference(const torch::Tensor& a, const torch::Tensor& b) { return (a - b).abs().max().item<double>(); }

class TorchModel : public testing::TestWithParam<Rope> {
 protected:
  void SetUp() override { use_threads(1); }
  ModelShape shape_ = small_shape(GetParam());
  LlamaNet net_ = lively_net(shape_, /*seed=*/5);
};

INSTANTIATE_TEST_SUITE_P(Both, TorchModel, testing::Values(Rope::kInterleaved, Rope::kHalves),
                         [](const auto& tested) { return tested.param == Rope::kInterleaved ? "llama" : "qwen2"; });

TEST_P(TorchModel, ParametersAreCountedAndNamedAsInGguf) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : net_->parameters()) count += parameter.numel();
  EXPECT_EQ(count, parameter_count(shape_));
  const auto named = net_->named_parameters();
  for (const char* name : {"token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output_norm.weight"})
    EXPECT_NE(named.find(name), nullptr) << name;
  EXPECT_EQ(named.find("output.weight") != nullptr, !shape_.tied);
  EXPECT_EQ(named.find("blk.1.attn_k.bias") != nullptr, shape_.qkv_bias);
}

TEST_P(TorchModel, ALaterTokenChangesNothingBefore) {
  const torch::NoGradGuard no_grad;
  auto tokens = some_tokens(12, shape_.vocab);
  const NetOutput before = net_->forward(as_tensor(tokens));
  EXPECT_EQ(before.hidden.sizes(), torch::IntArrayRef({1, 12, shape_.width}));
  EXPECT_EQ(before.logits.sizes(), torch::IntArrayRef({1, 12, shape_.vocab}));
  tokens[8] = (tokens[8] + 1) % static_cast<Token>(shape_.vocab);
  const NetOutput after = net_->forward(as_tensor(tokens));
  EXPECT_LE(largest_difference(before.logits.narrow(1, 0, 8), after.logits.narrow(1, 0, 8)), kTolerance);
  for (std::int64_t i = 8; i < 12; ++i) EXPECT_GT(largest_difference(before.logits[0][i], after.logits[0][i]), 0.05) << i;
}

// Positions must matter: the same tokens in another order give another last row.
TEST_P(TorchModel, OrderMatters) {
  const torch::NoGradGuard no_grad;
  auto tokens = some_tokens(8, shape_.vocab);
  const torch::Tensor one = net_->forward(as_tensor(tokens)).logits[0][7];
  std::swap(tokens[2], tokens[5]);
  EXPECT_GT(largest_difference(one, net_->forward(as_tensor(tokens)).logits[0][7]), 0.05);
}

TEST_P(TorchModel, TheCacheContinuesAText) {
  const torch::NoGradGuard no_grad;
  const auto tokens = some_tokens(100, shape_.vocab);  // beyond the room a cache begins with
  const torch::Tensor whole = net_->forward(as_tensor(tokens)).logits[0];
  for (const std::size_t step : {1, 7, 64}) {
    KvCache cache(shape_, /*batch=*/1, /*capacity=*/100);
    for (std::size_t at = 0; at < tokens.size(); at += step) {
      const std::size_t end = std::min(tokens.size(), at + step);
      const torch::Tensor part = net_->forward(as_tensor({tokens.begin() + at, tokens.begin() + end}), &cache).logits[0];
      EXPECT_LE(largest_difference(part, whole.slice(0, at, end)), kTolerance) << "steps of " << step << " at " << at;
    }
    EXPECT_EQ(cache.length(), 100);
    cache.truncate(20);
    const KvCache before = cache.copy();
    const torch::Tensor again = net_->forward(as_tensor({tokens.begin() + 20, tokens.begin() + 30}), &cache).logits[0];
    EXPECT_LE(largest_difference(again, whole.slice(0, 20, 30)), kTolerance) << "after truncate";
    EXPECT_EQ(before.length(), 20) << "a copy stands alone";
  }
}

TEST_P(TorchModel, ABatchIsItsRows) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor one = as_tensor(some_tokens(9, shape_.vocab, 1)), two = as_tensor(some_tokens(9, shape_.vocab, 2));
  const torch::Tensor both = net_->forward(torch::cat({one, two})).logits;
  EXPECT_LE(largest_difference(both[0], net_->forward(one).logits[0]), kTolerance);
  EXPECT_LE(largest_difference(both[1], net_->forward(two).logits[0]), kTolerance);
  KvCache cache(shape_, /*batch=*/2, /*capacity=*/16);
  net_->forward(torch::cat({one, two}).narrow(1, 0, 4), &cache);
  const torch::Tensor rest = net_->forward(torch::cat({one, two}).narrow(1, 4, 5), &cache).logits;
  EXPECT_LE(largest_difference(rest, both.narrow(1, 4, 5)), kTolerance);
}

TEST_P(TorchModel, WeightsAreAFunctionOfTheSeed) {
  LlamaNet one(shape_), same(shape_), other(shape_);
  one->init_weights(1);
  same->init_weights(1);
  other->init_weights(2);
  EXPECT_TRUE(torch::equal(one->token_embd->weight, same->token_embd->weight));
  EXPECT_TRUE(torch::equal(one->matrices()[5].matrix->weight, same->matrices()[5].matrix->weight));
  EXPECT_FALSE(torch::equal(one->token_embd->weight, other->token_embd->weight));
}

// One batch learned by heart: gradients reach every parameter and the loss falls.
TEST_P(TorchModel, TrainingLowersTheLoss) {
  LlamaNet net(shape_);
  net->init_weights(3);
  const torch::Tensor tokens =
      torch::cat({as_tensor(some_tokens(17, shape_.vocab, 1)), as_tensor(some_tokens(17, shape_.vocab, 2))});
  torch::optim::AdamW optimiser(net->parameters(), torch::optim::AdamWOptions(5e-3));
  const auto loss_of = [&] {
    const torch::Tensor logits = net->forward(tokens.narrow(1, 0, 16)).logits;
    return torch::nn::functional::cross_entropy(logits.reshape({-1, shape_.vocab}), tokens.narrow(1, 1, 16).reshape({-1}));
  };
  const double first = loss_of().item<double>();
  EXPECT_NEAR(first, std::log(static_cast<double>(shape_.vocab)), 0.3);
  for (int step = 0; step < 60; ++step) {
    optimiser.zero_grad();
    loss_of().backward();
    if (step == 0) {
      for (const auto& item : net->named_parameters()) {
        ASSERT_TRUE(item.value().grad().defined()) << item.key();
        if (!item.key().ends_with("attn_k.bias"))  // the same for all keys, so softmax does not see it without rope
          EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
      }
    }
    const std::uint64_t before = net->version();
    optimiser.step();
    EXPECT_GT(net->version(), before) << "an optimiser's step is a new version";
  }
  EXPECT_LT(loss_of().item<double>(), 0.5 * first);
}

TEST_P(TorchModel, AdaptersBeginAsNothingTrainAloneAndMerge) {
  const torch::Tensor tokens = as_tensor(some_tokens(10, shape_.vocab));
  const torch::Tensor plain = net_->forward(tokens).logits.detach();
  const LlamaNet original = copy_of(net_);
  std::uint64_t version = net_->version();
  net_->add_adapters(/*rank=*/4, /*alpha=*/8, /*seed=*/1);
  EXPECT_GT(net_->version(), version);
  EXPECT_LE(largest_difference(net_->forward(tokens).logits, plain), 0) << "B is zero";
  for (const auto& item : net_->named_parameters())
    EXPECT_EQ(item.value().requires_grad(), item.key().find("lora_") != std::string::npos) << item.key();

  std::vector<torch::Tensor> trainable;
  for (const torch::Tensor& parameter : net_->parameters()) {
    if (parameter.requires_grad()) trainable.push_back(parameter);
  }
  torch::optim::AdamW optimiser(trainable, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    optimiser.zero_grad();
    torch::log_softmax(net_->forward(tokens).logits, -1).select(-1, 7).mean().neg().backward();
    optimiser.step();
  }
  const torch::Tensor adapted = net_->forward(tokens).logits.detach();
  EXPECT_GT(largest_difference(adapted, plain), 0.1);
  EXPECT_TRUE(torch::equal(net_->matrices()[0].matrix->weight, original->matrices()[0].matrix->weight)) << "W is frozen";
  EXPECT_LE(largest_difference(copy_of(net_)->forward(tokens).logits, adapted), 0) << "a copy has the adapters too";

  version = net_->version();
  net_->merge_adapters();
  EXPECT_GT(net_->version(), version) << "never an old stamp, though the adapters' own counts are gone";
  EXPECT_FALSE(net_->has_adapters());
  EXPECT_LE(largest_difference(net_->forward(tokens).logits, adapted), kTolerance);
  for (const auto& item : net_->named_parameters()) {
    EXPECT_TRUE(item.value().requires_grad()) << item.key();
    EXPECT_EQ(item.key().find("lora_"), std::string::npos);
  }
}

TEST(TorchShape, ContradictionsAndBoundsAreNamed) {
  const auto said = [](auto change) {
    ModelShape shape = small_shape();
    change(shape);
    const Status status = check_shape(shape);
    return status.is_ok() ? std::string("ok") : std::string(code_name(status.code())) + ": " + status.message();
  };
  EXPECT_EQ(said([](ModelShape&) {}), "ok");
  EXPECT_NE(said([](ModelShape& s) { s.heads = 5; }).find("even multiple of its 5 heads"), std::string::npos);
  EXPECT_NE(said([](ModelShape& s) {
              s.width = 60;
              s.heads = 20;
            }).find("even multiple"),
            std::string::npos)
      << "a head of 3";
  EXPECT_NE(said([](ModelShape& s) { s.kv_heads = 3; }).find("not a multiple of its 3 kv heads"), std::string::npos);
  EXPECT_NE(said([](ModelShape& s) { s.vocab = 0; }).find("vocabulary is 0"), std::string::npos);
  EXPECT_NE(said([](ModelShape& s) { s.layers = 513; }).find("layers is 513"), std::string::npos);
  EXPECT_NE(said([](ModelShape& s) { s.norm_eps = 0; }).find("norm epsilon"), std::string::npos);
  EXPECT_NE(said([](ModelShape& s) { s.rope_base = std::nan(""); }).find("rope base"), std::string::npos);
  EXPECT_NE(said([](ModelShape& s) {
              s.width = s.ffn = 1 << 14;
              s.heads = s.kv_heads = 128;
              s.layers = 512;
            }).find("limit: the model has"),
            std::string::npos);
}

}  // namespace
}  // namespace drift::engine
