// With an edit of the logits (penalties, bans) the output law is that of the edited target, and its log-probabilities are the raw
// target's, for accepted proposals too.
//
// Exact, as in losslessness_test.cpp: every choice is enumerated and the law compared with products of the target's own edited
// probabilities, computed by the slow reference from the whole text at once, so that what the stepper calls path and decided cannot
// be mixed up.
#include "drift/spec/logit_edit.hpp"

#include <algorithm>

#include "tests/property/harness.hpp"

namespace drift::property {
namespace {

// Depends on order and on counts: tokens seen lose a little each time, token 3 may not follow token 1, token 0 not begin an answer.
void edit_slowly(std::span<const Token> text, std::size_t prompt, std::span<float> logits) {
  for (const Token t : text) logits[static_cast<std::size_t>(t)] -= 0.7f;
  if (text.back() == 1) logits[3] = -1e30f;
  if (text.size() == prompt) logits[0] = -1e30f;
}

class TestEdit final : public spec::LogitEdit {
 public:
  explicit TestEdit(std::size_t prompt) : prompt_(prompt) {}
  void apply(std::span<const Token> decided, std::span<const Token> path, std::span<float> logits) override {
    std::vector<Token> text(decided.begin(), decided.end());
    text.insert(text.end(), path.begin(), path.end());
    edit_slowly(text, prompt_, logits);
    paths += path.empty() ? 0 : 1;
  }
  std::size_t paths = 0;

 private:
  std::size_t prompt_;
};

const std::vector<Token> kPrompt{1, 2};

void edited_law(const ToyModel& target, const SamplerConfig& sampler, std::size_t max_tokens, std::vector<Token>& text,
                double probability, Law& out) {
  if (text.size() == kPrompt.size() + max_tokens) {
    out[Answer(text.begin() + static_cast<std::ptrdiff_t>(kPrompt.size()), text.end())] += probability;
    return;
  }
  std::vector<float> logits(target.vocab), hidden(target.hidden_width);
  target.row(text, logits, hidden);
  edit_slowly(text, kPrompt.size(), logits);
  const std::vector<double> p = testing::reference_distribution(sampler, logits);
  for (std::size_t v = 0; v < p.size(); ++v) {
    if (p[v] == 0.0) continue;
    text.push_back(static_cast<Token>(v));
    edited_law(target, sampler, max_tokens, text, probability * p[v], out);
    text.pop_back();
  }
}

TEST(LogitEdit, TheLawIsTheEditedTargets) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (const Mode mode : {Mode::kOff, Mode::kStatic, Mode::kDrift}) {
      for (const NamedSampler& sampler : samplers()) {
        const ToyModel target = testing::random_model(11, 4, 0, 3, 2.0f);
        Rig rig(target, testing::random_model(12, 4, 4, 3, 2.0f));
        auto recal = std::move(recal::Recalibrator::create(hostile_config(4, 4, recal::GainRule::kFixed, 1.0f))).value();
        const bank::StoredBank hostile = hostile_bank(recal->config(), 5);
        testing::EnumeratingChoices choices;
        TestEdit edit(kPrompt.size());
        SequenceConfig config;
        config.mode = mode;
        config.rule = rule;
        config.sampler = sampler.config;
        config.name = 1;
        config.draft_tokens = 2;
        config.max_tokens = 3;
        config.recal = recal.get();
        config.choices = &choices;
        config.edit = &edit;
        auto opened = rig.stepper.open(kPrompt, config);
        ASSERT_TRUE(opened.is_ok()) << opened.status().message();
        ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
        Law got, expected;
        std::uint64_t from_bank = 0;
        std::vector<trace::StepEvent> events;
        do {
          ASSERT_TRUE(recal->restore(hostile).is_ok());
          ASSERT_TRUE(rig.stepper.rewind(**opened, config).is_ok() && rig.stepper.prefill(**opened).is_ok());
          events.clear();
          ASSERT_TRUE(run(rig.stepper, **opened, &events).is_ok());
          got[answer_of(**opened)] += choices.probability();
          for (const trace::StepEvent& e : events) {
            for (const trace::ProposedToken& p : e.proposed) from_bank += p.from_bank ? 1 : 0;
          }
        } while (choices.next());
        std::vector<Token> text = kPrompt;
        edited_law(target, sampler.config, 3, text, 1.0, expected);
        const std::string what = std::string(sampler.name) + (rule == JudgeRule::kMatch ? ", match" : ", rejection");
        EXPECT_LT(total_variation(got, expected), 1e-6) << what;
        EXPECT_EQ(edit.paths > 0, mode != Mode::kOff) << what;
        EXPECT_EQ(from_bank > 0, mode == Mode::kDrift) << what;
        // The edit matters: without it the law is another one.
        Law raw;
        exact_law(target, sampler.config, 3, {}, text, kPrompt.size(), 1.0, raw);
        EXPECT_GT(total_variation(raw, expected), 1e-3) << what;
      }
    }
  }
}

TEST(LogitEdit, NothingOfItIsLearned) {
  // Two runs that make the same proposals, with and without an edit too weak to change them: the banks are equal, bit for bit.
  class Weak final : public spec::LogitEdit {
   public:
    void apply(std::span<const Token>, std::span<const Token>, std::span<float> logits) override { logits[0] += 1e-4f; }
  } weak;
  std::vector<bank::StoredBank> stored;
  for (spec::LogitEdit* edit : {static_cast<spec::LogitEdit*>(nullptr), static_cast<spec::LogitEdit*>(&weak)}) {
    Rig rig(testing::random_model(3, 16, 0, 2, 4.0f), testing::random_model(4, 16, 8, 2, 4.0f));
    auto recal = std::move(recal::Recalibrator::create(hostile_config(16, 8, recal::GainRule::kFixed, 1.0f))).value();
    RngStream choices(1);
    SequenceConfig config;
    config.mode = Mode::kDrift;
    config.sampler = spec::greedy_sampler();
    config.max_tokens = 30;
    config.recal = recal.get();
    config.choices = &choices;
    config.edit = edit;
    auto opened = rig.stepper.open(kPrompt, config);
    ASSERT_TRUE(opened.is_ok());
    ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
    ASSERT_TRUE(run(rig.stepper, **opened).is_ok());
    stored.push_back(recal->save({}));
  }
  EXPECT_EQ(stored[0].image.values, stored[1].image.values);
  EXPECT_EQ(stored[0].image.keys, stored[1].image.keys);
  EXPECT_GT(stored[0].image.size, 0u);
}

TEST(Logprobs, AreTheRawTargetsForAcceptedTokensToo) {
  const ToyModel target = testing::random_model(3, 16, 0, 2, 3.0f);
  for (const Mode mode : {Mode::kOff, Mode::kStatic}) {
    Rig rig(target, perturbed(target, 4, 8, 0.5f));
    RngStream choices(1);
    TestEdit edit(kPrompt.size());
    SequenceConfig config;
    config.mode = mode;
    config.sampler = kPlain;
    config.max_tokens = 40;
    config.choices = &choices;
    config.logprobs = 5;
    config.edit = &edit;
    auto opened = rig.stepper.open(kPrompt, config);
    ASSERT_TRUE(opened.is_ok());
    ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
    std::vector<trace::StepEvent> events;
    ASSERT_TRUE(run(rig.stepper, **opened, &events).is_ok());
    std::vector<Token> text = kPrompt;
    std::size_t accepted = 0;
    for (const trace::StepEvent& event : events) {
      ASSERT_EQ(event.logprobs.size(), event.emitted.size());
      for (std::size_t i = 0; i < event.emitted.size(); ++i) {
        std::vector<float> logits(16), hidden;
        target.row(text, logits, hidden);
        const std::vector<double> p = testing::softmax(logits);
        const trace::TokenLogprobs& got = event.logprobs[i];
        EXPECT_NEAR(got.logprob, std::log(p[static_cast<std::size_t>(event.emitted[i].token)]), 1e-5);
        ASSERT_EQ(got.top.size(), 5u);
        std::vector<std::size_t> order(16);
        for (std::size_t v = 0; v < order.size(); ++v) order[v] = v;
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
        for (std::size_t k = 0; k < 5; ++k) {
          EXPECT_EQ(got.top[k], static_cast<Token>(order[k]));
          EXPECT_NEAR(got.top_logprobs[k], std::log(p[order[k]]), 1e-5);
        }
        accepted += event.emitted[i].origin == trace::Origin::kTarget ? 0 : 1;
        text.push_back(event.emitted[i].token);
      }
    }
    EXPECT_EQ(accepted > 5, mode == Mode::kStatic);
  }
}

TEST(Logprobs, AreBounded) {
  Rig rig(testing::random_model(3, 16, 0, 2, 3.0f), testing::random_model(4, 16, 8, 2, 4.0f));
  RngStream choices(1);
  SequenceConfig config;
  config.choices = &choices;
  config.logprobs = decode::kMaxLogprobs + 1;
  EXPECT_EQ(rig.stepper.open(kPrompt, config).status().code(), Code::kInvalid);
  config.logprobs = decode::kMaxLogprobs;  // more than the vocabulary has
  EXPECT_TRUE(rig.stepper.open(kPrompt, config).is_ok());
}

}  // namespace
}  // namespace drift::property
