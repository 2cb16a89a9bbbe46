#include "cli/text_stats.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace drift::cli {
namespace {

TEST(TextStats, ATextWithoutRepetition) {
  const std::vector<Token> text = {1, 2, 3, 4, 5, 6};
  const TextStats stats = text_stats(text);
  EXPECT_DOUBLE_EQ(stats.distinct_4(), 1);
  EXPECT_DOUBLE_EQ(stats.trigram_seen(), 0);
  EXPECT_DOUBLE_EQ(stats.repeat_32(), 0);
}

TEST(TextStats, ALoopOfTwo) {
  const std::vector<Token> text = {1, 2, 1, 2, 1, 2, 1};
  const TextStats stats = text_stats(text);
  EXPECT_DOUBLE_EQ(stats.distinct_4(), 2.0 / 4);
  EXPECT_DOUBLE_EQ(stats.trigram_seen(), 3.0 / 5);
  EXPECT_DOUBLE_EQ(stats.repeat_32(), 5.0 / 7);
}

TEST(TextStats, ARepeatFartherThanTheWindowIsNone) {
  std::vector<Token> text;
  for (Token t = 0; t < 33; ++t) text.push_back(t);
  text.push_back(0);  // 33 after the first
  text.push_back(2);  // 32 after the first
  EXPECT_EQ(text_stats(text).repeated, 1u);
}

TEST(TextStats, ShortTextsCountNothing) {
  EXPECT_DOUBLE_EQ(text_stats({}).distinct_4(), 0);
  const std::vector<Token> two = {1, 1};
  EXPECT_EQ(text_stats(two).trigrams, 0u);
  EXPECT_DOUBLE_EQ(text_stats(two).repeat_32(), 0.5);
}

TEST(TextStats, TextsAddUpButAreNotComparedWithEachOther) {
  const std::vector<Token> text = {1, 2, 3, 4};
  TextStats sum = text_stats(text);
  sum += text_stats(text);
  EXPECT_DOUBLE_EQ(sum.distinct_4(), 1);
  EXPECT_DOUBLE_EQ(sum.trigram_seen(), 0);
  EXPECT_EQ(sum.tokens, 8u);
}

}  // namespace
}  // namespace drift::cli
