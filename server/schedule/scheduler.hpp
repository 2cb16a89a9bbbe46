// scheduler.hpp - continuous batching: answers join and leave the one decoding loop (decode::Stepper) between its steps.
//
// A slot is a sequence of both engines. One tick of the decode thread: drop what was cancelled, give free slots to waiting answers,
// feed one chunk of the oldest unfinished prompt, take one step with every answer that is past its prompt. So a long prompt delays
// the others' next tokens by one chunk, and all of them share one draft pass per depth and one target pass per step.
// A slot keeps its text when an answer ends: the next one that begins alike (of the same tenant and salt) is prefilled from there.
// Threads: submit(), drain(), stop() and slots() from anywhere; run() or tick() on one thread, which alone touches the engines,
// sequences and banks. Requires: engines, text model, banks and observer outlive it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "drift/base/rng.hpp"
#include "drift/decode/stepper.hpp"
#include "server/schedule/answer_text.hpp"
#include "server/schedule/banks.hpp"
#include "server/schedule/fair_queue.hpp"
#include "server/schedule/job.hpp"
#include "server/text_model.hpp"
#include "text/pieces.hpp"

namespace drift::server {

struct SchedulerConfig {
  int slots = 4;                // answers decoded at once; at most what the engines hold
  std::size_t queue_max = 256;  // answers that may wait, of all tenants
  std::size_t queue_per_tenant_max = 256;
  std::size_t chunk_alone = 512;   // prompt tokens fed between two looks around, when nothing is being decoded
  std::size_t chunk_shared = 128;  // ... when other answers wait for their next step
};

enum class Phase { kIdle, kPrefill, kDecode };

// What can be told of a slot: as of the end of the last tick.
struct SlotState {
  int id = 0;
  Phase phase = Phase::kIdle;
  std::string tenant;
  decode::Mode mode = decode::Mode::kOff;
  std::size_t prompt_tokens = 0, prefilled = 0, decoded = 0;
};

struct SchedulerState {
  std::vector<SlotState> slots;
  std::size_t waiting = 0;
  bool draining = false;
};

// Told what happens, on the decode thread. For metrics and logs: it must not wait for anything.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void prefilled(int /*slot*/, std::size_t /*tokens*/, std::chrono::nanoseconds /*time*/) {}
  // One step of the batch: events[i] is that of owners[i].
  virtual void stepped(std::span<const trace::StepEvent> /*events*/, std::span<const StepOwner> /*owners*/) {}
  virtual void ended(const GenerationConfig& /*config*/, const Ended& /*ended*/) {}
  virtual void dropped(const GenerationConfig& /*config*/, const Status& /*why*/) {}  // cancelled or failed
};

class Scheduler {
 public:
  Scheduler(engine::Engine& target, engine::Engine* draft, const TextModel& text, Banks* banks, SchedulerConfig config,
            Observer* observer = nullptr);
  ~Scheduler();

  // Queues every choice of a job, or none. Fails with kLimit (the queue or the tenant's share of it is full), kBusy (draining).
  Status submit(std::shared_ptr<Job> job);
  // No more jobs are taken; run() returns when those there are have ended.
  void drain();
  // What is left is failed with kCancelled; run() returns.
  void stop();

  SchedulerState state() const;
  // Runs a task on the decode thread between two steps and waits for it: the only way to touch banks from outside.
  // Fails as the task, with kInternal if it throws, and with kBusy once run() has returned. Not from the decode thread itself.
  Status between_steps(std::function<Status()> task);
  // Drops what slots hold of a tenant's texts. In a task of between_steps() only. Fails with kBusy while answers of it wait or are in work.
  Status forget(const std::string& tenant);
  // Drops the texts of idle slots that a bank is to remember when they are left, so that no bank is kept open by them. In a task of
  // between_steps() only.
  void let_banks_go();
  std::size_t vocab() const { return stepper_.vocab(); }
  bool can_end() const { return !ends_.empty(); }  // whether the vocabulary has a token to end an answer with

  // Turns until drain() or stop() has done its work. Never throws: what breaks decoding itself (memory) fails everything that is
  // left with kInternal, nothing is taken any more, and that is the status returned; ok otherwise.
  Status run();
  // One turn; false when there was nothing to do.
  bool tick();

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot;

  bool run_tasks();
  void drop_cancelled();
  void end_finished();
  void admit();
  bool prefill_one();
  bool step_all();
  void work_until_finished();
  void end_all(const Status& why);
  void save_banks();
  void publish();
  bool finished() const;

  Slot* choose_slot(const GenerationConfig& config);
  Status begin(Slot& slot);
  void begin_answer(Slot& slot, const Waiting& waiting);
  decode::SequenceConfig sequence_config(Slot& slot) const;
  void constrain(Slot& slot);
  TokenInfo describe(const trace::StepEvent& event, std::size_t index, const GenerationConfig& config) const;
  void take_step(Slot& slot, const trace::StepEvent& event);
  void end_answer(Slot& slot, Finish finish);
  void empty(Slot& slot);
  void drop_answer(Slot& slot, const Status& why);
  void fail_answer(Slot& slot, const Status& why);

  const TextModel& text_;
  Banks* const banks_;
  const SchedulerConfig config_;
  Observer* const observer_;
  Observer nobody_;
  std::vector<Token> ends_;                     // of the vocabulary
  std::shared_ptr<const text::Pieces> pieces_;  // of the vocabulary; null until a grammar asks for them
  decode::Stepper stepper_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::uint64_t turns_ = 0;  // orders the slots by their last use
  bool banks_busy_ = false;  // a bank is being copied: no waiting between two ticks
  std::vector<trace::StepEvent> events_;
  std::vector<decode::Sequence*> batch_;
  std::vector<Slot*> batch_slots_;
  std::vector<StepOwner> batch_owners_;
  std::vector<Bank*> borrowers_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  FairQueue queue_;
  SchedulerState state_;
  bool draining_ = false, stopping_ = false, ended_ = false;
  struct Task {
    std::function<Status()> what;
    std::promise<Status> done;
  };
  std::deque<Task> tasks_;
};

}  // namespace drift::server
