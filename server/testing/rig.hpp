// rig.hpp - a toy server without HTTP: toy pair, text, banks and scheduler, kept together because they refer to each other.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drift/engine/wrapper.hpp"
#include "drift/testing/toy_engine.hpp"
#include "server/schedule/scheduler.hpp"
#include "server/testing/toy_text.hpp"
#include "tests/property/harness.hpp"

namespace drift::server::testing {

using drift::testing::ToyEngine;
using drift::testing::ToyModel;

// The toy target prefers letters that depend on the last two tokens; the end token is unlikely.
inline ToyModel toy_target(std::size_t context = 4'096, std::size_t sequences = 16) {
  ToyModel model = drift::testing::random_model(11, kToyVocab, 4, 2, 4.0f);
  model.context = context;
  model.max_sequences = sequences;
  const auto own = model.row;
  model.row = [own](std::span<const Token> text, std::span<float> logits, std::span<float> hidden) {
    own(text, logits, hidden);
    logits[kToyEnd] -= 4.0f;
    logits[96] -= 8.0f;  // parts of characters: now and then at temperature 1
    logits[97] -= 8.0f;
  };
  return model;
}

inline ToyModel toy_draft(const ToyModel& target) {
  ToyModel model = property::perturbed(target, 12, 8, 1.0f);
  model.context = target.context;
  model.max_sequences = target.max_sequences;
  return model;
}

inline recal::RecalConfig toy_recal() {
  recal::RecalConfig config;
  config.bank.capacity = 64;
  config.bank.key_dim = 8;
  config.bank.support = 8;
  config.bank.vocab = kToyVocab;
  return config;
}

inline recal::BankOwner toy_owner() {
  recal::BankOwner owner;
  owner.fingerprint.target_hash.assign(32, 'a');
  owner.fingerprint.draft_hash.assign(32, 'b');
  owner.fingerprint.vocab = kToyVocab;
  owner.fingerprint.hidden_width = 8;
  owner.target_name = "target";
  owner.draft_name = "draft";
  return owner;
}

inline BankSource toy_source() {
  BankSource source;
  source.open = [](const BankId& /*id*/, const std::string& /*file*/) -> Result<std::optional<recal::BankSession>> {
    DRIFT_ASSIGN(auto session, recal::BankSession::open("", false, toy_recal(), toy_owner()));
    return std::optional(std::move(session));
  };
  source.file = [](const BankId& /*id*/) -> Result<std::string> { return std::string(); };
  return source;
}

inline GenerationConfig ask(const std::string& prompt, std::int64_t max_tokens = 16) {
  GenerationConfig config;
  config.prompt = ToyText().tokenize(prompt, true, false).value();
  config.sampler = spec::greedy_sampler();
  config.max_tokens = max_tokens;
  return config;
}

// What a reader has got of one choice.
struct Answer {
  std::string text;
  std::vector<std::string> pieces;  // one per delta
  std::vector<TokenInfo> tokens;
  std::optional<Ended> ended;
  std::optional<Status> failure;
};

// Everything that can be fetched now.
inline std::vector<Answer> fetch(Job& job) {
  std::vector<Answer> answers(job.choices());
  Job::Event event;
  Job::Got got{};
  while ((got = job.next(std::chrono::milliseconds(0), event)) == Job::Got::kEvent) {
    Answer& answer = answers[event.choice];
    if (const Delta* delta = std::get_if<Delta>(&event.what)) {
      EXPECT_FALSE(answer.ended) << "text after the end";
      answer.text += delta->text;
      answer.pieces.push_back(delta->text);
      answer.tokens.insert(answer.tokens.end(), delta->tokens.begin(), delta->tokens.end());
    } else {
      answer.ended = std::get<Ended>(event.what);
    }
  }
  if (got == Job::Got::kFailed) {
    for (Answer& answer : answers) answer.failure = job.failure();
  }
  return answers;
}

// Passes on to a toy engine and calls `before` ahead of every forward.
class WatchedEngine final : public engine::Wrapper {
 public:
  using Wrapper::Wrapper;
  std::function<void(std::span<const engine::Node>)> before;
  std::function<Status()> fault;  // may fail a forward

  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override {
    if (before) before(nodes);
    if (fault) DRIFT_TRY(fault());
    return Wrapper::forward(nodes, out);
  }
};

struct Rig {
  explicit Rig(SchedulerConfig config = {}, std::size_t context = 4'096, Observer* observer = nullptr)
      : toy_target_engine(toy_target(context)),
        toy_draft_engine(toy_draft(toy_target(context))),
        target(toy_target_engine),
        draft(toy_draft_engine),
        banks({}, toy_source()),
        scheduler(target, &draft, text, &banks, config, observer) {}

  std::shared_ptr<Job> submit(GenerationConfig config) { return submit(std::vector<GenerationConfig>{std::move(config)}); }
  std::shared_ptr<Job> submit(std::vector<GenerationConfig> configs) {
    auto job = std::make_shared<Job>(std::move(configs));
    const Status status = scheduler.submit(job);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return job;
  }
  void run_all(int most = 10'000) {
    for (int i = 0; i < most; ++i) {
      if (!scheduler.tick() && scheduler.state().waiting == 0) return;
    }
    ADD_FAILURE() << "still busy after " << most << " ticks";
  }
  std::size_t busy() const {
    std::size_t count = 0;
    for (const SlotState& slot : scheduler.state().slots) count += slot.phase != Phase::kIdle ? 1 : 0;
    return count;
  }

  ToyText text;
  ToyEngine toy_target_engine, toy_draft_engine;
  WatchedEngine target, draft;
  Banks banks;
  Scheduler scheduler;
};

// The text of one answer, by a stepper that serves nobody else.
inline std::string alone(const GenerationConfig& config, std::size_t context = 4'096) {
  ToyEngine target(toy_target(context)), draft(toy_draft(toy_target(context)));
  decode::Stepper stepper(target, &draft);
  ToyText text;
  RngStream choices(config.seed);
  auto recal = recal::Recalibrator::create(toy_recal());
  decode::SequenceConfig sequence;
  sequence.mode = config.mode;
  sequence.rule = config.rule;
  sequence.sampler = config.sampler;
  sequence.name = config.name;
  sequence.draft_tokens = config.draft_tokens;
  sequence.max_tokens = config.max_tokens;
  sequence.recal = recal->get();
  auto suffix = propose::SuffixMemory::create(propose::kLeastMemoryTokens);
  sequence.suffix = suffix->get();
  sequence.choices = &choices;
  sequence.is_end = [&](Token token) { return text.is_end(token); };
  RuleEdit edit(config.rules, config.prompt.size(), {kToyEnd});
  if (!config.rules.empty()) sequence.edit = &edit;
  auto opened = stepper.open(config.prompt, sequence);
  EXPECT_TRUE(opened.is_ok()) << opened.status().message();
  EXPECT_TRUE(stepper.prefill(**opened).is_ok());
  EXPECT_TRUE(property::run(stepper, **opened).is_ok());
  auto stops = text::StopStrings::make(config.stops);
  AnswerText answer(std::move(stops).value());
  Delta delta;
  for (const Token token : (*opened)->emitted()) {
    TokenInfo info;
    info.token = token;
    info.bytes = text.piece(token);
    answer.push(std::move(info), delta);
  }
  answer.finish(delta);
  return delta.text;
}

}  // namespace drift::server::testing
