// replay_runs.hpp - runs recorded with any pair of engines, replayed from the file and compared step by step.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "drift/decode/recorder.hpp"
#include "drift/trace/metrics.hpp"
#include "drift/trace/testing.hpp"
#include "engines/replay/replay.hpp"

namespace drift::engine {

// Records the prompts into the empty file at `path`; the steps of each.
inline std::vector<std::vector<trace::StepEvent>> record_run(Engine& target, Engine* draft, const trace::Header& header,
                                                             const std::vector<trace::Prompt>& prompts,
                                                             const decode::SequenceConfig& config,
                                                             const std::filesystem::path& path) {
  std::vector<std::vector<trace::StepEvent>> live;
  decode::Recorder recorder(target, draft, header);
  auto writer = trace::Writer::create(path, recorder.header());
  EXPECT_TRUE(writer.is_ok()) << writer.status().message();
  for (const trace::Prompt& prompt : prompts) {
    live.emplace_back();
    const Status status =
        recorder.record(prompt, config, **writer, {}, [&](const trace::StepEvent& e) { live.back().push_back(e); });
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  EXPECT_TRUE((*writer)->finish(false).is_ok());
  return live;
}

// A pair of engines on one trace, and the stepper over them.
struct Replay {
  explicit Replay(const trace::Reader& trace)
      : target(std::move(ReplayEngine::make(trace, trace::Side::kTarget)).value()),
        draft(std::move(ReplayEngine::make(trace, trace::Side::kDraft)).value()),
        stepper(*target, draft.get()) {}
  // The steps of one prompt; what went wrong, if something did, in `status`.
  std::vector<trace::StepEvent> run(std::size_t index, const trace::PromptRecord& record, decode::SequenceConfig config) {
    std::vector<trace::StepEvent> all, events;
    config.name = record.prompt.sequence;
    status = target->select(index);
    if (status.is_ok()) status = draft->select(index);
    if (!status.is_ok()) return all;
    auto sequence = stepper.open(record.prompt.tokens, config);
    status = sequence.is_ok() ? stepper.prefill(**sequence) : sequence.status();
    if (!sequence.is_ok()) return all;
    decode::Sequence* const one[] = {sequence->get()};
    while (status.is_ok() && (*sequence)->ending() == decode::Ending::kRunning) {
      status = stepper.step(one, events);
      if (status.is_ok()) all.push_back(events[0]);
    }
    if (status.is_ok()) status = check_replayed(record, (*sequence)->emitted());
    stepper.close(**sequence);
    return all;
  }
  std::unique_ptr<ReplayEngine> target, draft;
  decode::Stepper stepper;
  Status status;
};

// Replays a run with `config`, whose memories are fresh, and compares it with `live`, such a run of the engines.
inline void replay_and_compare(const std::filesystem::path& path, const decode::SequenceConfig& config,
                               const std::vector<std::vector<trace::StepEvent>>& live) {
  const auto trace = trace::test::open(path);
  ASSERT_NE(trace, nullptr);
  ASSERT_TRUE(trace->verify().is_ok()) << trace->verify().message();
  Replay replay(*trace);
  trace::Metrics lived, replayed;
  for (std::size_t p = 0; p < trace->prompts(); ++p) {
    auto record = trace->prompt(p);
    ASSERT_TRUE(record.is_ok());
    const std::vector<trace::StepEvent> events = replay.run(p, *record, config);
    ASSERT_TRUE(replay.status.is_ok()) << replay.status.message();
    ASSERT_EQ(events.size(), live[p].size());
    for (std::size_t i = 0; i < events.size(); ++i) {
      trace::test::expect_same_decisions(trace::recorded_part(events[i]), trace::recorded_part(live[p][i]));
      lived.add(live[p][i]);
      replayed.add(events[i]);
    }
  }
  EXPECT_EQ(replayed.tested_at, lived.tested_at);
  EXPECT_EQ(replayed.accepted_histogram, lived.accepted_histogram);
  EXPECT_EQ(replayed.accepted_bank, lived.accepted_bank);
  EXPECT_EQ(replayed.drafted, lived.drafted);
  EXPECT_EQ(replayed.accepted_copied, lived.accepted_copied);
}

}  // namespace drift::engine
