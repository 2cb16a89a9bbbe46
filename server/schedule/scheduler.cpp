#include "server/schedule/scheduler.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "drift/spec/constraint.hpp"
#include "server/mutant.hpp"
#include "text/grammar_matcher.hpp"

namespace drift::server {
namespace {

double ms_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// How many tokens two texts have in common from the start on.
std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

// What an answer's request changes about logits: rules, then what its grammar forbids.
class AnswerEdit final : public spec::LogitEdit {
 public:
  std::unique_ptr<RuleEdit> rules;                  // null: none
  std::unique_ptr<text::GrammarMatcher> grammar;    // null: none
  std::unique_ptr<spec::ConstraintEdit> constrain;  // of grammar
  bool empty() const { return !rules && !grammar; }
  void apply(std::span<const Token> decided, std::span<const Token> path, std::span<float> logits) override {
    if (rules) rules->apply(decided, path, logits);
    if (constrain) constrain->apply(decided, path, logits);
  }
};

struct Scheduler::Slot {
  explicit Slot(int number) : id(number), choices(0) {}

  int id;
  std::unique_ptr<decode::Sequence> sequence;  // null: nothing of it is in the engines
  std::string tenant, salt;                    // whose text the sequence holds
  std::size_t held = 0;                        // tokens of that text in the target's KV memory
  std::uint64_t last_used = 0;

  // Of the answer in work; job is null when the slot is free.
  std::shared_ptr<Job> job;
  std::size_t choice = 0;
  Phase phase = Phase::kIdle;
  RngStream choices;
  AnswerEdit edit;
  AnswerText text;
  std::shared_ptr<Bank> bank;  // where modes remember it stays when the answer ends
  std::size_t cached = 0;
  std::size_t prefilled = 0;
  std::uint64_t tokens = 0;
  trace::Metrics metrics;
  Clock::time_point started, decoding;
  double first_token_ms = -1;

  bool is_free() const { return job == nullptr; }
  // What an answer could go on from: the last prompt token is left out, the first step needs its row.
  std::size_t reusable(const GenerationConfig& wanted) const {
    const bool others = (tenant != wanted.tenant && !DRIFT_HOLE(kTextAcrossTenants)) || salt != wanted.salt;
    if (!sequence || !wanted.reuse_prefix || others) return 0;
    return std::min({common_prefix(sequence->tokens(), wanted.prompt), held, wanted.prompt.size() - 1});
  }
  // The answer leaves; its text stays for whoever goes on with it.
  void release() {
    if (sequence) {
      held = phase == Phase::kPrefill ? prefilled : sequence->tokens().size() - 1;
      sequence->stop();
    }
    // A memory of answers is told of the text when the sequence leaves it; whatever else a bank is, it is free now.
    if (!decode::remembers(config().mode)) bank.reset();
    job.reset();
    edit = {};
    phase = Phase::kIdle;
  }
  const GenerationConfig& config() const { return job->config(choice); }
};

Scheduler::Scheduler(engine::Engine& target, engine::Engine* draft, const TextModel& text, Banks* banks, SchedulerConfig config,
                     Observer* observer)
    : text_(text), banks_(banks), config_(config), observer_(observer != nullptr ? observer : &nobody_), stepper_(target, draft) {
  DRIFT_CHECK(config.slots > 0, "a scheduler has slots");
  for (std::size_t token = 0; token < text_.vocab(); ++token) {
    if (text_.is_end(static_cast<Token>(token))) ends_.push_back(static_cast<Token>(token));
  }
  for (int i = 0; i < config_.slots; ++i) slots_.push_back(std::make_unique<Slot>(i));
  publish();
}

Scheduler::~Scheduler() {
  for (const auto& slot : slots_) {
    if (slot->job) slot->job->fail({Code::kCancelled, "the server has ended"});
    if (slot->sequence) stepper_.close(*slot->sequence);
  }
}

Status Scheduler::submit(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  if (draining_ || stopping_) return {Code::kBusy, "the server is shutting down and takes no more requests"};
  const std::size_t wanted = job->choices();
  const std::string& tenant = job->config(0).tenant;
  const std::size_t of_tenant = queue_.size(tenant);
  if (queue_.size() + wanted > config_.queue_max) {
    return {Code::kLimit, "the queue is full: " + std::to_string(queue_.size()) + " answers wait, " + std::to_string(wanted) +
                              " more are wanted, at most " + std::to_string(config_.queue_max) + " may wait"};
  }
  if (of_tenant + wanted > config_.queue_per_tenant_max) {
    return {Code::kLimit, "your share of the queue is full: " + std::to_string(of_tenant) + " of your answers wait, " +
                              std::to_string(wanted) + " more are wanted, at most " +
                              std::to_string(config_.queue_per_tenant_max) + " may wait"};
  }
  for (std::size_t choice = 0; choice < wanted; ++choice) queue_.push(tenant, {job, choice});
  state_.waiting = queue_.size();
  wake_.notify_all();
  return Status::ok();
}

void Scheduler::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = state_.draining = true;
  wake_.notify_all();
}

void Scheduler::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = draining_ = state_.draining = true;
  wake_.notify_all();
}

SchedulerState Scheduler::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Status Scheduler::between_steps(std::function<Status()> task) {
  std::future<Status> done;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return {Code::kBusy, "the server is shutting down"};
    tasks_.push_back({std::move(task), {}});
    done = tasks_.back().done.get_future();
    wake_.notify_all();
  }
  return done.get();
}

Status Scheduler::forget(const std::string& tenant) {
  {
    const std::lock_guard lock(mutex_);
    const bool in_work = std::any_of(slots_.begin(), slots_.end(),
                                     [&](const auto& slot) { return !slot->is_free() && slot->config().tenant == tenant; });
    if (in_work || queue_.size(tenant) > 0) return {Code::kBusy, "answers of tenant '" + tenant + "' are waiting or in work"};
  }
  for (const auto& slot : slots_) {
    if (slot->tenant == tenant) empty(*slot);
  }
  return Status::ok();
}

void Scheduler::let_banks_go() {
  for (const auto& slot : slots_) {
    if (slot->is_free() && slot->bank) empty(*slot);
  }
}

// A slot as at the start. Requires: it is free.
void Scheduler::empty(Slot& slot) {
  if (slot.sequence) stepper_.close(*slot.sequence);  // which tells the bank of the text, where that is to remember it
  slot.sequence.reset();
  slot.bank.reset();
  slot.tenant.clear();
  slot.salt.clear();
  slot.held = 0;
}

bool Scheduler::run_tasks() {
  std::deque<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) {
    Status done;
    try {
      done = task.what();
    } catch (const std::exception& error) {  // no memory for a copy, say: no reason to stop decoding
      done = {Code::kInternal, std::string("it could not be done: ") + error.what()};
    }
    task.done.set_value(std::move(done));
  }
  return !tasks.empty();
}

// Whether run() may return: told to stop, or drained and nothing is left.
bool Scheduler::finished() const {
  const std::lock_guard lock(mutex_);
  const bool idle = queue_.size() == 0 && std::all_of(slots_.begin(), slots_.end(), [](const auto& s) { return s->is_free(); });
  return stopping_ || (draining_ && idle);
}

void Scheduler::work_until_finished() {
  constexpr auto kNap = std::chrono::milliseconds(200);  // banks are looked after at least this often
  while (!finished()) {
    if (tick() || banks_busy_) continue;
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, kNap, [this] { return queue_.size() > 0 || !tasks_.empty() || draining_ || stopping_; });
  }
}

Status Scheduler::run() {
  Status broken;
  try {
    work_until_finished();
  } catch (const std::bad_alloc&) {
    broken = {Code::kInternal, "decoding ran out of memory"};
  } catch (const std::exception& error) {
    broken = {Code::kInternal, std::string("decoding failed: ") + error.what()};
  }
  end_all(broken.is_ok() ? Status(Code::kCancelled, "the server is shutting down") : broken);
  return broken;
}

// Nothing is left unanswered, and nothing new is taken.
void Scheduler::end_all(const Status& why) {
  stop();
  std::vector<Waiting> left;
  {
    const std::lock_guard lock(mutex_);
    while (auto waiting = queue_.pop()) left.push_back(std::move(*waiting));
  }
  for (const Waiting& waiting : left) {
    waiting.job->fail(why);
    observer_->dropped(waiting.job->config(waiting.choice), why);
  }
  for (const auto& slot : slots_) {
    if (!slot->is_free()) fail_answer(*slot, why);
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  run_tasks();  // those that came before
  publish();
}

bool Scheduler::tick() {
  const bool asked = run_tasks();
  drop_cancelled();
  end_finished();
  admit();
  const bool fed = prefill_one();
  const bool stepped = step_all();
  save_banks();
  publish();
  return asked || fed || stepped;
}

// ---- coming and going ----

void Scheduler::drop_cancelled() {
  std::vector<Waiting> gone;
  {
    const std::lock_guard lock(mutex_);
    queue_.remove_if([&](const Waiting& waiting) {
      if (!waiting.job->cancelled()) return false;
      gone.push_back(waiting);
      return true;
    });
  }
  const Status why(Code::kCancelled, "nobody waits for the answer any more");
  for (const Waiting& waiting : gone) {
    observer_->dropped(waiting.job->config(waiting.choice), why);
    waiting.job->fail(why);
  }
  for (const auto& slot : slots_) {
    if (!slot->is_free() && slot->job->cancelled()) drop_answer(*slot, why);
  }
}

// Answers of which the reader has enough.
void Scheduler::end_finished() {
  for (const auto& slot : slots_) {
    if (slot->is_free() || slot->phase != Phase::kDecode || !slot->job->finished(slot->choice)) continue;
    Delta rest;
    slot->text.finish(rest);
    if (!rest.empty()) slot->job->push(slot->choice, std::move(rest));
    end_answer(*slot, Finish::kStop);
  }
}

void Scheduler::admit() {
  const auto is_free = [](const auto& slot) { return slot->is_free(); };
  while (std::any_of(slots_.begin(), slots_.end(), is_free)) {
    std::optional<Waiting> waiting;
    {
      const std::lock_guard lock(mutex_);
      waiting = queue_.pop([this](const std::string& tenant) {
        return static_cast<std::size_t>(std::count_if(
            slots_.begin(), slots_.end(), [&](const auto& s) { return !s->is_free() && s->config().tenant == tenant; }));
      });
    }
    if (!waiting) return;
    begin_answer(*choose_slot(waiting->job->config(waiting->choice)), *waiting);
  }
}

// The free slot whose text begins most alike; else an empty one; else the one that was not used longest.
Scheduler::Slot* Scheduler::choose_slot(const GenerationConfig& config) {
  Slot* best = nullptr;
  std::size_t best_common = 0;
  for (const auto& slot : slots_) {
    if (!slot->is_free()) continue;
    const std::size_t common = slot->reusable(config);
    const bool older =
        best != nullptr && common == best_common &&
        std::pair(slot->sequence != nullptr, slot->last_used) < std::pair(best->sequence != nullptr, best->last_used);
    if (best == nullptr || common > best_common || older) {
      best = slot.get();
      best_common = common;
    }
  }
  return best;
}

void Scheduler::begin_answer(Slot& slot, const Waiting& waiting) {
  slot.job = waiting.job;
  slot.choice = waiting.choice;
  slot.started = Clock::now();
  slot.last_used = ++turns_;
  const std::shared_ptr<Bank> before = slot.bank;  // lives until the sequence has left the text it remembers there
  const Status begun = begin(slot);
  if (begun.is_ok()) return;
  fail_answer(slot, begun);
}

Status Scheduler::begin(Slot& slot) {
  const GenerationConfig& config = slot.config();
  DRIFT_ASSIGN(text::StopStrings stops, text::StopStrings::make(config.stops));
  slot.text = AnswerText(std::move(stops));
  slot.choices = RngStream(config.seed);
  slot.edit = {};
  if (!config.rules.empty()) slot.edit.rules = std::make_unique<RuleEdit>(config.rules, config.prompt.size(), ends_);
  if (config.grammar) constrain(slot);
  slot.metrics = {};
  slot.tokens = 0;
  slot.first_token_ms = -1;
  const decode::SequenceConfig sequence = sequence_config(slot);
  slot.bank = config.bank;
  slot.cached = slot.prefilled = slot.reusable(config);
  if (slot.sequence && slot.cached == 0) {  // another text, or another tenant's: never gone on with
    stepper_.close(*slot.sequence);
    slot.sequence.reset();
  }
  if (slot.sequence) {
    DRIFT_TRY(stepper_.restart(*slot.sequence, config.prompt, sequence));
  } else {
    DRIFT_ASSIGN(slot.sequence, stepper_.open(config.prompt, sequence));
  }
  slot.tenant = config.tenant;
  slot.salt = config.salt;
  slot.phase = Phase::kPrefill;
  return Status::ok();
}

void Scheduler::constrain(Slot& slot) {
  const GenerationConfig& config = slot.config();
  if (!pieces_) {
    std::vector<std::string> bytes(text_.vocab());
    for (std::size_t token = 0; token < bytes.size(); ++token) {
      if (!text_.is_end(static_cast<Token>(token))) bytes[token] = text_.piece(static_cast<Token>(token));
    }
    pieces_ = std::make_shared<const text::Pieces>(bytes, ends_);
  }
  slot.edit.grammar = std::make_unique<text::GrammarMatcher>(config.grammar, pieces_, config.extras);
  slot.edit.constrain = std::make_unique<spec::ConstraintEdit>(*slot.edit.grammar, config.prompt.size());
}

decode::SequenceConfig Scheduler::sequence_config(Slot& slot) const {
  const GenerationConfig& config = slot.config();
  decode::SequenceConfig out;
  out.mode = config.mode;
  out.rule = config.mode == decode::Mode::kOff ? spec::JudgeRule::kMatch : config.rule;
  out.sampler = config.sampler;
  out.name = config.name;
  out.draft_tokens = config.draft_tokens;
  out.max_tokens = config.max_tokens;
  out.copy = config.copy;
  if (decode::recalibrates(config.mode)) out.recal = config.bank->recal();
  if (decode::remembers(config.mode)) out.suffix = config.bank->suffix();
  out.choices = &slot.choices;
  out.is_end = [this](Token token) { return text_.is_end(token); };
  out.edit = slot.edit.empty() ? nullptr : &slot.edit;
  out.logprobs = config.logprobs;
  return out;
}

// ---- working ----

bool Scheduler::prefill_one() {
  Slot* oldest = nullptr;
  bool decoding = false;
  for (const auto& slot : slots_) {
    decoding = decoding || slot->phase == Phase::kDecode;
    if (slot->phase == Phase::kPrefill && (oldest == nullptr || slot->last_used < oldest->last_used)) oldest = slot.get();
  }
  if (oldest == nullptr) return false;
  Slot& slot = *oldest;
  const std::size_t chunk = decoding ? config_.chunk_shared : config_.chunk_alone;
  const std::size_t before = slot.prefilled, all = slot.config().prompt.size() - 1;
  const Clock::time_point from = Clock::now();
  bool done = false;
  const Status fed = stepper_.prefill(*slot.sequence, chunk, done);
  if (!fed.is_ok()) {
    fail_answer(slot, fed);
    return true;
  }
  slot.prefilled = std::min(all, before + chunk);
  const std::size_t tokens = slot.prefilled - before + (done ? 1 : 0);  // the last one goes with the first step
  observer_->prefilled(slot.id, tokens, Clock::now() - from);
  if (done) {
    slot.phase = Phase::kDecode;
    slot.decoding = Clock::now();
  }
  return true;
}

bool Scheduler::step_all() {
  batch_.clear();
  batch_slots_.clear();
  batch_owners_.clear();
  borrowers_.clear();
  for (const auto& slot : slots_) {
    if (slot->phase != Phase::kDecode) continue;
    batch_.push_back(slot->sequence.get());
    batch_slots_.push_back(slot.get());
    const GenerationConfig& config = slot->config();
    batch_owners_.push_back({&slot->tenant, config.bank.get(), config.mode, slot->id});
    if (decode::recalibrates(config.mode)) borrowers_.push_back(config.bank.get());
  }
  if (batch_.empty()) return false;
  const Banks::Lending lending = banks_ != nullptr ? banks_->lend(borrowers_) : Banks::Lending(nullptr);
  const Status stepped = stepper_.step(batch_, events_);
  if (!stepped.is_ok()) {  // the sequences of the batch are of no more use; slots that only prefill go on
    for (Slot* slot : batch_slots_) fail_answer(*slot, stepped);
    return true;
  }
  observer_->stepped(events_, batch_owners_);
  for (std::size_t i = 0; i < batch_slots_.size(); ++i) take_step(*batch_slots_[i], events_[i]);
  return true;
}

TokenInfo Scheduler::describe(const trace::StepEvent& event, std::size_t index, const GenerationConfig& config) const {
  TokenInfo out;
  out.token = event.emitted[index].token;
  out.origin = event.emitted[index].origin;
  out.bytes = text_.piece(out.token);
  for (const auto& [token, bytes] : config.extras.shown) {
    if (token == out.token) out.bytes = bytes;
  }
  // Proposals that stood are emitted in their places, so the target's own token stands where the first one fell.
  if (config.origins && out.origin == trace::Origin::kTarget) {
    for (std::size_t i = index; i < event.proposed.size(); ++i)
      out.rejected.push_back({event.proposed[i].token, 0.0f, text_.piece(event.proposed[i].token)});
  }
  if (event.logprobs.empty()) return out;
  const trace::TokenLogprobs& logprobs = event.logprobs[index];
  out.logprob = logprobs.logprob;
  for (std::size_t i = 0; i < logprobs.top.size(); ++i)
    out.top.push_back({logprobs.top[i], logprobs.top_logprobs[i], text_.piece(logprobs.top[i])});
  return out;
}

// What a step decided becomes text, and maybe the end of the answer.
void Scheduler::take_step(Slot& slot, const trace::StepEvent& event) {
  if (slot.edit.grammar && !slot.edit.grammar->failure().empty())
    return fail_answer(slot, {Code::kInvalid, slot.edit.grammar->failure()});
  slot.metrics.add(event);
  if (slot.first_token_ms < 0) slot.first_token_ms = ms_between(slot.job->arrived(), Clock::now());
  Delta delta;
  for (std::size_t i = 0; i < event.emitted.size() && !slot.text.stopped(); ++i) {
    TokenInfo info = describe(event, i, slot.config());
    if (text_.is_end(info.token)) info.bytes.clear();
    slot.text.push(std::move(info), delta);
    ++slot.tokens;
  }
  const decode::Ending ending = slot.sequence->ending();
  const bool over = slot.text.stopped() || ending != decode::Ending::kRunning;
  if (over) slot.text.finish(delta);
  if (!delta.empty()) slot.job->push(slot.choice, std::move(delta));
  if (!over) return;
  end_answer(slot, slot.text.stopped()                  ? Finish::kStop
                   : ending == decode::Ending::kEnd     ? Finish::kEnd
                   : ending == decode::Ending::kContext ? Finish::kContext
                                                        : Finish::kLength);
}

void Scheduler::end_answer(Slot& slot, Finish finish) {
  Ended ended;
  ended.finish = finish;
  ended.stop_string = slot.text.stop_string();
  ended.slot = slot.id;
  ended.prompt_tokens = slot.config().prompt.size();
  ended.cached_tokens = slot.cached;
  ended.tokens = slot.tokens;
  ended.queue_ms = ms_between(slot.job->arrived(), slot.started);
  ended.prompt_ms = ms_between(slot.started, slot.decoding);
  ended.predicted_ms = ms_between(slot.decoding, Clock::now());
  ended.first_token_ms = slot.first_token_ms;
  ended.draft_tokens = slot.config().mode == decode::Mode::kOff ? 0 : slot.config().draft_tokens;
  ended.metrics = std::move(slot.metrics);
  observer_->ended(slot.config(), ended);
  if (banks_ != nullptr) banks_->publish();  // first: who has the answer and asks about the bank is told what it taught
  slot.job->end(slot.choice, std::move(ended));
  slot.release();
}

void Scheduler::drop_answer(Slot& slot, const Status& why) {
  observer_->dropped(slot.config(), why);
  slot.job->fail(why);
  slot.release();
}

void Scheduler::fail_answer(Slot& slot, const Status& why) {
  drop_answer(slot, why);
  if (slot.sequence) stepper_.close(*slot.sequence);
  slot.sequence.reset();
  slot.bank.reset();
  slot.held = 0;
}

// ---- telling ----

void Scheduler::save_banks() {
  if (banks_ == nullptr) return;
  banks_busy_ = banks_->tend(Clock::now());
  banks_->publish();
}

void Scheduler::publish() {
  std::vector<SlotState> slots;
  for (const auto& slot : slots_) {
    SlotState state;
    state.id = slot->id;
    state.phase = slot->phase;
    state.tenant = slot->tenant;
    if (!slot->is_free()) {
      state.mode = slot->config().mode;
      state.prompt_tokens = slot->config().prompt.size();
      state.prefilled = slot->prefilled;
      state.decoded = slot->tokens;
    }
    slots.push_back(std::move(state));
  }
  const std::lock_guard lock(mutex_);
  state_.slots = std::move(slots);
  state_.waiting = queue_.size();
}

}  // namespace drift::server
