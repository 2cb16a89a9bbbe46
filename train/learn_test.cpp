#include "train/learn.hpp"

#include <gtest/gtest.h>
#include <torch/utils.h>

namespace drift::train {
namespace {

engine::ModelShape small_shape() {
  engine::ModelShape shape;
  shape.vocab = 50;
  shape.width = 32;
  shape.layers = 2;
  shape.heads = shape.kv_heads = 2;
  shape.ffn = 64;
  shape.context = 64;
  return shape;
}

engine::LlamaNet two_layer_net(std::uint64_t seed) {
  engine::LlamaNet net(small_shape());
  net->init_weights(seed);
  return net;
}

torch::Tensor some_rows(std::int64_t count) {
  torch::Tensor rows = torch::arange(count * 17, torch::kLong).mul(31).remainder(49).view({count, 17});
  return rows;
}

TEST(Gradient, IsTheSameHoweverItIsShared) {
  engine::use_threads(1);
  engine::LlamaNet net = two_layer_net(1);
  const Optimiser optimiser(net, Rates{});
  const torch::Tensor rows = some_rows(5);  // shares of 3 and 2
  const auto loss = [&](const torch::Tensor& share) { return next_token_loss(net, share); };
  const Gradient one = gradient_of(optimiser, rows, 1, loss), two = gradient_of(optimiser, rows, 2, loss);
  EXPECT_NEAR(one.loss, two.loss, 1e-5);
  EXPECT_NEAR(one.loss, std::log(50.0), 0.3);  // nothing learnt yet
  for (std::size_t i = 0; i < one.of.size(); ++i) EXPECT_TRUE(torch::allclose(one.of[i], two.of[i], 1e-3, 1e-6)) << i;
  const Gradient again = gradient_of(optimiser, rows, 2, loss);
  for (std::size_t i = 0; i < one.of.size(); ++i) EXPECT_TRUE(torch::equal(two.of[i], again.of[i])) << i;
}

TEST(Distillation, IsZeroForATwinAndFallsWithTraining) {
  engine::use_threads(1);
  engine::LlamaNet target = two_layer_net(1), student = two_layer_net(2);
  const torch::Tensor rows = some_rows(4);
  EXPECT_NEAR(distillation_loss(target, rows, teacher_logits(target, rows)).item<double>(), 0, 1e-6);
  Agreement twin = agreement(target, target, rows, 2);
  EXPECT_NEAR(twin.kl, 0, 1e-6);
  EXPECT_NEAR(twin.match, 1, 1e-6);
  EXPECT_NEAR(twin.overlap, 1, 1e-5);

  Optimiser teach(target, Rates{});  // something to imitate: a target that knows these rows
  for (int step = 0; step < 40; ++step) {
    Gradient gradient = gradient_of(teach, rows, 1, [&](const torch::Tensor& share) { return next_token_loss(target, share); });
    teach.step(gradient.of, 1, 1);
  }
  const Agreement before = agreement(target, student, rows, 1);
  Optimiser learn(student, Rates{});
  for (int step = 0; step < 40; ++step) {
    Gradient gradient = gradient_of(learn, rows, 1, [&](const torch::Tensor& share) {
      return distillation_loss(student, share, teacher_logits(target, share));
    });
    learn.step(gradient.of, 1, 1);
  }
  const Agreement after = agreement(target, student, rows, 1);
  EXPECT_LT(after.kl, before.kl / 2);
  EXPECT_GT(after.match, before.match);
  EXPECT_GT(after.overlap, before.overlap);
}

TEST(HeldOutLoss, IsTheMeanOverAllTokens) {
  engine::use_threads(1);
  engine::LlamaNet net = two_layer_net(1);
  const torch::Tensor rows = some_rows(11);  // no multiple of what is evaluated at a time
  const torch::NoGradGuard no_grad;
  EXPECT_NEAR(held_out_loss(net, rows, 2), next_token_loss(net, rows).item<double>(), 1e-5);
}

}  // namespace
}  // namespace drift::train
