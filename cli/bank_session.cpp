#include "cli/bank_session.hpp"

#include <fmt/format.h>

#include <optional>

#include "text/printable.hpp"

namespace drift::cli {
namespace {

constexpr std::size_t kNameMax = 200;  // characters: at most 803 bytes of the store's 1,024
constexpr const char* kBankKeys[] = {"capacity", "support", "tau", "eta", "rate", "key-type", "int8-scan", "standardise"};

Status check_agrees(const Settings& settings, const bank::BankConfig& stored, const std::string& path) {
  Settings kept = settings;
  kept.recal.bank = stored;
  for (const char* key : kBankKeys) {
    if (!settings.given.contains(key)) continue;
    const std::string wanted = setting_value(settings, key), there = setting_value(kept, key);
    if (wanted != there) {
      return {Code::kForeign,
              fmt::format("the bank {} was made with {} {}, but --{} is {}; leave the flag out, or use another file", path, key,
                          there, key, wanted)};
    }
  }
  return Status::ok();
}

}  // namespace

Result<BankSession> BankSession::open(const std::string& path, bool read_only, const Settings& settings, const Pair& pair) {
  BankSession session;
  recal::RecalConfig config = settings.recal;
  std::optional<bank::StoredBank> stored;
  if (!path.empty()) {
    session.fingerprint_ = pair.fingerprint();
    // A model file may be called anything; the store takes names that are short and can be printed.
    session.target_name_ = text::printable(pair.target->describe().name, kNameMax);
    session.draft_name_ = text::printable(pair.draft_info.name, kNameMax);
    DRIFT_TRY(complete(config, pair).status());  // before a new file is made for a bank that cannot be
    DRIFT_ASSIGN(auto file, bank::BankFile::open(path, read_only ? bank::Access::kReadOnly : bank::Access::kReadWrite));
    if (!file->empty()) {
      DRIFT_ASSIGN(stored, file->load(session.fingerprint_));
      DRIFT_TRY(check_agrees(settings, stored->image.config, path));
      config.bank = stored->image.config;
    } else if (read_only) {
      return Status(Code::kNotFound, fmt::format("the bank {} is empty; run once without --bank-ro to fill it", path));
    }
    if (!read_only) session.file_ = std::move(file);
  }
  DRIFT_ASSIGN(config, complete(config, pair));
  DRIFT_ASSIGN(session.recal_, recal::Recalibrator::create(config));
  if (stored) DRIFT_TRY(session.recal_->restore(*stored));
  return session;
}

Status BankSession::save() {
  if (!file_) return Status::ok();
  bank::StoredBank stored = recal_->save(fingerprint_);
  stored.target_name = target_name_;
  stored.draft_name = draft_name_;
  return file_->save(stored);
}

}  // namespace drift::cli
