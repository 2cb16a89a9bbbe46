// banks.hpp - the banks of a running server: opened when first named, saved while decoding goes on, saved again at the end.
//
// A bank is opened by whoever asks for it first (an HTTP thread: files may be large), and from then on belongs to the decode
// thread. Saving never holds decoding up: the decode thread copies a megabyte between two steps (bank::Snapshot), another thread
// writes the file. A file that cannot be written is reported and tried again later; serving goes on.
// Threads: get(), find() and states() from anywhere; tend(), publish() and save_all() on the decode thread.
// Limits: kBankNameMax characters a name, `most` banks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "drift/bank/snapshot.hpp"
#include "drift/decode/stepper.hpp"
#include "drift/propose/suffix_memory.hpp"
#include "drift/recal/bank_session.hpp"

namespace drift::server {

inline constexpr std::size_t kBankNameMax = 64;
inline constexpr const char* kDefaultBank = "default";

// What can be told of a bank without touching it: as of the last publish().
struct BankState {
  std::string name;
  bool saved_to_file = false;
  std::uint32_t entries = 0, capacity = 0;
  std::uint64_t bytes = 0, commits = 0, allocated = 0, updated = 0, evicted = 0;
  std::uint64_t suffix_tokens = 0;  // of answers remembered
  std::uint64_t saves = 0, save_failures = 0;
  std::string last_save_error;  // empty: the last one worked, or there was none
};

// What a name stands for: a recalibrator with its file, and a memory of answers given. Either may be missing.
class Bank {
 public:
  Bank(std::string name, std::optional<recal::BankSession> session) : name_(std::move(name)), session_(std::move(session)) {}
  const std::string& name() const { return name_; }
  recal::Recalibrator* recal() { return session_ ? session_->recal() : nullptr; }
  propose::SuffixMemory* suffix() { return suffix_.get(); }

 private:
  friend class Banks;
  bool writes() const { return session_ && session_->writes(); }
  std::uint64_t commits() const { return session_ ? session_->recal()->bank().stats().commits : 0; }

  std::string name_;
  std::optional<recal::BankSession> session_;         // none: the server has no draft
  std::unique_ptr<propose::SuffixMemory> suffix_;     // made when it is first needed; not saved
  std::uint64_t saved_commits_ = 0;                   // how much was learned when it was last saved
  std::uint64_t taken_commits_ = 0;                   // ... when the running snapshot began
  std::chrono::steady_clock::time_point saved_at_{};  // or tried
};

struct BanksConfig {
  std::chrono::seconds save_every{60};  // 0: only at the end
  std::size_t most = 64;
  std::uint32_t suffix_tokens = propose::kDefaultMemoryTokens;  // of a memory of answers
};

class Banks {
 public:
  // Opens the bank of a name: kDefaultBank, or one a request gives; none where there is no draft to recalibrate. Called once per
  // name, from any thread, never twice at a time.
  using Opener = std::function<Result<std::optional<recal::BankSession>>(const std::string& name)>;
  // Told of every save that failed, on the thread that made it.
  using Complaint = std::function<void(const std::string& name, const Status& why)>;

  Banks(BanksConfig config, Opener opener, Complaint complaint = {});
  ~Banks();  // without saving
  Banks(const Banks&) = delete;
  Banks& operator=(const Banks&) = delete;

  // What a mode needs of a name. Fails with kInvalid (the name), kLimit (too many banks, no memory), kUnsupported (no draft), and as the
  // opener.
  Result<std::shared_ptr<Bank>> get(const std::string& name, decode::Mode mode = decode::Mode::kDrift);

  // Goes on with saving; true while there is more to copy at once. Cost: about a millisecond.
  bool tend(std::chrono::steady_clock::time_point now);
  // Writes every bank that has learned something since it was last saved. The first failure is returned, the others complained of.
  Status save_all();
  void publish();
  std::vector<BankState> states() const;

 private:
  struct Writing {  // one bank on its way to its file
    std::shared_ptr<Bank> bank;
    std::unique_ptr<bank::Snapshot> snapshot;
    bank::StoredBank stored;  // all but the entries, then all
  };
  enum class Work { kNone, kRoom, kFile };
  void work();
  void make_room();
  void write_file();
  Result<std::shared_ptr<Bank>> open(const std::string& name);
  void begin_save(std::chrono::steady_clock::time_point now);
  void note(const std::string& name, const Status& status);

  const BanksConfig config_;
  const Opener opener_;
  const Complaint complaint_;

  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, std::shared_ptr<Bank>> banks_;
  std::map<std::string, BankState> states_;
  std::mutex opening_;  // one bank is opened at a time, and others can be found meanwhile

  // The saving in progress. The worker owns writing_ and room_ while work_ is not kNone, the decode thread otherwise.
  Writing writing_;
  bank::BankImage room_;
  std::condition_variable wake_;
  Work work_ = Work::kNone;
  bool ending_ = false;
  std::thread worker_;
};

}  // namespace drift::server
