#include "drift/testing/enumerator.hpp"

#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "drift/testing/reference.hpp"

namespace drift::testing {
namespace {

using Result = std::vector<std::size_t>;

template <class Program>
std::map<Result, double> law_of(Program program) {
  EnumeratingChoices choices;
  std::map<Result, double> law;
  do {
    const Result r = program(choices);
    law[r] += choices.probability();
  } while (choices.next());
  return law;
}

double total(const std::map<Result, double>& law) {
  double sum = 0;
  for (const auto& [r, p] : law) sum += p;
  return sum;
}

const DrawKey kFirst{0, 0, Purpose::kDraw, 0}, kSecond{0, 1, Purpose::kDraw, 0};

TEST(Enumerator, IndependentKeysGiveProducts) {
  const std::vector<float> a{0.25f, 0.75f}, b{0.5f, 0.0f, 0.5f};
  const auto law = law_of([&](Choices& c) { return Result{c.pick(kFirst, a), c.pick(kSecond, b)}; });
  ASSERT_EQ(law.size(), 4u);
  EXPECT_DOUBLE_EQ(law.at({0, 0}), 0.125);
  EXPECT_DOUBLE_EQ(law.at({1, 2}), 0.375);
  EXPECT_NEAR(total(law), 1.0, 1e-12);
}

TEST(Enumerator, OneKeyIsOneNumber) {
  const std::vector<float> a{0.3f, 0.7f}, b{0.6f, 0.4f};
  const auto same = law_of([&](Choices& c) { return Result{c.pick(kFirst, a), c.pick(kFirst, a)}; });
  ASSERT_EQ(same.size(), 2u);
  const auto law =
      law_of([&](Choices& c) { return Result{c.pick(kFirst, a), c.pick(kFirst, b), c.accept(kFirst, 0.45) ? 1u : 0u}; });
  // The cuts are at 0.3, 0.45 and 0.6.
  ASSERT_EQ(law.size(), 4u);
  EXPECT_NEAR(law.at({0, 0, 1}), 0.30, 1e-7);
  EXPECT_NEAR(law.at({1, 0, 1}), 0.15, 1e-7);
  EXPECT_NEAR(law.at({1, 0, 0}), 0.15, 1e-7);
  EXPECT_NEAR(law.at({1, 1, 0}), 0.40, 1e-7);
}

TEST(Enumerator, ChoicesMayDependOnChoices) {
  const std::vector<float> coin{1.0f, 1.0f};
  const auto law = law_of([&](Choices& c) {
    Result r;
    for (Pos i = 0; i < 5; ++i) {
      r.push_back(c.pick({0, i, Purpose::kDraw, 0}, coin));
      if (r.back() == 1) break;
    }
    return r;
  });
  ASSERT_EQ(law.size(), 6u);
  EXPECT_DOUBLE_EQ(law.at({0, 0, 1}), 0.125);
  EXPECT_DOUBLE_EQ(law.at({0, 0, 0, 0, 0}), 1.0 / 32.0);
}

// The enumerator's law is what the production stream shows, coupling included.
TEST(Enumerator, AgreesWithRngStream) {
  const std::vector<float> a{0.2f, 0.5f, 0.3f}, b{0.4f, 0.1f, 0.5f};
  const auto program = [&](Choices& c) {
    Result r{c.pick(kFirst, a), c.pick(kFirst, b)};
    r.push_back(c.accept({0, 0, Purpose::kAccept, 0}, r[0] == r[1] ? 0.9 : 0.2) ? 1 : 0);
    if (r.back() == 0) r.push_back(c.pick(kSecond, a));
    return r;
  };
  const auto law = law_of(program);
  EXPECT_NEAR(total(law), 1.0, 1e-12);
  constexpr int kRuns = 40'000;
  std::map<Result, int> seen;
  for (int seed = 0; seed < kRuns; ++seed) {
    RngStream stream(static_cast<std::uint64_t>(seed));
    ++seen[program(stream)];
  }
  for (const auto& [r, n] : seen) ASSERT_EQ(law.count(r), 1u) << "the stream does what was not enumerated";
  for (const auto& [r, p] : law) EXPECT_NEAR(seen[r] / static_cast<double>(kRuns), p, 5.0 * std::sqrt(p / kRuns));
}

TEST(EnumeratorDeathTest, AProgramWithAWillOfItsOwnIsRefused) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const std::vector<float> coin{1.0f, 1.0f};
  EXPECT_DEATH(
      {
        EnumeratingChoices c;
        (void)c.pick(kFirst, coin);
        (void)c.next();
        (void)c.pick(kSecond, coin);
      },
      "same keys");
}

TEST(Reference, SoftmaxAndChain) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  const std::vector<double> p = softmax(logits);
  EXPECT_NEAR(p[0], 0.5, 1e-7);
  const std::vector<double> cut = reference_distribution({1.0f, 2, 1.0f, 0.0f}, logits);
  EXPECT_NEAR(cut[0], 2.0 / 3.0, 1e-7);
  EXPECT_EQ(cut[2], 0.0);
  EXPECT_EQ(reference_distribution({0.0f, 0, 1.0f, 0.0f}, logits), (std::vector<double>{1.0, 0.0, 0.0}));
}

}  // namespace
}  // namespace drift::testing
