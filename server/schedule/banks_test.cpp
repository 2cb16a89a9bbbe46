#include "server/schedule/banks.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "server/testing/rig.hpp"

namespace drift::server {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using testing::toy_recal;

class BanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("drift-banks-test-" + std::to_string(::getpid()) + "-" +
                                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  Banks::Opener opener() const {
    return [this](const std::string& name) -> Result<std::optional<recal::BankSession>> {
      DRIFT_ASSIGN(auto session, recal::BankSession::open(path(name), false, toy_recal(), owner()));
      return std::optional(std::move(session));
    };
  }
  std::string path(const std::string& name) const { return (folder_ / (name + ".bank")).string(); }
  static recal::BankOwner owner() {
    return {{std::string(32, 'a'), std::string(32, 'b'), static_cast<std::uint32_t>(testing::kToyVocab), 8}, "target", "draft"};
  }
  // Teaches a bank something new.
  static void teach(Bank& bank, float value) {
    std::vector<float> key(8, 0.1f);
    key[0] = value;
    float norm = 0;
    for (const float x : key) norm += x * x;
    for (float& x : key) x /= std::sqrt(norm);
    const Token token = 3;
    const bank::Lesson lesson{key, {}, {&token, 1}, {&value, 1}};
    bank.recal()->bank().commit({}, {&lesson, 1});
  }
  static void tend_until_saved(Banks& banks, std::uint64_t saves) {
    for (int i = 0; i < 20'000 && banks.states()[0].saves + banks.states()[0].save_failures < saves; ++i) {
      banks.tend(Clock::now());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  static bank::StoredBank stored(const std::string& file) {
    auto opened = bank::BankFile::open(file, bank::Access::kReadOnly);
    EXPECT_TRUE(opened.is_ok()) << opened.status().message();
    auto loaded = (*opened)->load();
    EXPECT_TRUE(loaded.is_ok()) << loaded.status().message();
    return std::move(loaded).value();
  }
  fs::path folder_;
};

TEST_F(BanksTest, ABankIsOpenedOnceAndComesBackFromItsFile) {
  {
    Banks banks({}, opener());
    const auto bank = banks.get("law").value();
    EXPECT_EQ(banks.get("law").value(), bank);
    teach(*bank, 1.0f);
    teach(*bank, -1.0f);
    ASSERT_TRUE(banks.save_all().is_ok());
  }
  Banks banks({}, opener());
  EXPECT_EQ(banks.get("law").value()->recal()->bank().size(), 2u);
  EXPECT_EQ(banks.states()[0].entries, 2u);
  EXPECT_EQ(banks.get("other").value()->recal()->bank().size(), 0u);
}

TEST_F(BanksTest, NamesAndNumbersAreBounded) {
  BanksConfig config;
  config.most = 2;
  Banks banks(config, opener());
  for (const char* name : {"", "../up", "a/b", ".hidden", "white space", "\xC3\xA9"}) {
    EXPECT_EQ(banks.get(name).status().code(), Code::kInvalid) << name;
  }
  EXPECT_EQ(banks.get(std::string(65, 'a')).status().code(), Code::kInvalid);
  EXPECT_TRUE(banks.get(std::string(64, 'a')).is_ok());
  EXPECT_TRUE(banks.get("b").is_ok());
  const Status third = banks.get("c").status();
  EXPECT_EQ(third.code(), Code::kLimit);
  EXPECT_NE(third.message().find("at most 2"), std::string::npos);
  EXPECT_TRUE(banks.get("b").is_ok());
}

TEST_F(BanksTest, SavingGoesOnWhileTheBankLearns) {
  BanksConfig config;
  config.save_every = std::chrono::seconds(1);
  Banks banks(config, opener());
  const auto bank = banks.get("law").value();
  for (int i = 0; i < 40; ++i) teach(*bank, static_cast<float>(i) - 20.5f);
  EXPECT_FALSE(banks.tend(Clock::now())) << "too early";
  std::this_thread::sleep_for(std::chrono::milliseconds(1'010));
  const auto expected = bank->recal()->save(owner().fingerprint);
  banks.tend(Clock::now());  // has room made
  for (int i = 0; i < 10'000 && !banks.tend(Clock::now()); ++i) std::this_thread::sleep_for(std::chrono::microseconds(200));
  for (int i = 0; i < 10; ++i) teach(*bank, 30.0f + static_cast<float>(i));  // after the copy began
  tend_until_saved(banks, 1);
  const bank::StoredBank saved = stored(path("law"));
  EXPECT_EQ(saved.image.size, expected.image.size);
  EXPECT_EQ(saved.image.keys, expected.image.keys);
  EXPECT_EQ(saved.image.values, expected.image.values);
  EXPECT_EQ(saved.image.use_counter, expected.image.use_counter);
  EXPECT_EQ(saved.extras, expected.extras);
  EXPECT_EQ(saved.target_name, "target");
  // What came later is written at the end.
  ASSERT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(stored(path("law")).image.use_counter, bank->recal()->save(owner().fingerprint).image.use_counter);
}

TEST_F(BanksTest, NothingIsWrittenWhereNothingWasLearned) {
  BanksConfig config;
  config.save_every = std::chrono::seconds(1);
  Banks banks(config, opener());
  ASSERT_TRUE(banks.get("law").is_ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(1'010));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(banks.tend(Clock::now()));
  ASSERT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(banks.states()[0].saves, 0u);
}

TEST_F(BanksTest, AFileThatCannotBeWrittenIsComplainedOfAndTriedAgain) {
  std::vector<std::string> complaints;
  Banks banks({}, opener(),
              [&](const std::string& name, const Status& why) { complaints.push_back(name + ": " + why.message()); });
  const auto bank = banks.get("law").value();
  teach(*bank, 1.0f);
  fs::create_directory(path("law") + ".drift-tmp");  // where the store builds new content
  EXPECT_EQ(banks.save_all().code(), Code::kIo);
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_EQ(complaints[0].rfind("law: ", 0), 0u) << complaints[0];
  EXPECT_EQ(banks.states()[0].save_failures, 1u);
  EXPECT_FALSE(banks.states()[0].last_save_error.empty());
  fs::remove(path("law") + ".drift-tmp");
  EXPECT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(stored(path("law")).image.size, 1u);
  EXPECT_TRUE(banks.states()[0].last_save_error.empty());
}

TEST_F(BanksTest, AMemoryOfAnswersIsMadeWhenItIsNeeded) {
  Banks banks({}, opener());
  const auto bank = banks.get("law", decode::Mode::kDrift).value();
  EXPECT_EQ(bank->suffix(), nullptr);
  EXPECT_EQ(banks.get("law", decode::Mode::kDriftSuffix).value(), bank);
  EXPECT_NE(bank->suffix(), nullptr);
  Banks without([] { return BanksConfig{}; }(), [](const std::string&) { return std::optional<recal::BankSession>(); });
  EXPECT_EQ(without.get("law", decode::Mode::kDrift).status().code(), Code::kUnsupported);
  EXPECT_NE(without.get("law", decode::Mode::kSuffix).value()->suffix(), nullptr);
  without.tend(Clock::now());
  without.publish();
  EXPECT_TRUE(without.save_all().is_ok());
}

TEST_F(BanksTest, ManyMayAskForOneBankAtOnce) {
  Banks banks({}, opener());
  std::vector<std::shared_ptr<Bank>> got(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < got.size(); ++i) threads.emplace_back([&, i] { got[i] = banks.get("law").value(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& bank : got) EXPECT_EQ(bank, got[0]);
}

}  // namespace
}  // namespace drift::server
