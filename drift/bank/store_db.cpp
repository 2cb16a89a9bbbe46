#include "drift/bank/store_db.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace drift::bank::db {
namespace {

using format::kChunkEntries;
using format::Meta;
using sqlite::run;
using sqlite::SchemaObject;
using sqlite::Statement;

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

constexpr sqlite::Kind kBank{"bank", format::kApplicationId, format::kVersion, kSchema, kMaxRowBytes};

template <class T>
bool copy_exactly(std::span<const std::byte> from, std::vector<T>& to, std::size_t first, std::size_t count) {
  if (from.size() != count * sizeof(T)) return false;
  if (count != 0) std::memcpy(to.data() + first, from.data(), from.size());
  return true;
}

}  // namespace

Result<std::unique_ptr<Reader>> Reader::open(const std::filesystem::path& path, std::uint64_t file_bytes) {
  std::unique_ptr<Reader> reader(new Reader(path, file_bytes));
  DRIFT_ASSIGN(reader->file_, sqlite::Database::open_read_only(path, file_bytes, kBank));
  DRIFT_TRY(reader->file_.quick_check(path, kBank));
  DRIFT_TRY(reader->read_meta());
  return reader;
}

Status Reader::corrupt(const std::string& what) const { return sqlite::corrupt(kBank, path_, what); }

Status Reader::unreadable() const { return sqlite::error_of(file_.get(), "cannot read bank", path_); }

Status Reader::read_meta() {
  Statement rows(file_.get(), "SELECT key, value FROM meta");
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    if (meta_.size() >= 64 || rows.bytes(0).size() > 64 || rows.bytes(1).size() > format::kMaxNameBytes) {
      return corrupt("its meta table is larger than a bank's");
    }
    if (!meta_.emplace(rows.text(0), rows.text(1)).second) return corrupt("a meta field is there twice");
  }
  if (rc != SQLITE_DONE) return unreadable();
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
  Statement rows(file_.get(), "SELECT id, length, count, last_used, error FROM entries ORDER BY id");
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
  if (rc != SQLITE_DONE) return unreadable();
  if (seen != image.size) return corrupt("it has " + std::to_string(seen) + " of " + std::to_string(image.size) + " entries");
  return Status::ok();
}

Status Reader::read_chunks(BankImage& image) const {
  const std::size_t record = format::record_bytes(image.config), support = image.config.support;
  Statement rows(file_.get(), "SELECT first_entry, tokens, residuals, keys FROM chunks ORDER BY first_entry");
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
  if (rc != SQLITE_DONE) return unreadable();
  if (first != image.size) return corrupt("chunks are missing from entry " + std::to_string(first) + " on");
  return Status::ok();
}

Status Reader::read_extras(StoredBank& bank) const {
  Statement rows(file_.get(), "SELECT name, content FROM extras");
  int rc;
  while ((rc = rows.step()) == SQLITE_ROW) {
    if (bank.extras.size() >= format::kMaxExtras || rows.bytes(0).size() > format::kMaxExtraName ||
        rows.bytes(1).size() > format::kMaxExtraBytes) {
      return corrupt("it holds more extras than a bank may");
    }
    const auto content = rows.bytes(1);
    bank.extras[rows.text(0)].assign(content.begin(), content.end());
  }
  if (rc != SQLITE_DONE) return unreadable();
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

bool write_content(sqlite3* db, const StoredBank* bank) {
  const Meta meta = bank == nullptr ? format::make_empty_meta() : format::make_meta(*bank);
  if (!insert_meta(db, meta, format::content_hash(meta, bank))) return false;
  if (bank != nullptr && !(insert_entries(db, bank->image) && insert_chunks(db, bank->image) && insert_extras(db, *bank)))
    return false;
  return run(db, "COMMIT");
}

}  // namespace

Status write(const std::filesystem::path& path, const StoredBank* bank) {
  const bool large = bank != nullptr && bank->image.keys.size() > (1u << 20);
  // The file is thrown away on any failure, so it needs no journal of its own; the commit still syncs it.
  DRIFT_ASSIGN(auto file,
               sqlite::Database::create(
                   path, kBank, std::string("PRAGMA page_size=") + (large ? "16384" : "1024") + "; PRAGMA journal_mode=OFF"));
  if (!write_content(file.get(), bank)) {
    return {Code::kIo, sqlite::error_of(file.get(), "cannot write", path).message()};
  }
  if (!file.close()) return {Code::kIo, "cannot finish writing '" + path.string() + "'"};
  return Status::ok();
}

}  // namespace drift::bank::db
