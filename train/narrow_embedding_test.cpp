#include "train/narrow_embedding.hpp"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>

namespace drift::train {
namespace {

constexpr std::int64_t kTokens = 9'000, kWide = 24;  // more rows than are taken at once

// Rows that live in six directions, but for a little noise.
torch::Tensor flat_rows() {
  torch::manual_seed(1);
  const torch::Tensor plane = torch::randn({6, kWide});
  return torch::randn({kTokens, 6}).mm(plane) + 0.01 * torch::randn({kTokens, kWide}) + 3;
}

torch::Tensor some_counts() { return torch::arange(kTokens, torch::kFloat).remainder(97); }

TEST(NarrowEmbedding, KeepsTheDirectionsThereAre) {
  const torch::Tensor wide = flat_rows();
  const NarrowEmbedding narrow = narrow_embedding(wide, some_counts(), 7, 1);
  EXPECT_GT(narrow.kept, 0.99);
  ASSERT_EQ(narrow.weight.sizes(), (torch::IntArrayRef{kTokens, 7}));
  // Everything but noise of a centred row is a linear map of its narrow one.
  const torch::Tensor design = torch::cat({narrow.weight.narrow(1, 0, 6), torch::ones({kTokens, 1})}, 1);
  const torch::Tensor map = torch::mm(torch::inverse(torch::mm(design.t(), design)), torch::mm(design.t(), wide));
  EXPECT_LT((torch::mm(design, map) - wide).abs().max().item<double>(), 0.1);
  EXPECT_LT(narrow_embedding(wide, some_counts(), 4, 1).kept, 0.95);
}

TEST(NarrowEmbedding, HasTheSizeItSays) {
  const torch::Tensor counts = some_counts();
  const NarrowEmbedding narrow = narrow_embedding(flat_rows() * 50, counts, 7, 1);
  EXPECT_NEAR(narrow.weight.square().mean().sqrt().item<double>(), 0.1, 0.02);
  const torch::Tensor last = narrow.weight.select(1, 6);
  EXPECT_GT(last[96].item<float>(), last[5].item<float>());  // counted 96 times, 5 times
  EXPECT_NEAR(last.mean().item<double>(), 0, 0.01);
  torch::manual_seed(2);
  const torch::Tensor logits = torch::mv(narrow.weight, torch::randn({7}) * narrow.gain);
  EXPECT_GT(logits.std().item<double>(), 0.2);
  EXPECT_LT(logits.std().item<double>(), 1.2);
}

// The weights decide: rows that are never met may lie anywhere.
TEST(NarrowEmbedding, CountsDecideWhichDirectionsMatter) {
  torch::manual_seed(1);
  torch::Tensor wide = torch::zeros({kTokens, kWide}), counts = torch::zeros({kTokens});
  const std::int64_t met = kTokens / 2;
  wide.narrow(0, 0, met).select(1, 3).copy_(torch::randn({met}));
  wide.narrow(0, met, kTokens - met).select(1, 7).copy_(torch::randn({kTokens - met}));
  counts.narrow(0, 0, met).fill_(1'000);
  const torch::Tensor first = narrow_embedding(wide, counts, 2, 1).weight.select(1, 0).abs();
  EXPECT_GT(first.narrow(0, 0, met).mean().item<double>(), 10 * first.narrow(0, met, kTokens - met).mean().item<double>());
}

TEST(NarrowEmbedding, FillsWhatThereIsNothingFor) {
  const NarrowEmbedding narrow = narrow_embedding(flat_rows(), some_counts(), 40, 1);
  EXPECT_TRUE(torch::isfinite(narrow.weight).all().item<bool>());
  EXPECT_GT(narrow.weight.select(1, 30).abs().max().item<double>(), 0);
  EXPECT_TRUE(torch::equal(narrow.weight, narrow_embedding(flat_rows(), some_counts(), 40, 1).weight));
}

}  // namespace
}  // namespace drift::train
