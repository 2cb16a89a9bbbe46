#include "server/schedule/banks.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
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
  BankSource source() const {
    BankSource out;
    out.open = [](const BankId& /*id*/, const std::string& path) -> Result<std::optional<recal::BankSession>> {
      DRIFT_ASSIGN(auto session, recal::BankSession::open(path, false, toy_recal(), owner()));
      return std::optional(std::move(session));
    };
    out.file = [this](const BankId& id) -> Result<std::string> { return file(id); };
    out.stored = [this] {
      std::vector<BankId> ids;
      for (const auto& entry : fs::directory_iterator(folder_)) {
        const std::string name = entry.path().stem().string();
        const std::size_t plus = name.find('+');
        if (entry.path().extension() == ".bank") ids.push_back({name.substr(0, plus), name.substr(plus + 1)});
      }
      return ids;
    };
    return out;
  }
  std::string file(const BankId& id) const { return (folder_ / (id.tenant + "+" + id.name + ".bank")).string(); }
  std::string path(const std::string& name) const { return file(named(name)); }
  static BankId named(const std::string& name) { return {kDefaultTenant, name}; }
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

// What a bank borrows in a step.
std::vector<std::string> borrowed(Banks& banks, const std::shared_ptr<Bank>& by) {
  Bank* const reader = by.get();
  const Banks::Lending lending = banks.lend({&reader, 1});
  recal::Lookup found;
  EXPECT_TRUE(by->recal()->lookup(std::vector<float>(8, 0.4f), found).is_ok());
  std::vector<std::string> out;
  for (const recal::Lookup& lent : found.lent) out.push_back(std::to_string(lent.neighbors.size()));
  return out;
}

TEST_F(BanksTest, ABankIsOpenedOnceAndComesBackFromItsFile) {
  {
    Banks banks({}, source());
    const auto bank = banks.get(named("law")).value();
    EXPECT_EQ(banks.get(named("law")).value(), bank);
    teach(*bank, 1.0f);
    teach(*bank, -1.0f);
    ASSERT_TRUE(banks.save_all().is_ok());
  }
  Banks banks({}, source());
  EXPECT_EQ(banks.get(named("law")).value()->recal()->bank().size(), 2u);
  EXPECT_EQ(banks.states()[0].entries, 2u);
  EXPECT_EQ(banks.get(named("other")).value()->recal()->bank().size(), 0u);
}

TEST_F(BanksTest, NamesAreBounded) {
  Banks banks({}, source());
  for (const char* name : {"", "../up", "a/b", ".hidden", "white space", "\xC3\xA9"}) {
    EXPECT_EQ(banks.get(named(name)).status().code(), Code::kInvalid) << name;
    EXPECT_EQ(banks.get({name, "x"}).status().code(), Code::kInvalid) << name;
  }
  EXPECT_EQ(banks.get(named(std::string(65, 'a'))).status().code(), Code::kInvalid);
  for (const std::string& name :
       {std::string("a~"), "a~" + std::string(31, '0'), "a~" + std::string(32, 'g'), "~" + std::string(32, '0')})
    EXPECT_EQ(banks.get(named(name)).status().code(), Code::kInvalid) << name;
  EXPECT_TRUE(banks.get(named("a~" + std::string(32, '0'))).is_ok());
  EXPECT_EQ(banks.remove(named("../up")).code(), Code::kInvalid);
  EXPECT_FALSE(banks.exists({"..", "up"}));
  EXPECT_TRUE(banks.get(named(std::string(64, 'a'))).is_ok());
}

TEST_F(BanksTest, TheOneNotUsedLongestIsWrittenOutAndComesBack) {
  BanksConfig config;
  config.most = 2;
  Banks banks(config, source());
  teach(*banks.get(named("a")).value(), 1.0f);
  teach(*banks.get(named("b")).value(), 1.0f);
  banks.get(named("a")).value();  // used after b
  EXPECT_TRUE(banks.get(named("c")).is_ok());
  std::set<std::string> open;
  for (const BankState& state : banks.states()) open.insert(state.id.name);
  EXPECT_EQ(open, (std::set<std::string>{"a", "c"}));
  EXPECT_EQ(banks.get(named("b")).value()->recal()->bank().size(), 1u) << "what it had learned was written out";
}

TEST_F(BanksTest, WhatIsInUseIsNeverDropped) {
  BanksConfig config;
  config.most = 2;
  Banks banks(config, source());
  const auto a = banks.get(named("a")).value(), b = banks.get(named("b")).value();
  const Status third = banks.get(named("c")).status();
  EXPECT_EQ(third.code(), Code::kLimit);
  EXPECT_NE(third.message().find("at most 2"), std::string::npos) << third.message();
  EXPECT_TRUE(banks.get(named("b")).is_ok());
}

TEST_F(BanksTest, ATenantDropsItsOwnAndNobodyElses) {
  BanksConfig config;
  config.most_per_tenant = 1;
  Banks banks(config, source());
  teach(*banks.get({"a", "x"}).value(), 1.0f);
  EXPECT_TRUE(banks.get({"b", "x"}).is_ok());
  EXPECT_TRUE(banks.get({"a", "y"}).is_ok());
  std::set<std::string> open;
  for (const BankState& state : banks.states()) open.insert(state.id.text());
  EXPECT_EQ(open, (std::set<std::string>{"a/y", "b/x"}));
  EXPECT_EQ(banks.get({"b", "x"}).value()->recal()->bank().size(), 0u) << "a bank of one name is another one for each tenant";
  EXPECT_TRUE(banks.get({"a", "z"}).is_ok());
  EXPECT_TRUE(banks.get({"a", "y"}).is_ok());
  EXPECT_EQ(banks.states().back().id.text(), "b/x") << "though it was used before all of a's";
}

TEST_F(BanksTest, WhatWouldBeLostIsDroppedLast) {
  BankSource in_memory = source();
  in_memory.file = [this](const BankId& id) -> Result<std::string> { return id.tenant == "files" ? file(id) : std::string(); };
  BanksConfig config;
  config.most = 3;
  Banks banks(config, in_memory);
  teach(*banks.get({"a", "x"}).value(), 1.0f);
  teach(*banks.get({"b", "x"}).value(), 1.0f);
  teach(*banks.get({"files", "x"}).value(), 1.0f);
  ASSERT_TRUE(banks.get({"b", "y"}).is_ok());  // in the place of the one with a file, though that was used last
  ASSERT_TRUE(banks.exists({"files", "x"}));
  teach(*banks.get({"b", "y"}).value(), 1.0f);
  ASSERT_TRUE(banks.get({"b", "z"}).is_ok());  // in the place of b's own: a tenant's flood is its own loss
  EXPECT_TRUE(banks.exists({"a", "x"}));
  EXPECT_FALSE(banks.exists({"b", "x"}));
  EXPECT_EQ(banks.get({"a", "x"}).value()->recal()->bank().size(), 1u);
}

TEST_F(BanksTest, ABankThatCannotBeWrittenOutIsKept) {
  BanksConfig config;
  config.most = 1;
  Banks banks(config, source());
  teach(*banks.get(named("a")).value(), 1.0f);
  fs::create_directory(path("a") + ".drift-tmp");  // where the store builds new content
  EXPECT_EQ(banks.get(named("b")).status().code(), Code::kIo);
  EXPECT_EQ(banks.get(named("a")).value()->recal()->bank().size(), 1u);
  fs::remove(path("a") + ".drift-tmp");
  EXPECT_TRUE(banks.get(named("b")).is_ok());
}

TEST_F(BanksTest, ChangesOnRequest) {
  Banks banks({}, source());
  const BankId id = named("law");
  EXPECT_EQ(banks.reset(id).code(), Code::kNotFound);
  auto bank = banks.get(id).value();
  teach(*bank, 1.0f);
  ASSERT_TRUE(banks.save_all().is_ok());
  const bank::StoredBank copy = banks.copy(id).value();
  EXPECT_EQ(copy.image.size, 1u);
  ASSERT_TRUE(banks.reset(id).is_ok());
  EXPECT_EQ(bank->recal()->bank().size(), 0u);
  ASSERT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(stored(path("law")).image.size, 0u) << "a reset is saved too, though it is no commit";
  ASSERT_TRUE(banks.replace(id, copy).is_ok());
  EXPECT_EQ(bank->recal()->bank().size(), 1u);
  bank::StoredBank foreign = copy;
  foreign.image.config.capacity = 5;
  EXPECT_FALSE(banks.replace(id, foreign).is_ok());
  ASSERT_TRUE(banks.freeze(id, true).is_ok());
  banks.publish();
  EXPECT_TRUE(banks.states()[0].frozen);
  EXPECT_EQ(banks.remove(id).code(), Code::kBusy);
  bank.reset();
  ASSERT_TRUE(banks.remove(id).is_ok());
  EXPECT_FALSE(fs::exists(path("law")));
  EXPECT_TRUE(banks.states().empty());
  EXPECT_EQ(banks.get(id).value()->recal()->bank().size(), 0u);
}

TEST_F(BanksTest, ATenantsBanksAreFoundOpenOrNot) {
  {
    Banks banks({}, source());
    teach(*banks.get({"a", "old"}).value(), 1.0f);
    ASSERT_TRUE(banks.save_all().is_ok());
  }
  Banks banks({}, source());
  ASSERT_TRUE(banks.get({"a", "new"}).is_ok());
  ASSERT_TRUE(banks.get({"b", "other"}).is_ok());
  const std::vector<BankId> of_a = banks.of_tenant("a");
  EXPECT_EQ(of_a, (std::vector<BankId>{{"a", "new"}, {"a", "old"}}));
  for (const BankId& id : of_a) EXPECT_TRUE(banks.remove(id).is_ok());
  EXPECT_TRUE(banks.of_tenant("a").empty());
}

TEST_F(BanksTest, NothingOfADeletedOrEmptiedBankIsLeftInAnyFile) {
  const auto occurs = [&](const std::string& bytes) {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
      count += all.find(bytes) != std::string::npos ? 1 : 0;
    }
    return count;
  };
  Banks banks({}, source());
  banks.share({"a", "b"});  // b looks up what a taught, and keeps nothing of it
  const BankId mine{"a", "x"}, second{"a", "y"}, other{"b", "x"};
  for (const BankId& id : {mine, second, other}) teach(*banks.get(id).value(), id.tenant == "a" ? 0.7183f : 0.3141f);
  EXPECT_EQ(borrowed(banks, banks.get(other).value()), std::vector<std::string>{"1"});
  ASSERT_TRUE(banks.save_all().is_ok());
  const auto key_of = [&](const BankId& id) {
    const auto keys = stored(file(id)).image.keys;
    return std::string(reinterpret_cast<const char*>(keys.data()), 8 * sizeof(float));
  };
  const std::string of_a = key_of(mine), of_b = key_of(other);
  ASSERT_EQ(occurs(of_a), 2);
  ASSERT_EQ(occurs(of_b), 1);
  const bank::StoredBank before = stored(file(other));
  ASSERT_TRUE(banks.reset(second).is_ok());
  ASSERT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(occurs(of_a), 1);
  std::ofstream(file(mine) + ".drift-tmp") << "what a killed writer left: " << of_a;
  for (const BankId& id : banks.of_tenant("a")) EXPECT_TRUE(banks.remove(id).is_ok());
  EXPECT_EQ(occurs(of_a), 0);
  EXPECT_TRUE(banks.of_tenant("a").empty());
  EXPECT_TRUE(borrowed(banks, banks.get(other).value()).empty());
  ASSERT_TRUE(banks.save_all().is_ok());
  const bank::StoredBank after = stored(file(other));
  EXPECT_EQ(before.image.keys, after.image.keys);
  EXPECT_EQ(before.image.values, after.image.values);
  EXPECT_EQ(before.extras, after.extras);
}

TEST_F(BanksTest, WhatIsSharedIsBoundedAndComesFromFilesToo) {
  const auto sizes = [](std::initializer_list<const char*> list) { return std::vector<std::string>(list.begin(), list.end()); };
  {
    Banks banks({}, source());
    for (int i = 0; i < 3; ++i) teach(*banks.get({"b", "x"}).value(), 1.0f - static_cast<float>(i));
    teach(*banks.get({"c", "x"}).value(), 1.0f);
    teach(*banks.get({"b", "other"}).value(), 1.0f);
    ASSERT_TRUE(banks.save_all().is_ok());
  }
  BanksConfig config;
  config.most = 3;
  config.most_lent = 1;
  {
    Banks banks(config, source());
    banks.share({"a", "b", "c"});
    EXPECT_EQ(borrowed(banks, banks.get({"a", "x"}).value()).size(), 1u);
  }
  config.most_lent = 4;
  Banks banks(config, source());
  banks.share({"a", "b", "c"});
  const auto mine = banks.get({"a", "x"}).value();
  EXPECT_EQ(banks.states().size(), 3u) << "those of that name, and not its own twice";
  EXPECT_TRUE(banks.states()[1].shared);
  ASSERT_EQ(borrowed(banks, mine).size(), 2u);
  banks.get({"b", "x"}).value();
  EXPECT_EQ(borrowed(banks, mine), sizes({"3", "1"})) << "the last used first";
  EXPECT_TRUE(borrowed(banks, banks.get({"a", "other"}).value()).empty()) << "no room to open b's without dropping one";
}

TEST_F(BanksTest, ABankIsNotDroppedUnderWhoLooksItUp) {
  BanksConfig config;
  config.most = 2;
  Banks banks(config, source());
  banks.share({"b"});
  teach(*banks.get({"b", "x"}).value(), 1.0f);
  const auto mine = banks.get({"a", "x"}).value();
  std::atomic<bool> looked{false};
  std::thread other;
  {
    Bank* const reader = mine.get();
    const Banks::Lending lending = banks.lend({&reader, 1});
    other = std::thread([&] {
      EXPECT_TRUE(banks.get({"c", "x"}).is_ok());
      EXPECT_TRUE(looked) << "b's bank was dropped in the middle of a step";
    });
    for (int i = 0; i < 20; ++i) {
      recal::Lookup found;
      EXPECT_TRUE(mine->recal()->lookup(std::vector<float>(8, 0.4f), found).is_ok());
      ASSERT_EQ(found.lent.size(), 1u);
      EXPECT_EQ(found.lent[0].neighbors.size(), 1u);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    looked = true;
  }
  other.join();
  EXPECT_TRUE(borrowed(banks, mine).empty());
  EXPECT_EQ(banks.get({"b", "x"}).value()->recal()->bank().size(), 1u);
}

TEST_F(BanksTest, ABankOfAnotherPairIsRefusedByNameAndLeftAlone) {
  auto others = owner();
  others.fingerprint.draft_hash = std::string(32, 'c');
  others.target_name = "another target";
  {
    auto session = recal::BankSession::open(path("law"), false, toy_recal(), others).value();
    ASSERT_TRUE(session.save().is_ok());
  }
  std::vector<std::string> complaints;
  Banks banks({}, source(), [&](const BankId& id, const Status& why) { complaints.push_back(id.text() + ": " + why.message()); });
  const auto bank = banks.get(named("law"));
  ASSERT_TRUE(bank.is_ok()) << bank.status().message();
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_NE(complaints[0].find("law.bank"), std::string::npos) << complaints[0];
  EXPECT_NE(complaints[0].find("another target"), std::string::npos) << complaints[0];
  EXPECT_FALSE(banks.states()[0].saved_to_file);
  EXPECT_FALSE(banks.states()[0].memory_only.empty());
  teach(*bank.value(), 1.0f);
  ASSERT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(stored(path("law")).target_name, "another target");
  EXPECT_EQ(stored(path("law")).image.size, 0u);
}

TEST_F(BanksTest, DiskIsBoundedToo) {
  BanksConfig config;
  config.most_files = 3;
  config.most_files_per_tenant = 2;
  std::vector<std::string> complaints;
  Banks banks(config, source(), [&](const BankId& id, const Status&) { complaints.push_back(id.text()); });
  for (const BankId& id : {BankId{"a", "1"}, BankId{"a", "2"}, BankId{"a", "3"}, BankId{"b", "1"}, BankId{"b", "2"}}) {
    const auto bank = banks.get(id);
    ASSERT_TRUE(bank.is_ok()) << id.text();
    teach(*bank.value(), 1.0f);
  }
  ASSERT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(complaints, (std::vector<std::string>{"a/3", "b/2"}));
  EXPECT_EQ(banks.stored().size(), 3u);
  EXPECT_TRUE(banks.exists({"a", "3"})) << "in memory";
  ASSERT_TRUE(banks.remove({"a", "1"}).is_ok());
  ASSERT_TRUE(banks.remove({"a", "3"}).is_ok());
  EXPECT_FALSE(banks.exists({"a", "3"}));
  ASSERT_TRUE(banks.get({"a", "3"}).is_ok());
  EXPECT_EQ(banks.stored().size(), 3u) << "there is room again";
}

TEST_F(BanksTest, AFrozenBankStaysFrozenWhenItIsDroppedAndOpenedAgain) {
  BanksConfig config;
  config.most = 1;
  Banks banks(config, source());
  ASSERT_TRUE(banks.get(named("law")).is_ok());
  ASSERT_TRUE(banks.freeze(named("law"), true).is_ok());
  ASSERT_TRUE(banks.get(named("other")).is_ok());
  ASSERT_TRUE(banks.get(named("law")).is_ok());
  EXPECT_TRUE(banks.states()[0].frozen);
  ASSERT_TRUE(banks.freeze(named("law"), false).is_ok());
  ASSERT_TRUE(banks.get(named("other")).is_ok());
  ASSERT_TRUE(banks.get(named("law")).is_ok());
  EXPECT_FALSE(banks.states()[0].frozen);
}

TEST_F(BanksTest, ABankThatIsOnlyReadIsNotRemoved) {
  BankSource only_read = source();
  only_read.only_read = [](const BankId& id) { return id == BankId{}; };
  Banks banks({}, only_read);
  ASSERT_TRUE(banks.get(BankId{}).is_ok());
  EXPECT_EQ(banks.remove(BankId{}).code(), Code::kInvalid);
  EXPECT_TRUE(fs::exists(file(BankId{})));
}

TEST_F(BanksTest, SavingGoesOnWhileTheBankLearns) {
  BanksConfig config;
  config.save_every = std::chrono::seconds(1);
  Banks banks(config, source());
  const auto bank = banks.get(named("law")).value();
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
  Banks banks(config, source());
  ASSERT_TRUE(banks.get(named("law")).is_ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(1'010));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(banks.tend(Clock::now()));
  ASSERT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(banks.states()[0].saves, 0u);
}

TEST_F(BanksTest, AFileThatCannotBeWrittenIsComplainedOfAndTriedAgain) {
  std::vector<std::string> complaints;
  Banks banks({}, source(), [&](const BankId& id, const Status& why) { complaints.push_back(id.text() + ": " + why.message()); });
  const auto bank = banks.get(named("law")).value();
  teach(*bank, 1.0f);
  fs::create_directory(path("law") + ".drift-tmp");  // where the store builds new content
  EXPECT_EQ(banks.save_all().code(), Code::kIo);
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_EQ(complaints[0].rfind("default/law: ", 0), 0u) << complaints[0];
  EXPECT_EQ(banks.states()[0].save_failures, 1u);
  EXPECT_FALSE(banks.states()[0].last_save_error.empty());
  fs::remove(path("law") + ".drift-tmp");
  EXPECT_TRUE(banks.save_all().is_ok());
  EXPECT_EQ(stored(path("law")).image.size, 1u);
  EXPECT_TRUE(banks.states()[0].last_save_error.empty());
}

TEST_F(BanksTest, AMemoryOfAnswersIsMadeWhenItIsNeeded) {
  Banks banks({}, source());
  const auto bank = banks.get(named("law"), decode::Mode::kDrift).value();
  EXPECT_EQ(bank->suffix(), nullptr);
  EXPECT_EQ(banks.get(named("law"), decode::Mode::kDriftSuffix).value(), bank);
  EXPECT_NE(bank->suffix(), nullptr);
  BankSource nothing;
  nothing.open = [](const BankId&, const std::string&) { return std::optional<recal::BankSession>(); };
  nothing.file = [](const BankId&) -> Result<std::string> { return std::string(); };
  Banks without({}, nothing);
  EXPECT_EQ(without.get(named("law"), decode::Mode::kDrift).status().code(), Code::kUnsupported);
  EXPECT_NE(without.get(named("law"), decode::Mode::kSuffix).value()->suffix(), nullptr);
  without.tend(Clock::now());
  without.publish();
  EXPECT_TRUE(without.save_all().is_ok());
}

TEST_F(BanksTest, ManyMayAskForOneBankAtOnce) {
  Banks banks({}, source());
  std::vector<std::shared_ptr<Bank>> got(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < got.size(); ++i) threads.emplace_back([&, i] { got[i] = banks.get(named("law")).value(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& bank : got) EXPECT_EQ(bank, got[0]);
}

}  // namespace
}  // namespace drift::server
