#include "cli/divergence.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace drift::cli {
namespace {

trace::Margin greedy(std::vector<Token> top, std::vector<float> logits) {
  trace::Margin m;
  m.top = std::move(top);
  m.top_logits = std::move(logits);
  return m;
}

trace::Margin drawn(double draw, double low, double high) {
  trace::Margin m;
  m.draw = draw;
  m.low = low;
  m.high = high;
  return m;
}

TEST(Divergence, EqualTextsDoNotDiffer) {
  const std::vector<Token> text{1, 2, 3};
  EXPECT_FALSE(first_difference(text, text, {}, true));
}

TEST(Divergence, GreedyMarginIsTheGapToTheOtherToken) {
  const std::vector<Token> plain{1, 2, 3}, near{1, 7, 9}, far{1, 8, 9};
  const std::vector<trace::Margin> margins{greedy({1, 5}, {9, 1}), greedy({2, 5, 7}, {4.0f, 3.5f, 3.25f}),
                                           greedy({3, 4}, {1, 0})};
  const auto difference = first_difference(plain, near, margins, true);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->position, 1u);
  EXPECT_DOUBLE_EQ(difference->margin, 0.75);
  EXPECT_TRUE(std::isinf(first_difference(plain, far, margins, true)->margin)) << "8 is not among the best few";
}

TEST(Divergence, SamplingMarginIsOnTheSideOfTheOtherToken) {
  const std::vector<Token> plain{5}, above{6}, below{4};
  const std::vector<trace::Margin> margins{drawn(0.50, 0.40, 0.53)};
  EXPECT_NEAR(first_difference(plain, above, margins, false)->margin, 0.03, 1e-12);
  EXPECT_NEAR(first_difference(plain, below, margins, false)->margin, 0.10, 1e-12);
}

TEST(Divergence, AShorterTextIsNoNearTie) {
  const std::vector<Token> plain{1, 2}, shorter{1};
  const std::vector<trace::Margin> margins{greedy({1, 2}, {1, 0}), greedy({2, 1}, {1, 0})};
  const auto difference = first_difference(plain, shorter, margins, true);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->position, 1u);
  EXPECT_TRUE(std::isinf(difference->margin));
}

TEST(Divergence, GreedyChangeFollowsTheSameTwoTokens) {
  const trace::Margin before = greedy({2, 0}, {5.0f, 4.9f});
  const std::vector<float> swapped{5.0f, 0.0f, 4.95f};  // the order fell the other way: from +0.1 to -0.05
  EXPECT_NEAR(greedy_change(before, swapped), 0.15, 1e-6);
}

TEST(Divergence, DrawChangeAlsoOutsideTheInterval) {
  spec::Distribution now;
  now.ids = {3, 5, 8};
  now.probs = {0.4f, 0.2f, 0.4f};
  EXPECT_NEAR(draw_change(drawn(0.5, 0.4, 0.6), 5, now), 0.0, 1e-6);
  EXPECT_NEAR(draw_change(drawn(0.5, 0.45, 0.7), 5, now), 0.05, 1e-6);    // nearest boundary 0.05 -> 0.1
  EXPECT_NEAR(draw_change(drawn(0.65, 0.55, 0.75), 5, now), 0.15, 1e-6);  // now 0.05 beyond the end
  EXPECT_NEAR(draw_change(drawn(0.5, 0.45, 0.55), 4, now), 0.15, 1e-6);   // the token is gone: an empty interval at 0.4
}

TEST(Divergence, QuantileIsNearestRank) {
  std::vector<double> values;
  for (int i = 1; i <= 1000; ++i) values.push_back(i);
  EXPECT_DOUBLE_EQ(quantile(values, 0.999), 999);
  EXPECT_DOUBLE_EQ(quantile(values, 1.0), 1000);
  EXPECT_DOUBLE_EQ(quantile({3.0}, 0.999), 3);
}

}  // namespace
}  // namespace drift::cli
