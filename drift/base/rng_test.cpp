#include "drift/base/rng.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace drift {
namespace {

constexpr std::uint64_t kSeed = 2024;

TEST(RngStream, IsAFunctionOfSeedAndKey) {
  const RngStream a(kSeed), b(kSeed), c(kSeed + 1);
  const DrawKey key{3, 17, Purpose::kAccept, 1};
  EXPECT_EQ(a.uniform(key), b.uniform(key));
  EXPECT_EQ(a.uniform(key), a.uniform(key));
  EXPECT_NE(a.uniform(key), c.uniform(key));
}

TEST(RngStream, EveryPartOfTheKeyMatters) {
  const RngStream random(kSeed);
  std::set<double> seen;
  for (std::uint64_t sequence : {0ull, 1ull, 2ull, 1ull << 40}) {
    for (Pos position : {0, 1, 2, 1'000'000}) {
      for (Purpose purpose : {Purpose::kDraw, Purpose::kAccept, Purpose::kResample}) {
        for (std::uint32_t round : {0u, 1u, 2u}) seen.insert(random.uniform({sequence, position, purpose, round}));
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * 4u * 3u * 3u);
}

// Chi-square over 64 cells; 128 is far beyond the 1e-4 quantile of 63 degrees of freedom (about 111).
double cells_statistic(const std::vector<double>& numbers) {
  std::array<double, 64> cells{};
  for (double u : numbers) ++cells[static_cast<std::size_t>(u * 64.0)];
  const double expected = static_cast<double>(numbers.size()) / 64.0;
  double sum = 0.0;
  for (double n : cells) sum += (n - expected) * (n - expected) / expected;
  return sum;
}

TEST(RngStream, IsUniformAlongEveryPartOfTheKeyAndTheSeed) {
  constexpr int kNumbers = 100'000;
  std::vector<double> by_position, by_sequence, by_round, by_seed;
  const RngStream random(kSeed);
  for (int i = 0; i < kNumbers; ++i) {
    by_position.push_back(random.uniform({1, i, Purpose::kDraw, 0}));
    by_sequence.push_back(random.uniform({static_cast<std::uint64_t>(i), 5, Purpose::kDraw, 0}));
    by_round.push_back(random.uniform({1, 5, Purpose::kAccept, static_cast<std::uint32_t>(i)}));
    by_seed.push_back(RngStream(static_cast<std::uint64_t>(i)).uniform({1, 5, Purpose::kDraw, 0}));
  }
  for (const auto* numbers : {&by_position, &by_sequence, &by_round, &by_seed}) {
    for (double u : *numbers) ASSERT_TRUE(u >= 0.0 && u < 1.0);
    EXPECT_LT(cells_statistic(*numbers), 128.0) << "seed " << kSeed;
  }
}

// Numbers of neighbouring keys are uncorrelated: five standard errors of the mean product.
TEST(RngStream, NeighbouringKeysAreIndependent) {
  constexpr int kPairs = 100'000;
  const RngStream random(kSeed);
  double next = 0, purpose = 0, sequence = 0;
  for (int i = 0; i < kPairs; ++i) {
    const double u = random.uniform({1, i, Purpose::kDraw, 0}) - 0.5;
    next += u * (random.uniform({1, i + 1, Purpose::kDraw, 0}) - 0.5);
    purpose += u * (random.uniform({1, i, Purpose::kAccept, 0}) - 0.5);
    sequence += u * (random.uniform({2, i, Purpose::kDraw, 0}) - 0.5);
  }
  const double bound = 5.0 / 12.0 / std::sqrt(static_cast<double>(kPairs));
  EXPECT_LT(std::fabs(next / kPairs), bound);
  EXPECT_LT(std::fabs(purpose / kPairs), bound);
  EXPECT_LT(std::fabs(sequence / kPairs), bound);
}

TEST(RngStream, PickIsTheInverseCdfOfItsNumber) {
  RngStream random(kSeed);
  const std::vector<float> weights{0.1f, 0.0f, 2.0f, 0.5f};
  for (Pos i = 0; i < 1'000; ++i) {
    const DrawKey key{9, i, Purpose::kDraw, 0};
    EXPECT_EQ(random.pick(key, weights), inverse_cdf(weights, random.uniform(key)));
    EXPECT_EQ(random.accept(key, 0.3), random.uniform(key) < 0.3);
    EXPECT_FALSE(random.accept(key, 0.0));
    EXPECT_TRUE(random.accept(key, 1.0));
  }
}

TEST(InverseCdf, Boundaries) {
  const std::vector<float> quarters{1.0f, 1.0f, 1.0f, 1.0f};
  EXPECT_EQ(inverse_cdf(quarters, 0.0), 0u);
  EXPECT_EQ(inverse_cdf(quarters, std::nextafter(0.25, 0.0)), 0u);
  EXPECT_EQ(inverse_cdf(quarters, 0.25), 1u);
  EXPECT_EQ(inverse_cdf(quarters, std::nextafter(1.0, 0.0)), 3u);
}

TEST(InverseCdf, NeverAnIndexOfZeroWeight) {
  const std::vector<float> gaps{0.0f, 1.0f, 0.0f, 0.0f, 1.0f, 0.0f};
  EXPECT_EQ(inverse_cdf(gaps, 0.0), 1u);
  EXPECT_EQ(inverse_cdf(gaps, 0.5), 4u);
  EXPECT_EQ(inverse_cdf(gaps, std::nextafter(1.0, 0.0)), 4u);
  EXPECT_EQ(inverse_cdf(gaps, 1.0), 4u) << "even a number at the end of the interval has a token";
}

TEST(InverseCdf, OneWeightTakesAll) {
  EXPECT_EQ(inverse_cdf(std::vector<float>{0.3f}, 0.999), 0u);
  EXPECT_EQ(inverse_cdf(std::vector<float>{std::numeric_limits<float>::denorm_min()}, 0.5), 0u);
}

TEST(InverseCdf, ManySmallWeightsAreNotLost) {
  std::vector<float> weights(200'000, 1e-8f);
  weights[0] = 1.0f;
  EXPECT_EQ(inverse_cdf(weights, 0.5), 0u);
  const std::size_t late = inverse_cdf(weights, 0.9995);  // the small ones have 0.002 / 1.002 of the mass together
  EXPECT_GT(late, 140'000u);
  EXPECT_LT(late, 160'000u);
}

TEST(InverseCdfDeathTest, NothingToDrawIsABug) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH((void)inverse_cdf(std::vector<float>{0.0f, 0.0f}, 0.5), "positive weight");
}

}  // namespace
}  // namespace drift
