#include "server/schedule/banks.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace drift::server {
namespace {

Status check_name(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
  if (plain && !name.empty() && name.size() <= kBankNameMax && name.front() != '.') return Status::ok();
  return {Code::kInvalid,
          "the name of a bank is 1 to " + std::to_string(kBankNameMax) + " of A-Z a-z 0-9 . _ - and does not begin with a point"};
}

}  // namespace

Banks::Banks(BanksConfig config, Opener opener, Complaint complaint)
    : config_(config), opener_(std::move(opener)), complaint_(std::move(complaint)), worker_([this] { work(); }) {}

Banks::~Banks() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  worker_.join();
}

Result<std::shared_ptr<Bank>> Banks::get(const std::string& name, decode::Mode mode) {
  DRIFT_TRY(check_name(name));
  const auto find = [&]() -> std::shared_ptr<Bank> {
    const std::lock_guard lock(mutex_);
    const auto it = banks_.find(name);
    const bool has_all = it != banks_.end() && (it->second->suffix_ || !decode::remembers(mode));
    return has_all ? it->second : nullptr;
  };
  std::shared_ptr<Bank> bank = find();
  if (!bank) {
    const std::lock_guard opening(opening_);
    bank = find();
    if (!bank) {
      DRIFT_ASSIGN(bank, open(name));
      if (decode::remembers(mode) && !bank->suffix_) {
        DRIFT_ASSIGN(auto suffix, propose::SuffixMemory::create(config_.suffix_tokens));
        const std::lock_guard lock(mutex_);
        bank->suffix_ = std::move(suffix);
      }
    }
  }
  if (decode::recalibrates(mode) && bank->recal() == nullptr)
    return Status(Code::kUnsupported, "there is no draft to recalibrate; start the server with -md");
  return bank;
}

// Requires: opening_ is held.
Result<std::shared_ptr<Bank>> Banks::open(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = banks_.find(name); it != banks_.end()) return it->second;
    if (banks_.size() >= config_.most) {
      return Status(Code::kLimit, "there are " + std::to_string(banks_.size()) + " banks open; at most " +
                                      std::to_string(config_.most) + " are allowed");
    }
  }
  DRIFT_ASSIGN(std::optional<recal::BankSession> session, opener_(name));
  auto bank = std::make_shared<Bank>(name, std::move(session));
  bank->saved_at_ = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  banks_[name] = bank;
  BankState& state = states_[name];
  state.name = name;
  state.saved_to_file = bank->writes();
  if (bank->session_) {
    state.entries = bank->recal()->bank().size();
    state.capacity = bank->recal()->bank().config().capacity;
    state.bytes = bank->recal()->bank().bytes();
  }
  return bank;
}

// Chooses the bank that was saved longest ago among those that have something new, and has the worker make room for its image.
void Banks::begin_save(std::chrono::steady_clock::time_point now) {
  std::shared_ptr<Bank> due;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, bank] : banks_) {
    if (!bank->writes() || bank->commits() == bank->saved_commits_ || now - bank->saved_at_ < config_.save_every) continue;
    if (!due || bank->saved_at_ < due->saved_at_) due = bank;
  }
  if (!due) return;
  due->saved_at_ = now;
  writing_ = {};
  writing_.bank = std::move(due);
  work_ = Work::kRoom;
  wake_.notify_all();
}

bool Banks::tend(std::chrono::steady_clock::time_point now) {
  if (config_.save_every.count() == 0) return false;
  {
    const std::lock_guard lock(mutex_);
    if (work_ != Work::kNone) return false;  // the worker is at it
  }
  if (!writing_.bank) {
    begin_save(now);
    return false;
  }
  Bank& bank = *writing_.bank;
  if (!writing_.snapshot) {
    auto snapshot = bank::Snapshot::start(bank.recal()->bank(), std::move(room_));
    room_ = {};
    if (!snapshot.is_ok()) {  // no memory now: the next turn will try again
      note(bank.name(), snapshot.status());
      writing_ = {};
      return false;
    }
    writing_.snapshot = std::move(snapshot).value();
    writing_.stored = bank.session_->frame();
    bank.taken_commits_ = bank.commits();
    return true;
  }
  writing_.snapshot->advance(bank::kSnapshotStepBytes);
  if (!writing_.snapshot->done()) return true;
  writing_.stored.image = writing_.snapshot->take();
  writing_.snapshot.reset();
  const std::lock_guard lock(mutex_);
  work_ = Work::kFile;
  wake_.notify_all();
  return false;
}

// The worker: fresh pages for an image, and the file.
void Banks::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || work_ != Work::kNone; });
    if (ending_) return;
    const Work todo = work_;
    lock.unlock();
    todo == Work::kRoom ? make_room() : write_file();
    lock.lock();
    work_ = Work::kNone;
    wake_.notify_all();
  }
}

void Banks::make_room() {
  auto room = bank::Snapshot::room(writing_.bank->recal()->bank().config());
  if (room.is_ok()) room_ = std::move(room).value();  // without it the snapshot makes its own, slowly
}

void Banks::write_file() {
  const std::shared_ptr<Bank> bank = writing_.bank;
  Status written;
  try {
    written = bank->session_->write(writing_.stored);
  } catch (const std::exception& error) {
    written = {Code::kLimit, std::string("a bank could not be written: ") + error.what()};
  }
  if (written.is_ok()) bank->saved_commits_ = bank->taken_commits_;
  note(bank->name(), written);
  writing_ = {};
}

void Banks::note(const std::string& name, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    BankState& state = states_[name];
    ++(status.is_ok() ? state.saves : state.save_failures);
    state.last_save_error = status.message();
  }
  if (!status.is_ok() && complaint_) complaint_(name, status);
}

Status Banks::save_all() {
  std::vector<std::shared_ptr<Bank>> all;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return work_ == Work::kNone; });
    for (const auto& [name, bank] : banks_) all.push_back(bank);
  }
  writing_ = {};  // a snapshot under way is older than what is written now
  Status first;
  for (const auto& bank : all) {
    if (!bank->writes() || bank->commits() == bank->saved_commits_) continue;
    const Status saved = bank->session_->save();
    if (saved.is_ok()) bank->saved_commits_ = bank->commits();
    note(bank->name(), saved);
    if (first.is_ok()) first = saved;
  }
  return first;
}

void Banks::publish() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, bank] : banks_) {
    BankState& state = states_[name];
    if (bank->suffix_) state.suffix_tokens = bank->suffix_->tokens();
    if (!bank->session_) continue;
    const bank::Bank& content = bank->recal()->bank();
    state.entries = content.size();
    state.bytes = content.bytes();
    state.commits = content.stats().commits;
    state.allocated = content.stats().allocated;
    state.updated = content.stats().updated;
    state.evicted = content.stats().evicted;
  }
}

std::vector<BankState> Banks::states() const {
  const std::lock_guard lock(mutex_);
  std::vector<BankState> out;
  for (const auto& [name, state] : states_) out.push_back(state);
  return out;
}

}  // namespace drift::server
