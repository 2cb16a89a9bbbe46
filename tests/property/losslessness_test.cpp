// The output law of the production stepper, sampler and judges equals the target's, whatever the bank holds.
//
// Exact: every weighted choice of a run is enumerated (testing/enumerator.hpp) and the law of the answer is compared with the
// product of the target's own probabilities, computed by the slow reference. Toy pairs, so that nothing is left out.
#include <tuple>

#include "tests/property/harness.hpp"

namespace drift::property {
namespace {

constexpr double kTolerance = 1e-6;  // total variation; float probabilities leave about 1e-7 per token

enum class Memory {
  kStatic,
  kFixed1,
  kFixed2,
  kEarned,
  kLookup,
  kSuffix,
  kSuffixCounts,
  kDraftSuffix,
  kDraftSuffixCounts,
  kDriftSuffix,
  kLevels,
  kLevelsEarned,
  kLevelsSuffix
};

const char* memory_name(Memory m) {
  switch (m) {
    case Memory::kStatic: return "static";
    case Memory::kFixed1: return "fixed1";
    case Memory::kFixed2: return "fixed2";
    case Memory::kEarned: return "earned";
    case Memory::kLookup: return "lookup";
    case Memory::kSuffix: return "suffix";
    case Memory::kSuffixCounts: return "suffix_counts";
    case Memory::kDraftSuffix: return "draft_suffix";
    case Memory::kDraftSuffixCounts: return "draft_suffix_counts";
    case Memory::kDriftSuffix: return "drift_suffix";
    case Memory::kLevels: return "levels";
    case Memory::kLevelsEarned: return "levels_earned";
    case Memory::kLevelsSuffix: return "levels_suffix";
  }
  return "";
}

Mode mode_of(Memory m) {
  switch (m) {
    case Memory::kStatic: return Mode::kStatic;
    case Memory::kLookup: return Mode::kLookup;
    case Memory::kSuffix:
    case Memory::kSuffixCounts: return Mode::kSuffix;
    case Memory::kDraftSuffix:
    case Memory::kDraftSuffixCounts: return Mode::kDraftSuffix;
    case Memory::kDriftSuffix:
    case Memory::kLevelsSuffix: return Mode::kDriftSuffix;
    default: return Mode::kDrift;
  }
}

struct Case {
  Memory memory = Memory::kStatic;
  JudgeRule rule = JudgeRule::kRejection;
  SamplerConfig sampler;
  std::size_t vocab = 4;
  std::size_t width = 4;
  int draft_tokens = 2;
  std::int64_t max_tokens = 3;
  std::uint64_t seed = 1;
  float noise = 0.0f;  // 0: the draft is a model of its own; else the target plus this much noise
  std::function<bool(Token)> is_end;
};

ToyModel target_of(const Case& c) { return testing::random_model(c.seed, c.vocab, 0, 3, 2.0f); }
ToyModel draft_of(const Case& c) {
  if (c.noise > 0.0f) return perturbed(target_of(c), c.seed + 1'000, c.width, c.noise);
  return testing::random_model(c.seed + 1'000, c.vocab, c.width, 3, 2.0f);
}

std::unique_ptr<recal::Recalibrator> recalibrator_of(const Case& c) {
  const bool earned = c.memory == Memory::kEarned || c.memory == Memory::kLevelsEarned || c.memory == Memory::kLevelsSuffix;
  const auto gain = earned ? recal::GainRule::kEarned : recal::GainRule::kFixed;
  const bool levels = c.memory == Memory::kLevels || c.memory == Memory::kLevelsEarned || c.memory == Memory::kLevelsSuffix;
  auto made =
      recal::Recalibrator::create(levels ? hostile_chain_config(c.vocab, c.width, gain)
                                         : hostile_config(c.vocab, c.width, gain, c.memory == Memory::kFixed2 ? 2.0f : 1.0f));
  EXPECT_TRUE(made.is_ok()) << made.status().message();
  return std::move(made).value();
}

SequenceConfig sequence_of(const Case& c, recal::Recalibrator& r, propose::SuffixMemory& suffix, Choices& choices,
                           std::uint64_t name) {
  SequenceConfig s;
  s.mode = mode_of(c.memory);
  s.suffix = &suffix;
  if (c.memory == Memory::kSuffixCounts || c.memory == Memory::kDraftSuffixCounts) s.copy.q = propose::QRule::kCounts;
  s.rule = c.rule;
  s.sampler = c.sampler;
  s.name = name;
  s.draft_tokens = c.draft_tokens;
  s.max_tokens = c.max_tokens;
  s.recal = &r;
  s.choices = &choices;
  s.is_end = c.is_end;
  return s;
}

struct Enumerated {
  Law law;
  std::uint64_t paths = 0;
  std::uint64_t bank_proposals = 0;                            // proposals that the bank changed, over all paths
  std::uint64_t evictions = 0;                                 // entries evicted, over all paths
  std::uint64_t context_evictions = 0;                         // likewise, of levels keyed by tokens
  std::uint64_t copied = 0, copied_accepted = 0, drafted = 0;  // proposals by origin, over all paths
};

// Where proposals are copied, the prompt holds something to copy.
std::vector<Token> prompt_of(const Case& c) {
  if (!decode::copies(mode_of(c.memory))) return {1, 2};
  return {0, 1, 2, 1, 0, 0, 2, 2, 0, 1, 1, 2, 0, 2, 1, 2};
}

// The law of one sequence, the bank put back to its hostile content before every path.
void enumerate(const Case& c, Enumerated& out) {
  Rig rig(target_of(c), draft_of(c));
  auto r = recalibrator_of(c);
  const bank::StoredBank hostile = hostile_bank(r->config(), c.seed + 7);
  auto suffix = suffix_memory();
  testing::EnumeratingChoices choices;
  const SequenceConfig config = sequence_of(c, *r, *suffix, choices, 1);
  auto opened = rig.stepper.open(prompt_of(c), config);
  ASSERT_TRUE(opened.is_ok()) << opened.status().message();
  Sequence& s = **opened;
  ASSERT_TRUE(rig.stepper.prefill(s).is_ok());
  std::vector<trace::StepEvent> events;
  do {
    ASSERT_TRUE(r->restore(hostile).is_ok());
    ASSERT_TRUE(rig.stepper.rewind(s, config).is_ok() && rig.stepper.prefill(s).is_ok());
    fill_hostile(*suffix, c.seed + 8, c.vocab);  // after the rewind, which adds the answer before
    events.clear();
    const Status ran = run(rig.stepper, s, &events);
    ASSERT_TRUE(ran.is_ok()) << ran.message();
    out.law[answer_of(s)] += choices.probability();
    for (const trace::StepEvent& e : events) {
      for (const trace::ProposedToken& p : e.proposed) {
        out.bank_proposals += p.from_bank ? 1 : 0;
        out.copied += p.copied() ? 1 : 0;
        out.copied_accepted += p.copied() && p.accepted ? 1 : 0;
        out.drafted += p.copied() ? 0 : 1;
      }
    }
    out.evictions += r->bank().stats().evicted;
    for (std::size_t order = 1; r->chain() != nullptr && order <= recal::kOrders; ++order)
      out.context_evictions += r->chain()->bank(recal::ngram_level(order))->stats().evicted;
    ASSERT_LT(choices.paths(), 5'000'000u) << "too many paths for a test";
  } while (choices.next());
  out.paths = choices.paths();
}

void expect_lossless(const Case& c, const std::string& what) {
  Enumerated got;
  enumerate(c, got);
  if (::testing::Test::HasFatalFailure()) return;
  Law expected;
  std::vector<Token> context = prompt_of(c);
  exact_law(target_of(c), c.sampler, static_cast<std::size_t>(c.max_tokens), c.is_end, context, context.size(), 1.0, expected);
  EXPECT_NEAR(total(got.law), 1.0, 1e-9) << what;
  EXPECT_LT(total_variation(got.law, expected), kTolerance) << what << ", " << got.paths << " paths";
  const Mode mode = mode_of(c.memory);
  if (mode == Mode::kDrift) {
    EXPECT_GT(got.bank_proposals, 0u) << what << ": the hostile bank never changed a proposal, so this case shows nothing";
    EXPECT_GT(got.evictions, 0u) << what << ": nothing was evicted, so the bank hardly moved";
  }
  if (c.memory == Memory::kLevels || c.memory == Memory::kLevelsEarned) {
    EXPECT_GT(got.context_evictions, 0u) << what << ": no context was evicted, so the levels hardly moved";
  }
  if (decode::copies(mode)) {
    EXPECT_GT(got.copied, 0u) << what << ": nothing was copied, so this case shows nothing";
  }
}

// ---- the grid: memory x judge x sampler, every draft length, drafts of both kinds ----

class Grid : public ::testing::TestWithParam<std::tuple<Memory, JudgeRule, std::size_t>> {};

TEST_P(Grid, AnswerLawIsTheTargets) {
  const auto [memory, rule, sampler] = GetParam();
  for (const int draft_tokens : {1, 2, 3}) {
    for (const std::uint64_t seed : {11u, 12u}) {
      Case c;
      c.max_tokens = draft_tokens == 3 && seed == 12 ? 4 : 3;
      c.memory = memory;
      c.rule = rule;
      c.sampler = samplers()[sampler].config;
      c.draft_tokens = draft_tokens;
      c.seed = seed;
      c.vocab = seed == 11 || draft_tokens == 3 ? 4 : 5;
      c.width = seed == 11 ? 4 : 8;
      c.noise = seed == 11 ? 0.0f : 1.0f;
      expect_lossless(c, "seed " + std::to_string(seed) + ", draft " + std::to_string(draft_tokens));
    }
  }
}

std::string grid_name(const ::testing::TestParamInfo<Grid::ParamType>& info) {
  return std::string(memory_name(std::get<0>(info.param))) + "_" +
         (std::get<1>(info.param) == JudgeRule::kMatch ? "match" : "rejection") + "_" + samplers()[std::get<2>(info.param)].name;
}

INSTANTIATE_TEST_SUITE_P(
    Losslessness, Grid,
    ::testing::Combine(::testing::Values(Memory::kStatic, Memory::kFixed1, Memory::kFixed2, Memory::kEarned, Memory::kLookup,
                                         Memory::kSuffix, Memory::kSuffixCounts, Memory::kDraftSuffix, Memory::kDraftSuffixCounts,
                                         Memory::kDriftSuffix, Memory::kLevels, Memory::kLevelsEarned, Memory::kLevelsSuffix),
                       ::testing::Values(JudgeRule::kMatch, JudgeRule::kRejection), ::testing::Range<std::size_t>(0, 6)),
    grid_name);

// ---- long blocks: three proposals, four tokens; what happens after the first rejected position matters here ----

class LongBlock : public ::testing::TestWithParam<std::tuple<Memory, JudgeRule, std::size_t>> {};

TEST_P(LongBlock, AnswerLawIsTheTargets) {
  const auto [memory, rule, sampler] = GetParam();
  for (const std::uint64_t seed : {21u, 22u}) {
    Case c;
    c.memory = memory;
    c.rule = rule;
    c.sampler = samplers()[sampler].config;
    c.draft_tokens = 3;
    c.max_tokens = 4;
    c.vocab = 4;
    c.width = 6;
    c.seed = seed;
    expect_lossless(c, "seed " + std::to_string(seed));
  }
}

std::string long_name(const ::testing::TestParamInfo<LongBlock::ParamType>& info) {
  return std::string(memory_name(std::get<0>(info.param))) + "_" +
         (std::get<1>(info.param) == JudgeRule::kMatch ? "match" : "rejection") + "_" + samplers()[std::get<2>(info.param)].name;
}

INSTANTIATE_TEST_SUITE_P(Losslessness, LongBlock,
                         ::testing::Combine(::testing::Values(Memory::kFixed1, Memory::kFixed2, Memory::kEarned,
                                                              Memory::kDraftSuffix, Memory::kDriftSuffix, Memory::kLevelsEarned),
                                            ::testing::Values(JudgeRule::kMatch, JudgeRule::kRejection),
                                            ::testing::Values(1, 3, 4)),
                         long_name);

// ---- an end token in the middle ----

TEST(Losslessness, EndTokenInTheMiddle) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (const Memory memory : {Memory::kStatic, Memory::kFixed2, Memory::kSuffixCounts, Memory::kDriftSuffix, Memory::kLevels}) {
      Case c;
      c.memory = memory;
      c.rule = rule;
      c.sampler = kPlain;
      c.seed = 31;
      c.is_end = [](Token t) { return t == 3; };
      expect_lossless(c, std::string(memory_name(memory)) + (rule == JudgeRule::kMatch ? " match" : " rejection"));
    }
  }
}

// ---- two sequences of one batch share one bank: their joint law is the product ----

void expect_joint_law(const Case& a, const Case& b) {
  Rig rig(target_of(a), draft_of(a));
  auto r = recalibrator_of(a);
  const bank::StoredBank hostile = hostile_bank(r->config(), a.seed + 7);
  auto suffix = suffix_memory();
  testing::EnumeratingChoices choices;
  const SequenceConfig config_a = sequence_of(a, *r, *suffix, choices, 1);
  const SequenceConfig config_b = sequence_of(b, *r, *suffix, choices, 2);
  const std::vector<Token> prompt_a = prompt_of(a), prompt_b(prompt_a.rbegin(), prompt_a.rend());
  auto opened_a = rig.stepper.open(prompt_a, config_a);
  auto opened_b = rig.stepper.open(prompt_b, config_b);
  ASSERT_TRUE(opened_a.is_ok() && opened_b.is_ok());
  Sequence &sa = **opened_a, &sb = **opened_b;
  ASSERT_TRUE(rig.stepper.prefill(sa).is_ok() && rig.stepper.prefill(sb).is_ok());
  Law got;
  std::vector<trace::StepEvent> events;
  std::vector<Sequence*> running;
  do {
    ASSERT_TRUE(r->restore(hostile).is_ok());
    ASSERT_TRUE(rig.stepper.rewind(sa, config_a).is_ok() && rig.stepper.rewind(sb, config_b).is_ok());
    ASSERT_TRUE(rig.stepper.prefill(sa).is_ok() && rig.stepper.prefill(sb).is_ok());
    fill_hostile(*suffix, a.seed + 8, a.vocab);
    for (;;) {
      running.clear();
      for (Sequence* s : {&sa, &sb}) {
        if (s->ending() == Ending::kRunning) running.push_back(s);
      }
      if (running.empty()) break;
      ASSERT_TRUE(rig.stepper.step(running, events).is_ok());
    }
    Answer joint = answer_of(sa);
    joint.push_back(kNoToken);  // between the two answers
    joint.insert(joint.end(), sb.emitted().begin(), sb.emitted().end());
    got[joint] += choices.probability();
    ASSERT_LT(choices.paths(), 5'000'000u);
  } while (choices.next());
  Law law_a, law_b, expected;
  std::vector<Token> context = prompt_a;
  exact_law(target_of(a), a.sampler, static_cast<std::size_t>(a.max_tokens), {}, context, context.size(), 1.0, law_a);
  context = prompt_b;
  exact_law(target_of(a), b.sampler, static_cast<std::size_t>(b.max_tokens), {}, context, context.size(), 1.0, law_b);
  for (const auto& [x, p] : law_a) {
    for (const auto& [y, q] : law_b) {
      Answer joint = x;
      joint.push_back(kNoToken);
      joint.insert(joint.end(), y.begin(), y.end());
      expected[joint] = p * q;
    }
  }
  EXPECT_NEAR(total(got), 1.0, 1e-9);
  EXPECT_LT(total_variation(got, expected), kTolerance) << choices.paths() << " paths";
}

TEST(Losslessness, TwoSequencesSharingOneBankAreIndependent) {
  for (const auto& [memory, rule] : std::vector<std::pair<Memory, JudgeRule>>{{Memory::kFixed2, JudgeRule::kMatch},
                                                                              {Memory::kFixed2, JudgeRule::kRejection},
                                                                              {Memory::kDriftSuffix, JudgeRule::kMatch},
                                                                              {Memory::kDriftSuffix, JudgeRule::kRejection},
                                                                              {Memory::kLevels, JudgeRule::kRejection}}) {
    Case a;
    a.memory = memory;
    a.rule = rule;
    a.vocab = 3;
    a.sampler = kPlain;
    a.seed = 41;
    a.draft_tokens = 1;
    a.max_tokens = 2;
    Case b = a;
    b.sampler = {0.7f, 2, 1.0f, 0.0f};
    b.max_tokens = 3;
    b.draft_tokens = 2;
    expect_joint_law(a, b);
  }
}

// ---- one answer after the other: what the first left in the memory does not show in the law of the second ----

TEST(Losslessness, AnswersThatFollowEachOtherAreIndependent) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (const Memory memory :
         {Memory::kSuffix, Memory::kSuffixCounts, Memory::kDraftSuffix, Memory::kDriftSuffix, Memory::kLevelsSuffix}) {
      Case c;
      c.memory = memory;
      c.rule = rule;
      c.vocab = 3;
      c.sampler = kPlain;
      c.seed = 61;
      c.max_tokens = 3;
      Rig rig(target_of(c), draft_of(c));
      auto r = recalibrator_of(c);
      const bank::StoredBank hostile = hostile_bank(r->config(), c.seed + 7);
      auto suffix = suffix_memory();
      testing::EnumeratingChoices choices;
      SequenceConfig config = sequence_of(c, *r, *suffix, choices, 1);
      auto opened = rig.stepper.open(prompt_of(c), config);
      ASSERT_TRUE(opened.is_ok());
      Sequence& s = **opened;
      Law got, once;
      std::uint64_t copied_of_the_first = 0;
      do {
        config.name = 1;
        ASSERT_TRUE(r->restore(hostile).is_ok());
        ASSERT_TRUE(rig.stepper.restart(s, prompt_of(c), config).is_ok());
        suffix->clear();
        ASSERT_TRUE(rig.stepper.prefill(s).is_ok() && run(rig.stepper, s).is_ok());
        Answer joint = answer_of(s);
        config.name = 2;
        const std::size_t before = suffix->tokens();
        ASSERT_TRUE(rig.stepper.rewind(s, config).is_ok() && rig.stepper.prefill(s).is_ok());
        ASSERT_GT(suffix->tokens(), before) << "the first answer is remembered";
        std::vector<trace::StepEvent> events;
        ASSERT_TRUE(run(rig.stepper, s, &events).is_ok());
        for (const trace::ProposedToken& p : events[0].proposed) copied_of_the_first += p.match > 4 ? 1 : 0;
        joint.insert(joint.end(), s.emitted().begin(), s.emitted().end());
        got[joint] += choices.probability();
        ASSERT_LT(choices.paths(), 5'000'000u);
      } while (choices.next());
      EXPECT_GT(copied_of_the_first, 0u);
      std::vector<Token> context = prompt_of(c);
      exact_law(target_of(c), c.sampler, 3, {}, context, context.size(), 1.0, once);
      Law expected;
      for (const auto& [x, p] : once) {
        for (const auto& [y, q] : once) {
          Answer joint = x;
          joint.insert(joint.end(), y.begin(), y.end());
          expected[joint] = p * q;
        }
      }
      EXPECT_NEAR(total(got), 1.0, 1e-9);
      EXPECT_LT(total_variation(got, expected), kTolerance) << memory_name(memory) << ", " << choices.paths() << " paths";
    }
  }
}

// ---- the check itself can fail ----

TEST(Losslessness, AWrongLawIsSeen) {
  Case c;
  c.sampler = kPlain;
  c.seed = 51;
  Enumerated got;
  enumerate(c, got);
  Case other = c;
  other.sampler = at_temperature(1.001f);
  Law wrong;
  std::vector<Token> context = prompt_of(c);
  exact_law(target_of(other), other.sampler, 3, {}, context, context.size(), 1.0, wrong);
  EXPECT_GT(total_variation(got.law, wrong), 10 * kTolerance) << "a temperature wrong by a thousandth must show";
}

}  // namespace
}  // namespace drift::property
