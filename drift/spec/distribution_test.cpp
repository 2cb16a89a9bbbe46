#include "drift/spec/distribution.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"
#include "drift/testing/reference.hpp"

namespace drift::spec {
namespace {

using drift::testing::reference_distribution;

std::vector<double> dense(const Distribution& d, std::size_t vocab) {
  std::vector<double> out(vocab, 0.0);
  for (std::size_t i = 0; i < d.size(); ++i) out[static_cast<std::size_t>(d.ids[i])] = static_cast<double>(d.probs[i]);
  return out;
}

Distribution chain(const SamplerConfig& config, const std::vector<float>& logits) {
  Sampler sampler;
  Distribution out;
  sampler.apply(config, logits, out);
  return out;
}

Distribution make(std::vector<Token> ids, std::vector<float> probs) { return {std::move(ids), std::move(probs)}; }

void expect_like_reference(const SamplerConfig& config, const std::vector<float>& logits, const std::string& what) {
  const Distribution got = chain(config, logits);
  const std::vector<double> expected = reference_distribution(config, logits);
  double sum = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(i == 0 || got.ids[i - 1] < got.ids[i]) << what;
    sum += static_cast<double>(got.probs[i]);
  }
  EXPECT_NEAR(sum, 1.0, 1e-5) << what;
  const std::vector<double> have = dense(got, logits.size());
  std::size_t kept = 0;
  for (std::size_t v = 0; v < have.size(); ++v) {
    kept += expected[v] > 0.0 ? 1 : 0;
    ASSERT_NEAR(have[v], expected[v], 2e-6) << what << ", token " << v;
  }
  EXPECT_EQ(got.size(), kept) << what;
}

std::string describe(const SamplerConfig& c, std::size_t vocab, std::uint64_t seed) {
  char text[128];
  std::snprintf(text, sizeof text, "T %.2f k %d p %.2f min-p %.2f, V %zu, seed %d", static_cast<double>(c.temperature), c.top_k,
                static_cast<double>(c.top_p), static_cast<double>(c.min_p), vocab, static_cast<int>(seed));
  return text;
}

TEST(Sampler, EqualsTheSlowReference) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const RngStream random(seed);
    for (const std::size_t vocab : {1u, 2u, 7u, 64u, 1000u}) {
      std::vector<float> logits(vocab);
      for (std::size_t v = 0; v < vocab; ++v)
        logits[v] = static_cast<float>(12.0 * random.uniform({vocab, static_cast<Pos>(v), Purpose::kDraw, 0}) - 6.0);
      for (const float temperature : {0.0f, 0.3f, 1.0f, 1.7f}) {
        for (const int top_k : {0, 1, 3, 40, 5000}) {
          for (const float top_p : {1.0f, 0.9f, 0.35f, 0.001f}) {
            for (const float min_p : {0.0f, 0.05f, 0.4f, 1.0f}) {
              const SamplerConfig config{temperature, top_k, top_p, min_p};
              expect_like_reference(config, logits, describe(config, vocab, seed));
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(Sampler, TiesGoToTheLowestId) {
  const std::vector<float> logits{1.0f, 3.0f, 3.0f, 3.0f, 2.0f};
  EXPECT_EQ(chain(greedy_sampler(), logits).ids, std::vector<Token>{1});
  EXPECT_EQ(chain({1.0f, 2, 1.0f, 0.0f}, logits).ids, (std::vector<Token>{1, 2}));
  EXPECT_EQ(chain({1.0f, 0, 0.3f, 0.0f}, logits).ids, (std::vector<Token>{1, 2}))
      << "each of the three has about 0.30 of the mass";
  expect_like_reference({1.0f, 0, 0.6f, 0.0f}, logits, "ties in top-p");
  expect_like_reference({1.0f, 0, 1.0f, 1.0f}, logits, "ties in min-p");
  EXPECT_EQ(chain({1.0f, 0, 1.0f, 1.0f}, logits).ids, (std::vector<Token>{1, 2, 3})) << "min-p 1 keeps all that equal the best";
}

TEST(Sampler, TopPStopsAtTheTokenThatReachesTheMass) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  EXPECT_EQ(chain({1.0f, 0, 0.49f, 0.0f}, logits).size(), 1u);
  EXPECT_EQ(chain({1.0f, 0, 0.51f, 0.0f}, logits).size(), 2u);
  EXPECT_EQ(chain({1.0f, 0, 0.74f, 0.0f}, logits).size(), 2u);
  EXPECT_EQ(chain({1.0f, 0, 0.76f, 0.0f}, logits).size(), 3u);
}

TEST(Sampler, TopPRefersToWhatTopKLeft) {
  const std::vector<float> logits{std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  // Of the top two, the first has 4/7 = 0.571.
  EXPECT_EQ(chain({1.0f, 2, 0.56f, 0.0f}, logits).size(), 1u);
  EXPECT_EQ(chain({1.0f, 2, 0.58f, 0.0f}, logits).size(), 2u);
}

TEST(Sampler, MinPIsAShareOfTheBest) {
  const std::vector<float> logits{std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  EXPECT_EQ(chain({1.0f, 0, 1.0f, 0.16f}, logits).size(), 3u);
  EXPECT_EQ(chain({1.0f, 0, 1.0f, 0.17f}, logits).size(), 2u);
  EXPECT_EQ(chain({1.0f, 0, 1.0f, 0.51f}, logits).size(), 1u);
  EXPECT_EQ(chain({2.0f, 0, 1.0f, 0.17f}, logits).size(), 2u) << "the share is taken at temperature 1";
}

TEST(Sampler, LargeVocabulary) {
  constexpr std::size_t kVocab = 151'936;
  const RngStream random(5);
  std::vector<float> logits(kVocab);
  for (std::size_t v = 0; v < kVocab; ++v)
    logits[v] = static_cast<float>(20.0 * random.uniform({1, static_cast<Pos>(v), Purpose::kDraw, 0}));
  for (const SamplerConfig& config : {SamplerConfig{0.8f, 40, 0.95f, 0.05f}, SamplerConfig{1.0f, 0, 1.0f, 0.0f},
                                      SamplerConfig{1.0f, 0, 0.9f, 0.0f}, SamplerConfig{0.8f, 0, 1.0f, 0.1f}}) {
    const Distribution got = chain(config, logits);
    const std::vector<double> expected = reference_distribution(config, logits);
    double apart = 0.0, sum = 0.0;
    const std::vector<double> have = dense(got, kVocab);
    for (std::size_t v = 0; v < kVocab; ++v) apart += std::fabs(have[v] - expected[v]);
    for (float p : got.probs) sum += static_cast<double>(p);
    EXPECT_LT(apart, 1e-4);
    EXPECT_NEAR(sum, 1.0, 1e-4);
  }
}

TEST(Sampler, TopPPutsNoMoreInOrderThanItKeepsAndStillFindsTheRightOnes) {
  // Flat rows: thousands of tokens are kept, over several rounds of ordering, with many ties at the border.
  constexpr std::size_t kVocab = 20'000;
  const RngStream random(9);
  std::vector<float> logits(kVocab);
  for (std::size_t v = 0; v < kVocab; ++v)
    logits[v] = std::trunc(static_cast<float>(40.0 * random.uniform({2, static_cast<Pos>(v), Purpose::kDraw, 0}))) / 40.0f;
  for (const float top_p : {0.01f, 0.3f, 0.9f, 0.999f}) {
    for (const float min_p : {0.0f, 0.5f}) {
      const SamplerConfig config{1.0f, 0, top_p, min_p};
      const Distribution got = chain(config, logits);
      const std::vector<double> expected = reference_distribution(config, logits);
      std::vector<Token> ids;
      for (std::size_t v = 0; v < kVocab; ++v)
        if (expected[v] > 0.0) ids.push_back(static_cast<Token>(v));
      // The float exps may put the border one token from where the double ones do.
      ASSERT_NEAR(static_cast<double>(got.size()), static_cast<double>(ids.size()), 1.0) << top_p << ", " << min_p;
      std::vector<Token> apart;
      std::set_symmetric_difference(got.ids.begin(), got.ids.end(), ids.begin(), ids.end(), std::back_inserter(apart));
      EXPECT_LE(apart.size(), 1u) << top_p << ", " << min_p;
    }
  }
}

TEST(Sampler, ExtremeLogitsStayFinite) {
  const std::vector<float> logits{-3e38f, 3e38f, 0.0f, 88.0f};
  for (const float t : {0.0f, 1e-45f, 1e-40f, 1e-30f, 0.01f, 1.0f, 100.0f}) {
    for (const float top_p : {1.0f, 0.9f}) {
      const Distribution d = chain({t, 0, top_p, 0.0f}, logits);
      for (float p : d.probs) EXPECT_TRUE(std::isfinite(p));
      EXPECT_EQ(d.of(1), 1.0f);
    }
  }
}

TEST(Sampler, BiasIsAddedBeforeAnyFilter) {
  const std::vector<float> logits{0.0f, 5.0f, 4.0f};
  const SparseBias bias{{0, 1}, {10.0f, -3.0f}};
  Sampler sampler;
  Distribution with, without;
  sampler.apply({1.0f, 2, 1.0f, 0.0f}, logits, bias, 0.5f, with);
  EXPECT_EQ(with.ids, (std::vector<Token>{0, 2})) << "5, 3.5, 4 after the bias";
  EXPECT_NEAR(static_cast<double>(with.of(0)), 1.0 / (1.0 + std::exp(-1.0)), 1e-6);
  sampler.apply({1.0f, 2, 1.0f, 0.0f}, logits, bias, 0.0f, with);
  sampler.apply({1.0f, 2, 1.0f, 0.0f}, logits, without);
  EXPECT_EQ(with.ids, without.ids);
  EXPECT_EQ(with.probs, without.probs) << "gain 0 is no bias, bit for bit";
}

TEST(SamplerConfig, BoundsAreNamed) {
  EXPECT_TRUE(SamplerConfig{}.validate().is_ok());
  EXPECT_TRUE(greedy_sampler().validate().is_ok());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::pair<SamplerConfig, const char*> wrong[] = {
      {{-0.1f, 0, 1.0f, 0.0f}, "temperature"}, {{101.0f, 0, 1.0f, 0.0f}, "temperature"}, {{nan, 0, 1.0f, 0.0f}, "temperature"},
      {{1.0f, -1, 1.0f, 0.0f}, "top-k"},       {{1.0f, 0, 0.0f, 0.0f}, "top-p"},         {{1.0f, 0, 1.01f, 0.0f}, "top-p"},
      {{1.0f, 0, nan, 0.0f}, "top-p"},         {{1.0f, 0, 1.0f, -0.1f}, "min-p"},        {{1.0f, 0, 1.0f, 1.1f}, "min-p"},
      {{1.0f, 0, 1.0f, nan}, "min-p"},
  };
  for (const auto& [config, name] : wrong) {
    const Status status = config.validate();
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
}

// ---- pairs of distributions, against brute force ----

Distribution random_distribution(std::uint64_t seed, std::size_t vocab) {
  const RngStream random(seed);
  Distribution d;
  double sum = 0.0;
  std::vector<double> weights;
  for (std::size_t v = 0; v < vocab; ++v) {
    const double u = random.uniform({1, static_cast<Pos>(v), Purpose::kDraw, 0});
    if (u < 0.4 && v + 1 < vocab) continue;
    d.ids.push_back(static_cast<Token>(v));
    weights.push_back(u * u);
    sum += u * u;
  }
  for (double w : weights) d.probs.push_back(static_cast<float>(w / sum));
  return d;
}

TEST(Pairs, OverlapSameDrawAndSubtractByBruteForce) {
  constexpr std::size_t kVocab = 9;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Distribution a = random_distribution(seed, kVocab), b = random_distribution(seed + 10'000, kVocab);
    const std::vector<double> p = dense(a, kVocab), q = dense(b, kVocab);
    double expected_overlap = 0.0, left_mass = 0.0;
    std::vector<double> left(kVocab);
    for (std::size_t v = 0; v < kVocab; ++v) {
      expected_overlap += std::min(p[v], q[v]);
      left_mass += left[v] = std::max(0.0, p[v] - q[v]);
    }
    EXPECT_NEAR(overlap(a, b), expected_overlap, 1e-6) << "seed " << seed;
    EXPECT_NEAR(overlap(b, a), expected_overlap, 1e-6);

    // The two inverse CDFs are step functions of the shared number: look between all of their steps.
    std::set<double> steps{0.0, 1.0};
    double cdf_p = 0.0, cdf_q = 0.0;
    for (std::size_t v = 0; v < kVocab; ++v) {
      steps.insert(std::min(1.0, cdf_p += p[v]));
      steps.insert(std::min(1.0, cdf_q += q[v]));
    }
    double same = 0.0;
    for (auto it = steps.begin(); std::next(it) != steps.end(); ++it) {
      const double low = *it, high = *std::next(it), u = (low + high) / 2.0;
      if (a.ids[inverse_cdf(a.probs, u)] == b.ids[inverse_cdf(b.probs, u)]) same += high - low;
    }
    EXPECT_NEAR(same_draw_chance(a, b), same, 1e-6) << "seed " << seed;
    EXPECT_NEAR(same_draw_chance(a, a), 1.0, 1e-6);

    Distribution rest;
    ASSERT_TRUE(subtract(a, b, rest));
    const std::vector<double> have = dense(rest, kVocab);
    for (std::size_t v = 0; v < kVocab; ++v) EXPECT_NEAR(have[v], left[v] / left_mass, 1e-5) << "seed " << seed;
  }
}

TEST(Pairs, SubtractMayWriteOverItsFirstArgument) {
  Distribution a = make({0, 2, 5}, {0.5f, 0.3f, 0.2f});
  ASSERT_TRUE(subtract(a, make({0, 5}, {0.9f, 0.1f}), a));
  EXPECT_EQ(a.ids, (std::vector<Token>{2, 5}));
  EXPECT_NEAR(static_cast<double>(a.probs[0]), 0.75, 1e-6);
}

TEST(Pairs, NothingLeftLeavesTheOutputAlone) {
  Distribution out = make({7}, {1.0f});
  const Distribution a = make({0, 1}, {0.5f, 0.5f});
  EXPECT_FALSE(subtract(a, a, out));
  EXPECT_EQ(out.ids, std::vector<Token>{7});
}

TEST(Pairs, DisjointDistributions) {
  const Distribution a = make({0, 3}, {0.5f, 0.5f}), b = make({1, 2}, {0.5f, 0.5f});
  EXPECT_EQ(overlap(a, b), 0.0);
  EXPECT_EQ(same_draw_chance(a, b), 0.0);
  EXPECT_EQ(a.of(1), 0.0f);
  EXPECT_EQ(a.of(3), 0.5f);
  EXPECT_EQ(a.of(99), 0.0f);
}

}  // namespace
}  // namespace drift::spec
