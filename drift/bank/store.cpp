#include "drift/bank/store.hpp"

#include "drift/bank/store_db.hpp"
#include "drift/bank/store_disk.hpp"
#include "drift/bank/store_format.hpp"

namespace drift::bank {
namespace {
constexpr int kOpenTries = 64;  // each means that a writer saved within the milliseconds of an opening
}

struct BankFile::Impl {
  std::filesystem::path path;  // its folder resolved
  Access access = Access::kReadOnly;
  disk::FileLock lock;                         // held by writers
  mutable std::unique_ptr<db::Reader> reader;  // of the content as of open() or the last save()
  bool empty = false;

  // A reader without a lock may open while a writer renames new content over the path: then what was checked and what was
  // opened are different files, each whole, and the opening is done again.
  Result<db::Reader*> open_reader() const {
    for (int tries = 0; reader == nullptr; ++tries) {
      const disk::Identity before = disk::identity(path);
      DRIFT_ASSIGN(const std::uint64_t bytes, disk::check_bank_path(path, format::kMaxFileBytes));
      auto opened = db::Reader::open(path, bytes);
      if (disk::identity(path) != before && tries < kOpenTries) continue;
      DRIFT_ASSIGN(reader, std::move(opened));
    }
    return reader.get();
  }

  // Writes `bank` (null: an empty one) beside the bank and renames it over. On failure only the temporary file is gone.
  Status replace(const StoredBank* bank) {
    DRIFT_ASSIGN(disk::FileLock temp, disk::create_temp(path));
    Status status = db::write(disk::temp_path(path), bank);
    if (status.is_ok()) status = disk::publish(path, temp, lock);
    if (!status.is_ok()) {
      disk::discard_temp(path);
      return status;
    }
    lock = std::move(temp);
    reader.reset();
    empty = bank == nullptr;
    return Status::ok();
  }
};

BankFile::BankFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BankFile::~BankFile() = default;

Result<std::unique_ptr<BankFile>> BankFile::open(const std::filesystem::path& path, Access access) {
  auto impl = std::make_unique<Impl>();
  impl->access = access;
  DRIFT_ASSIGN(impl->path, disk::resolve(path));
  auto bytes = disk::check_bank_path(impl->path, format::kMaxFileBytes);
  const bool missing = !bytes.is_ok() && bytes.status().code() == Code::kNotFound;
  if (!bytes.is_ok() && !(missing && access == Access::kReadWrite)) return bytes.status();
  if (missing) {
    DRIFT_TRY(disk::check_folder_writable(impl->path));
    DRIFT_TRY(impl->replace(nullptr));
  } else if (access == Access::kReadWrite) {
    DRIFT_TRY(disk::check_folder_writable(impl->path));
    DRIFT_ASSIGN(impl->lock, disk::lock_bank(impl->path));
  }
  DRIFT_ASSIGN(db::Reader * reader, impl->open_reader());
  impl->empty = format::is_empty(reader->meta());
  if (access == Access::kReadWrite) disk::remove_leftover(impl->path);
  return std::unique_ptr<BankFile>(new BankFile(std::move(impl)));
}

bool BankFile::empty() const { return impl_->empty; }

Result<StoredBank> BankFile::load() const {
  DRIFT_ASSIGN(db::Reader * reader, impl_->open_reader());
  return reader->load();
}

Result<StoredBank> BankFile::load(const Fingerprint& expected) const {
  DRIFT_ASSIGN(db::Reader * reader, impl_->open_reader());
  if (format::is_empty(reader->meta())) return reader->load();
  DRIFT_ASSIGN(const StoredBank head, format::parse_meta(reader->meta()));
  const Fingerprint& found = head.fingerprint;
  std::string differs;
  const auto compare = [&](const char* what, const std::string& has, const std::string& wants) {
    if (has != wants) differs += std::string(differs.empty() ? "" : "; ") + what + " is " + has + ", expected " + wants;
  };
  compare("target", found.target_hash, expected.target_hash);
  compare("draft", found.draft_hash, expected.draft_hash);
  compare("vocabulary", std::to_string(found.vocab), std::to_string(expected.vocab));
  compare("hidden width", std::to_string(found.hidden_width), std::to_string(expected.hidden_width));
  // A damaged fingerprint must not pass for another pair's: the content hash decides first.
  DRIFT_ASSIGN(StoredBank bank, reader->load());
  if (differs.empty()) return bank;
  const std::string made_for =
      head.target_name.empty() ? "" : " (made for " + head.target_name + " with " + head.draft_name + ")";
  return {Code::kForeign, "bank '" + impl_->path.string() + "' belongs to another pair of models" + made_for + ": " + differs +
                              "; use the pair it was made with or another bank file"};
}

Status BankFile::save(const StoredBank& bank) {
  if (impl_->access != Access::kReadWrite) {
    return {Code::kInvalid, "bank '" + impl_->path.string() + "' was opened read-only; nothing was saved"};
  }
  DRIFT_TRY(format::check_bank(bank));
  return impl_->replace(&bank);
}

Status verify_bank_file(const std::filesystem::path& path) {
  DRIFT_ASSIGN(auto file, BankFile::open(path, Access::kReadOnly));
  if (file->empty()) return Status::ok();
  return file->load().status();
}

}  // namespace drift::bank
