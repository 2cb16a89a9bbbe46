#include "server/schedule/history.hpp"

#include <gtest/gtest.h>

#include "server/schedule/banks.hpp"
#include "server/testing/rig.hpp"

namespace drift::server {
namespace {

using decode::Mode;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using Range = History::Range;

struct Sum {
  int n = 0;
  Sum& operator+=(const Sum& o) {
    n += o.n;
    return *this;
  }
};

TEST(Timeline, TheNewestSpansAreKept) {
  RecentSpans<Sum> spans(2.0, 5);
  spans.at(0.1).n += 1;
  spans.at(1.9).n += 1;
  spans.at(2.0).n += 4;
  auto read = spans.read(3.0);
  EXPECT_EQ(read.from_s, 0.0);
  ASSERT_EQ(read.counts.size(), 2u);
  EXPECT_EQ(read.counts[0].n, 2);
  EXPECT_EQ(read.counts[1].n, 4);
  spans.at(11.0).n += 8;  // the sixth span: the first has gone
  read = spans.read(11.5);
  EXPECT_EQ(read.from_s, 2.0);
  ASSERT_EQ(read.counts.size(), 5u);
  EXPECT_EQ(read.counts[0].n, 4);
  EXPECT_EQ(read.counts[1].n, 0);
  EXPECT_EQ(read.counts[4].n, 8);
  for (const Sum& sum : spans.read(1'000.0).counts) EXPECT_EQ(sum.n, 0) << "a place of the ring shows what was there long ago";
}

TEST(Timeline, AllSpansAreKeptAndGetWider) {
  WholeSpans<Sum> spans(2.0, 4);
  for (int t = 0; t < 100; ++t) spans.at(t).n += 1;
  const auto read = spans.read(99.0);
  EXPECT_EQ(read.width_s, 32.0);
  ASSERT_EQ(read.counts.size(), 4u);
  EXPECT_EQ(read.counts[0].n, 32);
  EXPECT_EQ(read.counts[3].n, 4);
  // One that began late, and one that was not told anything for long, are read with the same spans.
  WholeSpans<Sum> late(2.0, 4), silent(2.0, 4);
  late.at(98.0).n += 5;
  silent.at(1.0).n += 7;
  EXPECT_EQ(late.read(99.0).width_s, 32.0);
  EXPECT_EQ(late.read(99.0).counts[3].n, 5);
  EXPECT_EQ(silent.read(99.0).width_s, 32.0);
  EXPECT_EQ(silent.read(99.0).counts[0].n, 7);
  EXPECT_EQ(silent.read(99.0).counts.size(), 4u);
}

// A step that proposed `drafted` tokens of which `accepted` stood, the first of them thanks to the bank.
trace::StepEvent event_of(std::size_t drafted, std::size_t accepted, std::int64_t total_ns = 1'000) {
  trace::StepEvent event;
  for (std::size_t i = 0; i < drafted; ++i) {
    trace::ProposedToken proposed;
    proposed.accepted = i < accepted;
    proposed.from_bank = i == 0;
    proposed.gain = i == 0 ? 0.3f : 0.0f;
    event.proposed.push_back(proposed);
  }
  for (std::size_t i = 0; i < accepted; ++i) event.emitted.push_back({1, trace::Origin::kAccepted});
  event.emitted.push_back({2, trace::Origin::kTarget});
  event.times.draft_ns = 100;
  event.times.verify_ns = 600;
  event.times.sample_ns = 50;
  event.times.lookup_ns = 30;
  event.times.commit_ns = 20;
  event.times.total_ns = total_ns;
  return event;
}

class HistoryTest : public ::testing::Test {
 protected:
  History::Clock::time_point start = History::Clock::now();
  History history{start};
  std::string tenant = "default";
  Bank bank{BankId{.name = "law"}, std::nullopt};
  Bank foreign{BankId{.tenant = "a", .name = "law"}, std::nullopt};
  History::Clock::time_point at(double s) const { return start + nanoseconds(static_cast<std::int64_t>(s * 1e9)); }
  void step(double s, std::vector<trace::StepEvent> events, Mode mode, const Bank* of = nullptr) {
    std::vector<StepOwner> owners;
    for (std::size_t i = 0; i < events.size(); ++i) owners.push_back({&tenant, of, mode, static_cast<int>(i)});
    history.stepped(events, owners, at(s));
  }
};

TEST_F(HistoryTest, AStepIsCountedInItsSpanAndOverall) {
  history.prefilled(1, nanoseconds(700), at(0.5));
  step(1.0, {event_of(3, 2), event_of(3, 0)}, Mode::kDrift, &bank);
  step(2.5, {event_of(0, 0)}, Mode::kOff);
  const HistoryView view = history.view(Range::kRecent, at(3.0));
  ASSERT_EQ(view.spans.counts.size(), 2u);
  const Work& first = view.spans.counts[0];
  EXPECT_EQ(first.steps, 1u);
  EXPECT_EQ(first.tokens, 4u);
  EXPECT_EQ(first.verifications, 2u);
  EXPECT_EQ(first.verified_tokens, 4u);
  EXPECT_EQ(first.blocks, 2u);
  EXPECT_EQ(first.drafted, 6u);
  EXPECT_EQ(first.accepted, 2u);
  EXPECT_EQ(first.accepted_bank, 1u);
  EXPECT_EQ(first.step_ns, 1'000) << "a batched step's time is counted once";
  EXPECT_EQ(first.time.prefill_ns, 700);
  EXPECT_EQ(first.time.verify_ns, 600);
  EXPECT_EQ(first.time.sample_ns, 100);
  EXPECT_EQ(first.time.overhead_ns, 100);
  EXPECT_EQ(view.spans.counts[1].tokens, 1u);
  EXPECT_EQ(view.spans.counts[1].verifications, 0u) << "plain decoding verifies nothing";
  EXPECT_EQ(view.all.tokens, 5u);
  EXPECT_EQ(history.view(Range::kWhole, at(3.0)).spans.counts[0].drafted, 6u);
}

TEST_F(HistoryTest, BanksPositionsAndSlotsHaveTheirOwn) {
  history.prefilled(1, nanoseconds(700), at(0.5));
  step(1.0, {event_of(3, 2), event_of(3, 0)}, Mode::kDrift, &bank);
  step(1.5, {event_of(2, 2)}, Mode::kStatic);
  const HistoryView view = history.view(Range::kRecent, at(3.0));
  ASSERT_EQ(view.banks.size(), 2u);
  EXPECT_EQ(view.banks[0].id, (BankId{"default", ""})) << "without a bank";
  EXPECT_EQ(view.banks[0].all.drafted, 2u);
  EXPECT_EQ(view.banks[0].all.lookups, 0u) << "no bank was asked";
  EXPECT_EQ(view.banks[1].id, bank.id());
  EXPECT_EQ(view.banks[1].all.drafted, 6u);
  EXPECT_EQ(view.banks[1].all.lookups, 6u);
  EXPECT_EQ(view.banks[1].all.hits, 2u);
  EXPECT_EQ(view.banks[1].first_s, 1.0);
  EXPECT_EQ(view.banks[1].spans[0].accepted, 2u);
  EXPECT_EQ(view.banks[1].spans.size(), view.spans.counts.size());
  EXPECT_EQ(view.places.at[0].tested, 3u);
  EXPECT_EQ(view.places.at[0].accepted, 2u);
  EXPECT_EQ(view.places.at[1].tested, 2u) << "behind a rejected proposal nothing is tested";
  EXPECT_EQ(view.places.at[2].tested, 1u);
  EXPECT_EQ(view.places.at[2].accepted, 0u);
  ASSERT_EQ(view.slots.counts.size(), 2u);
  EXPECT_EQ(view.slots.counts[0][0].verify_ns, 1'200);
  EXPECT_EQ(view.slots.counts[1][0].verify_ns, 600);
  EXPECT_EQ(view.slots.counts[1][0].prefill_ns, 700);
  EXPECT_EQ(history.view(Range::kRecent, at(1'000.0)).places_recent.at[0].tested, 0u);
}

TEST_F(HistoryTest, SpeedUpIsSaidOnlyWherePlainWasMeasured) {
  step(0.1, {event_of(3, 1, 900)}, Mode::kStatic);
  for (std::uint64_t i = 0; i < kPlainStepsMin; ++i) step(0.2, {event_of(0, 0, 500)}, Mode::kOff);
  EXPECT_EQ(history.view(Range::kRecent, at(1)).all.compared_ns, 0) << "what came before the measurement is not compared";
  step(0.3, {event_of(3, 2, 1'000)}, Mode::kStatic);
  step(0.4, {event_of(3, 2, 1'000), event_of(3, 2, 1'000)}, Mode::kStatic);  // two at once: plain was not measured so
  const HistoryView view = history.view(Range::kRecent, at(1));
  EXPECT_EQ(view.all.compared_ns, 1'000);
  EXPECT_EQ(view.all.plain_ns, 1'500) << "three tokens, plainly in three steps of 500 ns";
  ASSERT_TRUE(view.plain.contains(1));
  EXPECT_EQ(view.plain.at(1).steps, kPlainStepsMin);
  EXPECT_DOUBLE_EQ(view.plain.at(1).ns, 500);
}

TEST_F(HistoryTest, AStepWithAPlainAndADraftingAnswerIsNoMeasurementOfPlain) {
  const std::vector<trace::StepEvent> events{event_of(3, 1), event_of(0, 0)};
  const std::vector<StepOwner> owners{{&tenant, nullptr, Mode::kStatic, 0}, {&tenant, nullptr, Mode::kOff, 1}};
  for (int i = 0; i < 100; ++i) history.stepped(events, owners, at(1));
  EXPECT_TRUE(history.view(Range::kRecent, at(1)).plain.empty());
}

TEST_F(HistoryTest, EverythingIsBounded) {
  for (int i = 0; i < 20'000; ++i) {
    const Bank other(BankId{.name = "bank" + std::to_string(i % 40)}, std::nullopt);
    step(i, {event_of(3, 1)}, Mode::kDrift, &other);
    history.shifted("t" + std::to_string(i), 0.4, 0.7, at(i));
  }
  history.prefilled(1'000'000, nanoseconds(1), at(20'000));  // no such slot
  for (const Range range : {Range::kRecent, Range::kWhole}) {
    const HistoryView view = history.view(range, at(20'000));
    EXPECT_LE(view.spans.counts.size(), range == Range::kRecent ? kRecentSpans : kWholeSpans);
    EXPECT_LE(view.banks.size(), kHistoryBanksMax);
    for (const HistoryView::OfBank& kept : view.banks) EXPECT_EQ(kept.spans.size(), view.spans.counts.size());
    EXPECT_LE(view.shifts.size(), kHistoryShiftsMax);
    EXPECT_LE(view.slots.counts.size(), kHistorySlotsMax);
    EXPECT_EQ(view.all.steps, 20'000u);
  }
  const HistoryView whole = history.view(Range::kWhole, at(20'000));
  std::uint64_t steps = 0;
  for (const Work& work : whole.spans.counts) steps += work.steps;
  EXPECT_EQ(steps, 20'000u) << "the whole curve leaves nothing out";
  EXPECT_EQ(whole.shifts.back().tenant, "t19999");
}

TEST_F(HistoryTest, WhatIsForgottenIsNotShown) {
  step(1.0, {event_of(3, 2)}, Mode::kDrift, &bank);
  step(1.0, {event_of(3, 2)}, Mode::kDrift, &foreign);
  history.shifted("a", 0.3, 0.6, at(1));
  history.shifted("b", 0.3, 0.6, at(1));
  ASSERT_EQ(history.view(Range::kWhole, at(2)).banks.size(), 2u) << "tenants' banks of one name are two";
  EXPECT_EQ(history.view(Range::kWhole, at(2)).banks[0].id, foreign.id());
  history.forget_tenant("a");
  ASSERT_EQ(history.view(Range::kWhole, at(2)).banks.size(), 1u);
  history.forget_bank(bank.id());
  const HistoryView view = history.view(Range::kWhole, at(2));
  EXPECT_TRUE(view.banks.empty());
  ASSERT_EQ(view.shifts.size(), 1u);
  EXPECT_EQ(view.shifts[0].tenant, "b");
}

// The scheduler says whose each step is, in which slot and by which bank.
TEST(HistoryOfAScheduler, KnowsBankModeAndSlot) {
  struct Watch final : Observer {
    History history;
    void prefilled(int slot, std::size_t /*tokens*/, nanoseconds time) override { history.prefilled(slot, time); }
    void stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners) override {
      history.stepped(events, owners);
    }
  } watch;
  testing::Rig rig({}, 4'096, &watch);
  GenerationConfig drift = testing::ask("hello", 40), plain = testing::ask("other", 40);
  drift.mode = Mode::kDrift;
  drift.bank = rig.banks.get({.name = "law"}).value();
  const auto first = rig.submit(drift), second = rig.submit(plain);
  rig.run_all();
  const HistoryView view = watch.history.view(Range::kRecent);
  ASSERT_EQ(view.banks.size(), 1u);
  EXPECT_EQ(view.banks[0].id.name, "law");
  const auto answers = testing::fetch(*first);
  EXPECT_EQ(view.banks[0].all.drafted, answers[0].ended->metrics.drafted);
  EXPECT_EQ(view.banks[0].all.accepted, answers[0].ended->metrics.accepted);
  EXPECT_EQ(view.all.tokens, 80u);
  EXPECT_EQ(view.all.verified_tokens, 40u);
  EXPECT_EQ(view.all.verifications, answers[0].ended->metrics.steps);
  EXPECT_EQ(view.slots.counts.size(), 2u);
}

// Rejected proposals come with the token that stands in their place.
TEST(HistoryOfAScheduler, OriginsAreThoseOfTheSteps) {
  testing::Rig rig;
  GenerationConfig config = testing::ask("hello", 60);
  config.mode = Mode::kStatic;
  config.origins = true;
  const auto job = rig.submit(config);
  rig.run_all();
  const auto answer = testing::fetch(*job)[0];
  std::uint64_t accepted = 0, rejected = 0;
  for (const TokenInfo& token : answer.tokens) {
    accepted += token.origin != trace::Origin::kTarget ? 1 : 0;
    rejected += token.rejected.size();
    if (!token.rejected.empty()) {
      EXPECT_EQ(token.origin, trace::Origin::kTarget);
      EXPECT_NE(token.rejected[0].token, token.token) << "the first that fell is not what stands there";
      EXPECT_EQ(token.rejected[0].bytes, rig.text.piece(token.rejected[0].token));
    }
  }
  EXPECT_GT(rejected, 0u);
  EXPECT_EQ(accepted, answer.ended->metrics.accepted);
  EXPECT_LE(accepted + rejected, answer.ended->metrics.drafted);
  config.origins = false;
  const auto without = rig.submit(config);
  rig.run_all();
  const auto unasked = testing::fetch(*without)[0];
  for (const TokenInfo& token : unasked.tokens) EXPECT_TRUE(token.rejected.empty());
}

}  // namespace
}  // namespace drift::server
