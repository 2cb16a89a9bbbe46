// bank_session.hpp - a recalibrator and the file it lives in: restored if there is something in it, written back when asked.
//
// Threads: one owner. Only write() may run on another thread meanwhile: it touches the file and nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "drift/bank/store.hpp"
#include "drift/recal/recalibrator.hpp"

namespace drift::recal {

// Whose bank it is: checked when a file is opened, written with it. Names are for people.
struct BankOwner {
  bank::Fingerprint fingerprint;
  std::string target_name, draft_name;
};

class BankSession {
 public:
  // Says whether the make-up that a stored bank brings, its other levels included, may be used.
  using Agrees = std::function<Status(const RecalConfig& stored)>;

  // `path` may be empty: a bank in memory only, no owner needed. With read_only the file must hold a bank, and save() does nothing.
  // A stored bank brings its own BankConfig, stored levels their sizes. Requires: config.bank.key_dim and vocab are those of the pair.
  // Fails as RecalConfig::validate (no file is made then), BankFile::open and load, Recalibrator::restore, `agrees`.
  static Result<BankSession> open(const std::string& path, bool read_only, RecalConfig config, const BankOwner& owner,
                                  const Agrees& agrees = {});

  Recalibrator* recal() { return recal_.get(); }
  const Recalibrator* recal() const { return recal_.get(); }
  bool writes() const { return file_ != nullptr; }
  // All of it, now. Fails as BankFile::save.
  Status save();
  // Everything but the entries, as it is now. With the image of a bank::Snapshot begun at this moment it is a whole bank.
  bank::StoredBank frame() const;
  // Requires: writes(). Fails as BankFile::save.
  Status write(const bank::StoredBank& stored);

 private:
  bank::StoredBank named(bank::StoredBank stored) const;
  std::unique_ptr<Recalibrator> recal_;
  std::unique_ptr<bank::BankFile> file_;  // null: nothing to write
  BankOwner owner_;
};

}  // namespace drift::recal
