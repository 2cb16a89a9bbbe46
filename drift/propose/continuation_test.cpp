#include "drift/propose/continuation.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"

namespace drift::propose {
namespace {

spec::Distribution of(const Continuations& found, QRule rule) {
  spec::Distribution out;
  found.distribution(rule, out);
  return out;
}

TEST(Continuations, TheLongestMatchWinsThenTheMostFrequentThenTheFirstOffered) {
  Continuations found;
  found.begin(2, 10);
  EXPECT_TRUE(found.empty());
  found.offer(2, 7);
  found.offer(2, 7);
  found.offer(3, 4);
  found.offer(2, 7);
  EXPECT_EQ(found.match(), 3);
  EXPECT_EQ(of(found, QRule::kTop).ids, std::vector<Token>{4});
  found.offer(3, 2);
  EXPECT_EQ(of(found, QRule::kTop).ids, std::vector<Token>{4}) << "as often: the first offered";
  found.offer(3, 2);
  const spec::Distribution top = of(found, QRule::kTop), counts = of(found, QRule::kCounts);
  EXPECT_EQ(top.ids, std::vector<Token>{2});
  EXPECT_EQ(top.probs, std::vector<float>{1.0f});
  EXPECT_EQ(counts.ids, (std::vector<Token>{2, 4}));
  EXPECT_FLOAT_EQ(counts.probs[0], 2.0f / 3.0f);
  EXPECT_FLOAT_EQ(counts.probs[1], 1.0f / 3.0f);
  found.begin(2, 10);
  EXPECT_TRUE(found.empty());
}

TEST(Continuations, ShortMatchesAndForeignTokensDoNotCount) {
  Continuations found;
  found.begin(3, 10);
  found.offer(2, 1);
  found.offer(5, kNoToken);
  found.offer(5, 10);
  EXPECT_TRUE(found.empty());
  found.offer(3, 9);
  EXPECT_EQ(found.match(), 3);
}

TEST(SearchText, OffersWhatFollowedTheLatestFirst) {
  Continuations found;
  //                             0  1  2  3  4  5  6  7  8  9
  const std::vector<Token> text{1, 2, 3, 9, 2, 3, 8, 7, 2, 3};
  ASSERT_TRUE(continue_text(text, {2, QRule::kTop}, nullptr, 10, found));
  EXPECT_EQ(found.match(), 2);
  EXPECT_EQ(of(found, QRule::kTop).ids, std::vector<Token>{8}) << "the latest of two";
  EXPECT_EQ(of(found, QRule::kCounts).ids, (std::vector<Token>{8, 9}));
  EXPECT_FALSE(continue_text(text, {3, QRule::kTop}, nullptr, 10, found));
  const std::vector<Token> longer{1, 2, 3, 9, 2, 3, 8, 1, 2, 3};
  ASSERT_TRUE(continue_text(longer, {2, QRule::kTop}, nullptr, 10, found));
  EXPECT_EQ(found.match(), 3) << "the longer one, though it is older";
  EXPECT_EQ(of(found, QRule::kTop).ids, std::vector<Token>{9});
  for (const std::vector<Token>& none : {std::vector<Token>{}, {1}, {1, 2}, {1, 2, 3}})
    EXPECT_FALSE(continue_text(none, {2, QRule::kTop}, nullptr, 10, found));
}

TEST(SearchText, RunsOfOneTokenAndMatchesBeyondTheMost) {
  Continuations found;
  const std::vector<Token> run(100, 5);
  ASSERT_TRUE(continue_text(run, {2, QRule::kTop}, nullptr, 10, found));
  EXPECT_EQ(found.match(), kMostMatch);
  EXPECT_EQ(of(found, QRule::kCounts).ids, std::vector<Token>{5});
}

// Against every earlier end of the text, by definition.
TEST(SearchText, AgreesWithTheDefinition) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const RngStream random(seed);
    std::vector<Token> text;
    const std::size_t length = seed % 60;
    for (std::size_t i = 0; i < length; ++i)
      text.push_back(static_cast<Token>(random.uniform({1, static_cast<Pos>(i), Purpose::kDraw, 0}) * 3.0));
    Continuations expected, got;
    expected.begin(2, 3);
    for (std::size_t end = text.size(); end-- > 1;) {
      int match = 0;
      while (match < kMostMatch && static_cast<std::size_t>(match) < end &&
             text[end - 1 - static_cast<std::size_t>(match)] == text[text.size() - 1 - static_cast<std::size_t>(match)])
        ++match;
      expected.offer(match, text[end]);
    }
    ASSERT_EQ(continue_text(text, {2, QRule::kTop}, nullptr, 3, got), !expected.empty()) << "seed " << seed;
    if (expected.empty()) continue;
    EXPECT_EQ(got.match(), expected.match());
    EXPECT_EQ(of(got, QRule::kTop).ids, of(expected, QRule::kTop).ids);
    EXPECT_EQ(of(got, QRule::kCounts).ids, of(expected, QRule::kCounts).ids);
    EXPECT_EQ(of(got, QRule::kCounts).probs, of(expected, QRule::kCounts).probs);
  }
}

TEST(CopyConfig, BoundsAreNamed) {
  EXPECT_TRUE(CopyConfig{}.validate().is_ok());
  for (const int bad : {-1, 0, 1, 33}) {
    const Status s = CopyConfig{bad, QRule::kTop}.validate();
    EXPECT_EQ(s.code(), Code::kInvalid);
    EXPECT_NE(s.message().find("2 to 32"), std::string::npos) << s.message();
  }
}

}  // namespace
}  // namespace drift::propose
