#include "server/schedule/logit_rules.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "drift/base/rng.hpp"

namespace drift::server {
namespace {

constexpr std::size_t kVocab = 6;

std::vector<float> logits_of(std::uint64_t seed) {
  const RngStream random(seed);
  std::vector<float> out(kVocab);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(random.uniform({0, static_cast<Pos>(i), Purpose::kDraw, 0}) * 8 - 4);
  return out;
}

// From the definitions, counting the whole text each time.
std::vector<float> slowly(const LogitRules& rules, std::size_t prompt, const std::vector<Token>& ends,
                          const std::vector<Token>& text, std::vector<float> logits) {
  for (std::size_t v = 0; v < logits.size(); ++v) {
    const auto token = static_cast<Token>(v);
    const std::size_t window =
        rules.repeat_last_n < 0 ? text.size() : std::min(text.size(), static_cast<std::size_t>(rules.repeat_last_n));
    if (std::count(text.end() - static_cast<std::ptrdiff_t>(window), text.end(), token) > 0)
      logits[v] = logits[v] > 0 ? logits[v] / rules.repetition : logits[v] * rules.repetition;
    const auto answered = std::count(text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end(), token);
    if (answered > 0) logits[v] -= rules.presence + static_cast<float>(answered) * rules.frequency;
    for (const auto& [biased, value] : rules.bias) {
      if (biased == token) logits[v] += value;
    }
    const bool early = text.size() - prompt < static_cast<std::size_t>(rules.min_tokens);
    const bool end = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (std::find(rules.banned.begin(), rules.banned.end(), token) != rules.banned.end() || (end && (early || rules.ignore_end)))
      logits[v] = -1e30f;
  }
  return logits;
}

TEST(LogitRules, AreTheirDefinitionsOverAnyCourseOfSteps) {
  const RngStream random(3);
  Pos draw = 0;
  const auto below = [&](int n) { return static_cast<int>(random.uniform({1, draw++, Purpose::kDraw, 0}) * n); };
  for (int round = 0; round < 400; ++round) {
    LogitRules rules;
    rules.presence = below(2) == 0 ? 0.0f : 0.5f;
    rules.frequency = below(2) == 0 ? 0.0f : 0.25f;
    rules.repetition = below(2) == 0 ? 1.0f : 1.5f;
    rules.repeat_last_n = below(8) - 1;
    rules.min_tokens = below(4);
    rules.ignore_end = below(4) == 0;
    if (below(2) == 0) rules.bias = {{2, 3.0f}, {-1, 1.0f}, {100, 1.0f}};
    if (below(2) == 0) rules.banned = {4};
    const std::vector<Token> ends{5};
    std::vector<Token> decided;
    for (int i = 1 + below(6); i > 0; --i) decided.push_back(below(kVocab));
    const std::size_t prompt = decided.size();
    RuleEdit edit(rules, prompt, ends);
    for (int step = 0; step < 6; ++step) {
      std::vector<Token> path;
      for (int depth = 0; depth < 4; ++depth) {
        std::vector<Token> text = decided;
        text.insert(text.end(), path.begin(), path.end());
        std::vector<float> logits = logits_of(static_cast<std::uint64_t>(round * 100 + step * 10 + depth));
        const std::vector<float> expected = slowly(rules, prompt, ends, text, logits);
        edit.apply(decided, path, logits);
        for (std::size_t v = 0; v < kVocab; ++v)
          ASSERT_FLOAT_EQ(logits[v], expected[v])
              << "round " << round << ", step " << step << ", depth " << depth << ", token " << v;
        path.push_back(below(kVocab));
      }
      for (int i = below(4); i >= 0; --i) decided.push_back(below(kVocab));
    }
  }
}

TEST(LogitRules, NothingIsNothing) {
  EXPECT_TRUE(LogitRules{}.empty());
  RuleEdit edit({}, 1, {5});
  std::vector<float> logits = logits_of(1);
  const std::vector<float> before = logits;
  edit.apply(std::vector<Token>{1}, {}, logits);
  EXPECT_EQ(logits, before);
}

TEST(LogitRules, BannedValuesStayFinite) {
  LogitRules rules;
  rules.banned = {0, 1, 2, 3, 4, 5};
  rules.bias = {{0, -100.0f}};
  RuleEdit edit(rules, 1, {});
  std::vector<float> logits = logits_of(1);
  edit.apply(std::vector<Token>{1}, {}, logits);
  for (const float x : logits) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace drift::server
