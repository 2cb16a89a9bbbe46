// database.hpp - what every SQLite file of DRIFT's has in common: opening one that may be hostile, statements, errors in words.
//
// A finished file is never changed in place, so it is read with immutable=1: no lock, no journal beside it is looked at, nothing
// is written. Its schema must be ours to the letter, so no foreign view or trigger is ever compiled.
// Threads: one thread per object. Internal: not installed, for this header needs sqlite3.h.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "drift/base/status.hpp"

namespace drift::sqlite {

struct SchemaObject {
  const char* type;
  const char* name;
  const char* sql;  // in the exact form SQLite keeps in sqlite_schema
};

// A kind of file.
struct Kind {
  const char* noun;  // "bank": how errors call it
  std::int32_t application_id;
  std::int32_t version;                  // user_version; other ones are refused
  std::span<const SchemaObject> schema;  // in order of creation
  int row_bytes_max;                     // the largest row there can be
};

// What the database's last error was, as a status: kCorrupt where the file is damaged, kIo otherwise. A null db: no memory.
Status error_of(sqlite3* db, const std::string& doing, const std::filesystem::path& path);

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { sqlite3_prepare_v2(db, sql, -1, &stmt_, nullptr); }
  ~Statement() { sqlite3_finalize(stmt_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  bool ok() const { return stmt_ != nullptr; }
  int step() { return stmt_ == nullptr ? SQLITE_ERROR : sqlite3_step(stmt_); }
  bool insert() { return step() == SQLITE_DONE && sqlite3_reset(stmt_) == SQLITE_OK; }
  void reset() { sqlite3_reset(stmt_); }
  int type(int column) const { return sqlite3_column_type(stmt_, column); }
  std::int64_t integer(int column) const { return sqlite3_column_int64(stmt_, column); }
  double real(int column) const { return sqlite3_column_double(stmt_, column); }
  std::span<const std::byte> bytes(int column) const {
    const void* data = sqlite3_column_blob(stmt_, column);
    return {static_cast<const std::byte*>(data),
            data == nullptr ? 0 : static_cast<std::size_t>(sqlite3_column_bytes(stmt_, column))};
  }
  std::string text(int column) const {
    const auto view = bytes(column);
    return {reinterpret_cast<const char*>(view.data()), view.size()};
  }
  void bind(int index, std::int64_t value) { sqlite3_bind_int64(stmt_, index, value); }
  void bind(int index, double value) { sqlite3_bind_double(stmt_, index, value); }
  void bind_null(int index) { sqlite3_bind_null(stmt_, index); }
  // Neither is copied: they must live until the insert is done.
  void bind(int index, const std::string& value) {
    sqlite3_bind_text(stmt_, index, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
  }
  void bind_blob(int index, const void* data, std::size_t size) {
    if (size == 0)
      sqlite3_bind_zeroblob(stmt_, index, 0);
    else
      sqlite3_bind_blob64(stmt_, index, data, size, SQLITE_STATIC);
  }

 private:
  sqlite3_stmt* stmt_ = nullptr;
};

// Runs statements that give no rows.
bool run(sqlite3* db, const std::string& sql);
// The first column of the first row.
bool read_integer(sqlite3* db, const char* sql, std::int64_t& value);

// An open database, closed with the object.
class Database {
 public:
  Database() = default;
  ~Database() { sqlite3_close(db_); }
  Database(Database&& other) noexcept : db_(other.db_) { other.db_ = nullptr; }
  Database& operator=(Database&& other) noexcept;

  // For reading. Checks header, length, application_id, user_version and schema; `file_bytes` is the file's size.
  // Fails with kForeign (another program's, another version), kCorrupt, kIo.
  static Result<Database> open_read_only(const std::filesystem::path& path, std::uint64_t file_bytes, const Kind& kind);
  // For filling an existing, empty file: the schema is made in a transaction that is left open. `pragmas` come first of all.
  // Fails with kIo; the file is then of no use.
  static Result<Database> create(const std::filesystem::path& path, const Kind& kind, const std::string& pragmas);
  // SQLite's own check of the whole file. Fails with kCorrupt, kIo.
  Status quick_check(const std::filesystem::path& path, const Kind& kind) const;
  // False if what was written could not be finished.
  bool close();

  sqlite3* get() const { return db_; }

 private:
  sqlite3* db_ = nullptr;
};

// "bank '...' is damaged: what", as kCorrupt.
Status corrupt(const Kind& kind, const std::filesystem::path& path, const std::string& what);

}  // namespace drift::sqlite
