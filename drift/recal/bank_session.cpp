#include "drift/recal/bank_session.hpp"

#include <optional>
#include <utility>

namespace drift::recal {

Result<BankSession> BankSession::open(const std::string& path, bool read_only, RecalConfig config, const BankOwner& owner,
                                      const Agrees& agrees) {
  DRIFT_TRY(config.validate());  // before a new file is made for a bank that cannot be
  BankSession session;
  session.owner_ = owner;
  std::optional<bank::StoredBank> stored;
  if (!path.empty()) {
    DRIFT_ASSIGN(auto file, bank::BankFile::open(path, read_only ? bank::Access::kReadOnly : bank::Access::kReadWrite));
    if (!file->empty()) {
      DRIFT_ASSIGN(stored, file->load(owner.fingerprint));
      const bank::BankConfig pair = config.bank;
      config.bank = stored->image.config;
      config.bank.key_dim = pair.key_dim;
      config.bank.vocab = pair.vocab;
    } else if (read_only) {
      return Status(Code::kNotFound, "the bank " + path + " is empty; run once without --bank-ro to fill it");
    }
    if (!read_only) session.file_ = std::move(file);
  }
  DRIFT_ASSIGN(session.recal_, Recalibrator::create(config));
  if (stored) {
    DRIFT_TRY(session.recal_->restore(*stored));
    if (agrees) DRIFT_TRY(agrees(session.recal_->config()));
  }
  return session;
}

bank::StoredBank BankSession::named(bank::StoredBank stored) const {
  stored.target_name = owner_.target_name;
  stored.draft_name = owner_.draft_name;
  return stored;
}

Status BankSession::save() {
  if (!file_) return Status::ok();
  return file_->save(named(recal_->save(owner_.fingerprint)));
}

bank::StoredBank BankSession::frame() const { return named(recal_->save(owner_.fingerprint, bank::BankImage{})); }

Status BankSession::write(const bank::StoredBank& stored) { return file_->save(stored); }

}  // namespace drift::recal
