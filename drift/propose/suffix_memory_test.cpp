#include "drift/propose/suffix_memory.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"

namespace drift::propose {
namespace {

std::unique_ptr<SuffixMemory> make(std::uint32_t tokens) {
  auto made = SuffixMemory::create(tokens);
  EXPECT_TRUE(made.is_ok()) << made.status().message();
  return std::move(made).value();
}

std::vector<Token> random_text(const RngStream& random, std::uint64_t name, std::size_t length, double vocab) {
  std::vector<Token> out;
  for (std::size_t i = 0; i < length; ++i)
    out.push_back(static_cast<Token>(random.uniform({name, static_cast<Pos>(i), Purpose::kDraw, 0}) * vocab));
  return out;
}

// The slow twin: all tokens held, each end of each text compared.
struct Naive {
  std::size_t capacity;
  std::deque<Token> held;
  void add(std::vector<Token> text) {
    if (text.empty()) return;
    if (text.size() > capacity - 1) text.erase(text.begin(), text.end() - static_cast<std::ptrdiff_t>(capacity - 1));
    text.push_back(kNoToken);
    for (const Token t : text) {
      held.push_back(t);
      if (held.size() > capacity) held.pop_front();
    }
  }
  void search(const std::vector<Token>& text, Continuations& found) const {
    for (std::size_t end = held.size(); end-- > 1;) {
      std::size_t match = 0;
      while (match < end && match < text.size() && match < kMostMatch && held[end - 1 - match] == text[text.size() - 1 - match])
        ++match;
      found.offer(static_cast<int>(match), held[end]);
    }
  }
};

void expect_same(const SuffixMemory& memory, const Naive& naive, const std::vector<Token>& text, int min_match, double vocab) {
  Continuations got, expected;
  got.begin(min_match, static_cast<std::size_t>(vocab));
  expected.begin(min_match, static_cast<std::size_t>(vocab));
  memory.search(text, got);
  naive.search(text, expected);
  ASSERT_EQ(got.empty(), expected.empty());
  if (got.empty()) return;
  ASSERT_EQ(got.match(), expected.match());
  for (const QRule rule : {QRule::kTop, QRule::kCounts}) {
    spec::Distribution a, b;
    got.distribution(rule, a);
    expected.distribution(rule, b);
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.probs, b.probs);
  }
}

// Texts of all lengths, into memories that hold all of them or a part: what is still held is found, nothing else is.
TEST(SuffixMemory, FindsWhatItsTwinFinds) {
  std::size_t long_matches = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const RngStream random(seed);
    const double vocab = seed % 2 == 0 ? 3.0 : 12.0;
    const std::uint32_t capacity = seed % 3 == 0 ? 64 : seed % 3 == 1 ? 100 : 500;
    auto memory = make(capacity);
    Naive naive{capacity, {}};
    for (std::uint64_t n = 0; n < 30; ++n) {
      std::vector<Token> text = random_text(random, n, (n * 7 + seed) % (n == 20 ? 700 : 40), vocab);
      if (n % 4 == 3) text = random_text(random, n - 1, ((n - 1) * 7 + seed) % 40, vocab);  // said before
      memory->add(text);
      naive.add(text);
      ASSERT_EQ(memory->tokens(), naive.held.size());
      // Ends that were seen, with and without something new behind them.
      for (std::uint64_t q = 0; q < 4; ++q) {
        std::vector<Token> query = random_text(random, 1'000 + q, 6, vocab);
        if (q % 2 == 0 && text.size() > 4) query.assign(text.begin(), text.end() - static_cast<std::ptrdiff_t>(1 + q));
        expect_same(*memory, naive, query, q == 3 ? 3 : 2, vocab);
        Continuations found;
        found.begin(9, 12);
        memory->search(query, found);
        long_matches += found.empty() ? 0 : 1;
      }
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(long_matches, 100u) << "the chains of long grams were walked";
}

TEST(SuffixMemory, AMatchNeverCrossesTheEndOfAText) {
  auto memory = make(64);
  memory->add(std::vector<Token>{1, 2});
  memory->add(std::vector<Token>{3, 4});
  Continuations found;
  found.begin(2, 10);
  memory->search(std::vector<Token>{2, 3}, found);
  memory->search(std::vector<Token>{1, 2}, found);
  EXPECT_TRUE(found.empty()) << "nothing followed 1 2";
}

TEST(SuffixMemory, TheTextItselfGoesBeforeTheMemory) {
  auto memory = make(64);
  memory->add(std::vector<Token>{1, 2, 7});
  Continuations found;
  const std::vector<Token> text{1, 2, 5, 1, 2};
  ASSERT_TRUE(continue_text(text, {2, QRule::kTop}, memory.get(), 10, found));
  spec::Distribution q;
  found.distribution(QRule::kTop, q);
  EXPECT_EQ(q.ids, std::vector<Token>{5}) << "as long and as often: the text itself";
  memory->add(std::vector<Token>{1, 2, 7});
  ASSERT_TRUE(continue_text(text, {2, QRule::kTop}, memory.get(), 10, found));
  found.distribution(QRule::kTop, q);
  EXPECT_EQ(q.ids, std::vector<Token>{7}) << "twice against once";
}

TEST(SuffixMemory, IsBoundedAndForgetsTheOldest) {
  auto memory = make(64);
  const std::uint64_t bytes = memory->bytes();
  EXPECT_EQ(bytes, 64u * 4 * (1 + 3 + 3));
  memory->add(std::vector<Token>{1, 2, 3});
  Continuations found;
  found.begin(2, 100);
  memory->search(std::vector<Token>{1, 2}, found);
  EXPECT_FALSE(found.empty());
  for (int i = 0; i < 100; ++i) memory->add(std::vector<Token>{50, 51, 52, 53});
  EXPECT_EQ(memory->tokens(), 64u);
  EXPECT_EQ(memory->bytes(), bytes);
  found.begin(2, 100);
  memory->search(std::vector<Token>{1, 2}, found);
  EXPECT_TRUE(found.empty());
  memory->clear();
  EXPECT_EQ(memory->tokens(), 0u);
  memory->search(std::vector<Token>{50, 51}, found);
  EXPECT_TRUE(found.empty());
}

TEST(SuffixMemory, BoundsAreNamed) {
  for (const std::uint32_t bad : {0u, 63u, kMostMemoryTokens + 1}) {
    const auto made = SuffixMemory::create(bad);
    ASSERT_FALSE(made.is_ok());
    EXPECT_EQ(made.status().code(), Code::kInvalid);
    EXPECT_NE(made.status().message().find(std::to_string(bad)), std::string::npos);
  }
}

}  // namespace
}  // namespace drift::propose
