// Runs are recorded with the toy engine and replayed from the file: step for step the same, or refused with the reason.
#include "engines/replay/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "drift/decode/mode_name.hpp"
#include "drift/decode/recorder.hpp"
#include "drift/testing/toy_engine.hpp"
#include "drift/trace/metrics.hpp"
#include "drift/trace/testing.hpp"
#include "tests/contract/replay_runs.hpp"

namespace drift::engine {
namespace {

using decode::Mode;
using testing::ToyEngine;
using testing::ToyModel;

constexpr std::uint32_t kVocab = 40;
constexpr std::uint32_t kWidth = 6;

// Half of the time the target says what the draft says, so that blocks end everywhere. Contexts come back, so that banks are used.
ToyModel target_model() {
  ToyModel model = testing::random_model(1, kVocab, 0, 1, 3.0f);
  model.row = [own = model.row, other = testing::random_model(2, kVocab, kWidth, 1, 3.0f).row](
                  std::span<const Token> context, std::span<float> logits, std::span<float> hidden) {
    std::vector<float> unused(kWidth);
    if (testing::hash_float(9, context.last(1), 0) > -0.2f) return other(context, logits, unused);
    own(context, logits, hidden);
  };
  return model;
}
ToyModel draft_model() { return testing::random_model(2, kVocab, kWidth, 1, 3.0f); }

struct Options {
  Mode mode = Mode::kStatic;
  float temperature = 0.0f;
  bool rejection = false;
  std::uint32_t row_tokens = 12;  // rows are cut
  int draft_tokens = 3;
  std::int64_t max_tokens = 40;
  Token end = kNoToken;  // ends an answer
};

// What a run needs besides its engines, fresh for each run.
struct Kit {
  explicit Kit(const Options& o) : stream(77) {
    recal::RecalConfig r;
    r.bank.capacity = 50;
    r.bank.key_dim = kWidth;
    r.bank.support = 8;
    r.bank.vocab = kVocab;
    r.bank.tau = 0.99f;
    r.gain = recal::GainRule::kFixed;  // earned, it would hardly speak in runs so short
    recal = std::move(recal::Recalibrator::create(r)).value();
    suffix = std::move(propose::SuffixMemory::create(256)).value();
    config.mode = o.mode;
    config.rule = o.rejection ? spec::JudgeRule::kRejection : spec::JudgeRule::kMatch;
    config.sampler = {o.temperature, 8, 0.95f, 0.0f};
    config.draft_tokens = o.draft_tokens;
    config.max_tokens = o.max_tokens;
    config.recal = recal.get();
    config.suffix = suffix.get();
    config.choices = &stream;
    config.is_end = [end = o.end](Token t) { return t == end; };
  }
  RngStream stream;
  std::unique_ptr<recal::Recalibrator> recal;
  std::unique_ptr<propose::SuffixMemory> suffix;
  decode::SequenceConfig config;
};

std::vector<trace::Prompt> prompts() {
  return {{"a", "law", "prefix", "", 11, {1, 2, 3}},
          {"b", "code", "prefix", "", 12, {7, 8, 9, 10, 11, 12}},
          {"c", "", "prefix", "", 13, {4}}};
}

struct Recorded {
  std::filesystem::path path;
  std::vector<std::vector<trace::StepEvent>> live;  // [prompts]
};

trace::Header header_of(const Options& o, const decode::SequenceConfig& config) {
  trace::Header h;
  h.program = "test";
  h.target = {"target", "t", 0};
  h.draft = {"draft", "d", 0};
  h.row_tokens = o.row_tokens;
  h.mode = decode::mode_name(o.mode);
  h.sampling = {config.sampler.temperature, config.sampler.top_k, config.sampler.top_p, config.sampler.min_p, 77, o.rejection};
  h.generate = o.max_tokens;
  return h;
}

Recorded record(const trace::test::Folder& folder, const Options& o, const std::string& name = "run.trace") {
  Recorded out{folder.empty(name), {}};
  ToyEngine target(target_model()), draft(draft_model());
  const Kit kit(o);
  out.live = record_run(target, &draft, header_of(o, kit.config), prompts(), kit.config, out.path);
  return out;
}

// The 9th token of the second answer: as an end token it cuts that answer there, and others where they happen to hold it.
Token some_token(const Recorded& recorded) {
  std::vector<Token> answer;
  for (const trace::StepEvent& e : recorded.live[1]) {
    for (const trace::EmittedToken& token : e.emitted) answer.push_back(token.token);
  }
  EXPECT_GT(answer.size(), 8u);
  return answer[8];
}

// Replays `o` from the trace of a run and compares with `live`, a run of `o`.
void expect_replayed(const std::filesystem::path& path, const Options& o,
                     const std::vector<std::vector<trace::StepEvent>>& live) {
  const Kit kit(o);
  replay_and_compare(path, kit.config, live);
}

std::string shown(const Options& o) {
  return std::string(decode::mode_name(o.mode)) + " at " + std::to_string(o.temperature) +
         (o.end != kNoToken ? ", with ends" : "");
}

constexpr Mode kModes[] = {Mode::kOff,    Mode::kStatic,      Mode::kDrift,      Mode::kLookup,
                           Mode::kSuffix, Mode::kDraftSuffix, Mode::kDriftSuffix};

TEST(Replay, EveryRunIsStepForStepTheOneRecorded) {
  const trace::test::Folder folder;
  for (const Mode mode : kModes) {
    for (const float temperature : {0.0f, 0.7f, 1.3f}) {
      Options o;
      o.mode = mode;
      o.temperature = temperature;
      for (const bool ends : {false, true}) {
        SCOPED_TRACE(shown(o));
        const Recorded recorded = record(folder, o);
        expect_replayed(recorded.path, o, recorded.live);
        if (!ends) o.end = some_token(recorded);
      }
    }
  }
}

// The text is the same in every mode, so one trace serves all: with whole rows to the last bit.
TEST(Replay, OtherModesAreReplayedFromTheTraceOfAStaticRun) {
  const trace::test::Folder folder;
  for (const float temperature : {0.0f, 0.9f}) {
    Options o;
    o.temperature = temperature;
    o.row_tokens = kVocab;
    o.end = some_token(record(folder, o));
    const Recorded of_static = record(folder, o);
    for (const Mode mode : kModes) {
      o.mode = mode;
      for (const int draft_tokens : {1, 3, 5}) {
        o.draft_tokens = draft_tokens;
        SCOPED_TRACE(shown(o));
        expect_replayed(of_static.path, o, record(folder, o, "other.trace").live);
      }
    }
  }
}

TEST(Replay, TheBankIsWorthSomethingInTheseRuns) {
  const trace::test::Folder folder;
  Options o;
  o.mode = Mode::kDrift;
  trace::Metrics m;
  for (const auto& steps : record(folder, o).live) {
    for (const auto& e : steps) m.add(e);
  }
  EXPECT_GT(m.accepted_bank, 0u) << "else the tests above compare static runs only";
  EXPECT_GT(m.accepted, 10u);
  EXPECT_LT(m.accepted, m.tested) << "and some proposals fall";
}

// Recording changes nothing where the sampler's candidates are within the rows.
TEST(Recorder, TheRecordedRunIsTheRunItself) {
  const trace::test::Folder folder;
  for (const float temperature : {0.0f, 0.8f}) {
    Options o;
    o.temperature = temperature;
    const Recorded recorded = record(folder, o);
    ToyEngine target(target_model()), draft(draft_model());
    decode::Stepper stepper(target, &draft);
    Kit kit(o);
    for (std::size_t p = 0; p < prompts().size(); ++p) {
      kit.config.name = prompts()[p].sequence;
      auto sequence = stepper.open(prompts()[p].tokens, kit.config);
      ASSERT_TRUE(sequence.is_ok());
      ASSERT_TRUE(stepper.prefill(**sequence).is_ok());
      decode::Sequence* const one[] = {sequence->get()};
      std::vector<trace::StepEvent> events;
      for (const trace::StepEvent& live : recorded.live[p]) {
        ASSERT_TRUE(stepper.step(one, events).is_ok());
        trace::test::expect_same_decisions(events[0], live);
      }
      EXPECT_NE((*sequence)->ending(), decode::Ending::kRunning);
      stepper.close(**sequence);
    }
  }
}

TEST(Recorder, EventsInTheFileAreThoseOfTheRun) {
  const trace::test::Folder folder;
  Options o;
  o.mode = Mode::kDrift;
  o.temperature = 0.7f;
  const Recorded recorded = record(folder, o);
  const auto trace = trace::test::open(recorded.path);
  ASSERT_NE(trace, nullptr);
  for (std::size_t p = 0; p < recorded.live.size(); ++p) {
    const auto steps = trace->steps(p);
    ASSERT_TRUE(steps.is_ok());
    ASSERT_EQ(steps->size(), recorded.live[p].size());
    for (std::size_t i = 0; i < steps->size(); ++i) {
      trace::test::expect_same_decisions(steps.value()[i], recorded.live[p][i]);
      trace::test::expect_same(steps.value()[i].times, recorded.live[p][i].times);
      for (const trace::ProposedToken& proposed : steps.value()[i].proposed) EXPECT_GT(proposed.q, 0.0f);
    }
  }
}

TEST(Recorder, AStopKeepsWholePromptsOnly) {
  const trace::test::Folder folder;
  Options o;
  for (int after = 0; after < 150; after += 7) {
    const std::filesystem::path path = folder.empty("t");
    ToyEngine target(target_model()), draft(draft_model());
    Kit kit(o);
    decode::Recorder recorder(target, &draft, header_of(o, kit.config));
    auto writer = trace::Writer::create(path, recorder.header());
    ASSERT_TRUE(writer.is_ok());
    int asked = 0;
    std::size_t whole = 0;
    for (const trace::Prompt& prompt : prompts()) {
      const Status status = recorder.record(prompt, kit.config, **writer, [&] { return asked++ >= after; }, {});
      if (!status.is_ok()) {
        EXPECT_EQ(status.code(), Code::kCancelled);
        break;
      }
      ++whole;
    }
    ASSERT_TRUE((*writer)->finish(true).is_ok());
    const auto trace = trace::test::open(path);
    ASSERT_NE(trace, nullptr);
    EXPECT_EQ(trace->prompts(), whole);
    EXPECT_TRUE(trace->verify().is_ok()) << trace->verify().message();
    // The engines are free again.
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(target.open().is_ok());
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(draft.open().is_ok());
  }
}

TEST(Recorder, RefusesWhatATraceCannotHold) {
  ToyEngine target(target_model()), draft(draft_model());
  Options o;
  o.temperature = 1.0f;
  Kit kit(o);
  decode::Recorder recorder(target, &draft, header_of(o, kit.config));
  EXPECT_TRUE(recorder.check(kit.config).is_ok()) << recorder.check(kit.config).message();
  decode::SequenceConfig c = kit.config;
  c.mode = Mode::kOnlineKd;
  EXPECT_EQ(recorder.check(c).code(), Code::kUnsupported);
  c = kit.config;
  c.sampler.top_p = 0.5f;
  EXPECT_EQ(recorder.check(c).code(), Code::kInvalid) << "the header says otherwise";
  trace::Header h = header_of(o, kit.config);
  h.sampling.top_k = c.sampler.top_k = 0;
  h.sampling.top_p = 0.5f;
  const Status wide = decode::Recorder(target, &draft, h).check(c);
  EXPECT_EQ(wide.code(), Code::kUnsupported);
  EXPECT_NE(wide.message().find("--top-k"), std::string::npos) << wide.message();
}

TEST(CheckReplay, RefusesWhatTheTraceDoesNotDetermine) {
  trace::Header h = trace::test::header();
  h.sampling = {0.8f, 3, 0.9f, 0.1f, 7, false};
  const auto refused = [&](auto change) {
    ReplayUse use{h.sampling};
    change(use);
    const Status status = check_replay(h, use);
    if (!status.is_ok()) {
      EXPECT_GT(status.message().size(), 40u);
    }
    return status.code();
  };
  EXPECT_EQ(refused([](ReplayUse&) {}), Code::kOk);
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.rejection = true; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.trees = true; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.trains_draft = true; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.seed = 8; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.temperature = 0.9f; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.temperature = 0.0f; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.top_k = 2; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.top_p = 1.0f; }), Code::kUnsupported);
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.min_p = 0.0f; }), Code::kUnsupported);
  h.sampling = {0.0f, 0, 1.0f, 0.0f, 7, true};
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.seed = 9; }), Code::kOk) << "at temperature 0 nothing is drawn";
  h.sampling = {0.8f, 3, 0.9f, 0.1f, 7, true};
  EXPECT_EQ(refused([](ReplayUse& u) { u.sampling.rejection = false; }), Code::kUnsupported)
      << "its text is not the target's draws";
}

// What gets past check_replay() is refused where it leaves the record.
TEST(Replay, RefusesToLeaveTheRecord) {
  const trace::test::Folder folder;
  Options o;
  o.max_tokens = 12;
  const Recorded recorded = record(folder, o);
  const auto trace = trace::test::open(recorded.path);
  ASSERT_NE(trace, nullptr);
  const auto refusal = [&](auto change) {
    for (const Mode mode : kModes) {
      Options with = o;
      with.mode = mode;
      Kit kit(with);
      auto record = trace->prompt(1);
      change(kit.config, *record);
      Replay replay(*trace);
      replay.run(1, *record, kit.config);
      EXPECT_EQ(replay.status.code(), Code::kUnsupported) << shown(with) << ": " << replay.status.message();
    }
  };
  refusal([](decode::SequenceConfig& c, trace::PromptRecord&) { c.max_tokens = 13; });
  refusal([](decode::SequenceConfig& c, trace::PromptRecord&) { c.max_tokens = 40; });
  refusal([](decode::SequenceConfig& c, trace::PromptRecord&) { c.max_tokens = 5; });  // ends early
  refusal([](decode::SequenceConfig& c, trace::PromptRecord&) { c.sampler.temperature = 2.0f; });
  refusal([](decode::SequenceConfig&, trace::PromptRecord& r) { r.prompt.tokens[2] = 0; });
  refusal([](decode::SequenceConfig&, trace::PromptRecord& r) { r.prompt.tokens.pop_back(); });
}

TEST(Replay, AnEndTokenInABlockEndsTheReplayAndNothingElseDoes) {
  const trace::test::Folder folder;
  Options o;
  o.end = some_token(record(folder, o));
  const Recorded recorded = record(folder, o);
  const auto trace = trace::test::open(recorded.path);
  Options on = o;
  on.end = kNoToken;  // the text is to go on behind it
  std::size_t ended = 0;
  for (std::size_t p = 0; p < trace->prompts(); ++p) {
    auto record = trace->prompt(p);
    if (record->ending != "end") continue;
    ++ended;
    Kit kit(on);
    Replay replay(*trace);
    replay.run(p, *record, kit.config);
    EXPECT_EQ(replay.status.code(), Code::kUnsupported) << replay.status.message();
  }
  EXPECT_GT(ended, 0u);
}

TEST(Replay, AnswersLikeAnEngine) {
  const trace::test::Folder folder;
  const Recorded recorded = record(folder, {});
  const auto trace = trace::test::open(recorded.path);
  ASSERT_NE(trace, nullptr);
  auto made = ReplayEngine::make(*trace, trace::Side::kDraft);
  ASSERT_TRUE(made.is_ok());
  ReplayEngine& engine = **made;
  EXPECT_EQ(engine.info().vocab, kVocab);
  EXPECT_EQ(engine.info().hidden_width, kWidth);
  EXPECT_FALSE(engine.info().can.trees);
  auto record = trace->prompt(0);
  const std::vector<Token>& prompt = record->prompt.tokens;
  const SeqId seq = engine.open().value();
  Rows rows;
  const auto one = [&](Token token, Pos pos, NodeIndex parent, bool row) {
    const Node node{seq, token, pos, parent, row};
    return engine.forward({&node, 1}, rows).code();
  };
  EXPECT_EQ(one(prompt[0], 0, kPrefix, true), Code::kUnsupported) << "a row inside the prompt";
  EXPECT_EQ(one(static_cast<Token>(kVocab), 0, kPrefix, false), Code::kInvalid);
  EXPECT_EQ(one(prompt[0], 1, kPrefix, false), Code::kInvalid);
  for (Pos i = 0; i < 3; ++i) ASSERT_EQ(one(prompt[static_cast<std::size_t>(i)], i, i == 0 ? kPrefix : i - 1, i == 2), Code::kOk);
  ASSERT_EQ(rows.size(), 1u);
  trace::Row row;
  ASSERT_TRUE(trace->row(0, trace::Side::kDraft, 3, row).is_ok());
  EXPECT_EQ(rows.logits_row(0)[static_cast<std::size_t>(row.tokens[0])], row.logits[0]);
  EXPECT_EQ(one(record->emitted[0], 3, 1, false), Code::kUnsupported) << "a tree";
  const Token wrong = record->emitted[0] == 0 ? 1 : 0;
  EXPECT_EQ(one(wrong, 3, 2, true), Code::kOk) << "a proposal that cannot stand";
  EXPECT_EQ(rows.logits_row(0)[5], 0.0f);
  EXPECT_EQ(one(record->emitted[1], 4, 3, true), Code::kOk) << "nor can what follows it, be it the recorded token";
  EXPECT_EQ(rows.logits_row(0)[5], 0.0f);
  const NodeIndex path[] = {0, 1, 2, 3};
  EXPECT_EQ(engine.keep(seq, path).code(), Code::kUnsupported);
  EXPECT_TRUE(engine.keep(seq, std::span(path).first(3)).is_ok());
  EXPECT_EQ(engine.length(seq), 3);
  auto copy = engine.fork(seq);
  ASSERT_TRUE(copy.is_ok());
  EXPECT_EQ(engine.length(*copy), 3);
  EXPECT_EQ(engine.truncate(*copy, 4).code(), Code::kInvalid);
  EXPECT_TRUE(engine.truncate(*copy, 1).is_ok());
  EXPECT_EQ(engine.length(*copy), 1);
  // The last token can be proposed, but nobody can go on behind it.
  std::vector<NodeIndex> rest;
  for (std::size_t i = 0; i < record->emitted.size(); ++i) {
    rest.push_back(static_cast<NodeIndex>(i));
    ASSERT_EQ(one(record->emitted[i], 3 + rest.back(), rest.back() - 1, true), Code::kOk);
  }
  EXPECT_EQ(rows.logits_row(0)[5], 0.0f);
  EXPECT_EQ(engine.keep(seq, rest).code(), Code::kUnsupported);
  EXPECT_TRUE(engine.keep(seq, std::span(rest).first(rest.size() - 1)).is_ok());
  engine.close(seq);
  EXPECT_EQ(engine.length(seq), -1);
  EXPECT_EQ(one(prompt[0], 0, kPrefix, false), Code::kInvalid) << "closed";
}

TEST(Replay, ATraceWithoutADraftHasNoDraft) {
  const trace::test::Folder folder;
  const std::filesystem::path path = folder.empty("t");
  ToyEngine target(target_model());
  Options o;
  o.mode = Mode::kOff;
  Kit kit(o);
  decode::Recorder recorder(target, nullptr, header_of(o, kit.config));
  auto writer = trace::Writer::create(path, recorder.header());
  ASSERT_TRUE(writer.is_ok()) << writer.status().message();
  ASSERT_TRUE(recorder.record(prompts()[0], kit.config, **writer, {}, {}).is_ok());
  ASSERT_TRUE((*writer)->finish(false).is_ok());
  const auto trace = trace::test::open(path);
  ASSERT_NE(trace, nullptr);
  EXPECT_TRUE(trace->verify().is_ok()) << trace->verify().message();
  EXPECT_TRUE(ReplayEngine::make(*trace, trace::Side::kTarget).is_ok());
  EXPECT_EQ(ReplayEngine::make(*trace, trace::Side::kDraft).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace drift::engine
