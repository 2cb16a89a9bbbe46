// What a bank file is after the disk failed in the middle of a save: the old content or the new one, never anything else.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>

#include "drift/bank/store_sample.hpp"

namespace drift::bank {
namespace {

namespace fs = std::filesystem;

// A VFS over the default one whose k-th call of xOpen, xWrite, xSync or xTruncate fails. A failing write first writes half.
struct FaultVfs {
  sqlite3_vfs base;
  sqlite3_vfs* real = nullptr;
  long fail_at = 0;  // 1-based; 0: never
  long calls = 0;
  bool fails() { return ++calls == fail_at; }
} g_vfs;

struct FaultFile {
  sqlite3_file base;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};

sqlite3_file* real_of(sqlite3_file* file) { return reinterpret_cast<FaultFile*>(file)->real(); }

int fault_close(sqlite3_file* f) { return real_of(f)->pMethods->xClose(real_of(f)); }
int fault_read(sqlite3_file* f, void* to, int n, sqlite3_int64 at) { return real_of(f)->pMethods->xRead(real_of(f), to, n, at); }
int fault_write(sqlite3_file* f, const void* from, int n, sqlite3_int64 at) {
  if (!g_vfs.fails()) return real_of(f)->pMethods->xWrite(real_of(f), from, n, at);
  real_of(f)->pMethods->xWrite(real_of(f), from, n / 2, at);
  return SQLITE_IOERR_WRITE;
}
int fault_truncate(sqlite3_file* f, sqlite3_int64 n) {
  return g_vfs.fails() ? SQLITE_IOERR_TRUNCATE : real_of(f)->pMethods->xTruncate(real_of(f), n);
}
int fault_sync(sqlite3_file* f, int flags) {
  return g_vfs.fails() ? SQLITE_IOERR_FSYNC : real_of(f)->pMethods->xSync(real_of(f), flags);
}
int fault_size(sqlite3_file* f, sqlite3_int64* n) { return real_of(f)->pMethods->xFileSize(real_of(f), n); }
int fault_lock(sqlite3_file* f, int level) { return real_of(f)->pMethods->xLock(real_of(f), level); }
int fault_unlock(sqlite3_file* f, int level) { return real_of(f)->pMethods->xUnlock(real_of(f), level); }
int fault_reserved(sqlite3_file* f, int* out) { return real_of(f)->pMethods->xCheckReservedLock(real_of(f), out); }
int fault_control(sqlite3_file* f, int op, void* arg) { return real_of(f)->pMethods->xFileControl(real_of(f), op, arg); }
int fault_sector(sqlite3_file* f) { return real_of(f)->pMethods->xSectorSize(real_of(f)); }
int fault_device(sqlite3_file* f) { return real_of(f)->pMethods->xDeviceCharacteristics(real_of(f)); }

sqlite3_io_methods fault_methods() {
  sqlite3_io_methods m{};
  m.iVersion = 1;
  m.xClose = fault_close, m.xRead = fault_read, m.xWrite = fault_write, m.xTruncate = fault_truncate, m.xSync = fault_sync;
  m.xFileSize = fault_size, m.xLock = fault_lock, m.xUnlock = fault_unlock, m.xCheckReservedLock = fault_reserved;
  m.xFileControl = fault_control, m.xSectorSize = fault_sector, m.xDeviceCharacteristics = fault_device;
  return m;
}

int fault_open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  static const sqlite3_io_methods methods = fault_methods();
  file->pMethods = nullptr;
  if (g_vfs.fails()) return SQLITE_CANTOPEN;
  const int rc = g_vfs.real->xOpen(g_vfs.real, name, real_of(file), flags, out_flags);
  if (rc == SQLITE_OK) file->pMethods = &methods;
  return rc;
}

class StoreFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "drift-faults-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "x.bank";
    if (g_vfs.real == nullptr) {
      g_vfs.real = sqlite3_vfs_find(nullptr);
      g_vfs.base = *g_vfs.real;
      g_vfs.base.zName = "drift-fault";
      g_vfs.base.szOsFile += static_cast<int>(sizeof(FaultFile));
      g_vfs.base.xOpen = fault_open;
    }
    ASSERT_EQ(sqlite3_vfs_register(&g_vfs.base, 1), SQLITE_OK);
    g_vfs.fail_at = g_vfs.calls = 0;
  }
  void TearDown() override {
    sqlite3_vfs_unregister(&g_vfs.base);
    fs::remove_all(folder_);
  }
  Status save(const StoredBank& bank) const {
    DRIFT_ASSIGN(auto file, BankFile::open(path_, Access::kReadWrite));
    return file->save(bank);
  }
  Result<StoredBank> load() const {
    g_vfs.fail_at = 0;
    DRIFT_ASSIGN(auto file, BankFile::open(path_, Access::kReadOnly));
    return file->load();
  }
  std::size_t files() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_, path_;
};

TEST_F(StoreFaultsTest, EveryKthWriteFailing) {
  const sample::Shape old_shape, new_shape{1'100, 2'048, 8, 4, 500};
  const StoredBank old_bank = sample::bank(1, old_shape), new_bank = sample::bank(2, new_shape);
  ASSERT_TRUE(save(old_bank).is_ok());
  long k = 0;
  for (Status saved{Code::kIo, ""}; !saved.is_ok();) {
    ASSERT_LT(++k, 100'000);
    g_vfs.calls = 0;
    g_vfs.fail_at = k;
    saved = save(new_bank);
    const bool fired = g_vfs.calls >= k;
    auto found = load();
    ASSERT_TRUE(found.is_ok()) << "call " << k << ": " << found.status().message();
    ASSERT_EQ(saved.is_ok(), !fired) << "call " << k << " failed and the save says nothing of it";
    ASSERT_TRUE(sample::same(*found, saved.is_ok() ? new_bank : old_bank)) << "call " << k;
    ASSERT_EQ(files(), 1u) << "call " << k;
  }
  std::cout << k - 1 << " calls failed one by one\n";
  EXPECT_GT(k, 20);
}

TEST_F(StoreFaultsTest, EveryKthWriteFailingAtTheMakingOfABank) {
  long k = 0;
  for (Status made{Code::kIo, ""}; !made.is_ok();) {
    ASSERT_LT(++k, 1'000);
    g_vfs.calls = 0;
    g_vfs.fail_at = k;
    made = BankFile::open(path_, Access::kReadWrite).status();
    g_vfs.fail_at = 0;
    // The call that fails may be the opening of the finished file: then a good, empty bank is there.
    EXPECT_TRUE(!fs::exists(path_) || verify_bank_file(path_).is_ok()) << k;
    EXPECT_LE(files(), 1u) << k;
    if (!made.is_ok()) fs::remove(path_);
  }
  EXPECT_GT(k, 5);
}

// A full disk: the child may make files of `limit` bytes at most. Exit code 0: saved; 1: refused as it should be.
int save_with_limit(const fs::path& path, const StoredBank& bank, rlim_t limit) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit size{limit, limit};
    if (::setrlimit(RLIMIT_FSIZE, &size) != 0) ::_exit(3);
    auto file = BankFile::open(path, Access::kReadWrite);
    if (!file.is_ok()) ::_exit(4);
    const Status saved = (*file)->save(bank);
    ::_exit(saved.is_ok() ? 0 : saved.code() == Code::kIo ? 1 : 5);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + status;
}

TEST_F(StoreFaultsTest, FullDiskKeepsTheOldContent) {
  const sample::Shape new_shape{1'100, 2'048, 8, 4, 500};
  const StoredBank old_bank = sample::bank(1), new_bank = sample::bank(2, new_shape);
  ASSERT_TRUE(save(old_bank).is_ok());
  for (const rlim_t limit : {0, 1, 100, 1'023, 1'024, 1'025, 5'000, 20'000, 60'000}) {
    EXPECT_EQ(save_with_limit(path_, new_bank, limit), 1) << limit;
    auto found = load();
    ASSERT_TRUE(found.is_ok()) << limit << ": " << found.status().message();
    EXPECT_TRUE(sample::same(*found, old_bank)) << limit;
    EXPECT_EQ(files(), 1u) << limit;
  }
  EXPECT_EQ(save_with_limit(path_, new_bank, 1 << 20), 0);
  auto found = load();
  ASSERT_TRUE(found.is_ok());
  EXPECT_TRUE(sample::same(*found, new_bank));
}

TEST_F(StoreFaultsTest, SecondProcessIsRefusedAndAKilledOneLeavesNoLock) {
  ASSERT_TRUE(save(sample::bank(1)).is_ok());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto file = BankFile::open(path_, Access::kReadWrite);
    if (!file.is_ok() || !(*file)->save(sample::bank(2)).is_ok() || ::write(ready[1], "x", 1) != 1) ::_exit(1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(BankFile::open(path_, Access::kReadWrite).status().code(), Code::kBusy);
  EXPECT_TRUE(load().is_ok());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(save(sample::bank(3)).is_ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

// Changes a good bank by SQL as somebody else could, and expects the change to be refused by every way of reading.
TEST_F(StoreFaultsTest, HostileChangesBySqlAreRefused) {
  const char* changes[] = {
      "CREATE TABLE more(x)",
      "CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM entries; END",
      "CREATE INDEX i ON entries(count)",
      "DROP VIEW entry_usage",
      "DROP VIEW entry_usage; CREATE VIEW entry_usage AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM r) SELECT x "
      "FROM r",
      "DROP TABLE extras; CREATE VIEW extras AS SELECT 'number' AS name, zeroblob(1000000000) AS content",
      "UPDATE meta SET value='4294967295' WHERE key='size'",
      "UPDATE meta SET value='65536' WHERE key IN ('size', 'config_capacity'); UPDATE meta SET value='16384' WHERE "
      "key='config_key_dim'",
      "UPDATE meta SET value='-1' WHERE key='config_support'",
      "UPDATE meta SET value='nan' WHERE key='config_tau'",
      "UPDATE meta SET value=replace(hex(zeroblob(100000)), '0', 'x') WHERE key='target_name'",
      "UPDATE meta SET value='saved' WHERE key='content_hash'",
      "DELETE FROM meta WHERE key='content_hash'",
      "DELETE FROM meta WHERE key='vocab'",
      "INSERT INTO meta VALUES('more', '1')",
      "UPDATE entries SET count=count+1 WHERE id=0",
      "UPDATE entries SET length=1000000 WHERE id=0",
      "UPDATE entries SET count='text' WHERE id=0",
      "UPDATE entries SET last_used=-1 WHERE id=0",
      "UPDATE entries SET id=99 WHERE id=0",
      "DELETE FROM entries WHERE id=4",
      "INSERT INTO entries VALUES(5, 1, 1, 9, 0.5)",
      "UPDATE chunks SET keys=zeroblob(70000000)",
      "UPDATE chunks SET tokens=x'00'",
      "UPDATE chunks SET first_entry=1",
      "DELETE FROM chunks",
      "INSERT INTO chunks VALUES(5, x'', x'', x'')",
      "UPDATE extras SET content=zeroblob(20000000)",
      "UPDATE extras SET content=x'01'",
      "UPDATE extras SET name='../number'",
      "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM r LIMIT 100) INSERT INTO extras SELECT 'e'||x, x'' FROM r",
  };
  ASSERT_TRUE(save(sample::bank(1)).is_ok());
  const fs::path good = folder_ / "good";
  fs::copy_file(path_, good);
  for (const char* change : changes) {
    fs::copy_file(good, path_, fs::copy_options::overwrite_existing);
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, change, nullptr, nullptr, nullptr), SQLITE_OK) << change << ": " << sqlite3_errmsg(db);
    sqlite3_close(db);
    const Status status = load().status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << change << ": " << status.message();
    EXPECT_EQ(verify_bank_file(path_).code(), Code::kCorrupt) << change;
  }
  EXPECT_EQ(files(), 2u);
}

TEST_F(StoreFaultsTest, AnyoneCanQueryUsage) {
  const StoredBank bank = sample::bank(1);
  ASSERT_TRUE(save(bank).is_ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open_v2(path_.c_str(), &db, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
  sqlite3_stmt* rows = nullptr;
  ASSERT_EQ(sqlite3_prepare_v2(db, "SELECT id, count, last_used FROM entry_usage", -1, &rows, nullptr), SQLITE_OK);
  std::uint32_t seen = 0, last = UINT32_MAX;
  while (sqlite3_step(rows) == SQLITE_ROW) {
    const auto id = static_cast<std::size_t>(sqlite3_column_int64(rows, 0));
    ASSERT_LT(id, bank.image.counts.size());
    EXPECT_EQ(sqlite3_column_int64(rows, 1), bank.image.counts[id]);
    EXPECT_EQ(sqlite3_column_int64(rows, 2), static_cast<std::int64_t>(bank.image.last_used[id]));
    EXPECT_LE(bank.image.counts[id], last);
    last = bank.image.counts[id];
    ++seen;
  }
  EXPECT_EQ(seen, bank.image.size);
  sqlite3_finalize(rows);
  sqlite3_close(db);
}

}  // namespace
}  // namespace drift::bank
