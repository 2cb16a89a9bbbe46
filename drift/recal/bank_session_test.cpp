#include "drift/recal/bank_session.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "drift/bank/snapshot.hpp"

namespace drift::recal {
namespace {

namespace fs = std::filesystem;

RecalConfig small() {
  RecalConfig config;
  config.bank.capacity = 8;
  config.bank.key_dim = 4;
  config.bank.support = 2;
  config.bank.vocab = 10;
  return config;
}

BankOwner owner(char target = 'a') { return {{std::string(32, target), std::string(32, 'b'), 10, 4}, "target", "draft"}; }

void teach(BankSession& session, float turn) {
  const std::vector<float> key{std::cos(turn), std::sin(turn), 0, 0};
  const Token token = 3;
  const float value = turn;
  const bank::Lesson lesson{key, {}, {&token, 1}, {&value, 1}};
  session.recal()->bank().commit({}, {&lesson, 1});
}

class BankSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (fs::temp_directory_path() / ("drift-bank-session-" + std::to_string(::getpid()) + ".bank")).string();
    fs::remove(path_);
  }
  void TearDown() override { fs::remove(path_); }
  std::string path_;
};

TEST_F(BankSessionTest, WithoutAPathItLivesInMemory) {
  auto session = BankSession::open("", false, small(), {});
  ASSERT_TRUE(session.is_ok()) << session.status().message();
  EXPECT_FALSE(session->writes());
  EXPECT_TRUE(session->save().is_ok());
}

TEST_F(BankSessionTest, WhatWasSavedComesBack) {
  {
    auto session = BankSession::open(path_, false, small(), owner());
    ASSERT_TRUE(session.is_ok()) << session.status().message();
    teach(*session, 0.5f);
    teach(*session, 1.5f);
    ASSERT_TRUE(session->save().is_ok());
  }
  RecalConfig other = small();
  other.bank.capacity = 99;  // the stored bank brings its own
  auto again = BankSession::open(path_, true, other, owner());
  ASSERT_TRUE(again.is_ok()) << again.status().message();
  EXPECT_EQ(again->recal()->bank().size(), 2u);
  EXPECT_EQ(again->recal()->bank().config().capacity, 8u);
  EXPECT_FALSE(again->writes());
}

TEST_F(BankSessionTest, AFrameAndAnImageAreAWholeBank) {
  auto session = BankSession::open(path_, false, small(), owner());
  ASSERT_TRUE(session.is_ok());
  teach(*session, 0.5f);
  bank::StoredBank stored = session->frame();
  EXPECT_EQ(stored.image.size, 0u);
  stored.image = bank::Snapshot::copy(session->recal()->bank());
  const bank::StoredBank whole = session->recal()->save(owner().fingerprint);
  EXPECT_EQ(stored.extras, whole.extras);
  ASSERT_TRUE(session->write(stored).is_ok());
  auto again = BankSession::open(path_, true, small(), owner());
  ASSERT_TRUE(again.is_ok()) << again.status().message();
  EXPECT_EQ(again->recal()->save(owner().fingerprint).image.values, whole.image.values);
}

TEST_F(BankSessionTest, WhatCannotBeMakesNoFile) {
  RecalConfig bad = small();
  bad.sigma = -1.0f;
  EXPECT_EQ(BankSession::open(path_, false, bad, owner()).status().code(), Code::kInvalid);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_EQ(BankSession::open(path_, true, small(), owner()).status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(BankSessionTest, AnotherPairsBankAndOneThatIsNotAgreedToAreRefused) {
  {
    auto session = BankSession::open(path_, false, small(), owner());
    teach(*session, 0.5f);
    ASSERT_TRUE(session->save().is_ok());
  }
  EXPECT_EQ(BankSession::open(path_, false, small(), owner('c')).status().code(), Code::kForeign);
  const auto no = [](const RecalConfig& stored) {
    EXPECT_EQ(stored.bank.capacity, 8u);
    return Status(Code::kForeign, "not this one");
  };
  EXPECT_EQ(BankSession::open(path_, false, small(), owner(), no).status().message(), "not this one");
  EXPECT_TRUE(BankSession::open(path_, false, small(), owner()).is_ok());
}

}  // namespace
}  // namespace drift::recal
