#include "drift/recal/reward.hpp"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"
#include "drift/testing/reference.hpp"

namespace drift::recal {
namespace {

using drift::testing::reference_distribution;

// From the definitions, in double and over dense rows.
double expected_reward(const Judging& judging, const std::vector<float>& draft, const std::vector<float>& target,
                       const spec::SparseBias& bias, float gain) {
  std::vector<float> biased = draft;
  for (std::size_t i = 0; i < bias.size(); ++i) biased[static_cast<std::size_t>(bias.tokens[i])] += gain * bias.values[i];
  const std::vector<double> p = reference_distribution(judging.sampler, target),
                            q = reference_distribution(judging.sampler, biased);
  double sum = 0.0, cdf_p = 0.0, cdf_q = 0.0;
  for (std::size_t v = 0; v < p.size(); ++v) {
    const double shared = std::min(cdf_p + p[v], cdf_q + q[v]) - std::max(cdf_p, cdf_q);
    sum += judging.rejection || judging.sampler.greedy() ? std::min(p[v], q[v]) : std::max(shared, 0.0);
    cdf_p += p[v];
    cdf_q += q[v];
  }
  return sum;
}

struct Case {
  std::vector<float> draft, target;
  spec::SparseBias bias;
};

// Rows of two models that agree in part, and a bias on `support` tokens up to `strength`.
Case make_case(std::uint64_t seed, std::size_t vocab, std::size_t support, double strength) {
  const RngStream random(seed);
  const auto uniform = [&](std::uint64_t stream, std::size_t v) {
    return random.uniform({stream, static_cast<Pos>(v), Purpose::kDraw, 0});
  };
  Case c;
  c.draft.resize(vocab);
  c.target.resize(vocab);
  for (std::size_t v = 0; v < vocab; ++v) {
    c.draft[v] = static_cast<float>(10.0 * uniform(1, v));
    c.target[v] = c.draft[v] + static_cast<float>(4.0 * uniform(2, v));
  }
  const std::size_t stride = vocab / support;
  for (std::size_t i = 0; i < support; ++i) {
    c.bias.tokens.push_back(static_cast<Token>(i * stride + i % stride));
    c.bias.values.push_back(static_cast<float>(strength * (2.0 * uniform(3, i) - 1.0)));
  }
  return c;
}

const spec::SamplerConfig kSamplers[] = {{0.0f, 0, 1.0f, 0.0f},   {1.0f, 0, 1.0f, 0.0f}, {0.3f, 0, 1.0f, 0.0f},
                                         {2.0f, 500, 1.0f, 0.0f}, {0.8f, 5, 1.0f, 0.0f}, {0.8f, 40, 0.9f, 0.05f},
                                         {1.0f, 0, 0.7f, 0.0f}};

void expect_definition(const Case& c, const std::string& what) {
  Reward reward;
  for (const spec::SamplerConfig& sampler : kSamplers) {
    for (const bool rejection : {false, true}) {
      const Judging judging{rejection, sampler};
      const GainTable::Scores got = reward.of(judging, c.bias, 0.8f, c.draft, c.target);
      for (std::size_t g = 0; g < kGainGrid.size(); ++g) {
        EXPECT_NEAR(got[g], expected_reward(judging, c.draft, c.target, c.bias, 0.8f * kGainGrid[g]), 3e-5)
            << what << ", gain " << kGainGrid[g] << ", rejection " << rejection << ", T " << sampler.temperature << ", k "
            << sampler.top_k << ", p " << sampler.top_p;
      }
    }
  }
}

TEST(Reward, IsTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    for (const std::size_t vocab : {8u, 65u, 500u}) {
      for (const std::size_t support : {std::size_t{1}, std::size_t{4}, vocab / 2, vocab}) {
        expect_definition(
            make_case(seed, vocab, support, 6.0),
            "seed " + std::to_string(seed) + ", vocab " + std::to_string(vocab) + ", support " + std::to_string(support));
      }
    }
  }
}

TEST(Reward, SurvivesABiasThatOverturnsEverything) {
  // The likely tokens pushed far below the rest, and an unlikely one far above: the mass moves by hundreds of nats.
  Case c = make_case(3, 65, 4, 1.0);
  for (const float value : {-400.0f, 400.0f}) {
    for (float& v : c.bias.values) v = value;
    expect_definition(c, "bias " + std::to_string(value));
  }
  c.draft.assign(65, 0.0f);
  c.draft[static_cast<std::size_t>(c.bias.tokens[0])] = 300.0f;
  c.bias.values.assign(4, -600.0f);
  expect_definition(c, "the one certain token pushed under");
}

TEST(Reward, AnEmptyBiasEarnsTheSameAtEveryGain) {
  Case c = make_case(7, 65, 1, 1.0);
  c.bias.clear();
  Reward reward;
  for (const bool rejection : {false, true}) {
    const GainTable::Scores got = reward.of({rejection, {1.0f, 0, 1.0f, 0.0f}}, c.bias, 1.0f, c.draft, c.target);
    for (const double score : got) EXPECT_EQ(score, got[0]);
    EXPECT_GT(got[0], 0.0);
  }
}

}  // namespace
}  // namespace drift::recal
