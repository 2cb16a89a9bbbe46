#include "drift/bank/store_db.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>

namespace drift::bank::db {
namespace {

using format::kChunkEntries;
using format::Meta;

struct SchemaObject {
  const char* type;
  const char* name;
  const char* sql;  // in the exact form SQLite keeps in sqlite_schema
};

// In order of creation. The view is for people with the sqlite3 program; this code never reads it.
constexpr std::array<SchemaObject, 5> kSchema{{
    {"table", "meta", "CREATE TABLE meta(key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID"},
    {"table", "entries",
     "CREATE TABLE entries(id INTEGER PRIMARY KEY, length INTEGER NOT NULL, count INTEGER NOT NULL, last_used INTEGER NOT NULL, "
     "error REAL NOT NULL)"},
    {"table", "chunks",
     "CREATE TABLE chunks(first_entry INTEGER PRIMARY KEY, tokens BLOB NOT NULL, residuals BLOB NOT NULL, keys BLOB NOT NULL)"},
    {"table", "extras", "CREATE TABLE extras(name TEXT PRIMARY KEY NOT NULL, content BLOB NOT NULL) WITHOUT ROWID"},
    {"view", "entry_usage",
     "CREATE VIEW entry_usage AS SELECT id, count, last_used, length FROM entries ORDER BY count DESC, last_used DESC"},
}};

// The largest blob: keys of one chunk, 1,024 entries of 16,384 floats; SQLite's row header on top.
constexpr int kMaxRowBytes = (80 << 20);

Status sqlite_error(sqlite3* db, const std::string& doing, const std::filesystem::path& path) {
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

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { sqlite3_prepare_v2(db, sql, -1, &stmt_, nullptr); }
  ~Statement() { sqlite3_finalize(stmt_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  bool ok() const { return stmt_ != nullptr; }
  int step() { return stmt_ == nullptr ? SQLITE_ERROR : sqlite3_step(stmt_); }
  bool insert() { return step() == SQLITE_DONE && sqlite3_reset(stmt_) == SQLITE_OK; }
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
  void bind(int index, const std::string& value) {
    sqlite3_bind_text(stmt_, index, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
  }
  // Not copied: `data` must live until the insert is done.
  void bind_blob(int index, const void* data, std::size_t size) {
    if (size == 0)
      sqlite3_bind_zeroblob(stmt_, index, 0);
    else
      sqlite3_bind_blob64(stmt_, index, data, size, SQLITE_STATIC);
  }

 private:
  sqlite3_stmt* stmt_ = nullptr;
};

bool run(sqlite3* db, const std::string& sql) { return sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK; }

bool read_integer(sqlite3* db, const char* sql, std::int64_t& value) {
  Statement statement(db, sql);
  if (statement.step() != SQLITE_ROW) return false;
  value = statement.integer(0);
  return true;
}

void harden(sqlite3* db) {
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, nullptr);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, kMaxRowBytes);
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
Status check_header(const std::filesystem::path& path, std::uint64_t file_bytes) {
  std::array<unsigned char, 100> head{};
  std::ifstream file(path, std::ios::binary);
  if (!file) return {Code::kIo, "cannot read bank '" + path.string() + "': " + std::strerror(errno)};
  file.read(reinterpret_cast<char*>(head.data()), head.size());
  const auto got = static_cast<std::size_t>(file.gcount());
  if (std::memcmp(head.data(), "SQLite format 3", std::min<std::size_t>(got, 16)) != 0) {
    return {Code::kForeign, "'" + path.string() + "' is not a bank: it does not begin as an SQLite file"};
  }
  if (got < head.size())
    return {Code::kCorrupt, "bank '" + path.string() + "' is cut: only " + std::to_string(got) + " bytes are left"};
  if (big_endian(&head[68]) != static_cast<std::uint32_t>(format::kApplicationId)) {
    return {Code::kForeign, "'" + path.string() + "' is an SQLite file of another program, not a bank"};
  }
  if (const std::uint32_t version = big_endian(&head[60]); version != static_cast<std::uint32_t>(format::kVersion)) {
    return {Code::kForeign, "bank '" + path.string() + "' has format version " + std::to_string(version) +
                                ", this program reads " + std::to_string(format::kVersion) +
                                (version > 1 ? ": it was made by a newer version of drift; update drift" : "")};
  }
  const std::uint32_t raw_page = std::uint32_t{head[16]} << 8 | head[17];
  const std::uint64_t page = raw_page == 1 ? 65'536 : raw_page;
  const std::uint64_t expected = page * big_endian(&head[28]);
  if (expected != file_bytes) {
    return {Code::kCorrupt, "bank '" + path.string() + "' has " + std::to_string(file_bytes) + " bytes, its header says " +
                                std::to_string(expected) + ": it was cut or added to"};
  }
  return Status::ok();
}

template <class T>
bool copy_exactly(std::span<const std::byte> from, std::vector<T>& to, std::size_t first, std::size_t count) {
  if (from.size() != count * sizeof(T)) return false;
  if (count != 0) std::memcpy(to.data() + first, from.data(), from.size());
  return true;
}

}  // namespace

Result<std::unique_ptr<Reader>> Reader::open(const std::filesystem::path& path, std::uint64_t file_bytes) {
  DRIFT_TRY(check_header(path, file_bytes));
  std::unique_ptr<Reader> reader(new Reader(path, file_bytes));
  DRIFT_TRY(reader->connect());
  DRIFT_TRY(reader->check_identity());
  DRIFT_TRY(reader->check_schema());
  Statement check(reader->db_, "PRAGMA quick_check(1)");
  if (check.step() != SQLITE_ROW) return sqlite_error(reader->db_, "cannot check bank", path);
  if (check.text(0) != "ok") return reader->corrupt("SQLite's own check says: " + check.text(0));
  DRIFT_TRY(reader->read_meta());
  return reader;
}

Reader::~Reader() { sqlite3_close(db_); }

Status Reader::corrupt(const std::string& what) const {
  return {Code::kCorrupt, "bank '" + path_.string() + "' is damaged: " + what};
}

Status Reader::connect() {
  const int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX |
                    SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE;
  if (sqlite3_open_v2(read_only_uri(path_).c_str(), &db_, flags, nullptr) != SQLITE_OK) {
    return sqlite_error(db_, "cannot open bank", path_);
  }
  harden(db_);
  if (!run(db_, "PRAGMA cell_size_check=ON; PRAGMA temp_store=MEMORY; PRAGMA query_only=ON")) {
    return sqlite_error(db_, "cannot open bank", path_);
  }
  return Status::ok();
}

Status Reader::check_identity() const {
  std::int64_t application = 0, version = 0;
  if (!read_integer(db_, "PRAGMA application_id", application) || !read_integer(db_, "PRAGMA user_version", version)) {
    return sqlite_error(db_, "cannot read bank", path_);
  }
  if (application != format::kApplicationId || version != format::kVersion) {
    return {Code::kForeign, "'" + path_.string() + "' changed while it was opened; try again"};
  }
  return Status::ok();
}

Status Reader::check_schema() const {
  Statement rows(db_, "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_autoindex_%' ORDER BY rowid");
  if (!rows.ok()) return sqlite_error(db_, "cannot read the schema of bank", path_);
  std::size_t seen = 0;
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    const bool ours = seen < kSchema.size() && rows.text(0) == kSchema[seen].type && rows.text(1) == kSchema[seen].name &&
                      rows.text(2) == kSchema[seen].sql;
    if (!ours) return corrupt("its tables are not those of a bank");
    ++seen;
  }
  if (rc != SQLITE_DONE) return sqlite_error(db_, "cannot read the schema of bank", path_);
  if (seen != kSchema.size()) return corrupt("its tables are not those of a bank");
  return Status::ok();
}

Status Reader::read_meta() {
  Statement rows(db_, "SELECT key, value FROM meta");
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    if (meta_.size() >= 64 || rows.bytes(0).size() > 64 || rows.bytes(1).size() > format::kMaxNameBytes) {
      return corrupt("its meta table is larger than a bank's");
    }
    if (!meta_.emplace(rows.text(0), rows.text(1)).second) return corrupt("a meta field is there twice");
  }
  if (rc != SQLITE_DONE) return sqlite_error(db_, "cannot read bank", path_);
  const auto hash = meta_.find("content_hash");
  if (hash == meta_.end()) return corrupt("its content hash is missing");
  stored_hash_ = hash->second;
  meta_.erase(hash);
  if (format::is_empty(meta_)) {
    if (format::content_hash(meta_, nullptr) != stored_hash_) return corrupt("content and content hash disagree");
    return Status::ok();
  }
  const Status sound = format::parse_meta(meta_).status();
  return sound.code() == Code::kCorrupt ? corrupt(sound.message()) : sound;
}

Status Reader::read_entries(BankImage& image) const {
  Statement rows(db_, "SELECT id, length, count, last_used, error FROM entries ORDER BY id");
  std::uint32_t seen = 0;
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    const std::int64_t length = rows.integer(1), count = rows.integer(2), last_used = rows.integer(3);
    const bool sane = seen < image.size && rows.integer(0) == seen && rows.type(1) == SQLITE_INTEGER &&
                      rows.type(2) == SQLITE_INTEGER && rows.type(3) == SQLITE_INTEGER && rows.type(4) == SQLITE_FLOAT &&
                      length >= 0 && length <= image.config.support && count >= 0 && count <= UINT32_MAX && last_used >= 0;
    if (!sane) return corrupt("entry " + std::to_string(seen) + " is outside its bounds");
    image.lengths[seen] = static_cast<std::uint32_t>(length);
    image.counts[seen] = static_cast<std::uint32_t>(count);
    image.last_used[seen] = static_cast<std::uint64_t>(last_used);
    image.errors[seen] = static_cast<float>(rows.real(4));
    ++seen;
  }
  if (rc != SQLITE_DONE) return sqlite_error(db_, "cannot read bank", path_);
  if (seen != image.size) return corrupt("it has " + std::to_string(seen) + " of " + std::to_string(image.size) + " entries");
  return Status::ok();
}

Status Reader::read_chunks(BankImage& image) const {
  const std::size_t record = format::record_bytes(image.config), support = image.config.support;
  Statement rows(db_, "SELECT first_entry, tokens, residuals, keys FROM chunks ORDER BY first_entry");
  std::size_t first = 0;
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    const std::size_t count = std::min<std::size_t>(kChunkEntries, image.size - first);
    const bool sane = count != 0 && rows.integer(0) == static_cast<std::int64_t>(first) &&
                      copy_exactly(rows.bytes(1), image.tokens, first * support, count * support) &&
                      copy_exactly(rows.bytes(2), image.values, first * support, count * support) &&
                      copy_exactly(rows.bytes(3), image.keys, first * record, count * record);
    if (!sane) return corrupt("the chunk of entry " + std::to_string(first) + " has the wrong place or size");
    first += count;
  }
  if (rc != SQLITE_DONE) return sqlite_error(db_, "cannot read bank", path_);
  if (first != image.size) return corrupt("chunks are missing from entry " + std::to_string(first) + " on");
  return Status::ok();
}

Status Reader::read_extras(StoredBank& bank) const {
  Statement rows(db_, "SELECT name, content FROM extras");
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    if (bank.extras.size() >= format::kMaxExtras || rows.bytes(0).size() > format::kMaxExtraName ||
        rows.bytes(1).size() > format::kMaxExtraBytes) {
      return corrupt("it holds more extras than a bank may");
    }
    const auto content = rows.bytes(1);
    bank.extras[rows.text(0)].assign(content.begin(), content.end());
  }
  if (rc != SQLITE_DONE) return sqlite_error(db_, "cannot read bank", path_);
  return Status::ok();
}

Result<StoredBank> Reader::load() const {
  if (format::is_empty(meta_)) return {Code::kNotFound, "bank '" + path_.string() + "' is empty: nothing was saved into it yet"};
  DRIFT_ASSIGN(StoredBank bank, format::parse_meta(meta_));
  BankImage& image = bank.image;
  if (const Status config = image.config.validate(); !config.is_ok()) return corrupt(config.message());
  if (image.size > image.config.capacity) return corrupt("it says to hold more entries than its capacity");
  const std::uint64_t record = format::record_bytes(image.config);
  const std::uint64_t needed = image.size * (record + image.config.support * (sizeof(Token) + sizeof(float)));
  if (needed > file_bytes_) return corrupt("it says to hold more than the file has bytes");
  image.lengths.resize(image.size);
  image.counts.resize(image.size);
  image.last_used.resize(image.size);
  image.errors.resize(image.size);
  image.tokens.resize(std::size_t{image.size} * image.config.support);
  image.values.resize(std::size_t{image.size} * image.config.support);
  image.keys.resize(image.size * record);
  DRIFT_TRY(read_entries(image));
  DRIFT_TRY(read_chunks(image));
  DRIFT_TRY(read_extras(bank));
  if (format::content_hash(meta_, &bank) != stored_hash_) return corrupt("content and content hash disagree");
  if (const Status valid = format::check_bank(bank); !valid.is_ok()) return corrupt(valid.message());
  return bank;
}

namespace {

bool insert_meta(sqlite3* db, const Meta& meta, const std::string& hash) {
  Statement insert(db, "INSERT INTO meta VALUES(?, ?)");
  Meta all = meta;
  all.emplace("content_hash", hash);
  for (const auto& [key, value] : all) {
    insert.bind(1, key);
    insert.bind(2, value);
    if (!insert.insert()) return false;
  }
  return true;
}

bool insert_entries(sqlite3* db, const BankImage& image) {
  Statement insert(db, "INSERT INTO entries VALUES(?, ?, ?, ?, ?)");
  for (std::uint32_t i = 0; i < image.size; ++i) {
    insert.bind(1, std::int64_t{i});
    insert.bind(2, std::int64_t{image.lengths[i]});
    insert.bind(3, std::int64_t{image.counts[i]});
    insert.bind(4, static_cast<std::int64_t>(image.last_used[i]));
    insert.bind(5, double{image.errors[i]});
    if (!insert.insert()) return false;
  }
  return true;
}

bool insert_chunks(sqlite3* db, const BankImage& image) {
  Statement insert(db, "INSERT INTO chunks VALUES(?, ?, ?, ?)");
  const std::size_t record = format::record_bytes(image.config), support = image.config.support;
  for (std::size_t first = 0; first < image.size; first += kChunkEntries) {
    const std::size_t count = std::min<std::size_t>(kChunkEntries, image.size - first);
    insert.bind(1, static_cast<std::int64_t>(first));
    insert.bind_blob(2, image.tokens.data() + first * support, count * support * sizeof(Token));
    insert.bind_blob(3, image.values.data() + first * support, count * support * sizeof(float));
    insert.bind_blob(4, image.keys.data() + first * record, count * record);
    if (!insert.insert()) return false;
  }
  return true;
}

bool insert_extras(sqlite3* db, const StoredBank& bank) {
  Statement insert(db, "INSERT INTO extras VALUES(?, ?)");
  for (const auto& [name, content] : bank.extras) {
    insert.bind(1, name);
    insert.bind_blob(2, content.data(), content.size());
    if (!insert.insert()) return false;
  }
  return true;
}

bool write_all(sqlite3* db, const StoredBank* bank) {
  const bool large = bank != nullptr && bank->image.keys.size() > (1u << 20);
  // The file is thrown away on any failure, so it needs no journal of its own; the commit still syncs it.
  if (!run(db, std::string("PRAGMA page_size=") + (large ? "16384" : "1024") +
                   "; PRAGMA journal_mode=OFF; PRAGMA synchronous=FULL; "
                   "PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; PRAGMA encoding='UTF-8'; BEGIN; "
                   "PRAGMA application_id=" +
                   std::to_string(format::kApplicationId) + "; PRAGMA user_version=" + std::to_string(format::kVersion))) {
    return false;
  }
  for (const SchemaObject& object : kSchema) {
    if (!run(db, object.sql)) return false;
  }
  const Meta meta = bank == nullptr ? format::make_empty_meta() : format::make_meta(*bank);
  if (!insert_meta(db, meta, format::content_hash(meta, bank))) return false;
  if (bank != nullptr && !(insert_entries(db, bank->image) && insert_chunks(db, bank->image) && insert_extras(db, *bank)))
    return false;
  return run(db, "COMMIT");
}

}  // namespace

Status write(const std::filesystem::path& path, const StoredBank* bank) {
  sqlite3* db = nullptr;
  const int flags =
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE;
  Status status;
  if (sqlite3_open_v2(path.c_str(), &db, flags, nullptr) != SQLITE_OK || !write_all(db, bank)) {
    const Status error = sqlite_error(db, "cannot write", path);
    status = {Code::kIo, error.message()};
  }
  const int closed = sqlite3_close(db);
  if (status.is_ok() && closed != SQLITE_OK) return {Code::kIo, "cannot finish writing '" + path.string() + "'"};
  return status;
}

}  // namespace drift::bank::db
