#include "drift/recal/kriging.hpp"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"
#include "drift/recal/recalibrator.hpp"

namespace drift::recal {
namespace {

constexpr float kSigma = 0.1f;

bank::BankConfig bank_config(std::uint32_t dim) {
  bank::BankConfig config;
  config.capacity = 64;
  config.key_dim = dim;
  config.support = 2;
  config.vocab = 10;
  config.tau = 0.9999f;
  return config;
}

RecalConfig recal_config(WeightRule rule) {
  RecalConfig config;
  config.bank = bank_config(2);
  config.gain = GainRule::kFixed;
  config.weights = rule;
  return config;
}

std::unique_ptr<bank::Bank> make_bank(std::uint32_t dim, bank::KeyType type = bank::KeyType::kF32) {
  bank::BankConfig config = bank_config(dim);
  config.key_type = type;
  auto made = bank::Bank::create(config);
  EXPECT_TRUE(made.is_ok());
  return std::move(made).value();
}

std::vector<float> at_angle(double radians) {
  return {static_cast<float>(std::cos(radians)), static_cast<float>(std::sin(radians))};
}

void teach(bank::Bank& bank, const std::vector<float>& key, int times = 1) {
  const Token token = 3;
  const float value = 1.0f;
  const bank::Lesson lesson{key, {}, {&token, 1}, {&value, 1}};
  for (int i = 0; i < times; ++i) bank.commit({}, {&lesson, 1});
}

std::vector<Kriging::Known> known(const bank::Bank& bank, const std::vector<bank::Neighbor>& near) {
  std::vector<Kriging::Known> all;
  for (const bank::Neighbor& n : near) all.push_back({&bank, n});
  return all;
}

std::vector<float> weights(const bank::Bank& bank, const std::vector<float>& key, std::size_t k = 16) {
  std::vector<bank::Neighbor> near(k);
  near.resize(bank.nearest({key, 0}, near));
  Kriging kriging;
  std::vector<float> out;
  kriging.weigh(known(bank, near), kSigma, out);
  return out;
}

TEST(Kriging, OneNeighbourCountsAsNearAsItIsAndAsOftenTaught) {
  const auto bank = make_bank(2);
  teach(*bank, at_angle(0.0));
  const double near = std::exp((std::cos(0.2) - 1.0) / static_cast<double>(kSigma));
  EXPECT_NEAR(weights(*bank, at_angle(0.2))[0], near / (1.0 + kLessonNoise), 1e-5);
  teach(*bank, at_angle(0.0), 3);
  EXPECT_NEAR(weights(*bank, at_angle(0.2))[0], near / (1.0 + kLessonNoise / 4.0), 1e-5);
  EXPECT_NEAR(weights(*bank, at_angle(3.0))[0], 0.0, 1e-6) << "far from all that was taught";
}

TEST(Kriging, WeightsSolveTheirEquations) {
  for (const bank::KeyType type : {bank::KeyType::kF32, bank::KeyType::kF16}) {
    const auto bank = make_bank(5, type);
    const RngStream random(7);
    Pos number = 0;
    const auto key = [&] {
      std::vector<float> x(5);
      double squares = 0;
      for (float& v : x) squares += std::pow(v = static_cast<float>(random.uniform({0, number++, Purpose::kDraw, 0})) - 0.3f, 2);
      for (float& v : x) v = static_cast<float>(v / std::sqrt(squares));
      return x;
    };
    for (int i = 0; i < 40; ++i) teach(*bank, key(), 1 + i % 3);
    const std::vector<float> asked = key();
    std::vector<bank::Neighbor> near(16);
    near.resize(bank->nearest({asked, 0}, near));
    Kriging kriging;
    std::vector<float> a, x(5);
    kriging.weigh(known(*bank, near), kSigma, a);
    ASSERT_EQ(a.size(), 16u);
    for (std::size_t i = 0; i < near.size(); ++i) {
      bank->keys().copy(near[i].entry, x);
      double sum = kLessonNoise / std::min<double>(bank->entry(near[i].entry).count, kNoiseCount) * static_cast<double>(a[i]);
      for (std::size_t j = 0; j < near.size(); ++j) {
        const float cosine = i == j ? 1.0f : bank->keys().similarity({x, 0}, near[j].entry);
        sum += static_cast<double>(kriging_kernel(cosine, kSigma)) * static_cast<double>(a[j]);
      }
      EXPECT_NEAR(sum, static_cast<double>(kriging_kernel(near[i].score, kSigma)), 1e-4);
    }
  }
}

TEST(Kriging, ThoseThatSayTheSameShareOneWeight) {
  const auto twins = make_bank(2);
  teach(*twins, at_angle(0.2));
  teach(*twins, at_angle(-0.2));
  const std::vector<float> shared = weights(*twins, at_angle(0.0));
  EXPECT_NEAR(shared[0], shared[1], 1e-5);
  EXPECT_LT(shared[0] + shared[1], 1.2f) << "a kernel sum would give both all of it";
}

TEST(Kriging, KeysThatAllButCoincideStayFinite) {
  const auto bank = make_bank(2);
  for (int i = 0; i < 32; ++i) teach(*bank, at_angle(0.02 * i), 50);
  for (const double asked : {0.0, 0.31, 0.62, 1.0}) {
    const std::vector<float> a = weights(*bank, at_angle(asked), 32);
    const float size = std::accumulate(a.begin(), a.end(), 0.0f, [](float s, float w) { return s + std::fabs(w); });
    EXPECT_TRUE(std::isfinite(size));
    EXPECT_LT(size, 100.0f);
  }
}

// A residual that is a linear function of the key: between and a little beyond its samples the estimate follows it, where the mean
// over the same neighbours lags.
TEST(Kriging, FollowsASlopeThatAMeanFlattens) {
  const auto error_of = [](WeightRule rule) {
    auto made = Recalibrator::create(recal_config(rule));
    EXPECT_TRUE(made.is_ok());
    Recalibrator& r = **made;
    for (double x = 0.0; x < 0.61; x += 0.1) {
      const std::vector<float> key = at_angle(x);
      const Token token = 4;
      const auto value = static_cast<float>(10.0 * x - 3.0);
      const bank::Lesson lesson{key, {}, {&token, 1}, {&value, 1}};
      r.bank().commit({}, {&lesson, 1});
    }
    double worst = 0.0;
    for (const double x : {0.05, 0.15, 0.45, 0.55}) {
      Lookup found;
      Bias bias;
      EXPECT_TRUE(r.lookup(at_angle(x), found).is_ok());
      r.bias(found, Judging{}, bias);
      worst = std::max(worst, std::fabs(static_cast<double>(bias.bias.values[0]) - (10.0 * x - 3.0)));
    }
    return worst;
  };
  EXPECT_LT(error_of(WeightRule::kKriged), 0.3);
  EXPECT_GT(error_of(WeightRule::kNormalised), 1.0);
}

TEST(Kriging, ABiasStaysWithinTheClip) {
  RecalConfig config = recal_config(WeightRule::kKriged);
  config.clip = 5.0f;
  auto made = Recalibrator::create(config);
  ASSERT_TRUE(made.is_ok());
  for (int i = 0; i < 8; ++i) {
    const Token token = 4;
    const float value = i < 4 ? -5.0f : 5.0f;  // a step: its extrapolation overshoots
    const std::vector<float> key = at_angle(0.1 * i);
    const bank::Lesson lesson{key, {}, {&token, 1}, {&value, 1}};
    (*made)->bank().commit({}, {&lesson, 1});
  }
  bool reached = false;
  for (double x = 0.0; x < 0.9; x += 0.05) {
    Lookup found;
    Bias bias;
    EXPECT_TRUE((*made)->lookup(at_angle(x), found).is_ok());
    (*made)->bias(found, Judging{}, bias);
    for (const float value : bias.bias.values) {
      EXPECT_LE(std::fabs(value), 5.0f);
      reached = reached || std::fabs(value) == 5.0f;
    }
  }
  EXPECT_TRUE(reached) << "or the bound is not tested here";
}

}  // namespace
}  // namespace drift::recal
