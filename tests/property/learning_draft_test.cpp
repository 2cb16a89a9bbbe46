// A draft whose weights learn between steps: the output law stays the target's, by enumeration and by equal texts; what it is
// taught; what happens to lessons of a step that fails.
//
// The draft is a toy table trained by gradient steps so large that each one changes its mind (testing/toy_learner.hpp).
#include <numeric>
#include <tuple>

#include "drift/testing/faulty_engine.hpp"
#include "drift/testing/toy_learner.hpp"
#include "drift/trace/metrics.hpp"
#include "tests/property/harness.hpp"

namespace drift::property {
namespace {

using testing::ToyLearner;

constexpr double kTolerance = 1e-6;  // total variation, as in losslessness_test.cpp
constexpr float kViolent = 6.0f;     // nats a logit may move in one update

struct Case {
  JudgeRule rule = JudgeRule::kRejection;
  SamplerConfig sampler = kPlain;
  std::size_t vocab = 4;
  std::size_t every = 1;
  int draft_tokens = 2;
  std::int64_t max_tokens = 3;
  std::uint64_t seed = 1;
  std::function<bool(Token)> is_end;
};

ToyModel target_of(const Case& c) { return testing::random_model(c.seed, c.vocab, 0, 3, 2.0f); }
ToyModel draft_of(const Case& c) { return testing::random_model(c.seed + 1'000, c.vocab, 0, 3, 2.0f); }

SequenceConfig sequence_of(const Case& c, ToyLearner& learner, Choices& choices, std::uint64_t name = 1) {
  SequenceConfig s;
  s.mode = Mode::kOnlineKd;
  s.rule = c.rule;
  s.sampler = c.sampler;
  s.name = name;
  s.draft_tokens = c.draft_tokens;
  s.max_tokens = c.max_tokens;
  s.learner = &learner;
  s.choices = &choices;
  s.is_end = c.is_end;
  return s;
}

const std::vector<Token> kPrompt{1, 2};

struct Enumerated {
  Law law;
  std::uint64_t paths = 0;
  std::uint64_t drafted_after_update = 0;  // proposals made with weights that had changed since the prompt, over all paths
};

// The law of one sequence, the draft as new before every path.
void enumerate(const Case& c, Enumerated& out) {
  ToyLearner learner(draft_of(c), c.every, kViolent);
  Rig rig(target_of(c), learner.model());
  testing::EnumeratingChoices choices;
  const SequenceConfig config = sequence_of(c, learner, choices);
  auto opened = rig.stepper.open(kPrompt, config);
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  Sequence& s = **opened;
  ASSERT_TRUE(rig.stepper.prefill(s).is_ok());
  Sequence* const one[] = {&s};
  std::vector<trace::StepEvent> events;
  do {
    learner.reset();
    ASSERT_TRUE(rig.stepper.rewind(s, config).is_ok());
    while (s.ending() == Ending::kRunning) {
      const bool updated = learner.stats().updates > 0;
      const Status stepped = rig.stepper.step(one, events);
      ASSERT_TRUE(stepped.is_ok()) << stepped.message();
      if (updated) out.drafted_after_update += events[0].proposed.size();
    }
    out.law[answer_of(s)] += choices.probability();
    ASSERT_LT(choices.paths(), 5'000'000u) << "too many paths for a test";
  } while (choices.next());
  out.paths = choices.paths();
}

void expect_lossless(const Case& c, const std::string& what) {
  Enumerated got;
  enumerate(c, got);
  if (::testing::Test::HasFatalFailure()) return;
  Law expected;
  std::vector<Token> context = kPrompt;
  exact_law(target_of(c), c.sampler, static_cast<std::size_t>(c.max_tokens), c.is_end, context, kPrompt.size(), 1.0, expected);
  EXPECT_NEAR(total(got.law), 1.0, 1e-9) << what;
  EXPECT_LT(total_variation(got.law, expected), kTolerance) << what << ", " << got.paths << " paths";
  EXPECT_GT(got.drafted_after_update, 0u) << what << ": no proposal saw changed weights, so this case shows nothing";
}

// ---- exact laws ----

class Learning : public ::testing::TestWithParam<std::tuple<JudgeRule, std::size_t>> {};

TEST_P(Learning, AnswerLawIsTheTargets) {
  const auto [rule, sampler] = GetParam();
  for (const int draft_tokens : {1, 2, 3}) {
    for (const std::size_t every : {1u, 2u}) {
      Case c;
      c.rule = rule;
      c.sampler = samplers()[sampler].config;
      c.draft_tokens = draft_tokens;
      c.every = every;
      c.max_tokens = c.sampler.greedy() ? 10 : draft_tokens == 3 ? 5 : 4;
      c.seed = 60 + every;
      expect_lossless(c, "draft " + std::to_string(draft_tokens) + ", every " + std::to_string(every));
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Learning::ParamType>& info) {
  return std::string(std::get<0>(info.param) == JudgeRule::kMatch ? "match_" : "rejection_") +
         samplers()[std::get<1>(info.param)].name;
}

INSTANTIATE_TEST_SUITE_P(LearningDraft, Learning,
                         ::testing::Combine(::testing::Values(JudgeRule::kMatch, JudgeRule::kRejection),
                                            ::testing::Range<std::size_t>(0, 6)),
                         name_of);

TEST(LearningDraft, EndTokenInTheMiddle) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    Case c;
    c.rule = rule;
    c.seed = 71;
    c.is_end = [](Token t) { return t == 3; };
    expect_lossless(c, rule == JudgeRule::kMatch ? "match" : "rejection");
  }
}

// Two sequences of one batch train one draft: their joint law is the product.
void expect_joint_law(const Case& a, const Case& b) {
  ToyLearner learner(draft_of(a), a.every, kViolent);
  Rig rig(target_of(a), learner.model());
  testing::EnumeratingChoices choices;
  const SequenceConfig config_a = sequence_of(a, learner, choices, 1), config_b = sequence_of(b, learner, choices, 2);
  const std::vector<Token> prompt_a{1, 2}, prompt_b{2, 1};
  auto opened_a = rig.stepper.open(prompt_a, config_a), opened_b = rig.stepper.open(prompt_b, config_b);
  ASSERT_TRUE(opened_a.is_ok() && opened_b.is_ok());
  Sequence &sa = **opened_a, &sb = **opened_b;
  ASSERT_TRUE(rig.stepper.prefill(sa).is_ok() && rig.stepper.prefill(sb).is_ok());
  const auto joined = [](const Answer& x, const Answer& y) {
    Answer joint = x;
    joint.push_back(kNoToken);  // between the two answers
    joint.insert(joint.end(), y.begin(), y.end());
    return joint;
  };
  Law got, law_a, law_b, expected;
  std::vector<trace::StepEvent> events;
  do {
    learner.reset();
    ASSERT_TRUE(rig.stepper.rewind(sa, config_a).is_ok() && rig.stepper.rewind(sb, config_b).is_ok());
    for (std::vector<Sequence*> running;; running.clear()) {
      for (Sequence* s : {&sa, &sb}) {
        if (s->ending() == Ending::kRunning) running.push_back(s);
      }
      if (running.empty()) break;
      ASSERT_TRUE(rig.stepper.step(running, events).is_ok());
    }
    got[joined(answer_of(sa), answer_of(sb))] += choices.probability();
    ASSERT_LT(choices.paths(), 5'000'000u);
  } while (choices.next());
  std::vector<Token> context = prompt_a;
  exact_law(target_of(a), a.sampler, static_cast<std::size_t>(a.max_tokens), {}, context, 2, 1.0, law_a);
  context = prompt_b;
  exact_law(target_of(a), b.sampler, static_cast<std::size_t>(b.max_tokens), {}, context, 2, 1.0, law_b);
  for (const auto& [x, p] : law_a) {
    for (const auto& [y, q] : law_b) expected[joined(x, y)] = p * q;
  }
  EXPECT_NEAR(total(got), 1.0, 1e-9);
  EXPECT_LT(total_variation(got, expected), kTolerance) << choices.paths() << " paths";
}

TEST(LearningDraft, TwoSequencesTrainingOneDraftAreIndependent) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    Case a;
    a.rule = rule;
    a.vocab = 3;
    a.seed = 81;
    a.draft_tokens = 1;
    a.max_tokens = 2;
    Case b = a;
    b.sampler = {0.7f, 2, 1.0f, 0.0f};
    b.max_tokens = 3;
    b.draft_tokens = 2;
    expect_joint_law(a, b);
  }
}

// ---- equal texts ----

void expect_plain_text(JudgeRule rule, const SamplerConfig& sampler) {
  std::uint64_t changed = 0;  // proposals that the frozen draft would not have made at that place
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Case c;
    c.rule = rule;
    c.sampler = sampler;
    c.vocab = 3 + seed % 30;
    c.every = 1 + seed % 5;
    c.draft_tokens = static_cast<int>(seed % 6);
    c.max_tokens = 40;
    c.seed = seed;
    if (seed % 3 == 1) c.is_end = [last = static_cast<Token>(c.vocab) - 1](Token t) { return t == last; };
    ToyLearner learner(draft_of(c), c.every, kViolent);
    RngStream stream(seed * 31 + 1);
    std::vector<Answer> answers;
    std::vector<std::vector<trace::StepEvent>> all(3);
    for (const Mode mode : {Mode::kOff, Mode::kStatic, Mode::kOnlineKd}) {
      Rig rig(target_of(c), mode == Mode::kOnlineKd ? learner.model() : draft_of(c));
      SequenceConfig config = sequence_of(c, learner, stream, seed);
      config.mode = mode;
      auto opened = rig.stepper.open(kPrompt, config);
      ASSERT_TRUE(opened.is_ok()) << opened.status().message();
      ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
      ASSERT_TRUE(run(rig.stepper, **opened, &all[answers.size()]).is_ok());
      answers.push_back(answer_of(**opened));
    }
    EXPECT_EQ(answers[1], answers[0]) << "static, seed " << seed;
    EXPECT_EQ(answers[2], answers[0]) << "online-kd, seed " << seed;
    changed += all[2].size() != all[1].size() ? 1 : 0;
  }
  EXPECT_GT(changed, 10u) << "the training must have mattered";
}

TEST(LearningDraft, SameTextMatchGreedy) { expect_plain_text(JudgeRule::kMatch, spec::greedy_sampler()); }
TEST(LearningDraft, SameTextMatchWithFilters) { expect_plain_text(JudgeRule::kMatch, {0.8f, 5, 0.9f, 0.05f}); }
TEST(LearningDraft, SameTextRejectionGreedy) { expect_plain_text(JudgeRule::kRejection, spec::greedy_sampler()); }

// ---- what is taught, and what it costs ----

TEST(LearningDraft, ExactlyTheVerifiedPositionsTeach) {
  Case c;
  c.vocab = 6;
  c.draft_tokens = 4;
  c.max_tokens = 60;
  c.every = 1'000'000;  // no update: the buffer keeps everything
  c.seed = 5;
  ToyLearner learner(draft_of(c), c.every, kViolent);
  const ToyModel target = target_of(c);
  Rig rig(target, learner.model());
  RngStream stream(3);
  auto opened = rig.stepper.open(kPrompt, sequence_of(c, learner, stream));
  ASSERT_TRUE(opened.is_ok());
  Sequence& s = **opened;
  ASSERT_TRUE(rig.stepper.prefill(s).is_ok());
  Sequence* const one[] = {&s};
  std::vector<trace::StepEvent> events;
  std::size_t full = 0, fallen = 0;
  while (s.ending() == Ending::kRunning) {
    const std::vector<Token> before(s.tokens().begin(), s.tokens().end());
    const std::size_t known = learner.buffer().size();
    ASSERT_TRUE(rig.stepper.step(one, events).is_ok());
    std::size_t stood = 0;
    while (stood < events[0].proposed.size() && events[0].proposed[stood].accepted) ++stood;
    const bool rejected = stood < events[0].proposed.size();
    ASSERT_EQ(learner.buffer().size(), known + stood + (rejected ? 1 : 0)) << "accepted positions and the first rejected one";
    std::vector<Token> context = before;
    for (std::size_t i = known; i < learner.buffer().size(); ++i) {
      const ToyLearner::Lesson& lesson = learner.buffer()[i];
      EXPECT_EQ(lesson.context, context);
      std::vector<float> logits(target.vocab);
      target.row(context, logits, {});
      EXPECT_EQ(lesson.p, testing::softmax(logits)) << "the target's own distribution, before any sampler";
      EXPECT_EQ(lesson.rejected, rejected && i + 1 == learner.buffer().size());
      context.push_back(events[0].proposed[i - known].token);
    }
    (rejected ? fallen : full) += 1;
  }
  EXPECT_GT(full, 2u);
  EXPECT_GT(fallen, 2u);
}

// The same passes as a frozen draft: one token a proposal and one target pass a step. (Counted at equal acceptances: no update.)
TEST(LearningDraft, NoPassMoreThanStatic) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Case c;
    c.seed = seed;
    c.every = 1'000'000;
    c.max_tokens = 40;
    RngStream stream(seed);
    std::vector<engine::Counters> counters;
    for (const Mode mode : {Mode::kStatic, Mode::kOnlineKd}) {
      ToyLearner learner(draft_of(c), c.every, kViolent);
      Rig rig(target_of(c), learner.model());
      SequenceConfig config = sequence_of(c, learner, stream);
      config.mode = mode;
      auto opened = rig.stepper.open(kPrompt, config);
      ASSERT_TRUE(opened.is_ok());
      ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
      ASSERT_TRUE(run(rig.stepper, **opened).is_ok());
      counters.push_back(rig.draft.counters());
      counters.push_back(rig.target.counters());
    }
    for (std::size_t i : {0u, 1u}) {
      EXPECT_EQ(counters[i].forwards, counters[i + 2].forwards);
      EXPECT_EQ(counters[i].tokens, counters[i + 2].tokens);
      EXPECT_EQ(counters[i].rows, counters[i + 2].rows);
    }
  }
}

// A target that looks at its last token only can be learnt by the table, and the draft then agrees with it.
TEST(LearningDraft, AcceptanceRises) {
  const std::size_t vocab = 24;
  const ToyModel target = testing::random_model(7, vocab, 0, 1, 5.0f);
  ToyLearner learner(testing::random_model(8, vocab, 0, 1, 5.0f), 8, 4.0f);
  Rig rig(target, learner.model());
  RngStream stream(9);
  Case c;
  c.max_tokens = 2'000;
  c.draft_tokens = 3;
  trace::Metrics first, last;
  auto opened = rig.stepper.open(kPrompt, sequence_of(c, learner, stream));
  ASSERT_TRUE(opened.is_ok());
  ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
  std::vector<trace::StepEvent> events;
  ASSERT_TRUE(run(rig.stepper, **opened, &events).is_ok());
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (i < 20) first.add(events[i]);
    if (i >= events.size() * 3 / 4) last.add(events[i]);
  }
  EXPECT_GT(last.acceptance_conditional(), 0.7);
  EXPECT_GT(last.acceptance_conditional(), first.acceptance_conditional() + 0.3);
}

// ---- failures ----

TEST(LearningDraft, NothingIsLearntFromAStepThatFails) {
  Case c;
  c.seed = 4;
  c.max_tokens = 12;
  c.draft_tokens = 2;
  std::uint64_t staged_at_failure = 0;
  for (const bool in_target : {true, false}) {
    bool fired = true;
    for (std::uint64_t at = 1; fired; ++at) {
      ASSERT_LT(at, 1'000u);
      ToyLearner learner(draft_of(c), 1, kViolent);
      ToyEngine target(target_of(c)), draft(learner.model());
      testing::FaultyEngine bad_target(target, testing::Fault::kStatus, in_target ? at : 0);
      testing::FaultyEngine bad_draft(draft, testing::Fault::kStatus, in_target ? 0 : at);
      Stepper stepper(bad_target, &bad_draft);
      RngStream stream(5);
      auto opened = stepper.open(kPrompt, sequence_of(c, learner, stream));
      fired = true;
      if (!opened.is_ok() || !stepper.prefill(**opened).is_ok()) continue;
      Sequence* const one[] = {&**opened};
      std::vector<trace::StepEvent> events;
      fired = false;
      while ((*opened)->ending() == Ending::kRunning && !fired) {
        const std::vector<float> table = learner.table();
        const std::uint64_t positions = learner.stats().positions;
        const std::size_t length = (*opened)->tokens().size();
        fired = !stepper.step(one, events).is_ok();
        if (!fired) continue;
        EXPECT_TRUE(learner.staged().empty()) << "a lesson is left for the next commit, fault at call " << at;
        EXPECT_EQ(learner.table(), table);
        EXPECT_EQ(learner.stats().positions, positions);
        EXPECT_EQ((*opened)->tokens().size(), length);
        ++staged_at_failure;
      }
    }
  }
  EXPECT_GT(staged_at_failure, 10u);
}

// Fails where it is told to.
class BrokenLearner final : public engine::Learner {
 public:
  explicit BrokenLearner(bool at_commit) : at_commit_(at_commit) {}
  Status observe(const engine::Verified&) override {
    ++noted;
    return at_commit_ ? Status::ok() : Status(Code::kInternal, "cannot observe");
  }
  Status commit() override { return at_commit_ ? Status(Code::kInternal, "cannot learn") : Status::ok(); }
  void discard() override { noted = 0; }
  engine::LearnerStats stats() const override { return {}; }
  int noted = 0;

 private:
  bool at_commit_;
};

TEST(LearningDraft, ALearnerThatFailsEndsTheStep) {
  for (const bool at_commit : {false, true}) {
    Case c;
    BrokenLearner learner(at_commit);
    Rig rig(target_of(c), draft_of(c));
    RngStream stream(1);
    ToyLearner unused(draft_of(c), 1, 0.0f);
    SequenceConfig config = sequence_of(c, unused, stream);
    config.learner = &learner;
    auto opened = rig.stepper.open(kPrompt, config);
    ASSERT_TRUE(opened.is_ok());
    ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
    Sequence* const one[] = {&**opened};
    std::vector<trace::StepEvent> events;
    const Status stepped = rig.stepper.step(one, events);
    EXPECT_EQ(stepped.code(), Code::kInternal);
    EXPECT_EQ(stepped.message(), at_commit ? "cannot learn" : "cannot observe");
    EXPECT_EQ(learner.noted, 0);
    EXPECT_TRUE((*opened)->emitted().empty());
  }
}

TEST(LearningDraft, TheModeNeedsALearnerAndADraft) {
  Case c;
  ToyLearner learner(draft_of(c), 1, 0.0f);
  Rig rig(target_of(c), draft_of(c));
  RngStream stream(1);
  SequenceConfig config = sequence_of(c, learner, stream);
  config.learner = nullptr;
  EXPECT_EQ(rig.stepper.open(kPrompt, config).status().code(), Code::kInvalid);
  Stepper alone(rig.target, nullptr);
  EXPECT_EQ(alone.open(kPrompt, sequence_of(c, learner, stream)).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace drift::property
