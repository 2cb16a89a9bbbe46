#include "train/shortlist.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>

namespace drift::train {
namespace {

constexpr std::int64_t kVocab = 1'000, kSize = 200;

torch::Tensor counts_order() { return torch::arange(kVocab, torch::kLong).flip(0); }  // token 999 is the most frequent

torch::Tensor labelled_tokens() { return torch::arange(3, 60, 3, torch::kInt).view({1, 19}); }

TEST(Shortlist, HoldsLabelledFrequentAndRandomTokens) {
  const Shortlist list = make_shortlist(labelled_tokens(), counts_order(), kSize, 1);
  ASSERT_EQ(list.tokens.size(0), kSize);
  for (std::int64_t i = 0; i < kSize; ++i) EXPECT_EQ(list.place[list.tokens[i]].item<std::int64_t>(), i);
  EXPECT_EQ((list.place >= 0).sum().item<std::int64_t>(), kSize);
  const torch::Tensor weight = list.log_weight.exp();
  for (const std::int64_t token : {3, 57, 999, 950}) {
    const auto place = list.place[token].item<std::int64_t>();
    ASSERT_GE(place, 0) << token;
    EXPECT_EQ(weight[place].item<float>(), 1) << token;
  }
  EXPECT_NEAR(weight.sum().item<double>(), kVocab, 0.1);  // together they stand for everything
  EXPECT_TRUE(torch::equal(list.tokens, make_shortlist(labelled_tokens(), counts_order(), kSize, 1).tokens));
  EXPECT_FALSE(torch::equal(list.tokens, make_shortlist(labelled_tokens(), counts_order(), kSize, 2).tokens));
}

TEST(Shortlist, GrowsWhenLabelsFillIt) {
  const Shortlist many = make_shortlist(torch::arange(0, 400, torch::kInt), counts_order(), kSize, 1);
  EXPECT_EQ(many.tokens.size(0), 400 + 50 + 50);
  const Shortlist all = make_shortlist(torch::arange(0, kVocab, torch::kInt), counts_order(), kSize, 1);
  EXPECT_EQ(all.tokens.size(0), kVocab);
  EXPECT_EQ(all.log_weight.abs().max().item<float>(), 0);
}

class ShortlistLoss : public ::testing::Test {
 protected:
  ShortlistLoss() {
    engine::use_threads(1);
    engine::ModelShape shape;
    shape.vocab = kVocab;
    shape.width = shape.ffn = 32;
    shape.layers = shape.heads = shape.kv_heads = 1;
    shape.context = 32;
    net_ = engine::LlamaNet(shape);
    net_->init_weights(1);
    torch::manual_seed(1);
    hidden_ = torch::randn({1, 4, 32}) * 4;  // logits of a deviation of about a half
    tokens_ = labelled_tokens().to(torch::kLong).narrow(1, 0, 16).view({1, 4, 4});
  }
  engine::LlamaNet net_{nullptr};
  torch::Tensor hidden_, tokens_;
};

TEST_F(ShortlistLoss, IsExactWhenAllTokensAreOnIt) {
  const Shortlist all = make_shortlist(torch::arange(0, kVocab, torch::kInt), counts_order(), kSize, 1);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(
      torch::allclose(log_probabilities(net_, hidden_, tokens_, all), log_probabilities(net_, hidden_, tokens_), 0, 1e-5));
}

// The estimate of the norm, and the gradient of the head, are right on average over draws.
TEST_F(ShortlistLoss, IsRightOnAverage) {
  const torch::Tensor exact = log_probabilities(net_, hidden_, tokens_);
  const torch::Tensor exact_gradient = torch::autograd::grad({exact.sum()}, {net_->token_embd->weight})[0];
  torch::Tensor mean = torch::zeros_like(exact.detach()), gradient = torch::zeros_like(exact_gradient);
  constexpr int kDraws = 200;
  for (int draw = 0; draw < kDraws; ++draw) {
    const Shortlist list = make_shortlist(labelled_tokens(), counts_order(), kSize, static_cast<std::uint64_t>(draw));
    const torch::Tensor log_q = log_probabilities(net_, hidden_, tokens_, list);
    mean += log_q.detach() / kDraws;
    gradient += torch::autograd::grad({log_q.sum()}, {net_->token_embd->weight})[0] / kDraws;
  }
  EXPECT_LT((mean - exact.detach()).abs().max().item<double>(), 0.02);
  const double error = (gradient - exact_gradient).norm().item<double>() / exact_gradient.norm().item<double>();
  EXPECT_LT(error, 0.1);
}

}  // namespace
}  // namespace drift::train
