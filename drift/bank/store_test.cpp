#include "drift/bank/store.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <set>

#include "drift/bank/store_sample.hpp"

namespace drift::bank {
namespace {

namespace fs = std::filesystem;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "drift-store-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "a b%20?#.bank";  // a name that a careless URI would misread
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }

  void save(const StoredBank& bank) {
    auto file = BankFile::open(path_, Access::kReadWrite);
    ASSERT_TRUE(file.is_ok()) << file.status().message();
    const Status saved = (*file)->save(bank);
    ASSERT_TRUE(saved.is_ok()) << saved.message();
  }
  Result<StoredBank> load() const {
    DRIFT_ASSIGN(auto file, BankFile::open(path_, Access::kReadOnly));
    return file->load();
  }
  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& content) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << content; }
  void set_byte(std::size_t at, int value) const {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(value));
  }
  std::set<std::string> listing() const {
    std::set<std::string> names;
    for (const auto& item : fs::directory_iterator(folder_)) names.insert(item.path().filename().string());
    return names;
  }
  // Both ways of opening must fail with `code`, and neither may change anything in the folder.
  void expect_refused(Code code, const std::string& words) {
    const std::string before = fs::is_regular_file(path_) ? bytes() : "";
    const auto names = listing();
    for (const Access access : {Access::kReadOnly, Access::kReadWrite}) {
      auto file = BankFile::open(path_, access);
      Status status = file.status();
      if (file.is_ok()) status = (*file)->load().status();
      EXPECT_EQ(status.code(), code) << status.message();
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    }
    EXPECT_EQ(fs::is_regular_file(path_) ? bytes() : "", before);
    EXPECT_EQ(listing(), names);
  }

  fs::path folder_, path_;
};

// SQLite puts /dev/null where it finds a standard stream closed; that is no harm.
bool is_a_regular_file(int fd) {
  struct stat info{};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

// A program started with a standard stream closed must not meet its bank there.
TEST_F(StoreTest, NeverTakesTheNumberOfAStandardStream) {
  save(sample::bank(3, {}));
  const int input = ::dup(STDIN_FILENO);
  ASSERT_GE(input, 0);
  ::close(STDIN_FILENO);
  {
    auto file = BankFile::open(path_, Access::kReadWrite);
    EXPECT_TRUE(file.is_ok()) << file.status().message();
    EXPECT_FALSE(is_a_regular_file(STDIN_FILENO)) << "the bank is standard input";
    if (file.is_ok()) {
      EXPECT_TRUE((*file)->save(sample::bank(4, {})).is_ok());
    }
    EXPECT_FALSE(is_a_regular_file(STDIN_FILENO));
  }
  ASSERT_EQ(::dup2(input, STDIN_FILENO), STDIN_FILENO);
  ::close(input);
}

TEST_F(StoreTest, RoundTripKeepsEveryBitAndLeavesOneFile) {
  for (const sample::Shape& shape : {sample::Shape{}, sample::Shape{0, 8, 4, 3, 100}, sample::Shape{8, 8, 5, 1, 9, KeyType::kF16},
                                     sample::Shape{2'500, 4'096, 16, 4, 1'000}}) {
    const StoredBank bank = sample::bank(shape.entries, shape);
    save(bank);
    auto loaded = load();
    ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
    EXPECT_TRUE(sample::same(bank, *loaded));
    const auto built = Bank::from_image(loaded->image);
    EXPECT_TRUE(built.is_ok()) << built.status().message();
    EXPECT_EQ(listing(), std::set<std::string>{path_.filename().string()});
    EXPECT_TRUE(verify_bank_file(path_).is_ok());
  }
}

TEST_F(StoreTest, SameContentGivesTheSameFile) {
  save(sample::bank(3));
  const std::string first = bytes();
  save(sample::bank(4));
  EXPECT_NE(bytes(), first);
  save(sample::bank(3));
  EXPECT_EQ(bytes(), first);
}

TEST_F(StoreTest, SmallestNumbersSurvive) {
  StoredBank bank = sample::bank(1);
  bank.image.lengths[0] = 1;
  bank.image.tokens[0] = 5, bank.image.tokens[1] = bank.image.tokens[2] = kNoToken;
  bank.image.values[0] = -std::numeric_limits<float>::denorm_min(), bank.image.values[1] = bank.image.values[2] = 0;
  bank.image.errors[0] = std::numeric_limits<float>::denorm_min();
  bank.image.errors[1] = 1;
  bank.image.errors[2] = 0;
  bank.image.config.tau = std::nextafter(0.99f, 1.0f);
  bank.image.counts[0] = std::numeric_limits<std::uint32_t>::max();
  save(bank);
  auto loaded = load();
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
  EXPECT_TRUE(sample::same(bank, *loaded));
}

TEST_F(StoreTest, NewBankIsEmptyUntilSaved) {
  {
    auto file = BankFile::open(path_, Access::kReadWrite);
    ASSERT_TRUE(file.is_ok()) << file.status().message();
    EXPECT_TRUE((*file)->empty());
    EXPECT_EQ((*file)->load().status().code(), Code::kNotFound);
  }
  EXPECT_TRUE(verify_bank_file(path_).is_ok());
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto again = BankFile::open(path_, Access::kReadWrite);
  ASSERT_TRUE(again.is_ok());
  EXPECT_TRUE((*again)->empty());
  ASSERT_TRUE((*again)->save(sample::bank(1)).is_ok());
  EXPECT_FALSE((*again)->empty());
  EXPECT_TRUE((*again)->load().is_ok());
}

TEST_F(StoreTest, AnotherPairIsRefusedNamingWhatDiffers) {
  const StoredBank bank = sample::bank(1);
  save(bank);
  auto file = BankFile::open(path_, Access::kReadOnly);
  ASSERT_TRUE(file.is_ok());
  EXPECT_TRUE((*file)->load(bank.fingerprint).is_ok());
  Fingerprint other = bank.fingerprint;
  other.draft_hash = "cc33";
  const Status status = (*file)->load(other).status();
  EXPECT_EQ(status.code(), Code::kForeign);
  EXPECT_NE(status.message().find("draft is bb22, expected cc33"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("vocabulary"), std::string::npos) << status.message();
}

TEST_F(StoreTest, EverySingleByteFlipIsRefusedOrHarmless) {
  const StoredBank bank = sample::bank(7);
  save(bank);
  const std::string good = bytes();
  std::size_t refused = 0, harmless = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    const int flips[] = {0xff, 1 << (at % 8)};
    for (const int flip : flips) {
      set_byte(at, good[at] ^ flip);
      auto loaded = load();
      set_byte(at, good[at]);
      if (loaded.is_ok()) {
        ASSERT_TRUE(sample::same(bank, *loaded)) << "byte " << at << " flipped by " << flip << " loads as something else";
        ++harmless;
      } else {
        ASSERT_NE(loaded.status().code(), Code::kInternal) << "byte " << at;
        ASSERT_NE(loaded.status().code(), Code::kNotFound) << "byte " << at << ": " << loaded.status().message();
        ASSERT_FALSE(loaded.status().message().empty());
        ++refused;
      }
    }
  }
  EXPECT_EQ(listing().size(), 1u);
  std::cout << good.size() << " bytes: " << refused << " flips refused, " << harmless << " harmless\n";
  EXPECT_GT(refused, 500u);
}

TEST_F(StoreTest, EveryTruncationIsRefused) {
  save(sample::bank(7));
  const std::string good = bytes();
  for (std::size_t length = good.size(); length-- > 0;) {
    fs::resize_file(path_, length);
    const Status status = load().status();
    ASSERT_TRUE(status.code() == Code::kCorrupt || status.code() == Code::kForeign) << length << ": " << status.message();
  }
  put(good + "x");
  EXPECT_EQ(load().status().code(), Code::kCorrupt);
}

TEST_F(StoreTest, WhatIsNoBankIsRefusedUnchanged) {
  put("");
  expect_refused(Code::kForeign, "empty file");
  put("hello");
  expect_refused(Code::kForeign, "not a bank");
  put(std::string(5'000, '\0'));
  expect_refused(Code::kForeign, "not a bank");
  fs::remove(path_);
  save(sample::bank(1));
  std::string other = bytes();
  other[68] = 'X';
  put(other);
  expect_refused(Code::kForeign, "another program");
}

TEST_F(StoreTest, NewerVersionIsRefused) {
  save(sample::bank(1));
  std::string newer = bytes();
  newer[63] = 2;
  put(newer);
  expect_refused(Code::kForeign, "newer version");
}

TEST_F(StoreTest, ForeignSchemaIsRefused) {
  save(sample::bank(1));
  std::string text = bytes();
  const std::size_t at = text.find("ORDER BY count DESC");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 19, "ORDER BY count ASC ");
  put(text);
  expect_refused(Code::kCorrupt, "not those of a bank");
}

TEST_F(StoreTest, FoldersLinksAndMissingParentsAreRefused) {
  fs::create_directory(path_);
  expect_refused(Code::kForeign, "folder");
  fs::remove(path_);
  fs::path real = folder_ / "real.bank";
  std::swap(real, path_);
  save(sample::bank(1));
  std::swap(real, path_);
  fs::create_symlink(real, path_);
  expect_refused(Code::kForeign, "symbolic link");
  fs::remove(path_);
  fs::create_symlink(folder_ / "nowhere", path_);
  expect_refused(Code::kForeign, "symbolic link");
  fs::remove(path_);
  EXPECT_EQ(BankFile::open(path_, Access::kReadOnly).status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_EQ(BankFile::open(folder_ / "no" / "x.bank", Access::kReadWrite).status().code(), Code::kNotFound);
  EXPECT_EQ(BankFile::open("", Access::kReadWrite).status().code(), Code::kInvalid);
  EXPECT_EQ(BankFile::open(folder_ / "", Access::kReadWrite).status().code(), Code::kInvalid);
}

TEST_F(StoreTest, SecondWriterIsRefusedReadersAreNot) {
  save(sample::bank(1));
  auto first = BankFile::open(path_, Access::kReadWrite);
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(BankFile::open(path_, Access::kReadWrite).status().code(), Code::kBusy);
  auto reader = BankFile::open(path_, Access::kReadOnly);
  ASSERT_TRUE(reader.is_ok());
  ASSERT_TRUE((*first)->save(sample::bank(2)).is_ok());
  EXPECT_EQ(BankFile::open(path_, Access::kReadWrite).status().code(), Code::kBusy) << "the lock must follow the new file";
  auto old = (*reader)->load();  // opened before the save: still the old content, whole
  ASSERT_TRUE(old.is_ok()) << old.status().message();
  EXPECT_TRUE(sample::same(*old, sample::bank(1)));
  EXPECT_EQ((*reader)->save(sample::bank(3)).code(), Code::kInvalid);
  *first = nullptr;
  EXPECT_TRUE(BankFile::open(path_, Access::kReadWrite).is_ok());
}

TEST_F(StoreTest, LeftoversOfAKilledWriterAreHarmlessAndRemoved) {
  const fs::path temp = path_.string() + ".drift-tmp";
  std::ofstream(temp) << "half a bank";
  save(sample::bank(1));
  EXPECT_EQ(listing().size(), 1u);
  std::ofstream(temp) << "half a bank";
  EXPECT_TRUE(load().is_ok());
  EXPECT_TRUE(fs::exists(temp)) << "a reader writes nothing";
  EXPECT_TRUE(BankFile::open(path_, Access::kReadWrite).is_ok());
  EXPECT_EQ(listing().size(), 1u);
  fs::create_hard_link(path_, temp);  // killed between link() and unlink()
  EXPECT_TRUE(BankFile::open(path_, Access::kReadWrite).is_ok());
  EXPECT_EQ(listing().size(), 1u);
  EXPECT_TRUE(load().is_ok());
}

TEST_F(StoreTest, WhatStandsWhereTheNextContentIsBuiltIsNoticedAtOnce) {
  save(sample::bank(1));
  const fs::path temp = path_.string() + ".drift-tmp";
  const auto refused = [&] {
    const Status status = BankFile::open(path_, Access::kReadWrite).status();
    EXPECT_EQ(status.code(), Code::kIo);
    EXPECT_NE(status.message().find(".bank.drift-tmp"), std::string::npos) << status.message();
    EXPECT_TRUE(load().is_ok()) << "reading needs no room beside the bank";
  };
  fs::create_directory(temp);
  refused();
  EXPECT_TRUE(fs::exists(temp));
  fs::remove(temp);
  fs::create_symlink(path_, temp);
  refused();
  EXPECT_TRUE(fs::is_symlink(temp));
}

TEST_F(StoreTest, ReplacedByAnotherProgramIsNotOverwritten) {
  save(sample::bank(1));
  auto file = BankFile::open(path_, Access::kReadWrite);
  ASSERT_TRUE(file.is_ok());
  fs::copy_file(path_, folder_ / "copy");
  fs::rename(folder_ / "copy", path_);
  EXPECT_EQ((*file)->save(sample::bank(2)).code(), Code::kBusy);
  EXPECT_EQ(listing().size(), 1u);
  auto loaded = load();
  ASSERT_TRUE(loaded.is_ok());
  EXPECT_TRUE(sample::same(*loaded, sample::bank(1)));
}

TEST_F(StoreTest, ReadOnlyFolderAndUnreadableFile) {
  save(sample::bank(1));
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  const bool root = ::geteuid() == 0;  // root may write everywhere, so the test looks through another user's eyes
  if (root) {
    ASSERT_EQ(::chown(path_.c_str(), 65'534, 65'534), 0);
    ASSERT_EQ(::chown(folder_.c_str(), 65'534, 65'534), 0);
    ASSERT_EQ(::seteuid(65'534), 0);
  }
  const Status writer = BankFile::open(path_, Access::kReadWrite).status();
  const Status creator = BankFile::open(folder_ / "new.bank", Access::kReadWrite).status();
  const bool reads = load().is_ok();
  fs::permissions(path_, fs::perms::none);
  const Status unreadable = load().status();
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(writer.code(), Code::kIo) << writer.message();
  EXPECT_EQ(creator.code(), Code::kIo) << creator.message();
  EXPECT_TRUE(reads);
  EXPECT_EQ(unreadable.code(), Code::kIo) << unreadable.message();
}

TEST_F(StoreTest, KeepsTheModeOfTheFile) {
  save(sample::bank(1));
  fs::permissions(path_, static_cast<fs::perms>(0640));
  save(sample::bank(2));
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(StoreTest, WhatCannotBeStoredIsRefusedAndTheOldContentStands) {
  save(sample::bank(1));
  auto file = BankFile::open(path_, Access::kReadWrite);
  ASSERT_TRUE(file.is_ok());
  const auto refuse = [&](const char* what, auto change) {
    StoredBank bank = sample::bank(2);
    change(bank);
    EXPECT_FALSE((*file)->save(bank).is_ok()) << what;
  };
  refuse("no hash", [](StoredBank& b) { b.fingerprint.target_hash.clear(); });
  refuse("long name", [](StoredBank& b) { b.target_name.assign(2'000, 'x'); });
  refuse("control byte", [](StoredBank& b) { b.draft_name = "a\nb"; });
  refuse("counter", [](StoredBank& b) { b.image.use_counter = ~0ull; });
  refuse("age after counter", [](StoredBank& b) { b.image.use_counter = 1; });
  refuse("equal ages", [](StoredBank& b) { b.image.last_used[0] = b.image.last_used[1]; });
  refuse("NaN error", [](StoredBank& b) { b.image.errors[0] = NAN; });
  refuse("infinite residual", [](StoredBank& b) { b.image.lengths[0] = 1, b.image.values[0] = INFINITY; });
  refuse("token order", [](StoredBank& b) { b.image.lengths[0] = 2, b.image.tokens[0] = 7, b.image.tokens[1] = 7; });
  refuse("token range", [](StoredBank& b) { b.image.lengths[0] = 1, b.image.tokens[0] = 100; });
  refuse("length", [](StoredBank& b) { b.image.lengths[0] = 4; });
  refuse("short array", [](StoredBank& b) { b.image.keys.pop_back(); });
  refuse("over capacity", [](StoredBank& b) { b.image.config.capacity = 4; });
  refuse("bad config", [](StoredBank& b) { b.image.config.tau = NAN; });
  refuse("extra's name", [](StoredBank& b) { b.extras["a/b"]; });
  refuse("key not finite", [](StoredBank& b) { b.image.keys[3] = std::byte{0x7f}, b.image.keys[2] = std::byte{0xff}; });
  *file = nullptr;
  auto loaded = load();
  ASSERT_TRUE(loaded.is_ok());
  EXPECT_TRUE(sample::same(*loaded, sample::bank(1)));
  EXPECT_EQ(listing().size(), 1u);
}

TEST_F(StoreTest, JournalsBesideABankAreIgnored) {
  save(sample::bank(1));
  const std::string good = bytes();
  // A journal that SQLite would roll back into the bank, and WAL mode asked for in the header.
  std::string journal("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7\xff\xff\xff\xff", 12);
  journal += std::string(600, 'j');
  std::ofstream(path_.string() + "-journal", std::ios::binary) << journal;
  std::ofstream(path_.string() + "-wal", std::ios::binary) << journal;
  auto loaded = load();
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().message();
  EXPECT_EQ(bytes(), good);
  EXPECT_EQ(listing().size(), 3u);
}

}  // namespace
}  // namespace drift::bank
