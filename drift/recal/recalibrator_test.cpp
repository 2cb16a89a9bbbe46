#include "drift/recal/recalibrator.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "drift/base/rng.hpp"
#include "drift/testing/reference.hpp"

namespace drift::recal {
namespace {

constexpr std::uint32_t kVocab = 6;
constexpr Judging kGreedy{false, {0.0f, 0, 1.0f, 0.0f}};
constexpr Judging kWarm{true, {1.0f, 0, 1.0f, 0.0f}};
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

RecalConfig small() {
  RecalConfig c;
  c.bank.capacity = 8;
  c.bank.key_dim = 2;
  c.bank.support = 3;
  c.bank.vocab = kVocab;
  c.neighbors = 4;
  c.gain = GainRule::kFixed;
  c.lambda = 1.0f;
  c.centre = false;
  return c;
}

std::unique_ptr<Recalibrator> make(const RecalConfig& config) {
  auto r = Recalibrator::create(config);
  EXPECT_TRUE(r.is_ok()) << r.status().message();
  return std::move(r).value();
}

// A unit vector at an angle, so that cosines are known.
std::vector<float> at_angle(double radians) {
  return {static_cast<float>(std::cos(radians)), static_cast<float>(std::sin(radians))};
}

void teach(Recalibrator& r, std::vector<float> key, std::vector<Token> tokens, std::vector<float> values) {
  const bank::Lesson lesson{key, {}, tokens, values};
  r.bank().commit({}, {&lesson, 1});
}

// One whole step at one position: lookup, bias, observe, commit.
Status learn(Recalibrator& r, const std::vector<float>& hidden, const std::vector<float>& draft, const std::vector<float>& target,
             const Judging& judging = kGreedy) {
  Lookup found;
  Bias used;
  DRIFT_TRY(r.lookup(hidden, found));
  r.bias(found, draft, judging, used);
  DRIFT_TRY(r.observe(found, used, draft, target, judging));
  r.commit();
  return Status::ok();
}

float value_of(const spec::SparseVector& v, Token token) {
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (v.tokens[i] == token) return v.values[i];
  }
  return 0.0f;
}

// ---- the bias ----

TEST(BiasOf, IsTheKernelSumByHand) {
  RecalConfig c = small();
  c.weights = WeightRule::kSum;
  c.sigma = 0.2f;
  auto r = make(c);
  teach(*r, at_angle(0.0), {1, 3}, {2.0f, -1.0f});
  teach(*r, at_angle(0.5), {0, 3}, {4.0f, 3.0f});
  Lookup found;
  Bias b;
  const std::vector<float> hidden{3.0f * std::cos(0.2f), 3.0f * std::sin(0.2f)};  // length 3: only the direction counts
  ASSERT_TRUE(r->lookup(hidden, found).is_ok());
  ASSERT_EQ(found.neighbors.size(), 2u);
  EXPECT_NEAR(found.similarity, std::cos(0.2), 1e-6);
  r->bias(found, kGreedy, b);
  const auto kernel = [&](double angle) {
    const double distance = 1.0 - std::cos(angle);
    return std::exp(-distance * distance / (2.0 * 0.2 * 0.2));
  };
  const double near = kernel(0.2), far = kernel(0.3);
  EXPECT_EQ(b.gain, 1.0f);
  EXPECT_EQ(b.bias.tokens, (std::vector<Token>{0, 1, 3}));
  EXPECT_NEAR(value_of(b.bias, 0), 4.0 * far, 1e-5);
  EXPECT_NEAR(value_of(b.bias, 1), 2.0 * near, 1e-5);
  EXPECT_NEAR(value_of(b.bias, 3), 3.0 * far - near, 1e-5);
}

TEST(BiasOf, NormalisedWeightsAreScaledByTheLargest) {
  RecalConfig c = small();
  c.weights = WeightRule::kNormalised;
  c.sigma = 0.2f;
  auto r = make(c);
  teach(*r, at_angle(0.0), {1}, {2.0f});
  teach(*r, at_angle(0.5), {1}, {4.0f});
  Lookup found;
  Bias b;
  ASSERT_TRUE(r->lookup(at_angle(0.2), found).is_ok());
  r->bias(found, kGreedy, b);
  const double dn = 1.0 - std::cos(0.2), df = 1.0 - std::cos(0.3);
  const double near = std::exp(-dn * dn / 0.08), far = std::exp(-df * df / 0.08);
  EXPECT_NEAR(value_of(b.bias, 1), near * (2.0 * near + 4.0 * far) / (near + far), 1e-5);
}

TEST(BiasOf, IsEmptyWhereNothingIsNear) {
  auto r = make(small());
  Lookup found;
  Bias b;
  ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
  EXPECT_EQ(found.similarity, -1.0f);
  r->bias(found, kGreedy, b);
  EXPECT_TRUE(b.bias.empty());
  EXPECT_EQ(b.gain, 0.0f);
  teach(*r, at_angle(3.14), {1}, {5.0f});
  ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
  r->bias(found, kGreedy, b);
  EXPECT_TRUE(b.bias.empty()) << "the opposite direction weighs nothing";
}

TEST(BiasOf, LambdaScalesAndZeroSwitchesOff) {
  RecalConfig c = small();
  c.lambda = 0.6f;
  auto r = make(c);
  teach(*r, at_angle(0.0), {1}, {2.0f});
  Lookup found;
  Bias b;
  ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
  r->bias(found, kGreedy, b);
  EXPECT_EQ(b.gain, 0.6f);
  c.lambda = 0.0f;
  auto off = make(c);
  teach(*off, at_angle(0.0), {1}, {2.0f});
  ASSERT_TRUE(off->lookup(at_angle(0.0), found).is_ok());
  off->bias(found, kGreedy, b);
  EXPECT_TRUE(b.bias.empty());
}

// ---- the residual ----

const std::vector<float> kDraft{4.0f, 3.0f, 2.0f, 1.0f, 0.0f, -1.0f};
const std::vector<float> kTarget{0.0f, 1.0f, 5.0f, 1.5f, 4.0f, -2.0f};  // top three: 2, 4, 3; the draft's: 0, 1, 2

double residual_by_hand(Token v) {
  const std::vector<double> p = testing::softmax(kTarget), q = testing::softmax(kDraft);
  const auto i = static_cast<std::size_t>(v);
  return std::log(p[i]) - std::log(q[i]);
}

TEST(Residual, EverySupportByHand) {
  const std::pair<SupportRule, std::vector<Token>> expected[] = {{SupportRule::kUnion, {0, 1, 2, 3, 4}},
                                                                 {SupportRule::kTarget, {2, 3, 4}},
                                                                 {SupportRule::kDraft, {0, 1, 2}},
                                                                 {SupportRule::kIntersection, {2}}};
  for (const auto& [rule, tokens] : expected) {
    RecalConfig c = small();
    c.support = rule;
    auto r = make(c);
    spec::SparseResidual out;
    r->residual(kDraft, kTarget, out);
    EXPECT_EQ(out.tokens, tokens);
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out.values[i], residual_by_hand(out.tokens[i]), 1e-5);
  }
}

TEST(Residual, IsClipped) {
  RecalConfig c = small();
  c.clip = 1.5f;
  auto r = make(c);
  spec::SparseResidual out;
  r->residual(kDraft, kTarget, out);
  EXPECT_EQ(value_of(out, 0), -1.5f);
  EXPECT_EQ(value_of(out, 4), 1.5f);
  EXPECT_NEAR(value_of(out, 3), residual_by_hand(3), 1e-5) << "within the bound it is left alone";
  EXPECT_LT(std::fabs(residual_by_hand(3)), 1.5);
}

TEST(Residual, RenormalisedOnTheSupport) {
  RecalConfig c = small();
  c.support = SupportRule::kTarget;
  c.renormalise = true;
  auto r = make(c);
  spec::SparseResidual out;
  r->residual(kDraft, kTarget, out);
  const std::vector<double> p = testing::softmax(std::vector<float>{5.0f, 1.5f, 4.0f}),
                            q = testing::softmax(std::vector<float>{2.0f, 1.0f, 0.0f});
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(out.values[i], std::log(p[i] / q[i]), 1e-5);
}

// Centred: draft logits plus the residual give the target's probabilities on the support and its mass outside, exactly.
TEST(Residual, CentredMakesTheStoredTokensExact) {
  RecalConfig c = small();
  c.support = SupportRule::kTarget;
  c.centre = true;
  auto r = make(c);
  spec::SparseResidual out;
  r->residual(kDraft, kTarget, out);
  std::vector<float> corrected = kDraft;
  for (std::size_t i = 0; i < out.size(); ++i) corrected[static_cast<std::size_t>(out.tokens[i])] += out.values[i];
  const std::vector<double> got = testing::softmax(corrected), p = testing::softmax(kTarget);
  for (const Token t : out.tokens) EXPECT_NEAR(got[static_cast<std::size_t>(t)], p[static_cast<std::size_t>(t)], 1e-6);
  EXPECT_NEAR(got[0] + got[1] + got[5], p[0] + p[1] + p[5], 1e-6);
}

TEST(Residual, CentredWithNothingOutsideChangesNothing) {
  RecalConfig plain = small(), centred = small();
  plain.bank.support = centred.bank.support = kVocab;
  centred.centre = true;
  spec::SparseResidual a, b;
  make(plain)->residual(kDraft, kTarget, a);
  make(centred)->residual(kDraft, kTarget, b);
  ASSERT_EQ(a.size(), kVocab);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a.values[i], b.values[i], 1e-5);
}

// What is stored comes from the raw draft, whatever bias was in use: the bank never learns from itself.
TEST(Learning, TheBiasInUseDoesNotEnterTheResidual) {
  auto r = make(small());
  const std::vector<float> hidden = at_angle(0.0);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(learn(*r, hidden, kDraft, kTarget).is_ok());
  ASSERT_EQ(r->bank().size(), 1u);
  const bank::EntryView e = r->bank().entry(0);
  EXPECT_EQ(e.count, 20u);
  for (std::size_t i = 0; i < e.tokens.size(); ++i)
    EXPECT_NEAR(e.values[i], residual_by_hand(e.tokens[i]), 1e-4) << "token " << e.tokens[i];
}

// ---- what is refused ----

TEST(Border, BadHiddenStatesAreRefused) {
  auto r = make(small());
  Lookup found;
  for (const std::vector<float>& bad :
       {std::vector<float>{1.0f}, {1.0f, 2.0f, 3.0f}, {}, {kNan, 1.0f}, {1.0f, kInf}, {0.0f, 0.0f}}) {
    const Status s = r->lookup(bad, found);
    EXPECT_EQ(s.code(), Code::kInvalid);
    EXPECT_FALSE(s.message().empty());
  }
  for (const std::vector<float>& fine : {std::vector<float>{1e38f, -1e38f}, {1e-42f, 0.0f}}) {
    ASSERT_TRUE(r->lookup(fine, found).is_ok());
    EXPECT_NEAR(found.key[0] * found.key[0] + found.key[1] * found.key[1], 1.0, 1e-5) << "neither overflows nor vanishes";
  }
}

TEST(Border, BadLogitsAreRefusedAndNothingIsStaged) {
  auto r = make(small());
  Lookup found;
  Bias used;
  ASSERT_TRUE(r->lookup(at_angle(0.1), found).is_ok());
  std::vector<float> with_nan = kDraft, with_inf = kTarget;
  with_nan[3] = kNan;
  with_inf[5] = -kInf;
  EXPECT_EQ(r->observe(found, used, with_nan, kTarget, kGreedy).code(), Code::kInvalid);
  EXPECT_EQ(r->observe(found, used, kDraft, with_inf, kGreedy).code(), Code::kInvalid);
  EXPECT_EQ(r->observe(found, used, std::vector<float>(5), kTarget, kGreedy).code(), Code::kInvalid);
  EXPECT_EQ(r->observe(found, used, kDraft, std::vector<float>(7), kGreedy).code(), Code::kInvalid);
  EXPECT_EQ(r->observe(Lookup{}, used, kDraft, kTarget, kGreedy).code(), Code::kInvalid) << "without a lookup";
  EXPECT_EQ(r->staged(), 0u);
  r->commit();
  EXPECT_EQ(r->bank().size(), 0u);
}

TEST(Border, DiscardAndFreezeTeachNothing) {
  auto r = make(small());
  Lookup found;
  ASSERT_TRUE(r->lookup(at_angle(0.1), found).is_ok());
  ASSERT_TRUE(r->observe(found, {}, kDraft, kTarget, kGreedy).is_ok());
  EXPECT_EQ(r->staged(), 1u);
  r->discard();
  r->commit();
  EXPECT_EQ(r->bank().size(), 0u);
  r->freeze(true);
  ASSERT_TRUE(learn(*r, at_angle(0.1), kDraft, kTarget).is_ok());
  EXPECT_EQ(r->bank().size(), 0u);
  r->freeze(false);
  ASSERT_TRUE(learn(*r, at_angle(0.1), kDraft, kTarget).is_ok());
  EXPECT_EQ(r->bank().size(), 1u);
}

TEST(RecalConfig, BoundsAreNamed) {
  EXPECT_TRUE(small().validate().is_ok());
  EXPECT_EQ(RecalConfig::seed().lambda, 0.6f);
  EXPECT_EQ(RecalConfig::seed().gain, GainRule::kFixed);
  const auto expect_refused = [](auto change, const char* name) {
    RecalConfig c = small();
    change(c);
    const Status s = c.validate();
    EXPECT_EQ(s.code(), Code::kInvalid) << name;
    EXPECT_NE(s.message().find(name), std::string::npos) << s.message();
    EXPECT_FALSE(Recalibrator::create(c).is_ok());
  };
  expect_refused([](RecalConfig& c) { c.neighbors = 0; }, "neighbors");
  expect_refused([](RecalConfig& c) { c.neighbors = bank::kMaxNeighbors + 1; }, "neighbors");
  for (float bad : {0.0f, -1.0f, 11.0f, kNan}) expect_refused([=](RecalConfig& c) { c.sigma = bad; }, "sigma");
  for (float bad : {-0.1f, 10.5f, kNan, kInf}) expect_refused([=](RecalConfig& c) { c.lambda = bad; }, "lambda");
  for (float bad : {0.0f, 101.0f, kNan}) expect_refused([=](RecalConfig& c) { c.clip = bad; }, "clip");
  expect_refused([](RecalConfig& c) { c.bank.eta = 0.0f; }, "eta");
  expect_refused([](RecalConfig& c) { c.bank.key_dim = 0; }, "key_dim");
}

// ---- the order of use ----

TEST(Order, LookupsChangeNothing) {
  RecalConfig c = small();
  c.bank.capacity = 2;
  auto r = make(c);
  teach(*r, at_angle(0.0), {1}, {1.0f});
  teach(*r, at_angle(1.5), {2}, {1.0f});
  const bank::BankImage before = bank::Snapshot::copy(r->bank());
  Lookup found;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
  const bank::BankImage after = bank::Snapshot::copy(r->bank());
  EXPECT_EQ(before.last_used, after.last_used);
  EXPECT_EQ(before.use_counter, after.use_counter);
}

TEST(Order, CommitTouchesWhatALookupUsed) {
  RecalConfig c = small();
  c.bank.capacity = 2;
  c.bank.tau = 0.9999f;
  auto r = make(c);
  teach(*r, at_angle(0.0), {1}, {1.0f});  // the older
  teach(*r, at_angle(1.5), {2}, {1.0f});
  // A lesson near the older entry touches it (kernel weight about 1), allocates, and evicts the other.
  ASSERT_TRUE(learn(*r, at_angle(0.1), kDraft, kTarget).is_ok());
  Lookup found;
  ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
  EXPECT_GT(found.similarity, 0.9999f) << "the touched entry is still there";
  ASSERT_TRUE(r->lookup(at_angle(1.5), found).is_ok());
  EXPECT_LT(found.similarity, 0.9f) << "the least recently used one is gone";
}

// ---- the earned gain ----

TEST(Earned, StartsWithTheDraftLeftAlone) {
  RecalConfig c = small();
  c.gain = GainRule::kEarned;
  auto r = make(c);
  teach(*r, at_angle(0.0), {1}, {5.0f});
  Lookup found;
  Bias b;
  ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
  r->bias(found, kGreedy, b);
  EXPECT_EQ(b.gain, 0.0f);
  EXPECT_FALSE(b.bias.empty()) << "the bias is there to be scored";
}

TEST(Earned, GrowsWhereMemoryHelps) {
  for (const Judging& judging : {kGreedy, kWarm, Judging{false, {1.0f, 0, 1.0f, 0.0f}}}) {
    RecalConfig c = small();
    c.gain = GainRule::kEarned;
    c.bank.support = kVocab;
    auto r = make(c);
    Lookup found;
    Bias b;
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(learn(*r, at_angle(0.0), kDraft, kTarget, judging).is_ok());
    ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
    r->bias(found, judging, b);
    EXPECT_GT(b.gain, 0.0f);
    if (!judging.sampler.greedy()) {
      EXPECT_EQ(b.gain, 1.0f);
    }
  }
}

TEST(Earned, IsZeroWhereMemoryHarms) {
  for (const Judging& judging : {kGreedy, kWarm}) {
    RecalConfig c = small();
    c.gain = GainRule::kEarned;
    c.bank.tau = 1.0f;  // the hostile entry stays as it is: everything new goes elsewhere
    c.neighbors = 1;
    auto r = make(c);
    teach(*r, at_angle(0.0), {0, 5}, {-12.0f, 12.0f});
    Lookup found;
    Bias b;
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(r->lookup(at_angle(0.0), found).is_ok());
      r->bias(found, judging, b);
      ASSERT_EQ(b.gain, 0.0f) << i;
      ASSERT_TRUE(r->observe(found, b, kDraft, kDraft, judging).is_ok());  // the draft was right
      GainTable::Scores scores = r->gains().scores({judging.rejection, judging.sampler.greedy()}, found.bin);
      ASSERT_GE(scores[0], scores[3]);
      r->commit();
    }
  }
}

// ---- banks of others ----

// One step at one position, as learn(), of a bank that borrows. `context` is what levels of n-grams are asked with.
Bias borrow_and_learn(Recalibrator& r, std::vector<Loan> loans, const std::vector<float>& hidden, const std::vector<float>& draft,
                      const std::vector<float>& target, const std::vector<Token>& context = {}) {
  Lookup found;
  Bias used;
  r.borrow(loans);
  EXPECT_TRUE(r.lookup({hidden, context}, found).is_ok());
  r.bias(found, draft, kGreedy, used);
  EXPECT_TRUE(r.observe(found, used, draft, target, kGreedy).is_ok());
  r.commit();
  r.borrow({});
  return used;
}

// The hidden level alone, and below levels of n-grams.
class Borrowed : public ::testing::TestWithParam<LevelSet> {
 protected:
  static RecalConfig config() {
    RecalConfig c = small();
    c.levels = GetParam();
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, Borrowed,
                         ::testing::Values(kHiddenOnly, LevelSet{Level::kHidden, Level::kNgram2, Level::kNgram3}),
                         [](const auto& level) { return level.param == kHiddenOnly ? "hidden" : "ngrams"; });

TEST_P(Borrowed, ABankEarnsItsSayAndIsOnlyRead) {
  RecalConfig c = config();
  c.gain = GainRule::kEarned;
  c.bank.support = kVocab;
  auto own = make(c), lender = make(c);
  own->freeze(true);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(learn(*lender, at_angle(0.1 * i), kDraft, kTarget).is_ok());
  const bank::StoredBank before = lender->save({});
  EXPECT_EQ(borrow_and_learn(*own, {{"b", lender.get()}}, at_angle(0.1), kDraft, kTarget).gain, 0.0f) << "nothing is earned yet";
  EXPECT_EQ(borrow_and_learn(*own, {{"b", lender.get()}}, at_angle(0.1), kDraft, kTarget).gain, 0.0f)
      << "a frozen one learns no gain";
  EXPECT_EQ(own->gains_with("b"), nullptr);
  own->freeze(false);
  borrow_and_learn(*own, {{"b", lender.get()}}, at_angle(0.1), kDraft, kTarget);
  ASSERT_NE(own->gains_with("b"), nullptr);
  own->bank().clear();
  const Bias used = borrow_and_learn(*own, {{"b", lender.get()}}, at_angle(0.1), kDraft, kTarget);
  EXPECT_GT(used.gain, 0.0f);
  EXPECT_GT(value_of(used.bias, 2), 0.0f) << "the target's token, which only the lender knows";
  EXPECT_TRUE(used.own.empty());
  const bank::StoredBank after = lender->save({});
  EXPECT_TRUE(before.image.keys == after.image.keys && before.image.values == after.image.values &&
              before.image.last_used == after.image.last_used && before.image.counts == after.image.counts &&
              before.extras == after.extras);
  own->forget_loan("b");
  own->bank().clear();
  EXPECT_EQ(borrow_and_learn(*own, {{"b", lender.get()}}, at_angle(0.1), kDraft, kTarget).gain, 0.0f);
}

TEST_P(Borrowed, NoGainDependsOnAnotherBanksBeingThere) {
  RecalConfig c = config();
  c.gain = GainRule::kEarned;
  auto b = make(c), d = make(c), with_both = make(c), with_one = make(c), with_none = make(c);
  const RngStream numbers(7);
  Pos drawn = 0;
  const auto number = [&] { return numbers.uniform({.sequence = 0, .position = drawn++}); };
  const auto row = [&] {
    std::vector<float> out(kVocab);
    for (float& x : out) x = static_cast<float>(4.0 * number());
    return out;
  };
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(learn(*b, at_angle(6.0 * number()), row(), row()).is_ok());
    ASSERT_TRUE(learn(*d, at_angle(6.0 * number()), row(), row()).is_ok());
  }
  bool differed = false;
  for (int i = 0; i < 60; ++i) {
    const auto hidden = at_angle(6.0 * number());
    const auto draft = row(), target = row();
    const std::vector<Token> context = {static_cast<Token>(2.0 * number()), static_cast<Token>(2.0 * number()), 3};
    const Bias both = borrow_and_learn(*with_both, {{"b", b.get()}, {"d", d.get()}}, hidden, draft, target, context);
    borrow_and_learn(*with_one, {{"d", d.get()}}, hidden, draft, target, context);
    const Bias none = borrow_and_learn(*with_none, {}, hidden, draft, target, context);
    differed = differed || both.bias.values != none.bias.values;
  }
  EXPECT_TRUE(differed) << "they did have a say";
  ASSERT_NE(with_both->gains_with("b"), nullptr);
  EXPECT_EQ(with_both->gains_with("d")->save(), with_one->gains_with("d")->save());
  for (Recalibrator* other : {with_both.get(), with_one.get()}) {
    EXPECT_EQ(other->save({}).extras, with_none->save({}).extras) << "its own gains";
    EXPECT_EQ(other->save({}).image.values, with_none->save({}).image.values);
    EXPECT_EQ(other->save({}).image.keys, with_none->save({}).image.keys);
  }
}

TEST(BorrowedWeights, NeighboursOfAllAreWeighedTogetherLikeOneBanks) {
  RecalConfig c = small();
  c.sigma = 0.2f;
  auto own = make(c), lender = make(c), both = make(c);
  teach(*own, at_angle(0.0), {1}, {2.0f});
  teach(*lender, at_angle(0.5), {1, 3}, {4.0f, -1.0f});
  teach(*both, at_angle(0.0), {1}, {2.0f});
  teach(*both, at_angle(0.5), {1, 3}, {4.0f, -1.0f});
  Lookup found, found_both;
  Bias used, used_both;
  const Loan loan{"b", lender.get()};
  own->borrow({&loan, 1});
  ASSERT_TRUE(own->lookup(at_angle(0.2), found).is_ok());
  ASSERT_TRUE(both->lookup(at_angle(0.2), found_both).is_ok());
  own->bias(found, kGreedy, used);
  both->bias(found_both, kGreedy, used_both);
  EXPECT_EQ(used.gain, used_both.gain);
  EXPECT_EQ(used.bias.tokens, used_both.bias.tokens);
  for (const Token t : used.bias.tokens) EXPECT_NEAR(value_of(used.bias, t), value_of(used_both.bias, t), 1e-6);
  const auto nothing = make(c);
  const Loan empty{"c", nothing.get()};
  Bias alone, besides;
  own->borrow({});
  ASSERT_TRUE(own->lookup(at_angle(0.2), found).is_ok());
  own->bias(found, kGreedy, alone);
  own->borrow({&empty, 1});
  ASSERT_TRUE(own->lookup(at_angle(0.2), found).is_ok());
  own->bias(found, kGreedy, besides);
  EXPECT_EQ(alone.bias.values, besides.bias.values) << "an empty bank changes nothing, to the last bit";
  EXPECT_EQ(alone.gain, besides.gain);
}

TEST(GainTable, FollowsTheBestSoFarAndForgets) {
  GainTable t;
  const GainClass cls{true, false};
  EXPECT_EQ(t.best(cls, 3), 0u);
  for (int i = 0; i < 10; ++i) t.learn(cls, 3, {0.5, 0.6, 0.9, 0.7});
  EXPECT_EQ(t.best(cls, 3), 2u);
  EXPECT_EQ(t.best(cls, 4), 0u) << "bins are apart";
  EXPECT_EQ(t.best({false, false}, 3), 0u) << "classes are apart";
  for (int i = 0; i < 500; ++i) t.learn(cls, 3, {0.9, 0.1, 0.1, 0.1});
  EXPECT_EQ(t.best(cls, 3), 0u);
  for (int i = 0; i < 3'000; ++i) t.learn(cls, 3, {0.5, 0.5, 0.5, 0.6});
  EXPECT_EQ(t.best(cls, 3), 3u);
  GainTable tied;
  tied.learn(cls, 0, {0.4, 0.4, 0.4, 0.4});
  EXPECT_EQ(tied.best(cls, 0), 0u) << "the lowest gain on ties";
}

TEST(GainTable, BinsSplitAtTheirEdges) {
  EXPECT_EQ(gain_bin(-1.0f, 0), 0u);
  EXPECT_EQ(gain_bin(1.0f, 1'000), kGainBins - 1);
  EXPECT_NE(gain_bin(0.97f, 1), gain_bin(0.9699f, 1));
  EXPECT_NE(gain_bin(0.6f, 1), gain_bin(0.6f, 2));
  EXPECT_EQ(gain_bin(0.6f, 4), gain_bin(0.69f, 15));
}

TEST(GainTable, SavesAndRefusesWhatIsNotItsOwn) {
  GainTable t, back;
  t.learn({true, false}, 7, {0.1, 0.2, 0.3, 0.25});
  std::vector<std::byte> bytes = t.save();
  ASSERT_TRUE(back.load(bytes).is_ok());
  EXPECT_EQ(back.save(), bytes);
  std::vector<std::byte> cut(bytes.begin(), bytes.end() - 1);
  EXPECT_EQ(back.load(cut).code(), Code::kCorrupt);
  std::vector<std::byte> other = bytes;
  other[16] ^= std::byte{1};  // an edge or a gain
  EXPECT_EQ(back.load(other).code(), Code::kCorrupt);
  std::vector<std::byte> wild = bytes;
  std::fill(wild.end() - 8, wild.end(), std::byte{0x7f});
  EXPECT_EQ(back.load(wild).code(), Code::kCorrupt);
  EXPECT_EQ(back.save(), bytes) << "a refused table changes nothing";
}

// ---- saved and restored ----

std::vector<float> random_floats(std::uint64_t seed, Pos at, std::size_t n) {
  const RngStream random(seed);
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i)
    out[i] =
        static_cast<float>(4.0 * random.uniform({static_cast<std::uint64_t>(at), static_cast<Pos>(i), Purpose::kDraw, 0}) - 2.0);
  return out;
}

void teach_random(Recalibrator& r, std::uint64_t seed, int from, int to) {
  for (int i = from; i < to; ++i) {
    ASSERT_TRUE(learn(r, random_floats(seed, i, r.config().bank.key_dim), random_floats(seed + 1, i, kVocab),
                      random_floats(seed + 2, i, kVocab), kWarm)
                    .is_ok());
  }
}

bool same(const bank::StoredBank& a, const bank::StoredBank& b) {
  return a.extras == b.extras && a.image.size == b.image.size && a.image.use_counter == b.image.use_counter &&
         a.image.lengths == b.image.lengths && a.image.counts == b.image.counts && a.image.last_used == b.image.last_used &&
         a.image.errors == b.image.errors && a.image.tokens == b.image.tokens && a.image.values == b.image.values &&
         a.image.keys == b.image.keys;
}

TEST(Saved, GoesOnBitForBit) {
  for (const bool standardise : {false, true}) {
    for (const int pause : {30, 1'100}) {  // before and after the key statistics freeze at 1,024
      RecalConfig c = small();
      c.gain = GainRule::kEarned;
      c.bank.key_dim = 5;
      c.bank.capacity = 16;
      c.bank.rate = bank::RateRule::kError;
      c.bank.standardise = standardise;
      c.bank.tau = 0.9f;
      auto whole = make(c), first = make(c), second = make(c);
      teach_random(*whole, 11, 0, pause + 50);
      teach_random(*first, 11, 0, pause);
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_TRUE(second->restore(first->save({})).is_ok());
      teach_random(*second, 11, pause, pause + 50);
      EXPECT_TRUE(same(whole->save({}), second->save({}))) << "standardise " << standardise << ", pause " << pause;
    }
  }
}

TEST(Saved, AnEmptiedBankStartsAsANewOne) {
  RecalConfig c = small();
  c.gain = GainRule::kEarned;
  c.bank.standardise = true;
  auto fresh = make(c), taught = make(c);
  bank::StoredBank emptied;
  emptied.image.config = c.bank;
  teach_random(*taught, 5, 0, 20);
  ASSERT_TRUE(taught->restore(emptied).is_ok());
  EXPECT_TRUE(same(fresh->save({}), taught->save({})));
  teach_random(*taught, 7, 0, 20);
  teach_random(*fresh, 7, 0, 20);
  EXPECT_TRUE(same(fresh->save({}), taught->save({})));
}

TEST(Saved, AForeignOrBrokenBankChangesNothing) {
  auto r = make(small());
  teach_random(*r, 5, 0, 20);
  const bank::StoredBank before = r->save({});
  RecalConfig other = small();
  other.bank.eta = 0.5f;
  EXPECT_EQ(r->restore(make(other)->save({})).code(), Code::kForeign);
  for (const char* part : {"gains", "key_stats"}) {
    bank::StoredBank broken = before;
    broken.extras.erase(part);
    EXPECT_EQ(r->restore(broken).code(), Code::kCorrupt);
    broken = before;
    broken.extras[part].push_back({});
    EXPECT_EQ(r->restore(broken).code(), Code::kCorrupt);
  }
  bank::StoredBank broken = before;
  broken.image.values[0] = kNan;
  EXPECT_EQ(r->restore(broken).code(), Code::kCorrupt);
  EXPECT_TRUE(same(before, r->save({})));
}

// ---- keys ----

TEST(Keyer, StandardisesAfterTheFreezeOnly) {
  Keyer keyer(3, true);
  std::vector<float> unit(3), key(3);
  for (std::uint64_t i = 0; i < Keyer::kFreezeAfter; ++i) {
    ASSERT_FALSE(keyer.frozen());
    const std::vector<float> h = random_floats(3, static_cast<Pos>(i), 3);
    ASSERT_TRUE(keyer.make(h, unit, key).is_ok());
    ASSERT_EQ(unit, key);
    ASSERT_EQ(keyer.learn(unit), i + 1 == Keyer::kFreezeAfter);
  }
  EXPECT_TRUE(keyer.frozen());
  const std::vector<std::byte> statistics = keyer.save();
  ASSERT_TRUE(keyer.make(random_floats(4, 0, 3), unit, key).is_ok());
  EXPECT_NE(unit, key);
  EXPECT_NEAR(key[0] * key[0] + key[1] * key[1] + key[2] * key[2], 1.0, 1e-5);
  EXPECT_FALSE(keyer.learn(unit));
  EXPECT_EQ(keyer.save(), statistics) << "frozen statistics never move";
  std::vector<float> converted = unit;
  keyer.convert(converted);
  EXPECT_EQ(converted, key);
}

TEST(Keyer, StandardisingByHand) {
  Keyer keyer(2, true);
  // Half the vectors point one way, half the other: mean m, deviation s per dimension are known.
  const double a = 0.2, b = 0.6;
  const std::vector<float> first = at_angle(a), second = at_angle(b);
  for (std::uint64_t i = 0; i < Keyer::kFreezeAfter; ++i) (void)keyer.learn(i % 2 == 0 ? first : second);
  ASSERT_TRUE(keyer.frozen());
  std::vector<float> key = at_angle(0.9);
  keyer.convert(key);
  const double mx = (std::cos(a) + std::cos(b)) / 2, my = (std::sin(a) + std::sin(b)) / 2;
  const double sx = std::fabs(std::cos(a) - std::cos(b)) / 2, sy = std::fabs(std::sin(a) - std::sin(b)) / 2;
  double x = (std::cos(0.9) - mx) / sx, y = (std::sin(0.9) - my) / sy;
  const double length = std::hypot(x, y);
  EXPECT_NEAR(key[0], x / length, 1e-4);
  EXPECT_NEAR(key[1], y / length, 1e-4);
}

TEST(Keyer, TheBankIsRekeyedOnce) {
  RecalConfig c = small();
  c.bank.key_dim = 4;
  c.bank.standardise = true;
  c.bank.capacity = 4;
  auto r = make(c);
  teach_random(*r, 21, 0, static_cast<int>(Keyer::kFreezeAfter) - 1);
  ASSERT_FALSE(HasFatalFailure());
  const std::vector<float> known = random_floats(21, static_cast<Pos>(Keyer::kFreezeAfter) - 2, 4);  // taught last
  Lookup before, after;
  ASSERT_TRUE(r->lookup(known, before).is_ok());
  EXPECT_EQ(before.unit, before.key);
  teach_random(*r, 21, static_cast<int>(Keyer::kFreezeAfter) - 1, static_cast<int>(Keyer::kFreezeAfter));
  ASSERT_TRUE(r->lookup(known, after).is_ok());
  EXPECT_NE(after.unit, after.key);
  EXPECT_NEAR(after.similarity, before.similarity, 0.2f) << "entries were converted with the keys they are asked by";
  EXPECT_GT(after.similarity, 0.95f);
}

TEST(Keyer, StatisticsAreCheckedWhenLoaded) {
  Keyer keyer(2, true), other(3, true), plain(2, false);
  (void)keyer.learn(at_angle(0.3));
  std::vector<std::byte> bytes = keyer.save();
  EXPECT_TRUE(keyer.load(bytes).is_ok());
  EXPECT_EQ(other.load(bytes).code(), Code::kCorrupt);
  EXPECT_EQ(plain.load(bytes).code(), Code::kCorrupt);
  std::vector<std::byte> flagged = bytes;
  flagged[4] ^= std::byte{2};  // says frozen after one vector
  EXPECT_EQ(keyer.load(flagged).code(), Code::kCorrupt);
  std::fill(bytes.end() - 8, bytes.end(), std::byte{0xff});
  EXPECT_EQ(keyer.load(bytes).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace drift::recal
