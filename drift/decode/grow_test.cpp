// Proposals that are copied: where they come from, when the draft runs beside them, what is remembered.
#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "drift/decode/stepper.hpp"
#include "drift/decode/testing.hpp"
#include "drift/testing/toy_engine.hpp"

namespace drift::decode {
namespace {

using testing::ToyEngine;
using testing::ToyModel;

constexpr std::size_t kVocab = 12;
constexpr std::uint32_t kWidth = 5;

// Goes round 0 1 2 3 4 while the text is shorter than `until`, then is a random model over all tokens.
ToyModel round_and_out(std::size_t until) {
  ToyModel m = testing::random_model(1, kVocab, 0, 3, 3.0f);
  m.row = [until, out = m.row](std::span<const Token> context, std::span<float> logits, std::span<float> hidden) {
    if (context.size() >= until) return out(context, logits, hidden);
    std::fill(logits.begin(), logits.end(), 0.0f);
    logits[static_cast<std::size_t>(context.back() + 1) % 5] = 20.0f;
  };
  return m;
}

struct Rig {
  explicit Rig(std::size_t until = 1'000)
      : target(round_and_out(until)),
        draft(testing::random_model(2, kVocab, kWidth, 2, 3.0f)),
        stepper(target, &draft),
        stream(77),
        suffix(std::move(propose::SuffixMemory::create(256)).value()) {
    recal::RecalConfig r;
    r.bank.capacity = 500;
    r.bank.key_dim = kWidth;
    r.bank.support = 4;
    r.bank.vocab = kVocab;
    recal = std::move(recal::Recalibrator::create(r)).value();
    config.sampler = spec::greedy_sampler();
    config.draft_tokens = 3;
    config.max_tokens = 40;
    config.choices = &stream;
    config.recal = recal.get();
    config.suffix = suffix.get();
  }
  std::unique_ptr<Sequence> open(const std::vector<Token>& prompt) {
    auto s = stepper.open(prompt, config);
    EXPECT_TRUE(s.is_ok()) << s.status().message();
    EXPECT_TRUE(s.is_ok() && stepper.prefill(**s).is_ok());
    return std::move(s).value();
  }
  std::vector<trace::StepEvent> run(Sequence& s) { return run_to_end(stepper, s); }
  ToyEngine target, draft;
  Stepper stepper;
  RngStream stream;
  std::unique_ptr<propose::SuffixMemory> suffix;
  std::unique_ptr<recal::Recalibrator> recal;
  SequenceConfig config;
};

std::size_t copied_in(const std::vector<trace::StepEvent>& events) {
  std::size_t n = 0;
  for (const trace::StepEvent& e : events) {
    for (const trace::ProposedToken& p : e.proposed) n += p.copied() ? 1 : 0;
  }
  return n;
}

TEST(Copy, ModesSayWhatTheyNeed) {
  Rig rig;
  rig.config.suffix = nullptr;
  for (const Mode mode : {Mode::kSuffix, Mode::kDraftSuffix, Mode::kDriftSuffix}) {
    rig.config.mode = mode;
    EXPECT_EQ(rig.stepper.open(std::vector<Token>{1}, rig.config).status().code(), Code::kInvalid);
  }
  rig.config.mode = Mode::kLookup;
  EXPECT_TRUE(rig.stepper.open(std::vector<Token>{1}, rig.config).is_ok());
  rig.config.copy.min_match = 1;
  EXPECT_EQ(rig.stepper.open(std::vector<Token>{1}, rig.config).status().code(), Code::kInvalid);
  Rig other;
  Stepper alone(other.target, nullptr);
  for (const Mode mode : {Mode::kLookup, Mode::kSuffix}) {
    other.config.mode = mode;
    EXPECT_TRUE(alone.open(std::vector<Token>{1}, other.config).is_ok()) << "no draft is needed";
  }
  other.config.mode = Mode::kDraftSuffix;
  EXPECT_EQ(alone.open(std::vector<Token>{1}, other.config).status().code(), Code::kUnsupported);
  other.config.mode = Mode::kDriftSuffix;
  other.config.recal = nullptr;
  EXPECT_EQ(other.stepper.open(std::vector<Token>{1}, other.config).status().code(), Code::kInvalid);
}

TEST(Copy, LookupFollowsALoopWithoutADraft) {
  Rig rig;
  Stepper alone(rig.target, nullptr);
  rig.config.mode = Mode::kLookup;
  auto s = alone.open(std::vector<Token>{0, 1, 2, 3, 4, 0, 1}, rig.config);
  ASSERT_TRUE(s.is_ok() && alone.prefill(**s).is_ok());
  Sequence* const one[] = {s->get()};
  std::vector<trace::StepEvent> events;
  while ((*s)->ending() == Ending::kRunning) {
    ASSERT_TRUE(alone.step(one, events).is_ok());
    for (const trace::ProposedToken& p : events[0].proposed) EXPECT_TRUE(p.accepted && p.copied() && !p.from_bank);
    EXPECT_EQ(events[0].emitted.size(), events[0].proposed.size() + 1);
  }
  EXPECT_EQ(rig.target.counters().forwards, 1u + 10u) << "40 tokens in blocks of 3 + 1";
}

TEST(Copy, NothingIsProposedWhereNothingMatches) {
  Rig rig;
  rig.config.mode = Mode::kSuffix;
  auto s = rig.open({0, 1, 2});
  const auto events = rig.run(*s);
  EXPECT_TRUE(events[0].proposed.empty());
  EXPECT_EQ(events[0].emitted.size(), 1u);
  EXPECT_GT(copied_in(events), 20u) << "the loop is seen after its first round";
  rig.config.copy.min_match = 20;
  auto choosy = rig.open({0, 1, 2});
  EXPECT_LT(copied_in(rig.run(*choosy)), copied_in(events));
}

// The draft is left out while the loop lasts, then lacks dozens of tokens.
TEST(Copy, ADraftThatWasLeftOutCatchesUp) {
  for (const Mode mode : {Mode::kDraftSuffix, Mode::kDriftSuffix}) {
    Rig rig(70), plain(70);
    rig.config.mode = mode;
    rig.config.max_tokens = plain.config.max_tokens = 100;
    plain.config.mode = Mode::kOff;
    const std::vector<Token> prompt{0, 1, 2, 3, 4, 0, 1};
    auto s = rig.open(prompt);
    auto expected = plain.open(prompt);
    Sequence* const one[] = {s.get()};
    std::vector<trace::StepEvent> events;
    const std::uint64_t before = rig.draft.counters().tokens;
    while (s->tokens().size() < 60) ASSERT_TRUE(rig.stepper.step(one, events).is_ok());
    EXPECT_EQ(rig.draft.counters().tokens, before) << "not asked while the loop lasts";
    std::size_t drafted = 0;
    while (s->ending() == Ending::kRunning) {
      ASSERT_TRUE(rig.stepper.step(one, events).is_ok());
      for (const trace::ProposedToken& p : events[0].proposed) drafted += p.copied() ? 0 : 1;
    }
    EXPECT_GT(drafted, 20u);
    EXPECT_GT(rig.draft.counters().tokens, before + 60) << "it was told all that it missed";
    plain.run(*expected);
    EXPECT_TRUE(std::equal(s->tokens().begin(), s->tokens().end(), expected->tokens().begin(), expected->tokens().end()));
  }
}

// A position the draft did not see has no residual: lessons are the drafted positions up to the first rejected proposal.
TEST(Copy, TeachesWhatTheDraftProposed) {
  std::size_t copied = 0, lessons = 0;
  for (const spec::JudgeRule rule : {spec::JudgeRule::kMatch, spec::JudgeRule::kRejection}) {
    Rig rig(20);
    rig.config.mode = Mode::kDriftSuffix;
    rig.config.rule = rule;
    rig.config.sampler = {1.0f, 0, 1.0f, 0.0f};
    rig.config.max_tokens = 300;
    auto s = rig.open({0, 1, 2, 3, 4, 0, 1});
    Sequence* const one[] = {s.get()};
    std::vector<trace::StepEvent> events;
    while (s->ending() == Ending::kRunning) {
      const bank::BankStats before = rig.recal->bank().stats();
      ASSERT_TRUE(rig.stepper.step(one, events).is_ok());
      const bank::BankStats after = rig.recal->bank().stats();
      std::size_t expected = 0;
      for (const trace::ProposedToken& p : events[0].proposed) {
        expected += p.copied() ? 0 : 1;
        copied += p.copied() ? 1 : 0;
        if (!p.accepted) break;
      }
      ASSERT_EQ(after.allocated + after.updated - before.allocated - before.updated, expected);
      lessons += expected;
    }
  }
  EXPECT_GT(copied, 20u);
  EXPECT_GT(lessons, 100u);
}

TEST(Copy, AnswersAreRememberedWhenTheyAreLeft) {
  Rig rig;
  rig.config.mode = Mode::kSuffix;
  rig.config.max_tokens = 10;
  const std::vector<Token> prompt{0, 1, 2};
  auto s = rig.open(prompt);
  EXPECT_EQ(rig.suffix->tokens(), 0u);
  rig.run(*s);
  EXPECT_EQ(rig.suffix->tokens(), 0u) << "the memory is frozen while an answer is made";
  ASSERT_TRUE(rig.stepper.rewind(*s, rig.config).is_ok());
  EXPECT_EQ(rig.suffix->tokens(), 3u + 10u + 1u) << "prompt, answer, separator";
  const auto again = rig.run(*s);
  EXPECT_EQ(again[0].proposed.size(), 3u) << "what it said before is found at once";
  ASSERT_TRUE(rig.stepper.restart(*s, prompt, rig.config).is_ok());
  EXPECT_EQ(rig.suffix->tokens(), 2 * 14u);
  rig.stepper.close(*s);
  EXPECT_EQ(rig.suffix->tokens(), 2 * 14u) << "no answer was begun";
  rig.config.mode = Mode::kLookup;
  auto forgetful = rig.open(prompt);
  rig.run(*forgetful);
  rig.stepper.close(*forgetful);
  EXPECT_EQ(rig.suffix->tokens(), 2 * 14u) << "lookup keeps to the text itself";
  rig.config.mode = Mode::kSuffix;
  auto closed = rig.open(prompt);
  rig.run(*closed);
  rig.stepper.close(*closed);
  EXPECT_EQ(rig.suffix->tokens(), 3 * 14u);
}

}  // namespace
}  // namespace drift::decode
