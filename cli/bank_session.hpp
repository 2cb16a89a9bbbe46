// bank_session.hpp - the bank of a run: from its file if there is one, and back at the end.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>

#include "cli/pair.hpp"
#include "cli/settings.hpp"
#include "drift/bank/store.hpp"
#include "drift/recal/recalibrator.hpp"

namespace drift::cli {

class BankSession {
 public:
  // `path` may be empty: a bank in memory only. With read_only the file must exist, and save() does nothing.
  // A stored bank brings its own capacity, support, tau, ...; flags given on purpose must agree with it.
  // Fails as BankFile::open and load, and with kForeign when a flag disagrees with the stored bank.
  static Result<BankSession> open(const std::string& path, bool read_only, const Settings& settings, const Pair& pair);

  recal::Recalibrator* recal() { return recal_.get(); }
  // Fails as BankFile::save.
  Status save();
  bool writes() const { return file_ != nullptr; }

 private:
  std::unique_ptr<recal::Recalibrator> recal_;
  std::unique_ptr<bank::BankFile> file_;  // null: nothing to write
  bank::Fingerprint fingerprint_;
  std::string target_name_, draft_name_;
};

}  // namespace drift::cli
