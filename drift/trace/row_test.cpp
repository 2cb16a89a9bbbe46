#include "drift/trace/row.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "drift/simd/simd.hpp"

namespace drift::trace {
namespace {

std::vector<float> random_logits(std::size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> out(n);
  for (float& x : out) x = normal(rng);
  return out;
}

std::vector<float> round_trip(const std::vector<float>& logits, std::size_t most) {
  Row row;
  reduce_logits(logits, most, row);
  EXPECT_TRUE(check_row(row, logits.size(), most, 0).is_ok()) << check_row(row, logits.size(), most, 0).message();
  std::vector<float> out(logits.size());
  expand_logits(row, out);
  return out;
}

TEST(Row, AWholeRowComesBackBitForBit) {
  for (const std::size_t n : {1u, 2u, 7u, 64u, 1'024u}) {
    const std::vector<float> logits = random_logits(n, static_cast<unsigned>(n));
    EXPECT_EQ(round_trip(logits, kRowTokens), logits);
    Row row;
    reduce_logits(logits, kRowTokens, row);
    EXPECT_TRUE(std::isinf(row.rest));
  }
}

TEST(Row, TheLargestLogitsAndTheSumOfTheRestAreKept) {
  const std::vector<float> logits = random_logits(3'000, 5);
  const std::vector<float> back = round_trip(logits, 100);
  std::vector<Token> before(100), after(100);
  simd::top_k(logits, 100, before);
  simd::top_k(back, 100, after);
  EXPECT_EQ(before, after);
  for (const Token t : before) EXPECT_EQ(back[static_cast<std::size_t>(t)], logits[static_cast<std::size_t>(t)]);
  EXPECT_NEAR(simd::log_sum_exp(back), simd::log_sum_exp(logits), 1e-5);
  Row row;
  reduce_logits(logits, 100, row);
  double rest = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::find(before.begin(), before.end(), static_cast<Token>(i)) == before.end())
      rest += std::exp(static_cast<double>(logits[i]));
  }
  EXPECT_NEAR(row.rest, std::log(rest), 1e-5);
}

TEST(Row, WhatWasReducedOnceStaysAsItIs) {
  const std::vector<float> once = round_trip(random_logits(500, 9), 20);
  EXPECT_EQ(simd::argmax(round_trip(once, 20)), simd::argmax(once));
  Row a, b;
  reduce_logits(once, 20, a);
  reduce_logits(round_trip(once, 20), 20, b);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logits, b.logits);
}

TEST(Row, EqualLogitsGoByIdAndNoTokenLeftOutOvertakesThem) {
  for (const float value : {0.0f, 0.1f, -7.3f, 1'000.3f}) {
    const std::vector<float> flat(50, value);
    const std::vector<float> back = round_trip(flat, 7);
    std::vector<Token> best(7);
    simd::top_k(back, 7, best);
    EXPECT_EQ(best, (std::vector<Token>{0, 1, 2, 3, 4, 5, 6})) << value;
  }
}

TEST(Row, HiddenStatesAreRoundedToHalfOnce) {
  const std::vector<float> hidden{0.1f, -2.0f, 65'504.0f, 1e-6f};
  Row row;
  ASSERT_TRUE(reduce_hidden(hidden, row).is_ok());
  std::vector<float> once(4), twice(4);
  expand_hidden(row, once);
  ASSERT_TRUE(reduce_hidden(once, row).is_ok());
  expand_hidden(row, twice);
  EXPECT_EQ(once, twice);
  EXPECT_NEAR(once[0], 0.1f, 1e-4f);
  EXPECT_EQ(once[1], -2.0f);
  EXPECT_EQ(reduce_hidden(std::vector<float>{70'000.0f}, row).code(), Code::kUnsupported);
}

TEST(Row, WhatNoReductionGivesIsRefused) {
  Row good;
  reduce_logits(random_logits(10, 1), 4, good);
  good.hidden = {0, 0x3c00};
  ASSERT_TRUE(check_row(good, 10, 4, 2).is_ok());
  const auto spoiled = [&](auto change) {
    Row row = good;
    change(row);
    return check_row(row, 10, 4, 2).code();
  };
  EXPECT_EQ(spoiled([](Row& r) { r.tokens.pop_back(); }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.logits.push_back(-100.0f); }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.tokens[1] = 10; }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.tokens[1] = -1; }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.tokens[1] = r.tokens[0]; }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { std::swap(r.logits[0], r.logits[1]); }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.logits[0] = INFINITY; }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.rest = NAN; }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.rest = -INFINITY; }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.hidden.pop_back(); }), Code::kCorrupt);
  EXPECT_EQ(spoiled([](Row& r) { r.hidden[0] = 0x7c00; }), Code::kCorrupt);
  Row whole;
  reduce_logits(random_logits(4, 1), 4, whole);
  whole.rest = 0.0;
  EXPECT_EQ(check_row(whole, 4, 4, 0).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace drift::trace
