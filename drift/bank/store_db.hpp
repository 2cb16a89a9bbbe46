// store_db.hpp - one bank file as SQLite tables: reading one that may be hostile, and writing a new one.
//
// How it is opened: drift/sqlite/database.hpp.
// Threads: one thread per object. Memory: sizes are checked against the file's own size before anything is allocated.
#pragma once

#include <filesystem>
#include <memory>

#include "drift/bank/store_format.hpp"
#include "drift/sqlite/database.hpp"

namespace drift::bank::db {

class Reader {
 public:
  // Checks header, length, application_id, user_version, schema, SQLite's own integrity and the meta fields.
  // Fails with kForeign (not a bank, a newer version), kCorrupt, kIo.
  static Result<std::unique_ptr<Reader>> open(const std::filesystem::path& path, std::uint64_t file_bytes);
  const format::Meta& meta() const { return meta_; }
  // Reads all content and checks bounds and content hash. Fails with kCorrupt; kNotFound if nothing was saved yet.
  Result<StoredBank> load() const;

 private:
  Reader(std::filesystem::path path, std::uint64_t file_bytes) : path_(std::move(path)), file_bytes_(file_bytes) {}
  Status read_meta();
  Status read_entries(BankImage& image) const;
  Status read_chunks(BankImage& image) const;
  Status read_extras(StoredBank& bank) const;
  Status corrupt(const std::string& what) const;
  Status unreadable() const;

  std::filesystem::path path_;
  std::uint64_t file_bytes_ = 0;
  sqlite::Database file_;
  format::Meta meta_;
  std::string stored_hash_;
};

// Writes a complete bank file into the existing, empty file at `path`; null: a bank nothing was saved into yet.
// Fails with kIo; the file is then of no use.
Status write(const std::filesystem::path& path, const StoredBank* bank);

}  // namespace drift::bank::db
