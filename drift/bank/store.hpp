// store.hpp - a bank as one SQLite file.
//
// Format: docs/bank-format.md. A closed bank is exactly one file (no -wal, no -journal left). Writing is atomic: a reader or
// a crash sees the old content or the new one, never a mixture. Every read checks application_id, user_version, the content
// hash and every bound before anything is handed out.
// Threads: a BankFile is used by one thread at a time; files are guarded against a second writer by a lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "drift/bank/bank.hpp"

namespace drift::bank {

// What a bank belongs to. Two files of the same pair match whatever they are called.
struct Fingerprint {
  std::string target_hash;  // content hash of the target model and its adapters, hex
  std::string draft_hash;   // of the draft model and its adapters, hex
  std::uint32_t vocab = 0;
  std::uint32_t hidden_width = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

struct StoredBank {
  Fingerprint fingerprint;
  std::string target_name, draft_name;  // for people only
  BankImage image;
  std::map<std::string, std::vector<std::byte>> extras;  // named state of other layers: "gains", "key_stats"
};

enum class Access { kReadOnly, kReadWrite };

class BankFile {
 public:
  // Opens or, with kReadWrite, creates. Holds the writer's lock until closed.
  // Fails with kNotFound (read-only and missing, or parent folder missing), kBusy (a second writer), kForeign (not a bank, or
  // made by a newer version), kCorrupt, kIo. On failure nothing on disk has changed.
  static Result<std::unique_ptr<BankFile>> open(const std::filesystem::path& path, Access access);
  ~BankFile();
  bool empty() const;  // a file just created, nothing saved yet
  // Fails with kCorrupt, kForeign, kNotFound (empty).
  Result<StoredBank> load() const;
  // As load, and kForeign naming what differs if the fingerprint is not `expected`.
  Result<StoredBank> load(const Fingerprint& expected) const;
  // Replaces the content atomically. Fails with kIo (full disk, ...); the old content then still stands.
  Status save(const StoredBank& bank);

 private:
  struct Impl;
  explicit BankFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Opens read-only, checks everything, closes.
Status verify_bank_file(const std::filesystem::path& path);

}  // namespace drift::bank
