#include "train/optimiser.hpp"

#include <gtest/gtest.h>
#include <torch/utils.h>

namespace drift::train {
namespace {

TEST(Muon, MakesSingularValuesAboutOne) {
  torch::manual_seed(1);
  for (const auto& [rows, columns] : {std::pair<int, int>{32, 32}, {96, 32}, {32, 96}}) {
    // Singular values from 1 down to 0.03.
    const torch::Tensor x =
        torch::randn({rows, 32}).mm(torch::diag(torch::logspace(0, -1.5, 32))).mm(torch::randn({32, columns}));
    const torch::Tensor values = std::get<1>(torch::svd(orthogonalised(x)));
    EXPECT_LT(values.max().item<double>(), 1.3);
    EXPECT_GT(values.median().item<double>(), 0.6);
  }
}

engine::LlamaNet small_net() {
  engine::ModelShape shape;
  shape.vocab = 40;
  shape.width = 32;
  shape.layers = shape.heads = shape.kv_heads = 1;
  shape.ffn = 64;
  shape.context = 32;
  engine::LlamaNet net(shape);
  net->init_weights(3);
  return net;
}

std::vector<torch::Tensor> gradients_like(const Optimiser& optimiser) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : optimiser.parameters()) all.push_back(torch::cos(parameter.detach() * 100));
  return all;
}

TEST(Optimiser, DoesNotDependOnItsWorkers) {
  engine::use_threads(1);
  engine::LlamaNet a = small_net(), b = small_net();
  Optimiser one(a, Rates{}), two(b, Rates{});
  for (int step = 0; step < 3; ++step) {
    auto for_one = gradients_like(one), for_two = gradients_like(two);
    one.step(for_one, 0.5, 1);
    two.step(for_two, 0.5, 2);
  }
  for (const auto& item : a->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), b->named_parameters()[item.key()])) << item.key();
}

TEST(Optimiser, GoesOnFromItsState) {
  engine::use_threads(1);
  engine::LlamaNet net = small_net();
  Optimiser first(net, Rates{});
  auto gradients = gradients_like(first);
  first.step(gradients, 1, 1);
  engine::LlamaNet copy = engine::copy_of(net);
  Optimiser second(copy, Rates{});
  const NamedTensors from = first.state(), to = second.state();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].first, to[i].first);
    torch::Tensor(to[i].second).copy_(from[i].second);
  }
  second.set_steps(first.steps());
  auto for_first = gradients_like(first), for_second = gradients_like(second);
  first.step(for_first, 1, 1);
  second.step(for_second, 1, 1);
  for (const auto& item : net->named_parameters()) EXPECT_TRUE(torch::equal(item.value(), copy->named_parameters()[item.key()]));
}

TEST(Optimiser, LeavesFrozenWeightsAlone) {
  engine::LlamaNet net = small_net();
  net->add_adapters(2, 4, 1);
  const Optimiser optimiser(net, Rates{}, /*all_adam=*/true);
  EXPECT_EQ(optimiser.parameters().size(), 14u);  // two for each of seven matrices
}

}  // namespace
}  // namespace drift::train
