// The parts of a chain, each against the slow and obvious: level names, score tables, reduced rows, mixing, rewards.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"
#include "drift/recal/level.hpp"
#include "drift/recal/level_reward.hpp"
#include "drift/recal/reduced.hpp"
#include "drift/recal/score_table.hpp"
#include "drift/testing/reference.hpp"

namespace drift::recal {
namespace {

// ---- levels ----

TEST(Levels, AreReadAndNamedInOrder) {
  const auto all = parse_levels("all");
  ASSERT_TRUE(all.is_ok());
  EXPECT_EQ(level_names(all.value(), "+"), "global+hidden+ngram1+ngram2+ngram3+ngram4");
  const auto some = parse_levels("ngram2,hidden+ngram2");
  ASSERT_TRUE(some.is_ok());
  EXPECT_EQ(level_names(some.value(), ","), "hidden,ngram2");
  EXPECT_TRUE(some->has_ngrams());
  EXPECT_FALSE(kHiddenOnly.has_ngrams());
  EXPECT_EQ(parse_levels("hidden").value(), kHiddenOnly);
  for (const char* bad : {"", "hidden,", "ngram5", "ngram", "Hidden", "hidden ngram1"}) {
    const auto refused = parse_levels(bad);
    ASSERT_FALSE(refused.is_ok()) << bad;
    EXPECT_EQ(refused.status().code(), Code::kInvalid);
    EXPECT_NE(refused.status().message().find("ngram4"), std::string::npos) << "says what there is";
  }
  EXPECT_EQ(ngram_level(1), Level::kNgram1);
  EXPECT_EQ(ngram_level(4), Level::kNgram4);
}

// ---- score tables ----

constexpr float kChoices[] = {0.0f, 0.5f, 0.9f};
constexpr GainClass kWarm{true, false};

TEST(ScoreTable, FollowsTheBestSoFarAndForgets) {
  ScoreTable t(kChoices, 2);
  EXPECT_EQ(t.best(kWarm, 1), 0u);
  t.learn(kWarm, 1, std::vector<double>{0.4, 0.4, 0.4});
  EXPECT_EQ(t.best(kWarm, 1), 0u) << "nothing on ties";
  for (int i = 0; i < 4; ++i) t.learn(kWarm, 1, std::vector<double>{0.1, 0.2, 0.3});
  EXPECT_EQ(t.best(kWarm, 1), 0u) << "a lead of 0.8 is not enough yet";
  for (int i = 0; i < 3; ++i) t.learn(kWarm, 1, std::vector<double>{0.1, 0.2, 0.3});
  EXPECT_EQ(t.best(kWarm, 1), 2u);
  EXPECT_EQ(t.best(kWarm, 0), 0u) << "bins are apart";
  EXPECT_EQ(t.best({false, false}, 1), 0u) << "classes are apart";
  for (int i = 0; i < 2'000; ++i) t.learn(kWarm, 1, std::vector<double>{0.3, 0.2, 0.2});
  EXPECT_EQ(t.best(kWarm, 1), 0u);
}

TEST(ScoreTable, SavesAndRefusesWhatIsNotItsOwn) {
  ScoreTable t(kChoices, 2), back(kChoices, 2), other_bins(kChoices, 3);
  for (int i = 0; i < 9; ++i) t.learn(kWarm, 1, std::vector<double>{0.1, 0.2, 0.3});
  const std::vector<std::byte> bytes = t.save();
  ASSERT_TRUE(back.load(bytes).is_ok());
  EXPECT_EQ(back.save(), bytes);
  EXPECT_EQ(back.best(kWarm, 1), 2u);
  EXPECT_EQ(other_bins.load(bytes).code(), Code::kCorrupt);
  constexpr float kOther[] = {0.0f, 0.5f, 0.8f};
  ScoreTable other_choices(kOther, 2);
  EXPECT_EQ(other_choices.load(bytes).code(), Code::kCorrupt);
  std::vector<std::byte> bad = bytes;
  for (std::size_t i = 1; i <= 8; ++i) bad[bad.size() - i] = std::byte{0xff};
  EXPECT_EQ(back.load(bad).code(), Code::kCorrupt) << "a NaN";
  EXPECT_EQ(back.load(std::span(bytes).first(bytes.size() - 1)).code(), Code::kCorrupt);
  EXPECT_EQ(back.save(), bytes) << "unchanged by what was refused";
}

// ---- reduced rows ----

struct Scene {
  std::vector<float> draft, target;
  std::vector<Token> named;
};

Scene make_scene(std::uint64_t seed, std::size_t vocab, std::size_t names) {
  const RngStream random(seed);
  const auto uniform = [&](std::uint64_t stream, std::size_t i) {
    return random.uniform({stream, static_cast<Pos>(i), Purpose::kDraw, 0});
  };
  Scene s;
  for (std::size_t v = 0; v < vocab; ++v) {
    s.draft.push_back(static_cast<float>(12.0 * uniform(1, v) - 6.0));
    s.target.push_back(static_cast<float>(12.0 * uniform(2, v) - 6.0));
  }
  for (std::size_t i = 0; i < names; ++i) s.named.push_back(static_cast<Token>(uniform(3, i) * static_cast<double>(vocab)));
  std::sort(s.named.begin(), s.named.end());
  s.named.erase(std::unique(s.named.begin(), s.named.end()), s.named.end());
  return s;
}

TEST(Reduced, KeepsTheNamedTheLikelyAndTheMassOfTheRest) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const std::size_t vocab = 2 + seed * 7 % 300;
    const Scene s = make_scene(seed, vocab, seed % 20);
    const std::size_t others = 1 + seed % 9;
    Reducer reducer;
    ReducedRow row;
    reducer.reduce(s.draft, s.named, others, row);
    EXPECT_TRUE(std::is_sorted(row.tokens.begin(), row.tokens.end()));
    EXPECT_TRUE(std::includes(row.tokens.begin(), row.tokens.end(), s.named.begin(), s.named.end()));
    EXPECT_EQ(row.size(), std::min(vocab, s.named.size() + others));
    double all = 0.0, kept = 0.0;
    for (std::size_t v = 0; v < vocab; ++v) all += std::exp(static_cast<double>(s.draft[v]));
    float least_kept = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(row.logits[i], s.draft[static_cast<std::size_t>(row.tokens[i])]);
      kept += std::exp(static_cast<double>(row.logits[i]));
      if (!std::binary_search(s.named.begin(), s.named.end(), row.tokens[i])) least_kept = std::min(least_kept, row.logits[i]);
    }
    for (std::size_t v = 0; v < vocab; ++v) {
      const bool kept_one = std::binary_search(row.tokens.begin(), row.tokens.end(), static_cast<Token>(v));
      EXPECT_TRUE(kept_one || s.draft[v] <= least_kept);
    }
    EXPECT_NEAR(std::exp(row.log_rest), all - kept, 1e-5 * all);
    EXPECT_NEAR(log_z(row, std::vector<double>(row.size(), 0.0)), std::log(all), 1e-5);
  }
}

// The corrected law over the whole vocabulary, by definition.
std::vector<double> law_of(const Scene& s, const ReducedRow& row, std::span<const double> correction) {
  std::vector<float> logits = s.draft;
  for (std::size_t i = 0; i < row.size(); ++i)
    logits[static_cast<std::size_t>(row.tokens[i])] += static_cast<float>(correction[i]);
  return testing::softmax(logits);
}

TEST(Mix, GivesTheMixtureOfTheTwoLaws) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const std::size_t vocab = 10 + seed * 3;
    const Scene s = make_scene(seed, vocab, 6);
    Reducer reducer;
    ReducedRow row;
    reducer.reduce(s.draft, s.named, 8, row);
    std::vector<double> correction(row.size(), 0.0);
    for (std::size_t i = 0; i < row.size(); i += 2) correction[i] = static_cast<double>(i % 5) - 2.0;  // what lower levels did
    // P: most of its mass on the named tokens, the rest spread like q.
    Named named;
    double p_named = 0.0;
    for (const Token t : s.named) {
      named.at.push_back(
          static_cast<std::uint32_t>(std::lower_bound(row.tokens.begin(), row.tokens.end(), t) - row.tokens.begin()));
      named.values.push_back(static_cast<float>(0.9 / static_cast<double>(s.named.size())));
      p_named += static_cast<double>(named.values.back());
    }
    const std::vector<double> q = law_of(s, row, correction);
    double q_named = 0.0;
    for (const Token t : s.named) q_named += q[static_cast<std::size_t>(t)];
    for (const double weight : {0.0, 0.2, 0.6, 0.95}) {
      std::vector<double> deltas, mixed = correction;
      mix(row, correction, log_z(row, correction), named, weight, deltas);
      for (std::size_t i = 0; i < named.at.size(); ++i) mixed[named.at[i]] += deltas[i];
      const std::vector<double> got = law_of(s, row, mixed);
      for (std::size_t v = 0; v < vocab; ++v) {
        const auto at = std::lower_bound(s.named.begin(), s.named.end(), static_cast<Token>(v));
        const bool is_named = at != s.named.end() && *at == static_cast<Token>(v);
        const double p = is_named ? static_cast<double>(named.values[0]) : (1.0 - p_named) * q[v] / (1.0 - q_named);
        EXPECT_NEAR(got[v], (1.0 - weight) * q[v] + weight * p, 2e-5)
            << "seed " << seed << ", weight " << weight << ", token " << v;
      }
    }
  }
}

TEST(Mix, StaysBoundedWhereTheDraftExcludesAToken) {
  ReducedRow row{{0, 1, 2}, {0.0f, -1e30f, 3e38f}, -std::numeric_limits<double>::infinity()};
  const std::vector<double> none(3, 0.0);
  std::vector<double> deltas;
  mix(row, none, log_z(row, none), {{0, 1}, {0.5f, 0.5f}}, 0.95, deltas);
  for (const double d : deltas) EXPECT_TRUE(std::fabs(d) <= kMixBound) << d;
  mix(row, none, log_z(row, none), {{2}, {0.0f}}, 0.95, deltas);
  EXPECT_TRUE(std::isfinite(deltas[0]));
}

// ---- rewards ----

double reference_reward(const Judging& judging, const Scene& s, const ReducedRow& row, std::span<const double> correction) {
  std::vector<float> logits = s.draft;
  for (std::size_t i = 0; i < row.size(); ++i)
    logits[static_cast<std::size_t>(row.tokens[i])] += static_cast<float>(correction[i]);
  const std::vector<double> p = testing::reference_distribution(judging.sampler, s.target),
                            q = testing::reference_distribution(judging.sampler, logits);
  double sum = 0.0, cdf_p = 0.0, cdf_q = 0.0;
  for (std::size_t v = 0; v < p.size(); ++v) {
    // Overlap, or with the match rule the length on which the intervals that both laws cut [0, 1) into agree.
    sum +=
        judging.rejection ? std::min(p[v], q[v]) : std::max(0.0, std::min(cdf_p + p[v], cdf_q + q[v]) - std::max(cdf_p, cdf_q));
    cdf_p += p[v];
    cdf_q += q[v];
  }
  return sum;
}

const spec::SamplerConfig kSamplers[] = {{0.0f, 0, 1.0f, 0.0f}, {1.0f, 0, 1.0f, 0.0f}, {0.5f, 0, 1.0f, 0.0f},
                                         {2.0f, 0, 1.0f, 0.0f}, {0.8f, 5, 1.0f, 0.0f}, {0.8f, 40, 0.9f, 0.05f}};

TEST(LevelReward, IsTheChanceToStandWhereTheRowIsWhole) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    const std::size_t vocab = 5 + seed / 2;
    const Scene s = make_scene(seed, vocab, 5);
    Reducer reducer;
    ReducedRow row;
    reducer.reduce(s.draft, s.named, 64, row);  // everything is kept
    ASSERT_EQ(row.size(), vocab);
    for (const spec::SamplerConfig& sampler : kSamplers) {
      const Judging judging{seed % 2 == 0, sampler};
      LevelReward reward;
      reward.begin(judging, row, s.draft, s.target);
      std::vector<double> correction(row.size(), 0.0);
      correction[1] = 3.0;
      reward.base(correction);
      for (const double strength : {0.0, 1.0, -4.0, 30.0, 900.0}) {
        const std::vector<std::uint32_t> at{0, 2};
        const std::vector<double> deltas{strength, -strength};
        std::vector<double> all = correction;
        all[0] += strength;
        all[2] -= strength;
        EXPECT_NEAR(reward.of(at, deltas), reference_reward(judging, s, row, all), 2e-5)
            << "seed " << seed << ", temperature " << sampler.temperature << ", top-k " << sampler.top_k << ", " << strength;
      }
    }
  }
}

// With a bucket it is an upper bound, and close where the bucket is light.
TEST(LevelReward, TokensThatAreNotKeptCountAsOne) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Scene s = make_scene(seed, 400, 10);
    Reducer reducer;
    ReducedRow row;
    reducer.reduce(s.draft, s.named, 64, row);
    for (const float temperature : {0.5f, 1.0f}) {
      const Judging judging{seed % 2 == 0, {temperature, 0, 1.0f, 0.0f}};
      LevelReward reward;
      reward.begin(judging, row, s.draft, s.target);
      const std::vector<double> none(row.size(), 0.0);
      reward.base(none);
      const double exact = reference_reward(judging, s, row, none), got = reward.of({}, {});
      EXPECT_GE(got, exact - 1e-5);
      EXPECT_LT(got, exact + 0.3);
    }
  }
}

TEST(LevelReward, GreedyIsExactWithABucket) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Scene s = make_scene(seed, 400, 10);
    if (seed % 2 == 0) s.target = s.draft;
    Reducer reducer;
    ReducedRow row;
    reducer.reduce(s.draft, s.named, 64, row);
    const Judging judging{false, {0.0f, 0, 1.0f, 0.0f}};
    LevelReward reward;
    reward.begin(judging, row, s.draft, s.target);
    std::vector<double> correction(row.size(), 0.0);
    correction[3] = static_cast<double>(seed % 20);
    reward.base(correction);
    EXPECT_EQ(reward.of({}, {}), reference_reward(judging, s, row, correction));
  }
}

}  // namespace
}  // namespace drift::recal
