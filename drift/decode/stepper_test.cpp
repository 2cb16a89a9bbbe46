#include "drift/decode/stepper.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "drift/decode/testing.hpp"
#include "drift/testing/toy_engine.hpp"

namespace drift::decode {
namespace {

using testing::ToyEngine;
using testing::ToyModel;

constexpr std::size_t kVocab = 12;
constexpr std::uint32_t kWidth = 5;

ToyModel target_model(std::size_t vocab = kVocab) { return testing::random_model(1, vocab, 0, 3, 3.0f); }
ToyModel draft_model(std::size_t vocab = kVocab) { return testing::random_model(2, vocab, kWidth, 2, 3.0f); }

recal::RecalConfig recal_config(std::uint32_t vocab = kVocab) {
  recal::RecalConfig c;
  c.bank.capacity = 50;
  c.bank.key_dim = kWidth;
  c.bank.support = 4;
  c.bank.vocab = vocab;
  c.bank.tau = 0.999f;
  c.gain = recal::GainRule::kFixed;
  return c;
}

// Engines, a bank and a stream, with the configuration most tests start from.
struct Rig {
  explicit Rig(ToyModel t = target_model(), ToyModel d = draft_model())
      : target(std::move(t)), draft(std::move(d)), stepper(target, &draft), stream(77) {
    auto made = recal::Recalibrator::create(recal_config(static_cast<std::uint32_t>(stepper.vocab())));
    recal = std::move(made).value();
    config.mode = Mode::kDrift;
    config.rule = spec::JudgeRule::kRejection;
    config.sampler = {1.0f, 0, 1.0f, 0.0f};
    config.draft_tokens = 3;
    config.max_tokens = 20;
    config.recal = recal.get();
    config.choices = &stream;
  }
  std::unique_ptr<Sequence> open(const std::vector<Token>& prompt) {
    auto s = stepper.open(prompt, config);
    EXPECT_TRUE(s.is_ok()) << s.status().message();
    return s.is_ok() ? std::move(s).value() : nullptr;
  }
  std::vector<trace::StepEvent> run(Sequence& s) { return run_to_end(stepper, s); }
  ToyEngine target, draft;
  Stepper stepper;
  RngStream stream;
  std::unique_ptr<recal::Recalibrator> recal;
  SequenceConfig config;
};

std::vector<Token> answer(const Sequence& s) { return {s.emitted().begin(), s.emitted().end()}; }

// ---- what open refuses ----

TEST(Open, RefusesBadPromptsAndConfigs) {
  Rig rig;
  const auto refused = [&](const std::vector<Token>& prompt, const SequenceConfig& config) {
    auto s = rig.stepper.open(prompt, config);
    EXPECT_FALSE(s.is_ok());
    EXPECT_FALSE(s.status().message().empty());
    return s.status().code();
  };
  EXPECT_EQ(refused({}, rig.config), Code::kInvalid);
  EXPECT_EQ(refused({-1}, rig.config), Code::kInvalid);
  EXPECT_EQ(refused({static_cast<Token>(kVocab)}, rig.config), Code::kInvalid);
  const auto with = [&](auto change) {
    SequenceConfig c = rig.config;
    change(c);
    return refused({1}, c);
  };
  EXPECT_EQ(with([](SequenceConfig& c) { c.choices = nullptr; }), Code::kInvalid);
  EXPECT_EQ(with([](SequenceConfig& c) { c.draft_tokens = -1; }), Code::kInvalid);
  EXPECT_EQ(with([](SequenceConfig& c) { c.draft_tokens = kMaxDraftTokens + 1; }), Code::kInvalid);
  EXPECT_EQ(with([](SequenceConfig& c) { c.max_tokens = 0; }), Code::kInvalid);
  EXPECT_EQ(with([](SequenceConfig& c) { c.max_tokens = -2; }), Code::kInvalid);
  EXPECT_EQ(with([](SequenceConfig& c) { c.recal = nullptr; }), Code::kInvalid);
  EXPECT_EQ(with([](SequenceConfig& c) { c.sampler.top_p = 0.0f; }), Code::kInvalid);
  auto other = recal::Recalibrator::create(recal_config(kVocab + 1));
  EXPECT_EQ(with([&](SequenceConfig& c) { c.recal = other->get(); }), Code::kInvalid) << "a bank of another vocabulary";
}

TEST(Open, SaysWhatThePairCannotDo) {
  ToyEngine target(target_model()), blind(testing::random_model(2, kVocab, 0, 2, 3.0f));
  Rig rig;
  Stepper alone(target, nullptr);
  SequenceConfig c = rig.config;
  EXPECT_EQ(alone.open(std::vector<Token>{1}, c).status().code(), Code::kUnsupported);
  c.mode = Mode::kOff;
  EXPECT_TRUE(alone.open(std::vector<Token>{1}, c).is_ok());
  Stepper sightless(target, &blind);
  c.mode = Mode::kDrift;
  EXPECT_EQ(sightless.open(std::vector<Token>{1}, c).status().code(), Code::kUnsupported);
  c.mode = Mode::kStatic;
  EXPECT_TRUE(sightless.open(std::vector<Token>{1}, c).is_ok());
}

TEST(Open, ALongPromptIsALimitNotACrash) {
  ToyModel t = target_model();
  t.context = 8;
  Rig rig(t);
  EXPECT_EQ(rig.stepper.open(std::vector<Token>(8, 1), rig.config).status().code(), Code::kLimit);
  EXPECT_TRUE(rig.stepper.open(std::vector<Token>(7, 1), rig.config).is_ok());
}

TEST(Open, SequencesAreLimitedAndGivenBack) {
  ToyModel d = draft_model();
  d.max_sequences = 2;
  Rig rig(target_model(), d);
  auto a = rig.open({1}), b = rig.open({2});
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(rig.stepper.open(std::vector<Token>{3}, rig.config).status().code(), Code::kLimit)
        << "and the target's slot is given back";
  rig.stepper.close(*a);
  EXPECT_NE(rig.open({3}), nullptr);
}

// ---- how an answer ends ----

TEST(Ends, AtMaxTokensExactly) {
  for (const std::int64_t most : {1, 2, 3, 7, 20}) {
    for (const int k : {0, 1, 3, 8}) {
      Rig rig;
      rig.config.max_tokens = most;
      rig.config.draft_tokens = k;
      auto s = rig.open({1, 2, 3});
      ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
      for (const trace::StepEvent& e : rig.run(*s)) EXPECT_LE(e.proposed.size(), static_cast<std::size_t>(k));
      EXPECT_EQ(s->ending(), Ending::kLength);
      EXPECT_EQ(s->emitted().size(), static_cast<std::size_t>(most));
    }
  }
}

TEST(Ends, WhenEitherContextIsFull) {
  for (const bool small_target : {true, false}) {
    for (std::size_t context = 5; context < 12; ++context) {
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        ToyModel t = target_model(), d = draft_model();
        (small_target ? t : d).context = context;
        Rig rig(t, d);
        rig.stream = RngStream(seed);
        rig.config.max_tokens = -1;
        auto s = rig.open({1, 2, 3});
        ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
        rig.run(*s);
        EXPECT_EQ(s->ending(), Ending::kContext);
        // What no engine is fed needs no place: the target's last token, and before that the last proposal of the draft.
        EXPECT_GE(s->tokens().size(), context);
        EXPECT_LE(s->tokens().size(), context + (small_target ? 1 : 2)) << "seed " << seed;
      }
    }
  }
}

TEST(Ends, AtAnEndTokenWhereverItStands) {
  std::set<std::size_t> places;  // from the end of the step in which it came
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    Rig rig;
    rig.stream = RngStream(seed);
    rig.config.max_tokens = 60;
    rig.config.is_end = [](Token t) { return t == 4; };
    rig.draft = ToyEngine([] {  // a draft that knows the target well: end tokens get accepted within blocks
      ToyModel m = draft_model();
      m.row = [exact = target_model().row, own = draft_model().row](std::span<const Token> c, std::span<float> l,
                                                                    std::span<float> h) {
        own(c, l, h);
        exact(c, l, {});
      };
      return m;
    }());
    auto s = rig.open({1, 2});
    ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
    const auto events = rig.run(*s);
    const std::vector<Token> text = answer(*s);
    const auto end = std::find(text.begin(), text.end(), 4);
    if (s->ending() == Ending::kEnd) {
      ASSERT_EQ(end + 1, text.end()) << "the end token is the last, seed " << seed;
      places.insert(events.back().proposed.size() + 1 - events.back().emitted.size());
      std::size_t accepted = 0;
      for (const trace::ProposedToken& p : events.back().proposed) accepted += p.accepted ? 1 : 0;
      EXPECT_LE(accepted, events.back().emitted.size()) << "what came after the end was not accepted";
    } else {
      ASSERT_EQ(end, text.end());
    }
  }
  EXPECT_GE(places.size(), 3u) << "end tokens came at several places of a block";
}

TEST(Ends, StopIsTheCallersWord) {
  Rig rig;
  auto s = rig.open({1});
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  Sequence* const one[] = {s.get()};
  std::vector<trace::StepEvent> events;
  ASSERT_TRUE(rig.stepper.step(one, events).is_ok());
  s->stop();
  EXPECT_EQ(s->ending(), Ending::kLength);
}

// ---- what a step teaches ----

std::size_t accepted_in(const trace::StepEvent& e) {
  std::size_t n = 0;
  while (n < e.proposed.size() && e.proposed[n].accepted) ++n;
  return n;
}

// Drafted positions up to and including the first rejected one: counted by what the bank allocated or updated.
TEST(Teaches, OnPathPositionsOnly) {
  std::set<std::size_t> stood;
  for (const spec::JudgeRule rule : {spec::JudgeRule::kMatch, spec::JudgeRule::kRejection}) {
    Rig rig;
    rig.config.rule = rule;
    rig.config.max_tokens = 400;
    auto s = rig.open({1, 2});
    ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
    Sequence* const one[] = {s.get()};
    std::vector<trace::StepEvent> events;
    while (s->ending() == Ending::kRunning) {
      const bank::BankStats before = rig.recal->bank().stats();
      ASSERT_TRUE(rig.stepper.step(one, events).is_ok());
      const bank::BankStats after = rig.recal->bank().stats();
      const std::size_t accepted = accepted_in(events[0]);
      const std::size_t expected = std::min(accepted + 1, events[0].proposed.size());
      ASSERT_EQ(after.allocated + after.updated - before.allocated - before.updated, expected)
          << "after " << accepted << " accepted";
      ASSERT_EQ(after.commits - before.commits, 1u) << "one commit a step";
      stood.insert(accepted);
    }
  }
  EXPECT_EQ(stood.size(), 4u) << "every outcome from 0 to 3 accepted was seen";
}

// Beyond an end token nothing is text, so nothing teaches.
TEST(Teaches, NothingAfterAnEndToken) {
  ToyModel same = draft_model();
  same.row = [exact = target_model().row, own = draft_model().row](std::span<const Token> c, std::span<float> l,
                                                                   std::span<float> h) {
    own(c, l, h);
    exact(c, l, {});
  };
  Rig rig(target_model(), same);
  rig.config.sampler = spec::greedy_sampler();
  rig.config.draft_tokens = 8;
  auto free = rig.open({1, 2});
  ASSERT_TRUE(rig.stepper.prefill(*free).is_ok());
  rig.run(*free);
  const Token end = free->emitted()[2];
  ASSERT_NE(free->emitted()[0], end);
  ASSERT_NE(free->emitted()[1], end);
  auto fresh = recal::Recalibrator::create(recal_config());
  rig.config.recal = fresh->get();
  rig.config.is_end = [=](Token t) { return t == end; };
  auto s = rig.open({1, 2});
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  const auto events = rig.run(*s);
  EXPECT_EQ(s->emitted().size(), 3u);
  EXPECT_EQ(events.size(), 1u);
  EXPECT_EQ((*fresh)->bank().stats().allocated + (*fresh)->bank().stats().updated, 3u);
}

TEST(Teaches, ABatchCommitsASharedBankOnce) {
  Rig rig;
  rig.config.name = 1;
  auto a = rig.open({1, 2});
  rig.config.name = 2;
  auto b = rig.open({2, 1});
  ASSERT_TRUE(rig.stepper.prefill(*a).is_ok() && rig.stepper.prefill(*b).is_ok());
  Sequence* const both[] = {a.get(), b.get()};
  std::vector<trace::StepEvent> events;
  ASSERT_TRUE(rig.stepper.step(both, events).is_ok());
  EXPECT_EQ(rig.recal->bank().stats().commits, 1u);
  EXPECT_EQ(events[0].sequence, 1u);
  EXPECT_EQ(events[1].sequence, 2u);
  EXPECT_EQ(events[0].sequences, 2);
}

// ---- vocabularies of different width ----

TEST(Vocabulary, TheDraftsMayBeSmaller) {
  for (const Mode mode : {Mode::kStatic, Mode::kDrift}) {
    bool beyond = false;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Rig rig(target_model(kVocab), draft_model(kVocab - 3));
      EXPECT_EQ(rig.stepper.vocab(), kVocab - 3);
      rig.stream = RngStream(seed);
      rig.config.rule = spec::JudgeRule::kMatch;
      rig.config.mode = Mode::kOff;
      auto plain = rig.open({1, 2});
      ASSERT_TRUE(rig.stepper.prefill(*plain).is_ok());
      rig.run(*plain);
      rig.config.mode = mode;
      auto s = rig.open({1, 2});
      ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
      rig.run(*s);
      EXPECT_EQ(answer(*s), answer(*plain)) << "tokens only the target knows are part of the text, seed " << seed;
      for (Token t : s->emitted()) beyond = beyond || static_cast<std::size_t>(t) >= kVocab - 3;
    }
    EXPECT_TRUE(beyond) << "some token was beyond the draft's vocabulary";
  }
}

TEST(Vocabulary, TheTargetsMayBeSmaller) {
  Rig rig(target_model(kVocab - 3), draft_model(kVocab));
  rig.config.rule = spec::JudgeRule::kMatch;
  auto s = rig.open({1, 2});
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  for (const trace::StepEvent& e : rig.run(*s)) {
    for (const trace::ProposedToken& p : e.proposed) EXPECT_LT(static_cast<std::size_t>(p.token), kVocab - 3);
  }
}

TEST(Ends, AFullContextEndsEveryModeAtTheSameToken) {
  for (const std::size_t context : {4u, 5u, 6u, 7u, 8u, 12u}) {
    std::vector<Token> plain;
    for (const Mode mode : {Mode::kOff, Mode::kStatic, Mode::kDrift}) {
      ToyModel target = target_model(), draft = draft_model();
      target.context = draft.context = context;
      Rig rig(target, draft);
      rig.config.mode = mode;
      rig.config.rule = spec::JudgeRule::kMatch;
      rig.config.max_tokens = -1;
      auto s = rig.open({1, 2, 3});
      ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
      rig.run(*s);
      EXPECT_EQ(s->ending(), Ending::kContext);
      EXPECT_EQ(s->tokens().size(), context);
      if (mode == Mode::kOff) plain = answer(*s);
      EXPECT_EQ(answer(*s), plain) << "context " << context;
    }
  }
}

// ---- prefill, rewind, restart ----

TEST(Prefill, InPiecesEqualsAtOnce) {
  const std::vector<Token> prompt{1, 5, 2, 7, 3, 3, 9, 0, 11};
  Rig whole;
  auto expected = whole.open(prompt);
  ASSERT_TRUE(whole.stepper.prefill(*expected).is_ok());
  whole.run(*expected);
  for (const std::size_t piece : {1u, 2u, 3u, 100u}) {
    Rig rig;
    auto s = rig.open(prompt);
    std::size_t calls = 0;
    for (bool done = false; !done; ++calls) {
      ASSERT_TRUE(rig.stepper.prefill(*s, piece, done).is_ok());
      ASSERT_LT(calls, 20u);
    }
    EXPECT_EQ(calls, (prompt.size() - 1 + piece - 1) / piece);
    rig.run(*s);
    EXPECT_EQ(answer(*s), answer(*expected)) << "pieces of " << piece;
    EXPECT_EQ(rig.draft.counters().tokens, whole.draft.counters().tokens);
    EXPECT_EQ(rig.target.counters().tokens, whole.target.counters().tokens);
  }
}

TEST(Rewind, EqualsAFreshSequence) {
  const std::vector<Token> prompt{1, 5, 2};
  for (const spec::JudgeRule rule : {spec::JudgeRule::kMatch, spec::JudgeRule::kRejection}) {
    Rig rig, other;
    rig.config.rule = other.config.rule = rule;
    auto s = rig.open(prompt);
    ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
    for (const Mode mode : {Mode::kStatic, Mode::kOff, Mode::kDrift, Mode::kStatic}) {
      auto fresh_bank = recal::Recalibrator::create(recal_config()), other_bank = recal::Recalibrator::create(recal_config());
      rig.config.mode = other.config.mode = mode;
      rig.config.recal = fresh_bank->get();
      other.config.recal = other_bank->get();
      ASSERT_TRUE(rig.stepper.rewind(*s, rig.config).is_ok());
      const std::uint64_t before = rig.target.counters().tokens;
      const auto events = rig.run(*s);
      std::uint64_t work = events.size();
      for (const trace::StepEvent& e : events) work += e.proposed.size();
      EXPECT_EQ(rig.target.counters().tokens - before, work) << "the prompt's passes are not repeated";
      auto fresh = other.open(prompt);
      ASSERT_TRUE(other.stepper.prefill(*fresh).is_ok());
      const auto expected = other.run(*fresh);
      EXPECT_EQ(answer(*s), answer(*fresh));
      ASSERT_EQ(events.size(), expected.size());
      for (std::size_t i = 0; i < events.size(); ++i) {
        EXPECT_EQ(events[i].step, i);
        EXPECT_EQ(events[i].proposed.size(), expected[i].proposed.size());
      }
    }
  }
}

TEST(Restart, KeepsWhatBothTextsHaveInCommonAndEqualsAFreshSequence) {
  for (const Mode mode : {Mode::kOff, Mode::kStatic, Mode::kDrift}) {
    Rig rig, other;
    rig.config.mode = other.config.mode = mode;
    const std::vector<Token> first{1, 5, 2, 7};
    auto s = rig.open(first);
    ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
    rig.run(*s);
    // The next turn: all that was said, and a question; a text that parts early; one that is a mere start; another altogether.
    std::vector<Token> next = first;
    next.insert(next.end(), s->emitted().begin(), s->emitted().end());
    next.push_back(3);
    next.push_back(4);
    for (const std::vector<Token>& prompt :
         {next, std::vector<Token>{1, 5, 9}, std::vector<Token>{1, 5}, std::vector<Token>{8}}) {
      std::size_t common = 0;
      while (common < prompt.size() - 1 && common < s->tokens().size() && prompt[common] == s->tokens()[common]) ++common;
      // The target lacks the last token of a text that ran full, the draft up to two.
      const std::size_t lacks_at_most = common == s->tokens().size() ? 1 : 0;
      auto bank = recal::Recalibrator::create(recal_config()), other_bank = recal::Recalibrator::create(recal_config());
      rig.config.recal = bank->get();
      other.config.recal = other_bank->get();
      ASSERT_TRUE(rig.stepper.restart(*s, prompt, rig.config).is_ok());
      const std::uint64_t before = rig.target.counters().tokens;
      ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
      EXPECT_LE(rig.target.counters().tokens - before, prompt.size() - 1 - common + lacks_at_most);
      rig.run(*s);
      auto fresh = other.open(prompt);
      ASSERT_TRUE(other.stepper.prefill(*fresh).is_ok());
      other.run(*fresh);
      EXPECT_EQ(answer(*s), answer(*fresh));
      EXPECT_EQ(s->prompt_size(), prompt.size());
    }
  }
}

TEST(Restart, ARefusalChangesNothing) {
  Rig rig, other;
  auto s = rig.open({1, 5, 2}), undisturbed = other.open({1, 5, 2});
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok() && other.stepper.prefill(*undisturbed).is_ok());
  EXPECT_EQ(rig.stepper.restart(*s, {}, rig.config).code(), Code::kInvalid);
  EXPECT_EQ(rig.stepper.restart(*s, std::vector<Token>{static_cast<Token>(kVocab)}, rig.config).code(), Code::kInvalid);
  EXPECT_EQ(rig.stepper.restart(*s, std::vector<Token>(100'000, 1), rig.config).code(), Code::kLimit);
  rig.run(*s);
  other.run(*undisturbed);
  EXPECT_EQ(answer(*s), answer(*undisturbed));
}

// ---- events ----

TEST(Events, MarginsNameTheIntervalOfTheDraw) {
  Rig rig;
  rig.config.rule = spec::JudgeRule::kMatch;
  rig.config.record_margins = true;
  auto s = rig.open({1, 2});
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  for (const trace::StepEvent& e : rig.run(*s)) {
    ASSERT_EQ(e.margins.size(), e.emitted.size());
    for (const trace::Margin& m : e.margins)
      EXPECT_TRUE(m.low <= m.draw + 1e-6 && m.draw < m.high + 1e-6) << m.low << " " << m.draw << " " << m.high;
  }
  rig.config.sampler = spec::greedy_sampler();
  auto greedy = rig.open({1, 2});
  ASSERT_TRUE(rig.stepper.prefill(*greedy).is_ok());
  for (const trace::StepEvent& e : rig.run(*greedy)) {
    for (std::size_t i = 0; i < e.emitted.size(); ++i) {
      ASSERT_FALSE(e.margins[i].top.empty());
      EXPECT_EQ(e.margins[i].top[0], e.emitted[i].token) << "greedy text is the target's best token";
      EXPECT_GE(e.margins[i].top_logits[0], e.margins[i].top_logits[1]);
    }
  }
}

TEST(Events, OriginsAndFlagsAgree) {
  Rig rig;
  rig.config.max_tokens = 200;
  auto s = rig.open({1, 2});
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  Pos at = 2;
  for (const trace::StepEvent& e : rig.run(*s)) {
    EXPECT_EQ(e.first, at);
    at += static_cast<Pos>(e.emitted.size());
    const std::size_t accepted = accepted_in(e);
    for (std::size_t i = 0; i < e.emitted.size(); ++i) {
      if (i < accepted) {
        EXPECT_EQ(e.emitted[i].token, e.proposed[i].token);
        EXPECT_EQ(e.emitted[i].origin, e.proposed[i].from_bank ? trace::Origin::kAcceptedBank : trace::Origin::kAccepted);
      } else {
        EXPECT_EQ(e.emitted[i].origin, trace::Origin::kTarget);
      }
    }
  }
}

}  // namespace
}  // namespace drift::decode
