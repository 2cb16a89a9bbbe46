#include "server/schedule/banks.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>

#include "drift/bank/store_disk.hpp"
#include "server/mutant.hpp"

namespace drift::server {

Banks::Banks(BanksConfig config, BankSource source, Complaint complaint)
    : config_(config), source_(std::move(source)), complaint_(std::move(complaint)), worker_([this] { work(); }) {}

Banks::~Banks() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  worker_.join();
}

// ---- opening, leasing, dropping ----

// Leases are counted with release and acquire, so that whoever finds none sees all that was done under them. Requires: mutex_ is held.
std::shared_ptr<Bank> Banks::lease(const std::shared_ptr<Bank>& bank) {
  bank->leases_.fetch_add(1, std::memory_order_relaxed);
  return std::shared_ptr<Bank>(bank.get(), [bank](Bank* b) { b->leases_.fetch_sub(1, std::memory_order_release); });
}

Result<std::shared_ptr<Bank>> Banks::get(const BankId& asked, decode::Mode mode) {
  DRIFT_TRY(check_bank_name(asked.name));
  DRIFT_TRY(check_plain_name("the name of a tenant", asked.tenant));
  const BankId id = DRIFT_HOLE(kBankWithoutTenant) ? BankId{kDefaultTenant, asked.name} : asked;
  const auto find_leased = [&]() -> std::shared_ptr<Bank> {
    const std::lock_guard lock(mutex_);
    const auto it = banks_.find(id);
    if (it == banks_.end() || (decode::remembers(mode) && !it->second->suffix_)) return nullptr;
    it->second->used_ = ++uses_;
    return lease(it->second);
  };
  std::shared_ptr<Bank> leased = find_leased();
  if (!leased) {
    const std::lock_guard opening(opening_);
    leased = find_leased();
    if (!leased) {
      DRIFT_ASSIGN(const std::shared_ptr<Bank> bank, open(id));
      std::unique_ptr<propose::SuffixMemory> suffix;
      if (decode::remembers(mode) && !bank->suffix_) {
        DRIFT_ASSIGN(suffix, propose::SuffixMemory::create(config_.suffix_tokens));
      }
      const std::lock_guard lock(mutex_);
      if (suffix) bank->suffix_ = std::move(suffix);
      bank->used_ = ++uses_;
      leased = lease(bank);
    }
    open_shared(id);
  }
  if (decode::recalibrates(mode) && leased->recal() == nullptr)
    return Status(Code::kUnsupported, "there is no draft to recalibrate; start the server with -md");
  return leased;
}

std::shared_ptr<Bank> Banks::find(const BankId& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = banks_.find(id);
  return it == banks_.end() ? nullptr : lease(it->second);
}

// Requires: opening_ is held.
Result<std::shared_ptr<Bank>> Banks::open(const BankId& id) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = banks_.find(id); it != banks_.end()) return it->second;
  }
  DRIFT_TRY(make_room(id));
  std::string memory_only;
  DRIFT_ASSIGN(std::optional<recal::BankSession> opened, session(id, memory_only));
  auto bank = std::make_shared<Bank>(id, std::move(opened));
  bank->saved_at_ = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  bank->frozen_ = frozen_.contains(id);
  if (bank->frozen_ && bank->session_) bank->recal()->freeze(true);
  banks_[id] = bank;
  BankState& state = states_[id];
  state.id = id;
  state.saved_to_file = bank->writes();
  state.frozen = bank->frozen_;
  state.memory_only = std::move(memory_only);
  state.shared = is_shared(id);
  if (bank->session_) {
    state.entries = bank->recal()->bank().size();
    state.capacity = bank->recal()->bank().config().capacity;
    state.bytes = bank->recal()->bytes();
  }
  return bank;
}

// What is behind a new bank: its file, or memory where that belongs to another pair, is damaged, or may not be made.
Result<std::optional<recal::BankSession>> Banks::session(const BankId& id, std::string& memory_only) const {
  DRIFT_ASSIGN(const std::string file, source_.file(id));
  if (!file.empty()) {
    memory_only = no_room_on_disk(id);
    if (memory_only.empty()) {
      auto found = source_.open(id, file);
      // Of another pair, or damaged: the file is left as it is, and the tenant is served all the same.
      if (found.is_ok() || (found.status().code() != Code::kForeign && found.status().code() != Code::kCorrupt)) return found;
      memory_only = found.status().message();
    }
    if (complaint_) complaint_(id, {Code::kForeign, "it starts empty and lives in memory only: " + memory_only});
  }
  return source_.open(id, "");
}

bool Banks::has_file(const BankId& id) const {
  const auto file = source_.file(id);
  std::error_code error;
  return file.is_ok() && !file.value().empty() && std::filesystem::exists(file.value(), error);
}

// Empty: there is room, or its file is there already.
std::string Banks::no_room_on_disk(const BankId& id) const {
  if (has_file(id)) return {};
  const std::vector<BankId> all = stored();
  const auto of_tenant =
      static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [&](const BankId& one) { return one.tenant == id.tenant; }));
  const bool tenant_full = of_tenant >= config_.most_files_per_tenant;
  if (!tenant_full && all.size() < config_.most_files) return {};
  return "there are " + std::to_string(tenant_full ? of_tenant : all.size()) + " bank files" +
         (tenant_full ? " of this tenant" : "") + ", as many as there may be";
}

// Whether opening another bank would cost one. Requires: opening_ is held.
bool Banks::is_full(const BankId& id) const {
  const std::lock_guard lock(mutex_);
  const auto of_tenant = static_cast<std::size_t>(
      std::count_if(banks_.begin(), banks_.end(), [&](const auto& entry) { return entry.first.tenant == id.tenant; }));
  return of_tenant >= config_.most_per_tenant || banks_.size() >= config_.most;
}

// Writes out and drops the bank that was not used longest, of this tenant or of all, where there are too many; one that would be lost,
// for want of a file, only if there is no other, and another tenant's last of all. Requires: opening_ is held.
Status Banks::make_room(const BankId& id) {
  std::shared_ptr<Bank> oldest;
  const auto order = [&](const Bank& bank) {
    const bool lost = !bank.writes() && bank.commits() > 0;
    return std::tuple(lost, lost && bank.id_.tenant != id.tenant, bank.used_);
  };
  {
    const std::lock_guard lock(mutex_);
    const auto of_tenant = static_cast<std::size_t>(
        std::count_if(banks_.begin(), banks_.end(), [&](const auto& entry) { return entry.first.tenant == id.tenant; }));
    const bool tenant_full = of_tenant >= config_.most_per_tenant;
    if (!tenant_full && banks_.size() < config_.most) return Status::ok();
    for (const auto& [key, bank] : banks_) {
      if (tenant_full && key.tenant != id.tenant && !DRIFT_HOLE(kEvictsOthers)) continue;
      const bool free = bank->leases_.load(std::memory_order_acquire) == 0 && writing_.bank != bank;
      if (free && (!oldest || order(*bank) < order(*oldest))) oldest = bank;
    }
    if (!oldest) {
      return {Code::kLimit, tenant_full ? "all your " + std::to_string(of_tenant) + " banks are in use; at most " +
                                              std::to_string(config_.most_per_tenant) + " may be open"
                                        : "all " + std::to_string(banks_.size()) + " banks are in use; at most " +
                                              std::to_string(config_.most) + " may be open"};
    }
    banks_.erase(oldest->id_);  // from here on nobody finds it; who asks for it waits for opening_ and opens it anew
  }
  if (oldest->writes() && oldest->commits() != oldest->saved_commits_) {
    const Status saved = oldest->session_->save();
    note(oldest->id_, saved);
    if (!saved.is_ok()) {  // better no new bank than an old one lost
      const std::lock_guard lock(mutex_);
      banks_[oldest->id_] = oldest;
      return {saved.code(), "no room for another bank: " + oldest->id_.text() + " cannot be written out: " + saved.message()};
    }
  }
  // A step may look it up to its end; a file that is still open could not be opened anew.
  while (oldest.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::lock_guard lock(mutex_);
  states_.erase(oldest->id_);
  return Status::ok();
}

// ---- sharing ----

// Requires: mutex_ is held.
bool Banks::is_shared(const BankId& id) const {
  return sharing_.contains(id.tenant) && id.name.find(kSaltMark) == std::string::npos;
}

void Banks::share(std::set<std::string> tenants) {
  const std::lock_guard lock(mutex_);
  for (const std::string& tenant : sharing_) {
    if (!tenants.contains(tenant)) withdrawn_.insert(tenant);
  }
  sharing_ = std::move(tenants);
  for (auto& [id, state] : states_) state.shared = is_shared(id);
}

// For who uses this bank, what others share under its name is opened where it lies in files, as far as there is room without dropping
// anything. Requires: opening_ is held.
void Banks::open_shared(const BankId& own) {
  if (own.name.find(kSaltMark) != std::string::npos) return;
  std::vector<BankId> closed;
  std::size_t there = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& tenant : sharing_) {
      const BankId id{tenant, own.name};
      if (tenant == own.tenant) continue;
      banks_.contains(id) ? void(++there) : closed.push_back(id);
    }
  }
  for (const BankId& id : closed) {
    if (there >= config_.most_lent) return;
    if (!has_file(id) || is_full(id)) continue;
    const Status done = open(id).status();
    if (done.is_ok()) ++there;
    if (!done.is_ok() && complaint_) complaint_(id, {done.code(), "it is not lent to others: " + done.message()});
  }
}

Banks::Lending Banks::lend(std::span<Bank* const> to) {
  const std::lock_guard lock(mutex_);
  for (const std::string& tenant : withdrawn_) {
    for (const auto& [id, bank] : banks_) forget_loan(*bank, {tenant, id.name});
  }
  withdrawn_.clear();
  if ((sharing_.empty() && !DRIFT_HOLE(kSharedUnasked)) || config_.most_lent == 0) return Lending(nullptr);
  std::vector<std::shared_ptr<Bank>> found;
  std::vector<recal::Loan> loans;
  for (Bank* const reader : to) {
    const BankId& own = reader->id_;
    const bool salted = own.name.find(kSaltMark) != std::string::npos && !DRIFT_HOLE(kSaltedBorrows);
    const bool again = std::find(borrowers_.begin(), borrowers_.end(), reader) != borrowers_.end();
    if (salted || again || reader->recal() == nullptr || !reader->recal()->may_borrow()) continue;
    found.clear();
    for (const auto& [id, bank] : banks_) {
      const bool shared = is_shared(id) || DRIFT_HOLE(kSharedUnasked);
      const bool of_name = id.name == own.name.substr(0, own.name.find(kSaltMark));
      if (shared && of_name && id.tenant != own.tenant && bank->session_ && bank->recal()->may_borrow()) found.push_back(bank);
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a->used_ > b->used_; });
    found.resize(std::min(found.size(), config_.most_lent));
    loans.clear();
    for (const auto& bank : found) loans.push_back({bank->id_.text(), bank->recal()});
    if (loans.empty()) continue;
    reader->recal()->borrow(loans);
    borrowers_.push_back(reader);
    lent_.insert(lent_.end(), found.begin(), found.end());
  }
  return Lending(this);
}

void Banks::take_back() {
  for (Bank* const reader : borrowers_) reader->recal()->borrow({});
  borrowers_.clear();
  lent_.clear();
}

// What a bank has earned with another one.
void Banks::forget_loan(Bank& bank, const BankId& with) {
  if (bank.session_ && !DRIFT_HOLE(kDeletedGainsStay)) bank.recal()->forget_loan(with.text());
}

// A bank is another one now, or none: what others earned with it is no more.
void Banks::forget_loans(const BankId& id) {
  const std::lock_guard lock(mutex_);
  for (const auto& [other, bank] : banks_) forget_loan(*bank, id);
}

// ---- saving ----

// Chooses the bank that was saved longest ago among those that have something new, and has the worker make room for its image.
void Banks::begin_save(std::chrono::steady_clock::time_point now) {
  std::shared_ptr<Bank> due;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, bank] : banks_) {
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
      note(bank.id(), snapshot.status());
      const std::lock_guard lock(mutex_);
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
    const std::shared_ptr<Bank> bank = writing_.bank;
    lock.unlock();
    todo == Work::kRoom ? make_image() : write_file(*bank);
    lock.lock();
    if (todo == Work::kFile) writing_ = {};
    work_ = Work::kNone;
    wake_.notify_all();
  }
}

void Banks::make_image() {
  auto room = bank::Snapshot::room(writing_.bank->recal()->bank().config());
  if (room.is_ok()) room_ = std::move(room).value();  // without it the snapshot makes its own, slowly
}

void Banks::write_file(Bank& bank) {
  Status written;
  try {
    written = bank.session_->write(writing_.stored);
  } catch (const std::exception& error) {
    written = {Code::kLimit, std::string("a bank could not be written: ") + error.what()};
  }
  if (written.is_ok()) bank.saved_commits_ = bank.taken_commits_;
  note(bank.id(), written);
}

// A save of this bank that is under way comes to nothing. On the decode thread.
void Banks::stop_saving(const Bank& bank) {
  std::unique_lock lock(mutex_);
  if (writing_.bank.get() != &bank) return;
  wake_.wait(lock, [this] { return work_ == Work::kNone; });
  writing_ = {};
}

void Banks::note(const BankId& id, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    const auto state = states_.find(id);
    if (state != states_.end()) {
      ++(status.is_ok() ? state->second.saves : state->second.save_failures);
      state->second.last_save_error = status.message();
    }
  }
  if (!status.is_ok() && complaint_) complaint_(id, status);
}

Status Banks::save_all() {
  const std::lock_guard opening(opening_);
  std::vector<std::shared_ptr<Bank>> all;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return work_ == Work::kNone; });
    for (const auto& [id, bank] : banks_) all.push_back(bank);
    writing_ = {};  // a snapshot under way is older than what is written now
  }
  Status first;
  for (const auto& bank : all) {
    if (!bank->writes() || bank->commits() == bank->saved_commits_) continue;
    const Status saved = bank->session_->save();
    if (saved.is_ok()) bank->saved_commits_ = bank->commits();
    note(bank->id(), saved);
    if (first.is_ok()) first = saved;
  }
  return first;
}

// ---- telling ----

void Banks::publish() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, bank] : banks_) {
    BankState& state = states_[id];
    if (bank->suffix_) state.suffix_tokens = bank->suffix_->tokens();
    if (!bank->session_) continue;
    const bank::Bank& content = bank->recal()->bank();
    state.frozen = bank->frozen_;
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
  for (const auto& [id, state] : states_) out.push_back(state);
  return out;
}

// ---- changing ----

namespace {

Status not_open(const BankId& id) {
  return {Code::kNotFound, "there is no bank '" + id.name + "' of tenant '" + id.tenant + "'"};
}

}  // namespace

Status Banks::replace(const BankId& id, const bank::StoredBank& stored) {
  const std::shared_ptr<Bank> bank = find(id);
  if (!bank || !bank->session_) return not_open(id);
  stop_saving(*bank);  // what is being copied is no more
  const std::uint64_t before = bank->commits();
  DRIFT_TRY(bank->recal()->restore(stored));
  forget_loans(id);
  bank->changes_ = before + 1;  // commits begin at 0 again, and what is in the file is another thing
  return Status::ok();
}

Status Banks::reset(const BankId& id) {
  const std::shared_ptr<Bank> bank = find(id);
  if (!bank) return not_open(id);
  if (bank->suffix_) bank->suffix_->clear();
  if (!bank->session_) return Status::ok();
  bank::StoredBank empty;
  empty.image.config = bank->recal()->bank().config();
  return replace(id, empty);
}

Status Banks::freeze(const BankId& id, bool on) {
  const std::shared_ptr<Bank> bank = find(id);
  if (!bank || !bank->session_) return not_open(id);
  bank->frozen_ = on;
  bank->recal()->freeze(on);
  const std::lock_guard lock(mutex_);
  if (on) {
    frozen_.insert(id);
  } else {
    frozen_.erase(id);
  }
  return Status::ok();
}

Result<bank::StoredBank> Banks::copy(const BankId& id) {
  const std::shared_ptr<Bank> bank = find(id);
  if (!bank || !bank->session_) return not_open(id);
  bank::StoredBank stored = bank->session_->frame();
  stored.image = bank::Snapshot::copy(bank->recal()->bank());
  return stored;
}

Status Banks::remove(const BankId& id) {
  DRIFT_TRY(check_bank_name(id.name));  // it becomes part of a path
  DRIFT_TRY(check_plain_name("the name of a tenant", id.tenant));
  if (source_.only_read && source_.only_read(id))
    return {Code::kInvalid, "the bank " + id.text() + " is only read by this server"};
  const std::lock_guard opening(opening_);
  std::shared_ptr<Bank> bank;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = banks_.find(id); it != banks_.end()) bank = it->second;
  }
  if (bank) {
    if (bank->leases_.load(std::memory_order_acquire) != 0)
      return {Code::kBusy, "answers still use the bank '" + id.name + "' of tenant '" + id.tenant + "'"};
    stop_saving(*bank);
    const std::lock_guard lock(mutex_);
    banks_.erase(id);
    states_.erase(id);
    bank.reset();  // closed: its file is one file now, and nobody holds its lock
  }
  forget_loans(id);
  {
    const std::lock_guard lock(mutex_);
    frozen_.erase(id);
  }
  const auto found = source_.file(id);
  const std::filesystem::path file = found.is_ok() ? found.value() : std::string();
  if (file.empty()) return Status::ok();
  std::error_code error, ignored;
  for (const std::filesystem::path& one : {file, bank::disk::temp_path(file)}) {  // a killed writer may have left the latter
    std::filesystem::remove(one, error);
    if (error) return {Code::kIo, "the bank's file " + one.string() + " cannot be removed: " + error.message()};
  }
  // The folder of a tenant goes with its last bank.
  const std::filesystem::path folder = file.parent_path();
  if (id.tenant != kDefaultTenant && folder.filename() == id.tenant) std::filesystem::remove(folder, ignored);
  return Status::ok();
}

bool Banks::exists(const BankId& id) const {
  if (!check_bank_name(id.name).is_ok() || !check_plain_name("the name of a tenant", id.tenant).is_ok()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (banks_.contains(id)) return true;
  }
  return has_file(id);
}

std::vector<BankId> Banks::stored() const { return source_.stored ? source_.stored() : std::vector<BankId>{}; }

std::vector<BankId> Banks::of_tenant(const std::string& tenant) const {
  std::set<BankId> out;
  for (BankId& id : stored()) {
    if (id.tenant == tenant) out.insert(std::move(id));
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [id, bank] : banks_) {
    if (id.tenant == tenant) out.insert(id);
  }
  return {out.begin(), out.end()};
}

}  // namespace drift::server
