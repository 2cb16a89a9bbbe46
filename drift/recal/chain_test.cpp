// Several levels at once, through the Recalibrator.
#include "drift/recal/chain.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drift/bank/blob.hpp"
#include "drift/bank/store_format.hpp"
#include "drift/recal/recalibrator.hpp"
#include "drift/testing/reference.hpp"

namespace drift::recal {
namespace {

constexpr std::uint32_t kVocab = 6;
constexpr Judging kGreedy{false, {0.0f, 0, 1.0f, 0.0f}};
constexpr Judging kWarm{true, {1.0f, 0, 1.0f, 0.0f}};
const std::vector<float> kDraft{4.0f, 3.0f, 2.0f, 1.0f, 0.0f, -1.0f};
const std::vector<float> kTarget{0.0f, 1.0f, 5.0f, 1.5f, 4.0f, -2.0f};
const std::vector<float> kHere{1.0f, 0.0f}, kElsewhere{0.0f, 1.0f};
constexpr LevelSet kAll{Level::kGlobal, Level::kHidden, Level::kNgram1, Level::kNgram2, Level::kNgram3, Level::kNgram4};

RecalConfig small(LevelSet levels) {
  RecalConfig c;
  c.bank.capacity = 8;
  c.bank.key_dim = 2;
  c.bank.support = kVocab;
  c.bank.vocab = kVocab;
  c.levels = levels;
  c.ngram_capacity = 8;
  c.ngram_support = kVocab;
  c.gain = GainRule::kFixed;
  return c;
}

std::unique_ptr<Recalibrator> make(const RecalConfig& config) {
  auto r = Recalibrator::create(config);
  EXPECT_TRUE(r.is_ok()) << r.status().message();
  return std::move(r).value();
}

Bias bias_at(const Recalibrator& r, const Place& place, const std::vector<float>& draft, const Judging& judging) {
  Lookup found;
  Bias out;
  EXPECT_TRUE(r.lookup(place, found).is_ok());
  r.bias(found, draft, judging, out);
  return out;
}

Status learn(Recalibrator& r, const Place& place, const std::vector<float>& draft, const std::vector<float>& target,
             const Judging& judging = kWarm) {
  Lookup found;
  Bias used;
  DRIFT_TRY(r.lookup(place, found));
  r.bias(found, draft, judging, used);
  DRIFT_TRY(r.observe(found, used, draft, target, judging));
  r.commit();
  return Status::ok();
}

std::vector<double> corrected(const std::vector<float>& draft, const Bias& b) {
  std::vector<float> logits = draft;
  for (std::size_t i = 0; i < b.bias.size(); ++i) logits[static_cast<std::size_t>(b.bias.tokens[i])] += b.gain * b.bias.values[i];
  return testing::softmax(logits);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::fabs(a[i] - b[i]);
  return sum / 2.0;
}

TEST(Chain, TheGlobalLevelSpeaksEverywhere) {
  auto r = make(small({Level::kGlobal}));
  const std::vector<double> p = testing::softmax(kTarget);
  EXPECT_TRUE(bias_at(*r, {{}, {}}, kDraft, kWarm).bias.empty());
  ASSERT_TRUE(learn(*r, {{}, std::vector<Token>{1}}, kDraft, kTarget).is_ok());
  const Bias b = bias_at(*r, {{}, std::vector<Token>{4, 4}}, kDraft, kWarm);
  EXPECT_EQ(b.gain, 1.0f);
  EXPECT_LT(distance(corrected(kDraft, b), p), 1e-5) << "one lesson, and the same error again";
  EXPECT_EQ(r->bank().size(), 0u) << "the hidden level takes no part and needs no hidden state";
}

// A level's residual is what is left after those below it, and does not hold what it added itself.
TEST(Chain, EachLevelLearnsWhatIsLeftAfterTheOneBelow) {
  auto alone = make(small({Level::kGlobal}));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(learn(*alone, {kHere, {}}, kDraft, kTarget).is_ok());
  const bank::EntryView e = alone->chain()->bank(Level::kGlobal)->entry(0);
  EXPECT_EQ(e.count, 20u);
  spec::SparseResidual by_hand;
  make(small(kHiddenOnly))->residual(kDraft, kTarget, by_hand);
  ASSERT_EQ(e.tokens.size(), by_hand.size());
  for (std::size_t i = 0; i < by_hand.size(); ++i) EXPECT_NEAR(e.values[i], by_hand.values[i], 1e-4);

  auto both = make(small({Level::kGlobal, Level::kHidden}));
  // The global level learns one error elsewhere; here the error is another one.
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(learn(*both, {kElsewhere, {}}, kDraft, kTarget).is_ok());
  const std::vector<float> reversed(kTarget.rbegin(), kTarget.rend());
  ASSERT_TRUE(learn(*both, {kHere, {}}, kDraft, reversed).is_ok());
  Lookup found;
  ASSERT_TRUE(both->lookup(Place{kHere, {}}, found).is_ok());
  ASSERT_GT(found.similarity, 0.99f);
  const bank::EntryView here = both->bank().entry(found.neighbors[0].entry);
  // Of the first residual elsewhere nothing was known yet; from the second on the global level explains all.
  ASSERT_TRUE(both->lookup(Place{kElsewhere, {}}, found).is_ok());
  for (const float v : both->bank().entry(found.neighbors[0].entry).values) EXPECT_LT(std::fabs(v), 0.6f);
  // draft + global + hidden = the reversed target, but for the one step the global level has moved since.
  const bank::EntryView global = both->chain()->bank(Level::kGlobal)->entry(0);
  std::vector<float> sum = kDraft;
  for (std::size_t i = 0; i < here.tokens.size(); ++i) sum[static_cast<std::size_t>(here.tokens[i])] += here.values[i];
  for (std::size_t i = 0; i < global.tokens.size(); ++i) sum[static_cast<std::size_t>(global.tokens[i])] += global.values[i];
  EXPECT_LT(distance(testing::softmax(sum), testing::softmax(reversed)), 0.1);
}

TEST(Chain, ContextsKeepTheTargetsOwnLaw) {
  auto r = make(small({Level::kNgram2}));
  const std::vector<Token> seen{5, 1, 2}, other{5, 2, 1}, shorter{2}, same_end{0, 0, 1, 2};
  const std::vector<double> p = testing::softmax(kTarget);
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(learn(*r, {{}, seen}, kDraft, kTarget).is_ok());
  const bank::Bank& level = *r->chain()->bank(Level::kNgram2);
  ASSERT_EQ(level.size(), 1u);
  const bank::EntryView e = level.entry(0);
  EXPECT_EQ(e.count, 16u);
  for (std::size_t i = 0; i < e.tokens.size(); ++i) EXPECT_NEAR(e.values[i], p[static_cast<std::size_t>(e.tokens[i])], 1e-5);
  EXPECT_TRUE(bias_at(*r, {{}, other}, kDraft, kWarm).bias.empty()) << "another context";
  EXPECT_TRUE(bias_at(*r, {{}, shorter}, kDraft, kWarm).bias.empty()) << "too short to be one";
  const Bias b = bias_at(*r, {{}, same_end}, kDraft, kWarm);
  const double before = distance(testing::softmax(kDraft), p);
  EXPECT_LT(distance(corrected(kDraft, b), p), 0.1 * before) << "the largest weight was earned";
}

TEST(Chain, OrdersHaveContextsOfTheirOwn) {
  auto r = make(small({Level::kNgram1, Level::kNgram3}));
  ASSERT_TRUE(learn(*r, {{}, std::vector<Token>{3, 1, 2}}, kDraft, kTarget).is_ok());
  ASSERT_TRUE(learn(*r, {{}, std::vector<Token>{4, 1, 2}}, kDraft, kTarget).is_ok());
  ASSERT_TRUE(learn(*r, {{}, std::vector<Token>{2}}, kDraft, kTarget).is_ok());
  EXPECT_EQ(r->chain()->bank(Level::kNgram1)->size(), 1u);
  EXPECT_EQ(r->chain()->bank(Level::kNgram1)->entry(0).count, 3u);
  EXPECT_EQ(r->chain()->bank(Level::kNgram3)->size(), 2u);
  EXPECT_EQ(r->chain()->bank(Level::kNgram2), nullptr);
  EXPECT_EQ(r->chain()->bank(Level::kHidden), nullptr);
}

TEST(Chain, StrengthIsEarnedAndZeroWhereALevelHarms) {
  for (const Judging& judging : {kGreedy, kWarm, Judging{false, {0.8f, 3, 0.9f, 0.05f}}}) {
    RecalConfig c = small(kAll);
    c.gain = GainRule::kEarned;
    auto good = make(c), bad = make(c);
    const std::vector<Token> context{1, 2, 3, 4};
    EXPECT_TRUE(bias_at(*good, {kHere, context}, kDraft, judging).bias.empty());
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(learn(*good, {kHere, context}, kDraft, kTarget, judging).is_ok());
    const Bias helped = bias_at(*good, {kHere, context}, kDraft, judging);
    EXPECT_FALSE(helped.bias.empty());
    EXPECT_GT(corrected(kDraft, helped)[2], corrected(kDraft, helped)[0]) << "the target's best token is on top now";
    // The target agrees with the draft half the time, and otherwise says something else each time.
    for (int i = 0; i < 60; ++i) {
      std::vector<float> says = kDraft;
      if (i % 2 == 1) std::rotate(says.begin(), says.begin() + 1 + i / 2 % 5, says.end());
      ASSERT_TRUE(learn(*bad, {kHere, context}, kDraft, says, judging).is_ok());
    }
    Lookup found;
    Bias used;
    ASSERT_TRUE(bad->lookup(Place{kHere, context}, found).is_ok());
    bad->bias(found, kDraft, judging, used);
    if (judging.sampler.greedy()) {
      const std::vector<double> now = corrected(kDraft, used);
      EXPECT_EQ(std::max_element(now.begin(), now.end()) - now.begin(), 0) << "the draft's own best token stays";
    }
  }
}

TEST(Chain, LambdaZeroLeavesTheDraftAlone) {
  RecalConfig c = small(kAll);
  c.lambda = 0.0f;
  auto r = make(c);
  const std::vector<Token> context{1, 2, 3, 4};
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(learn(*r, {kHere, context}, kDraft, kTarget).is_ok());
  const Bias b = bias_at(*r, {kHere, context}, kDraft, kWarm);
  EXPECT_TRUE(b.bias.empty());
  EXPECT_EQ(b.gain, 0.0f);
  EXPECT_EQ(r->bank().size(), 1u) << "it learns all the same";
  EXPECT_EQ(r->chain()->bank(Level::kNgram4)->size(), 1u);
}

TEST(Chain, WhatNoDraftSawTeachesContextsOnly) {
  auto r = make(small(kAll));
  const std::vector<Token> context{1, 2};
  ASSERT_TRUE(r->observe_target(context, kTarget).is_ok());
  EXPECT_EQ(r->chain()->bank(Level::kNgram1)->size(), 0u) << "not before the commit";
  r->commit();
  EXPECT_EQ(r->chain()->bank(Level::kNgram1)->size(), 1u);
  EXPECT_EQ(r->chain()->bank(Level::kNgram2)->size(), 1u);
  EXPECT_EQ(r->chain()->bank(Level::kNgram3)->size(), 0u);
  EXPECT_EQ(r->chain()->bank(Level::kGlobal)->size(), 0u);
  EXPECT_EQ(r->bank().size(), 0u);
  EXPECT_EQ(r->observe_target(context, std::vector<float>(5)).code(), Code::kInvalid);
  EXPECT_EQ(r->observe_target(context, std::vector<float>(kVocab, NAN)).code(), Code::kInvalid);
  auto hidden_only = make(small(kHiddenOnly));
  EXPECT_TRUE(hidden_only->observe_target(context, kTarget).is_ok()) << "nobody cares";
}

TEST(Chain, DiscardAndFreezeTeachNothing) {
  auto r = make(small(kAll));
  const std::vector<Token> context{1, 2, 3, 4};
  Lookup found;
  Bias used;
  ASSERT_TRUE(r->lookup(Place{kHere, context}, found).is_ok());
  r->bias(found, kDraft, kWarm, used);
  ASSERT_TRUE(r->observe(found, used, kDraft, kTarget, kWarm).is_ok());
  r->discard();
  r->commit();
  EXPECT_EQ(r->chain()->bank(Level::kNgram1)->size(), 0u);
  r->freeze(true);
  ASSERT_TRUE(learn(*r, {kHere, context}, kDraft, kTarget).is_ok());
  r->freeze(false);
  r->commit();
  for (const Level level : {Level::kGlobal, Level::kNgram1, Level::kNgram4}) EXPECT_EQ(r->chain()->bank(level)->size(), 0u);
}

TEST(Chain, MemoryIsBoundedAndReported) {
  const RecalConfig c = small(kAll);
  auto r = make(c);
  const std::uint64_t bytes = r->bytes();
  std::uint64_t sum = r->bank().bytes();
  for (const Level level : {Level::kGlobal, Level::kNgram1, Level::kNgram2, Level::kNgram3, Level::kNgram4})
    sum += r->chain()->bank(level)->bytes() + r->chain()->scores(level)->bytes();
  EXPECT_EQ(bytes, sum);
  for (Token t = 0; t < 40; ++t)
    ASSERT_TRUE(learn(*r, {kHere, std::vector<Token>{t % 5, t % 6, t % 3, t % 4}}, kDraft, kTarget).is_ok());
  EXPECT_EQ(r->chain()->bank(Level::kNgram4)->size(), c.ngram_capacity);
  EXPECT_EQ(r->bytes(), bytes);
}

// ---- the bank file ----

std::unique_ptr<Recalibrator> taught(LevelSet levels) {
  RecalConfig c = small(levels);
  c.gain = GainRule::kEarned;
  auto r = make(c);
  for (Token t = 0; t < 20; ++t)
    EXPECT_TRUE(learn(*r, {t % 2 == 0 ? kHere : kElsewhere, std::vector<Token>{t % 2, t % 3, t % 2}}, kDraft, kTarget).is_ok());
  return r;
}

void expect_same_bias(const Recalibrator& a, const Recalibrator& b) {
  for (const std::vector<Token>& context : {std::vector<Token>{0, 0, 0}, {1, 1, 1}, {1, 2}, {}}) {
    const Bias x = bias_at(a, {kHere, context}, kDraft, kWarm), y = bias_at(b, {kHere, context}, kDraft, kWarm);
    EXPECT_EQ(x.bias.tokens, y.bias.tokens);
    EXPECT_EQ(x.bias.values, y.bias.values);
    EXPECT_EQ(x.gain, y.gain);
  }
}

TEST(ChainFile, GoesOnWhereItStopped) {
  auto r = taught(kAll);
  const bank::StoredBank stored = r->save({});
  RecalConfig c = r->config();
  auto back = make(c);
  ASSERT_TRUE(back->restore(stored).is_ok());
  expect_same_bias(*r, *back);
  EXPECT_EQ(back->save({}).extras, stored.extras);
  const std::vector<Token> context{0, 0, 0};
  ASSERT_TRUE(learn(*r, {kHere, context}, kTarget, kDraft).is_ok());
  ASSERT_TRUE(learn(*back, {kHere, context}, kTarget, kDraft).is_ok());
  EXPECT_EQ(back->save({}).extras, r->save({}).extras) << "and learns the same from then on";
}

TEST(ChainFile, AnOlderFileOpensAndItsLevelsBeginEmpty) {
  auto older = taught(kHiddenOnly);
  const bank::StoredBank stored = older->save({});
  EXPECT_EQ(stored.extras.size(), 2u) << "as before there were levels";
  RecalConfig c = small(kAll);
  c.gain = GainRule::kEarned;
  auto r = make(c);
  ASSERT_TRUE(learn(*r, {kHere, std::vector<Token>{1, 1}}, kDraft, kTarget).is_ok());
  ASSERT_TRUE(r->restore(stored).is_ok());
  EXPECT_EQ(r->bank().size(), older->bank().size());
  EXPECT_EQ(r->chain()->bank(Level::kNgram1)->size(), 0u) << "restored means: nothing but what the file holds";
}

TEST(ChainFile, LevelsNotInUseAreCarriedAlong) {
  auto r = taught(kAll);
  const bank::StoredBank stored = r->save({});
  RecalConfig c = small(kHiddenOnly);
  auto plain = make(c);
  ASSERT_TRUE(plain->restore(stored).is_ok());
  const bank::StoredBank again = plain->save({});
  auto back = make(r->config());
  ASSERT_TRUE(back->restore(again).is_ok());
  EXPECT_EQ(back->chain()->bank(Level::kNgram2)->size(), r->chain()->bank(Level::kNgram2)->size());
}

TEST(ChainFile, DamageIsRefusedAndChangesNothing) {
  auto r = taught(kAll);
  const bank::StoredBank stored = r->save({});
  const auto refused = [&](auto change) {
    bank::StoredBank bad = stored;
    change(bad.extras);
    auto victim = taught(kAll);
    const auto before = victim->save({}).extras;
    const Status s = victim->restore(bad);
    EXPECT_FALSE(s.is_ok());
    EXPECT_EQ(victim->save({}).extras, before);
    return s.code();
  };
  using Extras = std::map<std::string, std::vector<std::byte>>;
  EXPECT_EQ(refused([](Extras& e) { e.erase("scores.ngram2"); }), Code::kCorrupt);
  EXPECT_EQ(refused([](Extras& e) { e.erase("level.global"); }), Code::kCorrupt);
  EXPECT_EQ(refused([](Extras& e) { e["level.ngram3"].pop_back(); }), Code::kCorrupt);
  EXPECT_EQ(refused([](Extras& e) { e["level.ngram3"] = e["level.global"]; }), Code::kCorrupt);
  EXPECT_EQ(refused([](Extras& e) { e["level.ngram3"][8] = std::byte{9}; }), Code::kForeign);
  EXPECT_EQ(refused([](Extras& e) { e["scores.global"].clear(); }), Code::kCorrupt);
}

TEST(ChainFile, TheLargestLevelFitsItsBlock) {
  bank::BankConfig largest;
  largest.capacity = kMaxNgramCapacity;
  largest.support = kMaxNgramSupport;
  largest.key_dim = 1;
  largest.key_type = bank::KeyType::kHash;
  EXPECT_LE(bank::blob_bytes(largest), bank::format::kMaxExtraBytes);
}

TEST(ChainConfig, BoundsAreNamed) {
  const auto expect_refused = [](auto change, const char* name) {
    RecalConfig c = small(kAll);
    change(c);
    const Status s = c.validate();
    EXPECT_EQ(s.code(), Code::kInvalid) << name;
    EXPECT_NE(s.message().find(name), std::string::npos) << s.message();
  };
  expect_refused([](RecalConfig& c) { c.levels = {}; }, "levels");
  expect_refused([](RecalConfig& c) { c.ngram_capacity = 0; }, "ngram_capacity");
  expect_refused([](RecalConfig& c) { c.ngram_capacity = kMaxNgramCapacity + 1; }, "ngram_capacity");
  expect_refused([](RecalConfig& c) { c.ngram_support = 33; }, "ngram_support");
  expect_refused(
      [](RecalConfig& c) {
        c.bank.key_type = bank::KeyType::kHash;
        c.bank.key_dim = 1;
      },
      "key_type");
}

}  // namespace
}  // namespace drift::recal
