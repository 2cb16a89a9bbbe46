// Under a constraint the output law is the target's under the same constraint, whoever drafts; proposals keep to it, and are accepted.
//
// Exact, as in losslessness_test.cpp: every choice is enumerated, and the law compared with products of the target's masked
// probabilities, the mask being computed from the whole text at once.
#include "drift/spec/constraint.hpp"

#include "tests/property/harness.hpp"

namespace drift::property {
namespace {

// What may come depends on the whole text: its sum modulo 3, and its last token. Every state allows two or three of the four tokens.
bool may_come(int sum, Token last, Token next) { return (sum + next) % 3 != 1 || next == (last + 1) % 4; }

class ToyConstraint final : public spec::Constraint {
 public:
  // A state is the sum modulo 3 and the last token, in an epoch that settle() begins: states of another epoch are asked about never.
  State start() override { return pack(0, 3); }
  State after(State state, Token token) override {
    check(state);
    return pack((sum(state) + token) % 3, token);
  }
  void mask(State state, std::span<float> logits) override {
    check(state);
    for (std::size_t t = 0; t < logits.size(); ++t) {
      if (!may_come(sum(state), last(state), static_cast<Token>(t))) logits[t] = spec::kForbidden;
    }
  }
  State settle(State state) override {
    check(state);
    ++epoch_;
    return pack(sum(state), last(state));
  }

 private:
  static int sum(State s) { return static_cast<int>(s / 4 % 3); }
  static Token last(State s) { return static_cast<Token>(s % 4); }
  State pack(int sum, Token last) const { return epoch_ * 12 + static_cast<State>(sum * 4 + last); }
  void check(State state) const { EXPECT_EQ(state / 12, epoch_) << "a state that was settled away is asked about"; }
  State epoch_ = 0;
};

const std::vector<Token> kPrompt{1, 2};

void constrained_law(const ToyModel& target, const SamplerConfig& sampler, std::size_t max_tokens, std::vector<Token>& text,
                     int sum, double probability, Law& out) {
  if (text.size() == kPrompt.size() + max_tokens) {
    out[Answer(text.begin() + static_cast<std::ptrdiff_t>(kPrompt.size()), text.end())] += probability;
    return;
  }
  std::vector<float> logits(target.vocab), hidden(target.hidden_width);
  target.row(text, logits, hidden);
  const Token last = text.size() == kPrompt.size() ? 3 : text.back();
  for (Token t = 0; t < 4; ++t) {
    if (!may_come(sum, last, t)) logits[static_cast<std::size_t>(t)] = spec::kForbidden;
  }
  const std::vector<double> p = testing::reference_distribution(sampler, logits);
  for (Token t = 0; t < 4; ++t) {
    if (p[static_cast<std::size_t>(t)] == 0.0) continue;
    text.push_back(t);
    constrained_law(target, sampler, max_tokens, text, (sum + t) % 3, probability * p[static_cast<std::size_t>(t)], out);
    text.pop_back();
  }
}

TEST(Constraint, TheLawIsTheConstrainedTargetsAndProposalsKeepToIt) {
  for (const Mode mode : {Mode::kOff, Mode::kStatic, Mode::kDrift, Mode::kDriftSuffix}) {
    std::uint64_t accepted = 0;
    for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
      for (const NamedSampler& sampler : samplers()) {
        const ToyModel target = testing::random_model(11, 4, 0, 3, 2.0f);
        Rig rig(target, perturbed(target, 12, 4, 1.0f));
        auto recal = std::move(recal::Recalibrator::create(hostile_config(4, 4, recal::GainRule::kFixed, 1.0f))).value();
        const bank::StoredBank hostile = hostile_bank(recal->config(), 5);
        auto suffix = suffix_memory();
        testing::EnumeratingChoices choices;
        SequenceConfig config;
        config.mode = mode;
        config.rule = rule;
        config.sampler = sampler.config;
        config.name = 1;
        config.draft_tokens = 2;
        config.max_tokens = 4;
        config.recal = recal.get();
        config.suffix = suffix.get();
        config.choices = &choices;
        Law got, expected;
        std::vector<trace::StepEvent> events;
        std::unique_ptr<Sequence> sequence;
        do {
          ASSERT_TRUE(recal->restore(hostile).is_ok());
          ToyConstraint constraint;
          spec::ConstraintEdit edit(constraint, kPrompt.size());
          config.edit = &edit;
          if (!sequence) {
            auto opened = rig.stepper.open(kPrompt, config);
            ASSERT_TRUE(opened.is_ok()) << opened.status().message();
            sequence = std::move(opened).value();
            ASSERT_TRUE(rig.stepper.prefill(*sequence).is_ok());
          } else {
            ASSERT_TRUE(rig.stepper.rewind(*sequence, config).is_ok());
          }
          fill_hostile(*suffix, 13, 4);  // after the rewind, which adds the answer before
          events.clear();
          ASSERT_TRUE(run(rig.stepper, *sequence, &events).is_ok());
          const Answer answer = answer_of(*sequence);
          got[answer] += choices.probability();
          std::size_t decided = 0;
          for (const trace::StepEvent& event : events) {
            int sum = 0;
            Token last = 3;
            for (std::size_t i = 0; i < decided; ++i) {
              sum = (sum + answer[i]) % 3;
              last = answer[i];
            }
            for (const trace::ProposedToken& proposed : event.proposed) {
              EXPECT_TRUE(proposed.copied() || may_come(sum, last, proposed.token)) << sampler.name;
              sum = (sum + proposed.token) % 3;
              last = proposed.token;
            }
            decided += event.emitted.size();
            for (const trace::EmittedToken& emitted : event.emitted) accepted += emitted.origin == trace::Origin::kTarget ? 0 : 1;
          }
        } while (choices.next());
        std::vector<Token> text = kPrompt;
        constrained_law(target, sampler.config, 4, text, 0, 1.0, expected);
        const std::string what = std::string(sampler.name) + (rule == JudgeRule::kMatch ? ", match" : ", rejection");
        EXPECT_LT(total_variation(got, expected), 1e-6) << what;
        Law raw;
        exact_law(target, sampler.config, 4, {}, text, kPrompt.size(), 1.0, raw);
        EXPECT_GT(total_variation(raw, expected), 1e-3) << what << ": the constraint matters";
      }
    }
    EXPECT_EQ(accepted > 0, mode != Mode::kOff);
  }
}

}  // namespace
}  // namespace drift::property
