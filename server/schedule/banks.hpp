// banks.hpp - the banks of a running server, each of one tenant: opened when first named, saved while decoding goes on, written out and
// dropped when others need the room, opened again on demand.
//
// A bank is opened by whoever asks for it first (an HTTP thread: files may be large), and from then on belongs to the decode
// thread. Saving never holds decoding up: the decode thread copies a megabyte between two steps (bank::Snapshot), another thread
// writes the file. A file that cannot be written is reported and tried again later; serving goes on. A file that holds the bank of
// another pair of models is reported by name and left alone: the bank starts empty and lives in memory only, as does one for which
// there is no room on disk (BanksConfig).
// A tenant may share: then who uses a bank of his own looks up the sharing tenants' banks of that name too. They are lent for one step at
// a time and only read (recal::Loan); an entry stays in its owner's bank and nowhere else, so what is deleted there is gone for all.
// A part that a salt leads to is neither lent nor does it borrow.
// Threads: get(), share(), exists(), of_tenant(), stored() and states() from anywhere; all else on the decode thread
// (Scheduler::between_steps).
// Limits: names.hpp, BanksConfig.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "drift/bank/snapshot.hpp"
#include "drift/decode/stepper.hpp"
#include "drift/propose/suffix_memory.hpp"
#include "drift/recal/bank_session.hpp"
#include "server/schedule/names.hpp"

namespace drift::server {

struct BankId {
  std::string tenant = kDefaultTenant;
  std::string name = kDefaultBank;
  auto operator<=>(const BankId&) const = default;
  std::string text() const { return tenant + "/" + name; }
  std::string shown() const { return tenant == kDefaultTenant ? name : text(); }  // names hold no '/'
};

// What can be told of a bank without touching it: as of the last publish().
struct BankState {
  BankId id;
  bool saved_to_file = false, frozen = false;
  bool shared = false;  // others look it up
  std::uint32_t entries = 0, capacity = 0;
  std::uint64_t bytes = 0, commits = 0, allocated = 0, updated = 0, evicted = 0;
  std::uint64_t suffix_tokens = 0;  // of answers remembered
  std::uint64_t saves = 0, save_failures = 0;
  std::string last_save_error;  // empty: the last one worked, or there was none
  std::string memory_only;      // why it is not saved though others are; empty: it is
};

// What a name stands for: a recalibrator with its file, and a memory of answers given. Either may be missing.
class Bank {
 public:
  Bank(BankId id, std::optional<recal::BankSession> session) : id_(std::move(id)), session_(std::move(session)) {}
  const BankId& id() const { return id_; }
  recal::Recalibrator* recal() { return session_ ? session_->recal() : nullptr; }
  propose::SuffixMemory* suffix() { return suffix_.get(); }

 private:
  friend class Banks;
  bool writes() const { return session_ && session_->writes(); }
  std::uint64_t commits() const { return session_ ? session_->recal()->bank().stats().commits + changes_ : 0; }

  BankId id_;
  std::optional<recal::BankSession> session_;      // none: the server has no draft
  std::unique_ptr<propose::SuffixMemory> suffix_;  // made when it is first needed; not saved
  bool frozen_ = false;
  std::uint64_t changes_ = 0;                         // resets and imports; counts with the commits, which these set back to 0
  std::uint64_t saved_commits_ = 0;                   // how much was learned when it was last saved
  std::uint64_t taken_commits_ = 0;                   // ... when the running snapshot began
  std::chrono::steady_clock::time_point saved_at_{};  // or tried
  std::uint64_t used_ = 0;                            // orders banks by their last get()
  std::atomic<int> leases_{0};                        // answers that use it, waiting ones included
};

struct BanksConfig {
  std::chrono::seconds save_every{60};  // 0: only at the end, and when dropped
  std::size_t most = 64;                // banks open at once; beyond, the one not used longest is written out and dropped
  std::size_t most_per_tenant = 16;
  std::size_t most_files = 4'096;  // of banks; beyond, a new bank lives in memory only
  std::size_t most_files_per_tenant = 256;
  std::size_t most_lent = 4;  // banks of other tenants looked up besides one's own, the last used first; 0: none
  std::uint32_t suffix_tokens = propose::kDefaultMemoryTokens;  // of a memory of answers
};

// Where banks come from.
struct BankSource {
  // Opens the bank in `file`, in memory only where that is empty; none where there is no draft to recalibrate. Called from any thread,
  // never twice at a time. Fails with kForeign only where the file holds a bank of another pair.
  std::function<Result<std::optional<recal::BankSession>>(const BankId& id, const std::string& file)> open;
  // Its file; empty: it lives in memory only. Fails where there can be no such bank.
  std::function<Result<std::string>(const BankId&)> file;
  // Whether that file is never written and never removed. Empty: none is so.
  std::function<bool(const BankId&)> only_read;
  // The banks that have files, open or not. Empty: none has.
  std::function<std::vector<BankId>()> stored;
};

class Banks {
 public:
  // Told of every save that failed and of every bank that lives in memory only for a reason, on the thread that saw it.
  using Complaint = std::function<void(const BankId& id, const Status& why)>;

  Banks(BanksConfig config, BankSource source, Complaint complaint = {});
  ~Banks();  // without saving
  Banks(const Banks&) = delete;
  Banks& operator=(const Banks&) = delete;

  // What a mode needs of a bank; while the pointer or a copy of it lives, the bank stays open. Fails with kInvalid (a name), kLimit (too
  // many banks in use, no memory), kUnsupported (no draft), and as the source.
  Result<std::shared_ptr<Bank>> get(const BankId& id, decode::Mode mode = decode::Mode::kDrift);

  // Goes on with saving; true while there is more to copy at once. Cost: about a millisecond.
  bool tend(std::chrono::steady_clock::time_point now);
  // Writes every bank that has learned something since it was last saved. The first failure is returned, the others complained of.
  Status save_all();
  void publish();
  std::vector<BankState> states() const;
  // The tenants who share, all of them: none at first. What others earned with the banks of one who no longer does is forgotten.
  void share(std::set<std::string> tenants);
  // Lends to these banks what others share, until the result goes: for the length of a step. Cost: one pass over the open banks each, where
  // anybody shares.
  class Lending {
   public:
    explicit Lending(Banks* banks) : banks_(banks) {}
    ~Lending() {
      if (banks_ != nullptr) banks_->take_back();
    }
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;

   private:
    Banks* banks_;
  };
  [[nodiscard]] Lending lend(std::span<Bank* const> to);
  bool exists(const BankId& id) const;  // open, or in a file
  // Every bank with a file; every bank of a tenant, open or not. Cost: as BankSource::stored.
  std::vector<BankId> stored() const;
  std::vector<BankId> of_tenant(const std::string& tenant) const;

  // Changes on request. All fail with kNotFound where the bank is not open; get() it first.
  Status reset(const BankId& id);            // empty again, the memory of answers too
  Status freeze(const BankId& id, bool on);  // also while it is dropped and opened again
  Result<bank::StoredBank> copy(const BankId& id);
  // Fails as Recalibrator::restore; nothing is changed then.
  Status replace(const BankId& id, const bank::StoredBank& stored);
  // Drops it and removes its file, open or not. Fails with kBusy while answers use it, kInvalid (only read), kIo.
  Status remove(const BankId& id);

 private:
  struct Writing {  // one bank on its way to its file
    std::shared_ptr<Bank> bank;
    std::unique_ptr<bank::Snapshot> snapshot;
    bank::StoredBank stored;  // all but the entries, then all
  };
  enum class Work { kNone, kRoom, kFile };
  void work();
  void make_image();
  void write_file(Bank& bank);
  Result<std::shared_ptr<Bank>> open(const BankId& id);
  Result<std::optional<recal::BankSession>> session(const BankId& id, std::string& memory_only) const;
  bool has_file(const BankId& id) const;
  std::string no_room_on_disk(const BankId& id) const;
  Status make_room(const BankId& id);
  bool is_full(const BankId& id) const;
  void open_shared(const BankId& own);
  void take_back();
  static void forget_loan(Bank& bank, const BankId& with);
  void forget_loans(const BankId& id);
  bool is_shared(const BankId& id) const;
  static std::shared_ptr<Bank> lease(const std::shared_ptr<Bank>& bank);
  std::shared_ptr<Bank> find(const BankId& id) const;  // leased
  void begin_save(std::chrono::steady_clock::time_point now);
  void stop_saving(const Bank& bank);
  void note(const BankId& id, const Status& status);

  const BanksConfig config_;
  const BankSource source_;
  const Complaint complaint_;

  mutable std::mutex mutex_;  // of what follows
  std::map<BankId, std::shared_ptr<Bank>> banks_;
  std::map<BankId, BankState> states_;
  std::set<BankId> frozen_;
  std::set<std::string> sharing_;    // tenants
  std::set<std::string> withdrawn_;  // tenants who shared, and whose loans are not forgotten yet
  std::uint64_t uses_ = 0;
  std::mutex opening_;  // one bank is opened or dropped at a time, and others can be found meanwhile

  // Of the decode thread: who borrows in this step, and what is kept alive for it.
  std::vector<Bank*> borrowers_;
  std::vector<std::shared_ptr<Bank>> lent_;

  // The saving in progress. The worker owns writing_ and room_ while work_ is not kNone, the decode thread otherwise.
  Writing writing_;
  bank::BankImage room_;
  std::condition_variable wake_;
  Work work_ = Work::kNone;
  bool ending_ = false;
  std::thread worker_;
};

}  // namespace drift::server
