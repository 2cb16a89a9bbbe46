#include "server/schedule/answer_text.hpp"

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"

namespace drift::server {
namespace {

AnswerText with_stops(std::vector<std::string> stops) {
  auto made = text::StopStrings::make(std::move(stops));
  EXPECT_TRUE(made.is_ok());
  return AnswerText(std::move(made).value());
}

TokenInfo token(Token id, std::string bytes) {
  TokenInfo out;
  out.token = id;
  out.bytes = std::move(bytes);
  return out;
}

std::vector<Token> ids(const Delta& delta) {
  std::vector<Token> out;
  for (const TokenInfo& one : delta.tokens) out.push_back(one.token);
  return out;
}

TEST(AnswerText, TokensGoOutWithTheLastByteOfTheirText) {
  AnswerText text = with_stops({});
  Delta first, second, third;
  text.push(token(1, "a\xC3"), first);
  EXPECT_EQ(first.text, "a");
  EXPECT_EQ(ids(first), std::vector<Token>({1}));  // what of it can be shown is shown
  text.push(token(2, "\xA9"), second);
  EXPECT_EQ(second.text, "\xC3\xA9");
  EXPECT_EQ(ids(second), std::vector<Token>({2}));
  text.finish(third);
  EXPECT_TRUE(third.empty());
}

TEST(AnswerText, ATokenWithoutTextWaitsForTheNextThatHasSome) {
  AnswerText text = with_stops({});
  Delta first, second;
  text.push(token(1, "\xC3"), first);
  EXPECT_TRUE(first.empty());
  text.push(token(2, "\xA9!"), second);
  EXPECT_EQ(second.text, "\xC3\xA9!");
  EXPECT_EQ(ids(second), std::vector<Token>({1, 2}));
}

TEST(AnswerText, WhatMayBeginAStopStringIsHeldBackWithItsTokens) {
  AnswerText text = with_stops({"END"});
  Delta first, second, third;
  text.push(token(1, "xE"), first);
  EXPECT_EQ(first.text, "x");
  EXPECT_TRUE(first.tokens.empty());
  text.push(token(2, "Ny"), second);
  EXPECT_EQ(second.text, "ENy");
  EXPECT_EQ(ids(second), std::vector<Token>({1, 2}));
  EXPECT_FALSE(text.stopped());
}

TEST(AnswerText, NothingOfAStopStringIsShown) {
  AnswerText text = with_stops({"END"});
  Delta delta;
  text.push(token(1, "xE"), delta);
  text.push(token(2, "ND"), delta);
  EXPECT_TRUE(text.stopped());
  text.push(token(3, "more"), delta);
  text.finish(delta);
  EXPECT_EQ(delta.text, "x");
  EXPECT_EQ(ids(delta), std::vector<Token>({1}));  // shown in part; token 2 is all stop string
  EXPECT_EQ(text.stop_string(), "END");
}

TEST(AnswerText, TheEndReleasesWhatWasHeldBack) {
  AnswerText text = with_stops({"END"});
  Delta delta;
  text.push(token(1, "aE"), delta);
  text.push(token(2, "\xC3"), delta);
  text.finish(delta);
  EXPECT_EQ(delta.text, "aE\xEF\xBF\xBD");
  EXPECT_EQ(ids(delta), std::vector<Token>({1, 2}));
}

TEST(AnswerText, ACutDeltaSequenceIsTheWholeText) {
  // Random bytes in random pieces: joined deltas are the text as it is when given at once, and every token goes out once, in order.
  const RngStream random(7);
  Pos draw = 0;
  const auto below = [&](int n) { return static_cast<int>(random.uniform({0, draw++, Purpose::kDraw, 0}) * n); };
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::string> stops = {"ab", "\xC3\xA9\xC3"};
    AnswerText text = with_stops(stops), whole = with_stops(stops);
    std::string all, joined;
    std::vector<Token> sent;
    const int tokens = 1 + below(30);
    for (int t = 0; t < tokens; ++t) {
      std::string bytes;
      for (int i = below(4); i > 0; --i) bytes += "ab\xC3\xA9"[below(4)];
      all += bytes;
      Delta delta;
      text.push(token(t, bytes), delta);
      joined += delta.text;
      for (const TokenInfo& one : delta.tokens) sent.push_back(one.token);
    }
    Delta rest, once;
    text.finish(rest);
    joined += rest.text;
    for (const TokenInfo& one : rest.tokens) sent.push_back(one.token);
    whole.push(token(0, all), once);
    whole.finish(once);
    EXPECT_EQ(joined, once.text);
    EXPECT_EQ(text.stopped(), whole.stopped());
    for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(sent[i], static_cast<Token>(i));
    if (!text.stopped()) {
      EXPECT_EQ(sent.size(), static_cast<std::size_t>(tokens));
    }
  }
}

}  // namespace
}  // namespace drift::server
