#include "server/schedule/scheduler.hpp"

#include <gtest/gtest.h>

#include <new>
#include <thread>
#include <tuple>

#include "drift/decode/mode_name.hpp"
#include "server/testing/rig.hpp"

namespace drift::server {
namespace {

using decode::Mode;
using testing::alone;
using testing::Answer;
using testing::ask;
using testing::fetch;
using testing::Rig;

SchedulerConfig slots(int count) {
  SchedulerConfig config;
  config.slots = count;
  return config;
}

GenerationConfig sampled(const std::string& prompt, std::uint64_t seed, std::int64_t max_tokens = 24) {
  GenerationConfig config = ask(prompt, max_tokens);
  config.sampler = {1.0f, 0, 1.0f, 0.0f};
  config.seed = seed;
  return config;
}

// ---- answers ----

TEST(Scheduler, OneAnswerIsTheSteppersOwn) {
  Rig rig(slots(2));
  const GenerationConfig config = ask("hello", 40);
  const auto job = rig.submit(config);
  rig.run_all();
  const Answer answer = fetch(*job)[0];
  ASSERT_TRUE(answer.ended);
  EXPECT_EQ(answer.text, alone(config));
  EXPECT_EQ(answer.ended->prompt_tokens, 5u);
  EXPECT_EQ(answer.ended->cached_tokens, 0u);
  EXPECT_EQ(answer.ended->tokens, answer.tokens.size());
  EXPECT_EQ(answer.ended->finish, Finish::kLength);
  EXPECT_GE(answer.ended->first_token_ms, 0.0);
}

TEST(Scheduler, AnswersKeepToTheirGrammarAndDraftsAreAccepted) {
  const auto grammar = text::Grammar::parse("root ::= \"<\" [a-z\u00e9]{3,40} \">\" ([0-9] [0-9])*");
  ASSERT_TRUE(grammar.is_ok());
  for (const Mode mode : {Mode::kOff, Mode::kStatic, Mode::kDrift}) {
    Rig rig(slots(4));
    std::vector<std::shared_ptr<Job>> jobs;
    for (std::uint64_t i = 0; i < 12; ++i) {
      GenerationConfig config = sampled("prompt " + std::to_string(i), i, 60);
      config.mode = mode;
      config.rule = i % 2 == 0 ? spec::JudgeRule::kMatch : spec::JudgeRule::kRejection;
      if (mode == Mode::kDrift) config.bank = rig.banks.get(BankId{}, mode).value();
      config.rules.presence = 0.5f;
      if (i % 3 == 0) config.rules.ignore_end = true;  // where only the end may come, it does all the same
      if (i % 4 != 3) config.grammar = grammar.value();
      jobs.push_back(rig.submit(config));
    }
    rig.run_all();
    std::uint64_t accepted = 0, whole = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const Answer answer = fetch(*jobs[i])[0];
      ASSERT_TRUE(answer.ended) << i;
      if (i % 4 == 3) continue;
      std::string text = answer.text;
      ASSERT_EQ(text[0], '<') << text;
      const std::size_t end = text.find('>');
      whole += answer.ended->finish == Finish::kEnd ? 1 : 0;
      if (answer.ended->finish == Finish::kEnd) ASSERT_NE(end, std::string::npos) << text;
      for (std::size_t at = 1; at < text.size(); ++at) {
        if (at == end) continue;
        const bool letter = (text[at] >= 'a' && text[at] <= 'z') || text[at] == '\xC3' || text[at] == '\xA9';
        EXPECT_TRUE(at < end ? letter : text[at] >= '0' && text[at] <= '9') << text;
      }
      accepted += answer.ended->metrics.accepted;
    }
    EXPECT_GT(whole, 0u);
    EXPECT_EQ(accepted > 0, mode != Mode::kOff);
  }
}

TEST(Scheduler, AGrammarWithTooManyReadingsFailsItsOwnAnswerOnly) {
  std::string rules = "root ::= \"<\" a0 \">\"\n";
  for (int i = 0; i < 60; ++i)
    rules += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + " a" + std::to_string(i + 1) + " | \"\"\n";
  const auto grammar = text::Grammar::parse(rules + "a60 ::= [a-z] | \"\"\n");
  ASSERT_TRUE(grammar.is_ok()) << grammar.status().message();
  Rig rig(slots(2));
  GenerationConfig config = ask("x", 20);
  const auto other = rig.submit(config);
  config.grammar = grammar.value();
  const auto job = rig.submit(config);
  rig.run_all();
  EXPECT_TRUE(fetch(*other)[0].ended);
  const Answer failed = fetch(*job)[0];
  ASSERT_TRUE(failed.failure);
  EXPECT_EQ(failed.failure->code(), Code::kInvalid);
  EXPECT_NE(failed.failure->message().find("too many ways"), std::string::npos);
}

TEST(Scheduler, MixedAnswersAreThoseOfAnswersAlone) {
  // Modes, seeds, temperatures and lengths mixed in one batch, more requests than slots: every text is what it is alone. (Match
  // judge: the text does not depend on the bank, which is shared here.)
  Rig rig(slots(4));
  std::vector<GenerationConfig> configs;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 24; ++i) {
    GenerationConfig config = sampled("prompt " + std::to_string(i % 5) + std::string(static_cast<std::size_t>(i), 'x'),
                                      static_cast<std::uint64_t>(i), 5 + i);
    if (i % 4 == 3) config.sampler = spec::greedy_sampler();
    config.name = static_cast<std::uint64_t>(i % 3);
    config.mode = decode::kModeNames[static_cast<std::size_t>(i) % decode::kModeNames.size()].mode;
    if (decode::learns(config.mode)) config.mode = decode::Mode::kStatic;  // not served
    config.draft_tokens = 1 + i % 5;
    config.bank = rig.banks.get(BankId{}, config.mode).value();
    configs.push_back(config);
    jobs.push_back(rig.submit(config));
    if (i % 2 == 0) rig.scheduler.tick();  // they arrive while others are at work
  }
  rig.run_all();
  std::uint64_t accepted = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Answer answer = fetch(*jobs[i])[0];
    ASSERT_TRUE(answer.ended) << i;
    EXPECT_EQ(answer.text, alone(configs[i])) << i;
    if (configs[i].mode == Mode::kOff) {
      EXPECT_EQ(answer.ended->metrics.drafted, 0u);
    }
    accepted += answer.ended->metrics.accepted;
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(rig.banks.get(BankId{}).value()->recal()->bank().size(), 0u);
}

TEST(Scheduler, AnswersAreRememberedWhenTheirSlotIsUsedAgain) {
  Rig rig(slots(1));
  GenerationConfig config = ask("hello", 40);
  config.mode = Mode::kSuffix;
  config.bank = rig.banks.get({kDefaultTenant, "memory"}, config.mode).value();
  std::uint64_t accepted = 0;
  for (int round = 0; round < 3; ++round) {
    config.prompt[0] = static_cast<Token>(round);  // nothing of the slot's text is reused
    const auto job = rig.submit(config);
    rig.run_all();
    const Answer answer = fetch(*job)[0];
    ASSERT_TRUE(answer.ended);
    EXPECT_EQ(answer.text, alone(config));
    accepted = answer.ended->metrics.accepted;
  }
  EXPECT_GT(accepted, 20u) << "the same answer was given before";
  EXPECT_GT(config.bank->suffix()->tokens(), 40u);
}

TEST(Scheduler, SeveralChoicesOfOneJobDifferByTheirName) {
  Rig rig(slots(2));
  std::vector<GenerationConfig> configs(3, sampled("abc", 5));
  for (std::size_t i = 0; i < configs.size(); ++i) configs[i].name = i;
  const auto job = rig.submit(configs);
  rig.run_all();
  const std::vector<Answer> answers = fetch(*job);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(answers[i].text, alone(configs[i]));
  EXPECT_NE(answers[0].text, answers[1].text);
}

TEST(Scheduler, OneVerifyStepIsOneDelta) {
  Rig rig(slots(1));
  GenerationConfig config = ask("hello", 40);
  config.mode = Mode::kStatic;
  const auto job = rig.submit(config);
  rig.run_all();
  const Answer answer = fetch(*job)[0];
  ASSERT_TRUE(answer.ended);
  EXPECT_GT(answer.ended->metrics.accepted, 0u);
  EXPECT_LT(answer.ended->metrics.steps, answer.ended->metrics.tokens);
  EXPECT_EQ(answer.pieces.size(), answer.ended->metrics.steps);
}

TEST(Scheduler, AStopStringEndsTheAnswer) {
  Rig rig(slots(1));
  GenerationConfig config = ask("hello", 200);
  config.mode = Mode::kStatic;
  const std::string whole = alone(config);
  ASSERT_GT(whole.size(), 20u);
  config.stops = {whole.substr(10, 3)};
  const auto job = rig.submit(config);
  rig.run_all();
  const Answer answer = fetch(*job)[0];
  ASSERT_TRUE(answer.ended);
  EXPECT_EQ(answer.ended->finish, Finish::kStop);
  EXPECT_EQ(answer.ended->stop_string, config.stops[0]);
  EXPECT_EQ(answer.text, whole.substr(0, whole.find(config.stops[0])));
  EXPECT_LT(answer.ended->metrics.tokens, 30u) << "decoding went on behind the stop string";
  // What a block decided behind the stop string is no part of the answer: plain decoding counts as many.
  config.mode = Mode::kOff;
  const auto plain = rig.submit(config);
  rig.run_all();
  EXPECT_EQ(answer.ended->tokens, fetch(*plain)[0].ended->tokens);
}

TEST(Scheduler, TheContextEndsTheAnswer) {
  Rig rig(slots(1), /*context=*/32);
  const auto job = rig.submit(ask("hello", -1));
  rig.run_all();
  const Answer answer = fetch(*job)[0];
  ASSERT_TRUE(answer.ended);
  EXPECT_EQ(answer.ended->finish, Finish::kContext);
  EXPECT_EQ(answer.ended->tokens, 32u - 5u);
}

TEST(Scheduler, APromptThatDoesNotFitFailsAlone) {
  Rig rig(slots(2), /*context=*/32);
  const auto bad = rig.submit(ask(std::string(40, 'x'), 4)), good = rig.submit(ask("fine", 4));
  rig.run_all();
  const Answer refused = fetch(*bad)[0];
  ASSERT_TRUE(refused.failure);
  EXPECT_EQ(refused.failure->code(), Code::kLimit);
  EXPECT_TRUE(fetch(*good)[0].ended);
  EXPECT_EQ(rig.busy(), 0u);
}

// ---- batching ----

TEST(Scheduler, EightClientsShareOneTargetPassPerStep) {
  Rig rig(slots(8));
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 8; ++i) {
    GenerationConfig config = sampled("client " + std::to_string(i), static_cast<std::uint64_t>(i), 64);
    config.mode = i % 2 == 0 ? Mode::kStatic : Mode::kOff;
    jobs.push_back(rig.submit(config));
  }
  while (rig.busy() < 8 || rig.scheduler.state().slots[7].phase != Phase::kDecode) rig.scheduler.tick();
  for (int step = 0; step < 8; ++step) {
    if (rig.busy() < 8) break;
    const auto target = rig.target.counters().forwards, draft = rig.draft.counters().forwards;
    rig.scheduler.tick();
    EXPECT_EQ(rig.target.counters().forwards - target, 1u);
    EXPECT_EQ(rig.draft.counters().forwards - draft, 3u);  // one per depth, for all that draft
  }
  rig.run_all();
}

TEST(Scheduler, ALongPromptIsFedInChunksBetweenSteps) {
  SchedulerConfig config = slots(2);
  config.chunk_shared = 10;
  config.chunk_alone = 50;
  Rig rig(config);
  const auto talker = rig.submit(ask("hello", 200));
  rig.scheduler.tick();
  ASSERT_EQ(rig.scheduler.state().slots[0].phase, Phase::kDecode);
  const auto reader = rig.submit(ask(std::string(101, 'x'), 4));
  std::size_t largest = 0;
  rig.target.before = [&](std::span<const engine::Node> nodes) { largest = std::max(largest, nodes.size()); };
  for (int tick = 1; tick <= 9; ++tick) {
    const std::size_t decoded = rig.scheduler.state().slots[0].decoded;
    rig.scheduler.tick();
    const SchedulerState state = rig.scheduler.state();
    EXPECT_EQ(state.slots[1].phase, Phase::kPrefill);
    EXPECT_EQ(state.slots[1].prefilled, static_cast<std::size_t>(10 * tick));
    EXPECT_EQ(state.slots[0].decoded, decoded + 1) << "the other answer stood still";
  }
  EXPECT_EQ(largest, 10u);
  rig.run_all();
  EXPECT_TRUE(fetch(*talker)[0].ended);
  EXPECT_EQ(fetch(*reader)[0].text, alone(ask(std::string(101, 'x'), 4)));
  // Alone, the chunks are larger.
  largest = 0;
  const auto second = rig.submit(ask(std::string(201, 'y'), 4));
  rig.run_all();
  EXPECT_EQ(largest, 50u);
}

TEST(Scheduler, WaitingAnswersTakeTheFirstSlotThatIsFree) {
  Rig rig(slots(2));
  const auto one = rig.submit(ask("one", 3)), two = rig.submit(ask("two", 40)), three = rig.submit(ask("three", 3));
  rig.scheduler.tick();
  EXPECT_EQ(rig.scheduler.state().waiting, 1u);
  while (!fetch(*one)[0].ended) rig.scheduler.tick();
  rig.scheduler.tick();
  EXPECT_EQ(rig.scheduler.state().waiting, 0u);
  EXPECT_EQ(rig.busy(), 2u);
  rig.run_all();
  const Answer last = fetch(*three)[0];
  ASSERT_TRUE(last.ended);
  EXPECT_GT(last.ended->queue_ms, 0.0);
}

// ---- going on with a slot's text ----

TEST(Scheduler, APromptThatBeginsLikeTheSlotsTextIsPrefilledFromThere) {
  Rig rig(slots(1));
  const auto first = rig.submit(ask("a long beginning", 8));
  rig.run_all();
  const std::string answer = fetch(*first)[0].text;
  GenerationConfig next = ask("a long beginning" + answer + " and more", 8);
  const auto fed = rig.target.counters().tokens;
  const auto second = rig.submit(next);
  rig.run_all();
  const Answer got = fetch(*second)[0];
  ASSERT_TRUE(got.ended);
  EXPECT_EQ(got.ended->cached_tokens, 16u + 8u - 1u);  // the last token of a text is not in KV memory yet
  EXPECT_EQ(got.text, alone(next));
  EXPECT_LT(rig.target.counters().tokens - fed, 9u + 8u + 4u);
}

TEST(Scheduler, ARepeatedPromptKeepsItsLastTokenForTheFirstStep) {
  Rig rig(slots(1));
  for (int round = 0; round < 2; ++round) {
    const auto job = rig.submit(ask("again", 4));
    rig.run_all();
    const Answer got = fetch(*job)[0];
    ASSERT_TRUE(got.ended);
    EXPECT_EQ(got.ended->cached_tokens, round == 0 ? 0u : 4u);
    EXPECT_EQ(got.text, alone(ask("again", 4)));
  }
}

TEST(Scheduler, TheSlotThatHoldsMostOfThePromptIsChosen) {
  Rig rig(slots(3));
  const auto a = rig.submit(ask("alpha alpha", 2)), b = rig.submit(ask("beta beta", 2));
  rig.run_all();
  const auto next = rig.submit(ask("beta bets", 2));
  rig.run_all();
  const Answer got = fetch(*next)[0];
  ASSERT_TRUE(got.ended);
  EXPECT_EQ(got.ended->cached_tokens, 8u);
  EXPECT_EQ(got.ended->slot, fetch(*b)[0].ended->slot);
  // A text like none goes to the slot that holds nothing.
  const auto other = rig.submit(ask("gamma", 2));
  rig.run_all();
  EXPECT_EQ(fetch(*other)[0].ended->slot, 2);
}

TEST(Scheduler, AnotherTenantsTextIsNeverGoneOnWith) {
  Rig rig(slots(1));
  GenerationConfig config = ask("the same prompt", 4);
  config.tenant = "a";
  rig.submit(config);
  rig.run_all();
  config.tenant = "b";
  const auto other = rig.submit(config);
  rig.run_all();
  EXPECT_EQ(fetch(*other)[0].ended->cached_tokens, 0u);
  config.reuse_prefix = false;
  const auto own = rig.submit(config);
  rig.run_all();
  EXPECT_EQ(fetch(*own)[0].ended->cached_tokens, 0u);
  EXPECT_EQ(rig.toy_target_engine.length(0) >= 0, true);
}

TEST(Scheduler, AnAnswerCancelledInItsPromptLeavesWhatWasFed) {
  SchedulerConfig config = slots(1);
  config.chunk_alone = 8;
  Rig rig(config);
  const auto job = rig.submit(ask(std::string(50, 'x'), 4));
  rig.scheduler.tick();
  rig.scheduler.tick();
  job->cancel();
  rig.scheduler.tick();
  ASSERT_EQ(rig.busy(), 0u);
  const auto again = rig.submit(ask(std::string(50, 'x'), 4));
  rig.run_all();
  EXPECT_EQ(fetch(*again)[0].ended->cached_tokens, 16u);
  EXPECT_EQ(fetch(*again).size(), 1u);
}

// ---- cancelling, in the four states ----

TEST(SchedulerCancel, WhileQueued) {
  Rig rig(slots(1));
  const auto active = rig.submit(ask("active", 20)), queued = rig.submit(ask("queued", 20)), last = rig.submit(ask("last", 20));
  rig.scheduler.tick();
  queued->cancel();
  rig.scheduler.tick();
  EXPECT_EQ(rig.scheduler.state().waiting, 1u);
  EXPECT_EQ(rig.busy(), 1u) << "the answer in work must go on";
  rig.run_all();
  EXPECT_EQ(fetch(*active)[0].text, alone(ask("active", 20)));
  EXPECT_EQ(fetch(*last)[0].text, alone(ask("last", 20)));
  const Answer gone = fetch(*queued)[0];
  EXPECT_TRUE(gone.text.empty());
  ASSERT_TRUE(gone.failure);
  EXPECT_EQ(gone.failure->code(), Code::kCancelled);
}

TEST(SchedulerCancel, WhileItsPromptIsFed) {
  SchedulerConfig config = slots(2);
  config.chunk_shared = config.chunk_alone = 4;
  Rig rig(config);
  const auto active = rig.submit(ask("ok", 60)), reading = rig.submit(ask(std::string(50, 'x'), 4));
  for (int i = 0; i < 4; ++i) rig.scheduler.tick();
  ASSERT_EQ(rig.scheduler.state().slots[1].phase, Phase::kPrefill);
  reading->cancel();
  rig.scheduler.tick();
  EXPECT_EQ(rig.scheduler.state().slots[1].phase, Phase::kIdle);
  rig.run_all();
  EXPECT_EQ(fetch(*active)[0].text, alone(ask("ok", 60)));
  EXPECT_TRUE(fetch(*reading)[0].failure);
}

// Cancels during a pass of the draft or the target: the step ends, the other answer keeps what it decided, the slot is free next.
void cancel_in(bool in_draft) {
  Rig rig(slots(2));
  GenerationConfig stays = ask("stays here", 40), goes = ask("goes away", 400);
  stays.mode = goes.mode = Mode::kStatic;
  const auto kept = rig.submit(stays), gone = rig.submit(goes);
  for (int i = 0; i < 4; ++i) rig.scheduler.tick();
  ASSERT_EQ(rig.scheduler.state().slots[1].phase, Phase::kDecode);
  bool cancelled = false;
  (in_draft ? rig.draft : rig.target).before = [&](std::span<const engine::Node>) {
    gone->cancel();
    cancelled = true;
  };
  rig.scheduler.tick();
  ASSERT_TRUE(cancelled);
  rig.draft.before = rig.target.before = nullptr;
  rig.scheduler.tick();
  EXPECT_EQ(rig.scheduler.state().slots[1].phase, Phase::kIdle);
  rig.run_all();
  EXPECT_EQ(fetch(*kept)[0].text, alone(stays));
  const Answer answer = fetch(*gone)[0];
  EXPECT_FALSE(answer.ended);
  EXPECT_TRUE(answer.failure);
}

TEST(SchedulerFinish, EndsOneAnswerAndLeavesTheOthers) {
  Rig rig(slots(2));
  GenerationConfig asked = ask("enough", 60);
  asked.mode = Mode::kStatic;
  const auto job = std::make_shared<Job>(std::vector<GenerationConfig>{asked, asked});
  ASSERT_TRUE(rig.scheduler.submit(job).is_ok());
  for (int i = 0; i < 6; ++i) rig.scheduler.tick();
  ASSERT_EQ(rig.scheduler.state().slots[0].phase, Phase::kDecode);
  job->finish(0);
  rig.scheduler.tick();
  EXPECT_EQ(rig.scheduler.state().slots[0].phase, Phase::kIdle);
  rig.run_all();
  const std::vector<Answer> answers = fetch(*job);
  ASSERT_TRUE(answers[0].ended && answers[1].ended);
  const std::string full = alone(asked);
  EXPECT_EQ(answers[0].ended->finish, Finish::kStop);
  EXPECT_FALSE(answers[0].text.empty());
  EXPECT_LT(answers[0].text.size(), full.size());
  EXPECT_EQ(full.rfind(answers[0].text, 0), 0u) << answers[0].text;
  EXPECT_EQ(answers[1].text, full);
}

TEST(SchedulerCancel, WhileItDrafts) { cancel_in(true); }
TEST(SchedulerCancel, WhileItIsVerified) { cancel_in(false); }

TEST(SchedulerCancel, EveryChoiceOfAJobGoesWithIt) {
  Rig rig(slots(2));
  const auto job = rig.submit(std::vector<GenerationConfig>(5, ask("many", 50)));
  for (int i = 0; i < 3; ++i) rig.scheduler.tick();
  job->cancel();
  rig.scheduler.tick();
  EXPECT_EQ(rig.busy(), 0u);
  EXPECT_EQ(rig.scheduler.state().waiting, 0u);
}

TEST(SchedulerCancel, AReaderTooSlowIsDroppedAndOthersGoOn) {
  Rig rig(slots(2));
  auto slow = std::make_shared<Job>(std::vector<GenerationConfig>{ask("slow", 2'000)}, /*unread_bytes_max=*/2'000);
  ASSERT_TRUE(rig.scheduler.submit(slow).is_ok());
  const auto quick = rig.submit(ask("quick", 100));
  for (int i = 0; i < 60; ++i) rig.scheduler.tick();
  EXPECT_TRUE(slow->cancelled());
  rig.run_all();
  EXPECT_EQ(fetch(*quick)[0].text, alone(ask("quick", 100)));
  const Answer answer = fetch(*slow)[0];
  EXPECT_FALSE(answer.text.empty()) << "what was decided before is still there to read";
  ASSERT_TRUE(answer.failure);
  EXPECT_NE(answer.failure->message().find("too slow"), std::string::npos);
}

// ---- limits ----

TEST(SchedulerLimits, AFullQueueRefusesAndSaysTheNumbers) {
  SchedulerConfig config = slots(1);
  config.queue_max = 3;
  config.queue_per_tenant_max = 2;
  Rig rig(config);
  const auto try_submit = [&](const std::string& tenant, std::size_t choices) {
    GenerationConfig one = ask("x", 4);
    one.tenant = tenant;
    return rig.scheduler.submit(std::make_shared<Job>(std::vector<GenerationConfig>(choices, one)));
  };
  EXPECT_EQ(try_submit("a", 4).code(), Code::kLimit);
  EXPECT_TRUE(try_submit("a", 2).is_ok());
  const Status share = try_submit("a", 1);
  EXPECT_EQ(share.code(), Code::kLimit);
  EXPECT_NE(share.message().find("at most 2"), std::string::npos) << share.message();
  EXPECT_TRUE(try_submit("b", 1).is_ok());
  const Status full = try_submit("c", 1);
  EXPECT_EQ(full.code(), Code::kLimit);
  EXPECT_NE(full.message().find("at most 3"), std::string::npos) << full.message();
  rig.run_all();
  EXPECT_TRUE(try_submit("c", 1).is_ok());
  rig.run_all();
}

TEST(SchedulerLimits, AFloodOfOneTenantDelaysAnotherByOneAnswer) {
  Rig rig(slots(1));
  GenerationConfig flood = ask("flood", 4), small = ask("small", 4);
  flood.tenant = "flood";
  small.tenant = "small";
  const auto many = rig.submit(std::vector<GenerationConfig>(20, flood));
  rig.scheduler.tick();
  const auto one = rig.submit(small);
  std::size_t flood_ended = 0;
  for (int i = 0; i < 1'000; ++i) {
    rig.scheduler.tick();
    for (const Answer& answer : fetch(*many)) flood_ended += answer.ended ? 1 : 0;
    if (fetch(*one)[0].ended) break;
  }
  EXPECT_LE(flood_ended, 2u);
  rig.run_all();
}

TEST(SchedulerLimits, SlotsAreSharedBetweenTenantsThatWait) {
  Rig rig(slots(4));
  GenerationConfig greedy = ask("greedy", 30), late = ask("late", 30);
  greedy.tenant = "greedy";
  late.tenant = "late";
  rig.submit(std::vector<GenerationConfig>(20, greedy));
  rig.scheduler.tick();
  EXPECT_EQ(rig.busy(), 4u) << "slots nobody else wants are lent";
  rig.submit(std::vector<GenerationConfig>(20, late));
  std::size_t most_late = 0;
  for (int i = 0; i < 60; ++i) {
    rig.scheduler.tick();
    std::size_t of_late = 0, of_greedy = 0;
    for (const SlotState& slot : rig.scheduler.state().slots) {
      if (slot.phase == Phase::kIdle) continue;  // an answer ended in this turn; the next one begins in the next
      ++(slot.tenant == "late" ? of_late : of_greedy);
    }
    most_late = std::max(most_late, of_late);
    if (i > 45) {
      EXPECT_LE(of_greedy, 2u) << "what was lent has come back";
    }
  }
  EXPECT_EQ(most_late, 2u);
  rig.run_all();
}

// ---- tasks between steps ----

TEST(SchedulerTasks, RunOnTheDecodeThreadAndAreWaitedFor) {
  Rig rig(slots(1));
  std::thread decoding([&] { EXPECT_TRUE(rig.scheduler.run().is_ok()); });
  std::thread::id where;
  EXPECT_EQ(rig.scheduler
                .between_steps([&] {
                  where = std::this_thread::get_id();
                  return Status(Code::kForeign, "as the task said");
                })
                .message(),
            "as the task said");
  EXPECT_EQ(where, decoding.get_id());
  EXPECT_EQ(rig.scheduler.between_steps([]() -> Status { throw std::bad_alloc(); }).code(), Code::kInternal);
  EXPECT_TRUE(rig.scheduler.between_steps([] { return Status::ok(); }).is_ok()) << "decoding goes on";
  rig.scheduler.drain();
  decoding.join();
  EXPECT_EQ(rig.scheduler.between_steps([] { return Status::ok(); }).code(), Code::kBusy);
}

TEST(SchedulerTasks, ATenantsTextsAreForgotten) {
  Rig rig(slots(2));
  GenerationConfig config = ask("something private", 8);
  config.tenant = "a";
  config.mode = Mode::kSuffix;
  config.bank = rig.banks.get({"a", kDefaultBank}, config.mode).value();
  rig.submit(config);
  rig.scheduler.tick();
  EXPECT_EQ(rig.scheduler.forget("a").code(), Code::kBusy);
  rig.run_all();
  config.bank.reset();
  EXPECT_EQ(rig.banks.remove({"a", kDefaultBank}).code(), Code::kBusy) << "the slot still has text to remember there";
  EXPECT_TRUE(rig.scheduler.forget("a").is_ok());
  EXPECT_TRUE(rig.banks.remove({"a", kDefaultBank}).is_ok());
  EXPECT_EQ(rig.toy_target_engine.length(0), -1);
  config.mode = Mode::kOff;
  const auto again = rig.submit(config);
  rig.run_all();
  EXPECT_EQ(fetch(*again)[0].ended->cached_tokens, 0u);
}

TEST(SchedulerTasks, IdleSlotsLetBanksGoAndTheTextIsRemembered) {
  Rig rig(slots(2));
  GenerationConfig config = ask("something long enough to remember", 40);
  config.mode = Mode::kSuffix;
  config.bank = rig.banks.get(BankId{}, config.mode).value();
  const auto bank = config.bank;
  rig.submit(config);
  rig.run_all();
  config.bank.reset();
  EXPECT_EQ(bank->suffix()->tokens(), 0u);
  rig.scheduler.let_banks_go();
  EXPECT_GT(bank->suffix()->tokens(), 40u);
}

// Isolation: what tenant A is proposed, learns and gets is bit for bit what it is alone, whatever B does in the same batch.
TEST(SchedulerTenants, AMixedWithBIsAAlone) {
  struct Seen final : Observer {
    void stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners) override {
      for (std::size_t i = 0; i < events.size(); ++i) {
        if (*owners[i].tenant != "a") continue;
        for (const trace::ProposedToken& p : events[i].proposed)
          proposed.push_back({p.token, p.accepted, p.from_bank, p.gain, p.similarity});
      }
    }
    std::vector<std::tuple<Token, bool, bool, float, float>> proposed;
  };
  const auto run = [](bool with_b) {
    Seen seen;
    Rig rig(slots(4), 4'096, &seen);
    std::vector<std::string> texts;
    for (int i = 0; i < 6; ++i) {
      // One answer of A at a time, so that its bank learns in one order; B floods the other slots with texts that begin alike.
      GenerationConfig a = sampled("tenant a asks " + std::to_string(i % 2), static_cast<std::uint64_t>(i), 60);
      a.tenant = "a";
      a.mode = Mode::kDrift;
      a.bank = rig.banks.get({"a", kDefaultBank}).value();
      if (with_b) {
        GenerationConfig b = sampled("tenant a asks " + std::to_string(i % 2), static_cast<std::uint64_t>(100 + i), 200);
        b.tenant = "b";
        b.mode = i % 2 == 0 ? Mode::kDrift : Mode::kDriftSuffix;
        b.bank = rig.banks.get({"b", kDefaultBank}, b.mode).value();
        rig.submit(std::vector<GenerationConfig>(3, b));
      }
      const auto job = rig.submit(a);
      Answer answer;
      while (!answer.ended) {
        rig.scheduler.tick();
        const Answer more = fetch(*job)[0];
        answer.text += more.text;
        answer.ended = more.ended;
      }
      texts.push_back(answer.text);
    }
    const bank::StoredBank bank = rig.banks.get({"a", kDefaultBank}).value()->recal()->save({});
    return std::tuple(texts, seen.proposed, bank.image.keys, bank.image.values, bank.image.last_used, bank.extras);
  };
  const auto alone_a = run(false), mixed = run(true);
  EXPECT_EQ(std::get<0>(alone_a), std::get<0>(mixed));
  EXPECT_EQ(std::get<1>(alone_a), std::get<1>(mixed));
  EXPECT_TRUE(alone_a == mixed) << "the bank differs";
  EXPECT_GT(std::get<1>(alone_a).size(), 200u);
  EXPECT_GT(std::get<2>(alone_a).size(), 0u);
}

// What B taught is never proposed to A: with A's own bank its proposals are those of a server on which B never was. With B's bank
// they are not, so this can be seen.
TEST(SchedulerTenants, WhatOneTaughtIsNotProposedToAnother) {
  struct Seen final : Observer {
    void stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners) override {
      for (std::size_t i = 0; i < events.size(); ++i) {
        if (*owners[i].tenant != "a") continue;
        for (const trace::ProposedToken& p : events[i].proposed) {
          proposed.push_back(p.token);
          from_bank += p.from_bank ? 1 : 0;
        }
      }
    }
    std::vector<Token> proposed;
    int from_bank = 0;
  };
  const auto run = [](Mode mode, bool b_teaches, const BankId& bank_of_a, bool frozen) {
    Seen seen;
    Rig rig(slots(2), 4'096, &seen);
    GenerationConfig config = sampled("a canary of b", 0, 200);
    config.mode = mode;
    for (std::uint64_t i = 0; i < 6 && b_teaches; ++i) {
      config.seed = i;
      config.tenant = "b";
      config.bank = rig.banks.get({"b", kDefaultBank}, mode).value();
      rig.submit(config);
      rig.run_all();
    }
    config.tenant = "a";
    config.bank = rig.banks.get(bank_of_a, mode).value();
    if (frozen) {
      EXPECT_TRUE(rig.banks.freeze(bank_of_a, true).is_ok());
    }
    for (std::uint64_t i = 0; i < 3; ++i) {
      config.seed = i;
      rig.submit(config);
      rig.run_all();
    }
    return std::pair(seen.proposed, seen.from_bank);
  };
  const BankId own{"a", kDefaultBank}, others{"b", kDefaultBank};
  for (const Mode mode : {Mode::kDrift, Mode::kSuffix, Mode::kDriftSuffix}) {
    const auto alone_a = run(mode, false, own, false);
    EXPECT_EQ(run(mode, true, own, false), alone_a) << decode::mode_name(mode);
    EXPECT_NE(run(mode, true, others, false).first, alone_a.first) << decode::mode_name(mode);
  }
  EXPECT_EQ(run(Mode::kDrift, true, own, true).second, 0) << "an empty bank that learns nothing proposes nothing";
  EXPECT_GT(run(Mode::kDrift, true, others, true).second, 0);
}

TEST(SchedulerTenants, ATextIsGoneOnWithByItsOwnTenantAndSaltOnly) {
  Rig rig(slots(1));
  const auto cached = [&](const std::string& tenant, const std::string& salt) {
    GenerationConfig config = ask("the same prompt", 4);
    config.tenant = tenant;
    config.salt = salt;
    const auto job = rig.submit(config);
    rig.run_all();
    return fetch(*job)[0].ended->cached_tokens;
  };
  EXPECT_EQ(cached("a", ""), 0u);
  EXPECT_GT(cached("a", ""), 0u);
  EXPECT_EQ(cached("a", "1"), 0u);
  EXPECT_GT(cached("a", "1"), 0u);
  EXPECT_EQ(cached("a", "2"), 0u);
  EXPECT_EQ(cached("b", "2"), 0u);
  EXPECT_EQ(cached("b", ""), 0u);
}

// ---- banks that are shared ----

// A server on which tenants speak one after the other, and all that A was proposed.
struct Sharing {
  struct Seen final : Observer {
    void stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners) override {
      for (std::size_t i = 0; i < events.size(); ++i) {
        if (*owners[i].tenant != "a") continue;
        for (const trace::ProposedToken& p : events[i].proposed) {
          proposed.emplace_back(p.token, p.accepted, p.gain, p.q);
          from_bank += p.from_bank ? 1 : 0;
        }
      }
    }
    std::vector<std::tuple<Token, bool, float, float>> proposed;
    int from_bank = 0;
  } seen;
  Rig rig{slots(2), 4'096, &seen};

  std::string speak(const std::string& tenant, int answers, const std::string& name = kDefaultBank) {
    std::string texts;
    for (int i = 0; i < answers; ++i) {
      GenerationConfig config = sampled("what all of them talk about", static_cast<std::uint64_t>(i), 150);
      config.mode = Mode::kDrift;
      config.tenant = tenant;
      config.bank = rig.banks.get({tenant, name}).value();
      const auto job = rig.submit(config);
      rig.run_all();
      texts += fetch(*job)[0].text;
    }
    return texts;
  }
  bank::StoredBank bank(const std::string& tenant) { return rig.banks.get({tenant, kDefaultBank}).value()->recal()->save({}); }
  const recal::GainTable* gains_with(const std::string& tenant) {
    return rig.banks.get({"a", kDefaultBank}).value()->recal()->gains_with(BankId{tenant, kDefaultBank}.text());
  }
};

bool same(const bank::StoredBank& a, const bank::StoredBank& b) {
  return a.image.size == b.image.size && a.image.keys == b.image.keys && a.image.values == b.image.values &&
         a.image.tokens == b.image.tokens && a.image.counts == b.image.counts && a.image.last_used == b.image.last_used &&
         a.extras == b.extras;
}

TEST(SchedulerShared, IsLookedUpByOthersWhereItsTenantSaysSoAndOnlyRead) {
  Sharing alone, unasked, shared;
  const std::string text = alone.speak("a", 3);
  unasked.speak("b", 6);
  EXPECT_EQ(unasked.speak("a", 3), text);
  EXPECT_EQ(unasked.seen.proposed, alone.seen.proposed) << "nobody shares unasked";
  shared.rig.banks.share({"b"});
  shared.speak("b", 6);
  EXPECT_TRUE(same(shared.bank("b"), unasked.bank("b"))) << "who shares gets nothing by it";
  EXPECT_EQ(shared.speak("a", 3), text) << "the target's text, whatever is looked up";
  EXPECT_NE(shared.seen.proposed, alone.seen.proposed);
  EXPECT_GT(shared.seen.from_bank, alone.seen.from_bank);
  EXPECT_NE(shared.gains_with("b"), nullptr);
  EXPECT_TRUE(same(shared.bank("b"), unasked.bank("b"))) << "not taught, not touched, not evicted";
}

// A tenant that was deleted is as one that never was: for the banks that others share, what a tenant looks up in them and earns with them.
TEST(SchedulerShared, ADeletedTenantIsAsOneThatNeverWas) {
  Sharing without, with;
  for (Sharing* world : {&without, &with}) {
    world->rig.banks.share({"b", "c"});
    world->speak("c", 4);
  }
  with.speak("b", 6);
  with.speak("x", 1);  // somebody looks up both
  ASSERT_TRUE(with.rig.scheduler.forget("b").is_ok());
  for (const BankId& id : with.rig.banks.of_tenant("b")) ASSERT_TRUE(with.rig.banks.remove(id).is_ok());
  EXPECT_TRUE(same(with.bank("c"), without.bank("c")));
  EXPECT_EQ(with.speak("a", 3), without.speak("a", 3));
  EXPECT_EQ(with.seen.proposed, without.seen.proposed);
  EXPECT_GT(with.seen.from_bank, 0);
  EXPECT_TRUE(same(with.bank("a"), without.bank("a")));
  EXPECT_EQ(with.gains_with("c")->save(), without.gains_with("c")->save());
}

TEST(SchedulerShared, WhatWasEarnedWithABankGoesWithIt) {
  Sharing world;
  const auto meet = [&] {
    world.rig.banks.share({"b"});
    world.speak("b", 2);
    world.speak("a", 1);
    EXPECT_NE(world.gains_with("b"), nullptr);
  };
  const BankId of_b{"b", kDefaultBank};
  meet();
  EXPECT_TRUE(world.rig.banks.reset(of_b).is_ok());
  EXPECT_EQ(world.gains_with("b"), nullptr) << "reset";
  meet();
  ASSERT_TRUE(world.rig.scheduler.forget("b").is_ok());
  EXPECT_TRUE(world.rig.banks.remove(of_b).is_ok());
  EXPECT_EQ(world.gains_with("b"), nullptr) << "deleted";
  meet();
  world.rig.banks.share({});
  world.speak("a", 1);
  EXPECT_EQ(world.gains_with("b"), nullptr) << "shares no more";
  EXPECT_FALSE(world.rig.banks.states()[1].shared);
}

TEST(SchedulerShared, ASaltNeitherLendsNorBorrows) {
  const std::string salted = std::string(kDefaultBank) + kSaltMark + std::string(kSaltDigits, '0');
  Sharing alone, borrows, lends, plain;
  alone.speak("a", 2, salted);
  borrows.rig.banks.share({"b"});
  borrows.speak("b", 4);
  borrows.speak("a", 2, salted);
  EXPECT_EQ(borrows.seen.proposed, alone.seen.proposed);
  plain.speak("a", 2);
  lends.rig.banks.share({"b"});
  lends.speak("b", 4, salted);
  lends.speak("a", 2);
  EXPECT_EQ(lends.seen.proposed, plain.seen.proposed);
}

// ---- failures ----

TEST(SchedulerFailure, AFailedStepFailsItsBatchAndTheServerGoesOn) {
  Rig rig(slots(2));
  const auto one = rig.submit(ask("one", 50)), two = rig.submit(ask("two", 50)), waits = rig.submit(ask("three", 10));
  for (int i = 0; i < 5; ++i) rig.scheduler.tick();
  bool failed = false;
  rig.target.fault = [&] {
    if (failed) return Status::ok();
    failed = true;
    return Status(Code::kInternal, "the backend broke");
  };
  rig.run_all();
  ASSERT_TRUE(failed);
  for (const auto& job : {one, two}) {
    const Answer answer = fetch(*job)[0];
    ASSERT_TRUE(answer.failure);
    EXPECT_EQ(answer.failure->message(), "the backend broke");
  }
  EXPECT_EQ(fetch(*waits)[0].text, alone(ask("three", 10)));
  const auto later = rig.submit(ask("one", 50));
  rig.run_all();
  EXPECT_EQ(fetch(*later)[0].text, alone(ask("one", 50)));
}

TEST(SchedulerFailure, AnyCallMayFailAndEverySlotComesBack) {
  // The k-th forward fails, for k = 1, 2, ... until none does: each time every job has an end and the next request is served.
  for (int at = 1; at < 200; ++at) {
    Rig rig(slots(2));
    int calls = 0;
    bool failed = false;
    const auto fault = [&] {
      if (++calls != at) return Status::ok();
      failed = true;
      return Status(Code::kInternal, "injected");
    };
    rig.target.fault = rig.draft.fault = fault;
    GenerationConfig config = ask("some prompt", 12);
    config.mode = Mode::kDrift;
    config.bank = rig.banks.get(BankId{}).value();
    const auto one = rig.submit(config), two = rig.submit(ask("plain", 6));
    rig.run_all();
    for (const auto& job : {one, two}) {
      const Answer answer = fetch(*job)[0];
      EXPECT_TRUE(answer.ended.has_value() != answer.failure.has_value()) << at;
    }
    EXPECT_EQ(rig.busy(), 0u);
    rig.target.fault = rig.draft.fault = nullptr;
    const auto after = rig.submit(config);
    rig.run_all();
    EXPECT_EQ(fetch(*after)[0].text, alone(config)) << at;
    if (!failed) return;
  }
  ADD_FAILURE() << "a fault was still injected at the 200th call";
}

// ---- the end ----

TEST(SchedulerEnd, DrainingFinishesWhatIsThereAndTakesNothingNew) {
  Rig rig(slots(1));
  const auto active = rig.submit(ask("active", 20)), queued = rig.submit(ask("queued", 20));
  rig.scheduler.tick();
  rig.scheduler.drain();
  const Status refused = rig.scheduler.submit(std::make_shared<Job>(std::vector<GenerationConfig>{ask("late", 2)}));
  EXPECT_EQ(refused.code(), Code::kBusy);
  EXPECT_TRUE(rig.scheduler.state().draining);
  EXPECT_TRUE(rig.scheduler.run().is_ok());
  EXPECT_EQ(fetch(*active)[0].text, alone(ask("active", 20)));
  EXPECT_EQ(fetch(*queued)[0].text, alone(ask("queued", 20)));
}

TEST(SchedulerEnd, StoppingFailsWhatIsLeft) {
  Rig rig(slots(1));
  const auto active = rig.submit(ask("active", 2'000)), queued = rig.submit(ask("queued", 20));
  for (int i = 0; i < 5; ++i) rig.scheduler.tick();
  rig.scheduler.stop();
  EXPECT_TRUE(rig.scheduler.run().is_ok());
  for (const auto& job : {active, queued}) {
    const Answer answer = fetch(*job)[0];
    ASSERT_TRUE(answer.failure);
    EXPECT_EQ(answer.failure->code(), Code::kCancelled);
  }
  EXPECT_EQ(rig.busy(), 0u);
}

TEST(SchedulerEnd, WhatBreaksDecodingItselfIsToldToEverybody) {
  // An exception, such as memory that is not there: nobody waits for ever, nothing new is taken, and the caller learns of it.
  Rig rig(slots(1));
  const auto active = rig.submit(ask("active", 20)), queued = rig.submit(ask("queued", 20));
  int passes = 0;
  rig.target.before = [&](std::span<const engine::Node>) {
    if (++passes == 3) throw std::bad_alloc();
  };
  const Status broken = rig.scheduler.run();
  EXPECT_EQ(broken.code(), Code::kInternal);
  EXPECT_NE(broken.message().find("memory"), std::string::npos) << broken.message();
  for (const auto& job : {active, queued}) {
    const Answer answer = fetch(*job)[0];
    ASSERT_TRUE(answer.failure);
    EXPECT_EQ(answer.failure->code(), Code::kInternal);
  }
  EXPECT_EQ(rig.scheduler.submit(std::make_shared<Job>(std::vector<GenerationConfig>{ask("late", 2)})).code(), Code::kBusy);
}

TEST(SchedulerEnd, ManyThreadsMayAskWhileItRuns) {
  Rig rig(slots(4));
  std::thread decoding([&] { EXPECT_TRUE(rig.scheduler.run().is_ok()); });
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 5; ++i) {
        GenerationConfig config = sampled("client " + std::to_string(c), static_cast<std::uint64_t>(i), 10);
        config.mode = Mode::kDrift;
        config.bank = rig.banks.get({kDefaultTenant, c % 2 == 0 ? "even" : "odd"}).value();
        auto job = std::make_shared<Job>(std::vector<GenerationConfig>{config});
        if (!rig.scheduler.submit(job).is_ok()) continue;
        if (c == 5) {
          job->cancel();
          continue;
        }
        std::string text;
        Job::Event event;
        while (job->next(std::chrono::milliseconds(20'000), event) == Job::Got::kEvent) {
          if (const Delta* delta = std::get_if<Delta>(&event.what)) text += delta->text;
        }
        static_cast<void>(rig.scheduler.state());
        static_cast<void>(rig.banks.states());
        if (text == alone(config)) ++right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  rig.scheduler.drain();
  decoding.join();
  EXPECT_EQ(right, 25);
}

}  // namespace
}  // namespace drift::server
