#include "drift/sqlite/database.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

namespace drift::sqlite {
namespace {

void harden(sqlite3* db, int row_bytes_max) {
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, nullptr);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, row_bytes_max);
  sqlite3_limit(db, SQLITE_LIMIT_SQL_LENGTH, 1 << 16);
  sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
}

// file:<path>?mode=ro&immutable=1 with everything escaped that a URI could take for something else.
std::string read_only_uri(const std::filesystem::path& path) {
  std::string uri = "file:";
  for (const char c : path.string()) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       std::string_view("/._-").find(c) != std::string_view::npos;
    if (plain) {
      uri += c;
    } else {
      uri += '%';
      uri += "0123456789ABCDEF"[static_cast<unsigned char>(c) >> 4];
      uri += "0123456789ABCDEF"[static_cast<unsigned char>(c) & 15];
    }
  }
  return uri + "?mode=ro&immutable=1";
}

std::uint32_t big_endian(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

// What can be said of a file from its first 100 bytes (SQLite's database header) and its length, before SQLite sees it.
Status check_header(const std::filesystem::path& path, std::uint64_t file_bytes, const Kind& kind) {
  const std::string noun = kind.noun;
  std::array<unsigned char, 100> head{};
  std::ifstream file(path, std::ios::binary);
  if (!file) return {Code::kIo, "cannot read " + noun + " '" + path.string() + "': " + std::strerror(errno)};
  file.read(reinterpret_cast<char*>(head.data()), head.size());
  const auto got = static_cast<std::size_t>(file.gcount());
  if (std::memcmp(head.data(), "SQLite format 3", std::min<std::size_t>(got, 16)) != 0) {
    return {Code::kForeign, "'" + path.string() + "' is not a " + noun + ": it does not begin as an SQLite file"};
  }
  if (got < head.size())
    return {Code::kCorrupt, noun + " '" + path.string() + "' is cut: only " + std::to_string(got) + " bytes are left"};
  if (big_endian(&head[68]) != static_cast<std::uint32_t>(kind.application_id)) {
    return {Code::kForeign, "'" + path.string() + "' is an SQLite file of another program, not a " + noun};
  }
  const auto ours = static_cast<std::uint32_t>(kind.version);
  if (const std::uint32_t version = big_endian(&head[60]); version != ours) {
    return {Code::kForeign, noun + " '" + path.string() + "' has format version " + std::to_string(version) +
                                ", this program reads " + std::to_string(ours) +
                                (version > ours ? ": it was made by a newer version of drift; update drift" : "")};
  }
  const std::uint32_t raw_page = std::uint32_t{head[16]} << 8 | head[17];
  const std::uint64_t page = raw_page == 1 ? 65'536 : raw_page;
  const std::uint64_t expected = page * big_endian(&head[28]);
  if (expected != file_bytes) {
    return {Code::kCorrupt, noun + " '" + path.string() + "' has " + std::to_string(file_bytes) + " bytes, its header says " +
                                std::to_string(expected) + ": it was cut or added to"};
  }
  return Status::ok();
}

Status check_identity(sqlite3* db, const std::filesystem::path& path, const Kind& kind) {
  std::int64_t application = 0, version = 0;
  if (!read_integer(db, "PRAGMA application_id", application) || !read_integer(db, "PRAGMA user_version", version)) {
    return error_of(db, std::string("cannot read ") + kind.noun, path);
  }
  if (application != kind.application_id || version != kind.version) {
    return {Code::kForeign, "'" + path.string() + "' changed while it was opened; try again"};
  }
  return Status::ok();
}

Status check_schema(sqlite3* db, const std::filesystem::path& path, const Kind& kind) {
  const std::string reading = std::string("cannot read the schema of ") + kind.noun;
  const std::string foreign = std::string("its tables are not those of a ") + kind.noun;
  Statement rows(db, "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_autoindex_%' ORDER BY rowid");
  if (!rows.ok()) return error_of(db, reading, path);
  std::size_t seen = 0;
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    const bool ours = seen < kind.schema.size() && rows.text(0) == kind.schema[seen].type &&
                      rows.text(1) == kind.schema[seen].name && rows.text(2) == kind.schema[seen].sql;
    if (!ours) return corrupt(kind, path, foreign);
    ++seen;
  }
  if (rc != SQLITE_DONE) return error_of(db, reading, path);
  if (seen != kind.schema.size()) return corrupt(kind, path, foreign);
  return Status::ok();
}

}  // namespace

Status error_of(sqlite3* db, const std::string& doing, const std::filesystem::path& path) {
  const int code = db == nullptr ? SQLITE_NOMEM : sqlite3_extended_errcode(db);
  const int primary = code & 0xff;
  std::string message = doing + " '" + path.string() + "': " + (db == nullptr ? "out of memory" : sqlite3_errmsg(db));
  if (db != nullptr && primary == SQLITE_IOERR && sqlite3_system_errno(db) != 0) {
    message += std::string(" (") + std::strerror(sqlite3_system_errno(db)) + ")";
  }
  if (primary == SQLITE_FULL) message += "; free some space or name another place";
  const bool damaged = primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB || primary == SQLITE_ERROR ||
                       code == SQLITE_IOERR_SHORT_READ || code == SQLITE_IOERR_CORRUPTFS || primary == SQLITE_TOOBIG;
  return {damaged ? Code::kCorrupt : Code::kIo, message};
}

Status corrupt(const Kind& kind, const std::filesystem::path& path, const std::string& what) {
  return {Code::kCorrupt, std::string(kind.noun) + " '" + path.string() + "' is damaged: " + what};
}

bool run(sqlite3* db, const std::string& sql) { return sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK; }

bool read_integer(sqlite3* db, const char* sql, std::int64_t& value) {
  Statement statement(db, sql);
  if (statement.step() != SQLITE_ROW) return false;
  value = statement.integer(0);
  return true;
}

Database& Database::operator=(Database&& other) noexcept {
  if (this != &other) {
    sqlite3_close(db_);
    db_ = std::exchange(other.db_, nullptr);
  }
  return *this;
}

Result<Database> Database::open_read_only(const std::filesystem::path& path, std::uint64_t file_bytes, const Kind& kind) {
  DRIFT_TRY(check_header(path, file_bytes, kind));
  const std::string opening = std::string("cannot open ") + kind.noun;
  Database out;
  const int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX |
                    SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE;
  if (sqlite3_open_v2(read_only_uri(path).c_str(), &out.db_, flags, nullptr) != SQLITE_OK)
    return error_of(out.db_, opening, path);
  harden(out.db_, kind.row_bytes_max);
  if (!run(out.db_, "PRAGMA cell_size_check=ON; PRAGMA temp_store=MEMORY; PRAGMA query_only=ON"))
    return error_of(out.db_, opening, path);
  DRIFT_TRY(check_identity(out.db_, path, kind));
  DRIFT_TRY(check_schema(out.db_, path, kind));
  return out;
}

Result<Database> Database::create(const std::filesystem::path& path, const Kind& kind, const std::string& pragmas) {
  const int flags =
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE;
  Database out;
  bool ok = sqlite3_open_v2(path.c_str(), &out.db_, flags, nullptr) == SQLITE_OK;
  ok = ok && run(out.db_, pragmas +
                              "; PRAGMA synchronous=FULL; PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; "
                              "PRAGMA encoding='UTF-8'; BEGIN; PRAGMA application_id=" +
                              std::to_string(kind.application_id) + "; PRAGMA user_version=" + std::to_string(kind.version));
  for (const SchemaObject& object : kind.schema) ok = ok && run(out.db_, object.sql);
  if (ok) return out;
  return Status(Code::kIo, error_of(out.db_, "cannot write", path).message());
}

Status Database::quick_check(const std::filesystem::path& path, const Kind& kind) const {
  Statement check(db_, "PRAGMA quick_check(1)");
  if (check.step() != SQLITE_ROW) return error_of(db_, std::string("cannot check ") + kind.noun, path);
  if (check.text(0) != "ok") return corrupt(kind, path, "SQLite's own check says: " + check.text(0));
  return Status::ok();
}

bool Database::close() { return sqlite3_close(std::exchange(db_, nullptr)) == SQLITE_OK; }

}  // namespace drift::sqlite
