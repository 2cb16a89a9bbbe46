#include "drift/spec/judge.hpp"

#include <map>

#include <gtest/gtest.h>

#include "drift/testing/enumerator.hpp"

namespace drift::spec {
namespace {

using drift::testing::EnumeratingChoices;

Distribution make(std::vector<Token> ids, std::vector<float> probs) { return {std::move(ids), std::move(probs)}; }

// Choices that were written down beforehand.
class Scripted final : public Choices {
 public:
  std::map<Pos, std::size_t> picks;  // by position, draws of any purpose
  std::vector<bool> accepts;         // in the order asked
  std::vector<DrawKey> keys;         // what was asked
  std::vector<double> probabilities;
  std::size_t pick(const DrawKey& key, std::span<const float>) override {
    keys.push_back(key);
    return picks.at(key.position);
  }
  bool accept(const DrawKey& key, double probability) override {
    keys.push_back(key);
    probabilities.push_back(probability);
    return accepts.at(probabilities.size() - 1);
  }
};

TEST(Match, KeepsTheProposalsTheTargetDraws) {
  DraftTree tree;
  const Distribution any = make({0, 1, 2}, {0.2f, 0.3f, 0.5f});
  NodeIndex at = kPrefix;
  for (Token t : {2, 0, 1}) at = tree.add(at, t, any, false);
  Scripted choices;
  choices.picks = {{10, 2}, {11, 0}, {12, 2}, {13, 1}};
  Outcome out;
  std::vector<NodeIndex> asked;
  judge(
      JudgeRule::kMatch, tree,
      [&](NodeIndex n) -> const Distribution& {
        asked.push_back(n);
        return any;
      },
      choices, 4, 10, out);
  EXPECT_EQ(out.accepted, (std::vector<NodeIndex>{0, 1}));
  EXPECT_EQ(out.next, 2);
  EXPECT_TRUE(out.rejected);
  EXPECT_EQ(asked, (std::vector<NodeIndex>{kPrefix, 0, 1})) << "on-path nodes only, root first";
  for (const DrawKey& k : choices.keys) EXPECT_TRUE(k.sequence == 4 && k.purpose == Purpose::kDraw);
}

TEST(Match, AFullBlockEarnsOneMoreToken) {
  DraftTree tree;
  const Distribution any = make({0, 1}, {0.5f, 0.5f});
  tree.add(tree.add(kPrefix, 1, any, false), 0, any, false);
  Scripted choices;
  choices.picks = {{0, 1}, {1, 0}, {2, 1}};
  Outcome out;
  judge(JudgeRule::kMatch, tree, [&](NodeIndex) -> const Distribution& { return any; }, choices, 0, 0, out);
  EXPECT_EQ(out.accepted.size(), 2u);
  EXPECT_EQ(out.next, 1);
  EXPECT_FALSE(out.rejected);
}

TEST(Match, TakesTheChildThatCarriesTheDraw) {
  DraftTree tree;
  const Distribution any = make({0, 1, 2}, {0.3f, 0.3f, 0.4f});
  tree.add(kPrefix, 0, any, false);
  const NodeIndex second = tree.add(kPrefix, 2, any, false);
  const NodeIndex below = tree.add(second, 1, any, false);
  Scripted choices;
  choices.picks = {{0, 2}, {1, 1}, {2, 0}};
  Outcome out;
  judge(JudgeRule::kMatch, tree, [&](NodeIndex) -> const Distribution& { return any; }, choices, 0, 0, out);
  EXPECT_EQ(out.accepted, (std::vector<NodeIndex>{second, below}));
  EXPECT_EQ(out.next, 0);
}

TEST(Judge, AnEmptyTreeIsAPlainDraw) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    Scripted choices;
    choices.picks = {{5, 1}};
    Outcome out;
    const Distribution p = make({3, 8}, {0.5f, 0.5f});
    judge(rule, DraftTree{}, [&](NodeIndex) -> const Distribution& { return p; }, choices, 1, 5, out);
    EXPECT_TRUE(out.accepted.empty());
    EXPECT_EQ(out.next, 8);
    EXPECT_FALSE(out.rejected);
    ASSERT_EQ(choices.keys.size(), 1u);
    EXPECT_EQ(choices.keys[0], (DrawKey{1, 5, Purpose::kDraw, 0}));
  }
}

TEST(Rejection, ProbabilitiesAndKeysAreThoseOfTheRule) {
  DraftTree tree;
  const Distribution q = make({0, 1}, {0.8f, 0.2f}), p = make({0, 1, 2}, {0.2f, 0.5f, 0.3f});
  tree.add(tree.add(kPrefix, 1, q, false), 0, q, false);
  Scripted choices;
  choices.accepts = {true, false};
  choices.picks = {{8, 1}};
  Outcome out;
  judge(JudgeRule::kRejection, tree, [&](NodeIndex) -> const Distribution& { return p; }, choices, 2, 7, out);
  EXPECT_EQ(out.accepted, std::vector<NodeIndex>{0});
  ASSERT_EQ(choices.probabilities.size(), 2u);
  EXPECT_EQ(choices.probabilities[0], 1.0) << "p > q";
  EXPECT_NEAR(choices.probabilities[1], 0.25, 1e-7);
  EXPECT_EQ(out.next, 2) << "the rest is {1: 0.3, 2: 0.3}; its second token";
  EXPECT_TRUE(out.rejected);
  ASSERT_EQ(choices.keys.size(), 3u);
  EXPECT_EQ(choices.keys[0], (DrawKey{2, 7, Purpose::kAccept, 0}));
  EXPECT_EQ(choices.keys[1], (DrawKey{2, 8, Purpose::kAccept, 0}));
  EXPECT_EQ(choices.keys[2], (DrawKey{2, 8, Purpose::kResample, 0}));
}

// The next token's law, with several children drawn independently from their own q, is p: enumerated.
TEST(Rejection, SeveralChildrenLeaveTheLawAlone) {
  const Distribution p = make({0, 1, 2, 3}, {0.1f, 0.2f, 0.3f, 0.4f});
  const std::vector<Distribution> qs{make({0, 1, 2}, {0.5f, 0.3f, 0.2f}), make({1, 3}, {0.9f, 0.1f}),
                                     make({0, 1, 2, 3}, {0.25f, 0.25f, 0.25f, 0.25f})};
  for (std::size_t children = 0; children <= qs.size(); ++children) {
    EnumeratingChoices choices;
    std::map<Token, double> law;
    do {
      DraftTree tree;
      for (std::size_t c = 0; c < children; ++c) {
        const std::size_t i = choices.pick({0, 0, Purpose::kDraw, static_cast<std::uint32_t>(c + 1)}, qs[c].probs);
        tree.add(kPrefix, qs[c].ids[i], qs[c], false);
      }
      Outcome out;
      const Distribution after = make({9}, {1.0f});
      judge(
          JudgeRule::kRejection, tree, [&](NodeIndex n) -> const Distribution& { return n == kPrefix ? p : after; }, choices, 0,
          0, out);
      law[out.accepted.empty() ? out.next : tree.node(out.accepted[0]).token] += choices.probability();
    } while (choices.next());
    for (std::size_t i = 0; i < p.size(); ++i)
      EXPECT_NEAR(law[p.ids[i]], static_cast<double>(p.probs[i]), 1e-6) << children << " children";
    EXPECT_GT(choices.paths(), children);
  }
}

// The match rule too: whatever the children are, the first token is the target's own draw.
TEST(Match, TheLawIsTheTargetsWhateverIsProposed) {
  const Distribution p = make({0, 1, 2}, {0.6f, 0.3f, 0.1f});
  EnumeratingChoices choices;
  std::map<Token, double> law;
  do {
    DraftTree tree;
    for (Token t : {2, 0}) tree.add(kPrefix, t, p, false);
    Outcome out;
    judge(JudgeRule::kMatch, tree, [&](NodeIndex) -> const Distribution& { return p; }, choices, 0, 0, out);
    law[out.accepted.empty() ? out.next : tree.node(out.accepted[0]).token] += choices.probability();
  } while (choices.next());
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(law[p.ids[i]], static_cast<double>(p.probs[i]), 1e-6);
}

TEST(DraftTree, RemembersParentsDepthsAndQ) {
  DraftTree tree;
  const Distribution q = make({1}, {1.0f}), other = make({2}, {1.0f});
  const NodeIndex a = tree.add(kPrefix, 1, q, false);
  const NodeIndex b = tree.add(a, 2, other, true);
  EXPECT_EQ(tree.node(b).depth, 1);
  EXPECT_EQ(tree.node(b).parent, a);
  EXPECT_TRUE(tree.node(b).from_bank);
  EXPECT_EQ(tree.q(b).ids, other.ids);
  tree.clear();
  EXPECT_EQ(tree.size(), 0u);
  EXPECT_EQ(tree.add(kPrefix, 3, q, false), 0);
}

TEST(DraftTreeDeathTest, AParentComesFirst) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  DraftTree tree;
  EXPECT_DEATH(tree.add(0, 1, {}, false), "parent");
}

}  // namespace
}  // namespace drift::spec
