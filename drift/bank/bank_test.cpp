// The bank against a naive one that re-scans before every lesson, and the contract's single promises one by one.
#include "drift/bank/bank.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "drift/bank/bank_impl.hpp"
#include "drift/bank/testing.hpp"
#include "drift/simd/simd.hpp"

namespace drift::bank {
namespace {

using test::below;
using test::OwnedLesson;

// What the documentation says, written as plainly as possible. Scores use the product's dot, so that they compare exactly.
class NaiveBank {
 public:
  struct Entry {
    std::vector<float> key;
    std::map<Token, float> residual;
    std::uint32_t count = 1;
    std::uint64_t last_used = 0;
    float error = 1;
  };

  explicit NaiveBank(const BankConfig& config) : config_(config) {}

  std::vector<Neighbor> nearest(std::span<const float> key, std::size_t k) const {
    std::vector<Neighbor> all;
    for (std::size_t id = 0; id < entries_.size(); ++id) all.push_back({static_cast<EntryId>(id), score(entries_[id], key)});
    std::stable_sort(all.begin(), all.end(), [](const Neighbor& a, const Neighbor& b) { return a.score > b.score; });
    all.resize(std::min(k, all.size()));
    return all;
  }

  void commit(std::span<const EntryId> touched, const std::vector<OwnedLesson>& lessons) {
    for (const EntryId id : touched) entries_[id].last_used = ++clock_;
    for (const OwnedLesson& lesson : lessons) {
      const auto best = nearest(lesson.key, 1);
      if (!best.empty() && best[0].score >= config_.tau)
        update(entries_[best[0].entry], lesson);
      else
        allocate(lesson);
    }
  }

  const std::vector<Entry>& entries() const { return entries_; }
  std::uint64_t clock() const { return clock_; }

 private:
  float score(const Entry& entry, std::span<const float> key) const {
    float s;
    if (config_.key_type == KeyType::kF16) {
      std::vector<simd::f16_bits> halves(entry.key.size());
      simd::to_f16(entry.key, halves.data());
      simd::dot_rows_f16(halves.data(), halves.size(), 1, key, &s);
    } else {
      s = simd::dot(entry.key, key);
    }
    return std::clamp(s, -1.0f, 1.0f);
  }

  std::vector<float> stored(std::vector<float> key) const {
    if (config_.key_type == KeyType::kF32) return key;
    std::vector<simd::f16_bits> halves(key.size());
    simd::scalar::to_f16(key, halves.data());
    simd::scalar::from_f16(halves.data(), key);
    return key;
  }

  void keep(Entry& entry) const {
    std::vector<std::pair<Token, float>> all(entry.residual.begin(), entry.residual.end());
    std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return std::fabs(a.second) > std::fabs(b.second); });
    all.resize(std::min<std::size_t>(all.size(), config_.support));
    entry.residual = {all.begin(), all.end()};
  }

  float rate(Entry& entry, const OwnedLesson& lesson) const {
    if (config_.rate == RateRule::kFixed) return config_.eta;
    if (config_.rate == RateRule::kCount) return std::max(config_.eta, 1.0f / static_cast<float>(entry.count + 1));
    std::map<Token, std::pair<double, double>> both;
    for (auto [t, v] : entry.residual) both[t].first = double{v};
    for (std::size_t i = 0; i < lesson.tokens.size(); ++i) both[lesson.tokens[i]].second = double{lesson.values[i]};
    double apart = 0, total = 0;
    for (auto& [t, v] : both) {
      apart += std::fabs(v.second - v.first);
      total += std::fabs(v.first) + std::fabs(v.second);
    }
    const float miss = total > 0 ? static_cast<float>(apart / total) : 0.0f;
    entry.error = std::clamp(0.75f * entry.error + 0.25f * miss, 0.0f, 1.0f);
    return std::clamp(entry.error, config_.eta, 1.0f);
  }

  void update(Entry& entry, const OwnedLesson& lesson) {
    const float r = rate(entry, lesson);
    std::vector<float> moved(entry.key.size());
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] = (1.0f - r) * entry.key[i] + r * lesson.key[i];
    const float length = simd::norm(moved);
    for (float& v : moved) v /= length;
    entry.key = stored(moved);
    for (auto& [t, v] : entry.residual) {
      const auto it = std::find(lesson.tokens.begin(), lesson.tokens.end(), t);
      const float taught = it == lesson.tokens.end() ? 0.0f : lesson.values[static_cast<std::size_t>(it - lesson.tokens.begin())];
      v = (1.0f - r) * v + r * taught;
    }
    for (std::size_t i = 0; i < lesson.tokens.size(); ++i) entry.residual.try_emplace(lesson.tokens[i], r * lesson.values[i]);
    keep(entry);
    ++entry.count;
    entry.last_used = ++clock_;
  }

  void allocate(const OwnedLesson& lesson) {
    Entry entry;
    entry.key = stored(lesson.key);
    for (std::size_t i = 0; i < lesson.tokens.size(); ++i) entry.residual[lesson.tokens[i]] = lesson.values[i];
    keep(entry);
    entry.last_used = ++clock_;
    if (entries_.size() < config_.capacity) {
      entries_.push_back(entry);
    } else {
      *std::min_element(entries_.begin(), entries_.end(), [](auto& a, auto& b) { return a.last_used < b.last_used; }) = entry;
    }
  }

  BankConfig config_;
  std::uint64_t clock_ = 0;
  std::vector<Entry> entries_;
};

void expect_same(const NaiveBank& naive, const Bank& bank) {
  ASSERT_EQ(bank.size(), naive.entries().size());
  for (EntryId id = 0; id < bank.size(); ++id) {
    const auto& want = naive.entries()[id];
    const EntryView got = bank.entry(id);
    ASSERT_EQ(got.count, want.count) << "entry " << id;
    ASSERT_EQ(got.last_used, want.last_used) << "entry " << id;
    ASSERT_EQ(got.tokens.size(), want.residual.size()) << "entry " << id;
    std::size_t i = 0;
    for (const auto& [token, value] : want.residual) {
      ASSERT_EQ(got.tokens[i], token) << "entry " << id;
      ASSERT_FLOAT_EQ(got.values[i], value) << "entry " << id;
      ++i;
    }
  }
}

// Random streams over few directions, so that several lessons of one commit meet the same entry, lists of neighbours of any
// length including none, and banks so small that entries are evicted within the commit that made them.
void run_against_naive(std::uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  BankConfig config = test::small_config();
  config.capacity = 1 + below(12, rng);
  config.key_dim = 1 + below(20, rng);
  config.support = 1 + below(6, rng);
  config.key_type = rng() % 2 ? KeyType::kF16 : KeyType::kF32;
  config.tau = std::array{0.99f, 0.9f, 0.5f, -0.5f}[rng() % 4];
  config.eta = std::array{0.3f, 1.0f, 0.05f}[rng() % 3];
  config.rate = static_cast<RateRule>(rng() % 3);
  auto bank = Bank::create(config).value();
  NaiveBank naive(config);
  const auto directions = test::random_keys(6, config.key_dim, rng);
  for (int step = 0; step < 30; ++step) {
    std::vector<EntryId> touched;
    for (std::uint32_t i = 0; bank->size() > 0 && i < below(4, rng); ++i) touched.push_back(below(bank->size(), rng));
    std::vector<OwnedLesson> lessons;
    const std::size_t count = rng() % 7;
    for (std::size_t i = 0; i < count; ++i) {
      OwnedLesson lesson = test::random_lesson(config, rng);
      lesson.key = test::near(directions[rng() % directions.size()], rng() % 3 ? 0.0f : 0.2f, rng);
      lesson.neighbors.resize(rng() % 5);
      const std::size_t found = bank->nearest(lesson.key, lesson.neighbors);
      const auto want = naive.nearest(lesson.key, lesson.neighbors.size());
      ASSERT_EQ(found, want.size());
      for (std::size_t j = 0; j < found; ++j) {
        ASSERT_EQ(lesson.neighbors[j].entry, want[j].entry);
        ASSERT_EQ(lesson.neighbors[j].score, want[j].score);
      }
      lesson.neighbors.resize(found);
      lessons.push_back(std::move(lesson));
    }
    bank->commit(touched, test::views(lessons));
    naive.commit(touched, lessons);
    expect_same(naive, *bank);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Bank, EqualsANaiveBankThatRescansBeforeEveryLesson) {
  for (std::uint32_t seed = 1; seed <= 600; ++seed) {
    run_against_naive(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(Bank, ALookupChangesNothing) {
  std::mt19937 rng(7);
  BankConfig config = test::small_config();
  config.capacity = 3;
  config.tau = 1.0f;
  auto bank = Bank::create(config).value();
  std::vector<OwnedLesson> lessons;
  for (int i = 0; i < 3; ++i) lessons.push_back(test::random_lesson(config, rng));
  bank->commit({}, test::views(lessons));
  const BankImage before = Snapshot::copy(*bank);
  std::vector<Neighbor> found(3);
  for (int i = 0; i < 5; ++i) bank->nearest(lessons[0].key, {found.data(), 1});
  test::expect_equal(before, Snapshot::copy(*bank));
  // Entry 0 was looked up but not used, so it is still the one to go.
  const OwnedLesson fresh = test::random_lesson(config, rng);
  bank->commit({}, test::views({fresh}));
  EXPECT_EQ(bank->entry(0).count, 1u);
  EXPECT_EQ(bank->entry(0).last_used, 4u);
  EXPECT_EQ(bank->entry(1).last_used, 2u);
}

TEST(Bank, ATouchedEntryIsSparedAndOldestTouchComesFirst) {
  std::mt19937 rng(8);
  BankConfig config = test::small_config();
  config.capacity = 3;
  config.tau = 1.0f;
  auto bank = Bank::create(config).value();
  std::vector<OwnedLesson> lessons;
  for (int i = 0; i < 5; ++i) lessons.push_back(test::random_lesson(config, rng));
  bank->commit({}, test::views({lessons[0], lessons[1], lessons[2]}));
  const std::vector<EntryId> touched = {1, 0};
  bank->commit(touched, test::views({lessons[3], lessons[4]}));  // evicts 2, then 1: touched before 0
  EXPECT_EQ(bank->entry(2).last_used, 6u);
  EXPECT_EQ(bank->entry(1).last_used, 7u);
  EXPECT_EQ(bank->entry(0).last_used, 5u);
  EXPECT_EQ(bank->stats().evicted, 2u);
  EXPECT_EQ(bank->stats().allocated, 5u);
  EXPECT_EQ(bank->stats().commits, 2u);
}

TEST(Bank, KeepsTheLargestAndTheLowestTokenOnTies) {
  std::mt19937 rng(9);
  BankConfig config = test::small_config();
  config.support = 2;
  auto bank = Bank::create(config).value();
  OwnedLesson lesson = test::random_lesson(config, rng);
  lesson.tokens = {3, 5, 8, 9};
  lesson.values = {-1.0f, 1.0f, 1.0f, 0.5f};
  bank->commit({}, test::views({lesson}));
  const EntryView entry = bank->entry(0);
  EXPECT_EQ(std::vector<Token>(entry.tokens.begin(), entry.tokens.end()), (std::vector<Token>{3, 5}));
  EXPECT_EQ(std::vector<float>(entry.values.begin(), entry.values.end()), (std::vector<float>{-1.0f, 1.0f}));
}

TEST(Bank, ReportsItsBytesExactly) {
  for (const KeyType type : {KeyType::kF32, KeyType::kF16}) {
    for (const bool int8_scan : {false, true}) {
      for (const std::uint32_t dim : {1u, 15u, 16u, 17u, 64u, 65u, 896u}) {
        BankConfig config = test::small_config();
        config.capacity = 37;
        config.key_dim = dim;
        config.support = 5;
        config.key_type = type;
        config.int8_scan = int8_scan;
        auto bank = Bank::create(config).value();
        // By hand, array by array: 37 entries.
        const std::uint64_t row = type == KeyType::kF32 ? (dim + 15) / 16 * 64 : (dim + 31) / 32 * 64;
        std::uint64_t want = 37 * row + dim * 4;  // keys of record, one key of scratch
        if (int8_scan) want += 37 * ((dim + 63) / 64 * 64) + 37 * 4;
        want += 37 * (5 * 4 + 5 * 4);  // tokens, values
        want += 37 * (4 + 4 + 8 + 4);  // lengths, counts, last_used, errors
        want += 37 * (4 + 4 + 4 + 1);  // order of use, changed entries
        want += (5 + 2'048) * 8;       // one merge
        EXPECT_EQ(bank->bytes(), want);
        EXPECT_EQ(config.bytes(), want);
      }
    }
  }
}

TEST(Bank, Int8ScanFindsTheSameNeighboursWithExactScores) {
  std::mt19937 rng(10);
  BankConfig config = test::small_config();
  config.capacity = 2'000;
  config.key_dim = 96;
  config.tau = 1.0f;
  BankConfig rounded_config = config;
  rounded_config.int8_scan = true;
  auto exact = Bank::create(config).value();
  auto rounded = Bank::create(rounded_config).value();
  std::vector<OwnedLesson> lessons;
  for (int i = 0; i < 2'000; ++i) lessons.push_back(test::random_lesson(config, rng));
  exact->commit({}, test::views(lessons));
  rounded->commit({}, test::views(lessons));
  ASSERT_EQ(exact->size(), rounded->size());
  std::size_t same = 0, total = 0;
  for (int q = 0; q < 100; ++q) {
    const auto key = test::near(lessons[rng() % lessons.size()].key, 0.5f, rng);
    std::vector<Neighbor> a(8), b(8);
    ASSERT_EQ(exact->nearest(key, a), 8u);
    ASSERT_EQ(rounded->nearest(key, b), 8u);
    for (const Neighbor& n : b) {
      EXPECT_EQ(n.score, exact->keys().similarity(KeyView{key}, n.entry));
      same += std::any_of(a.begin(), a.end(), [&](const Neighbor& m) { return m.entry == n.entry; });
    }
    total += 8;
    EXPECT_EQ(a[0].entry, b[0].entry);
  }
  // Rounding moves a score by about 1/127 of the largest element times 1/sqrt(d): far less than what separates the 8th from
  // the 33rd of 2,000 random scores.
  EXPECT_GE(same, total * 99 / 100);
}

TEST(Bank, RekeyConvertsEveryKeyAndKeepsUnitLength) {
  for (const KeyType type : {KeyType::kF32, KeyType::kF16}) {
    std::mt19937 rng(11);
    BankConfig config = test::small_config();
    config.key_type = type;
    config.int8_scan = true;
    config.tau = 1.0f;
    auto bank = Bank::create(config).value();
    std::vector<OwnedLesson> lessons;
    for (int i = 0; i < 8; ++i) lessons.push_back(test::random_lesson(config, rng));
    bank->commit({}, test::views(lessons));
    bank->rekey([](std::span<float> key) {
      for (std::size_t i = 0; i < key.size(); ++i) key[i] = (key[i] - 0.1f) * (1.0f + static_cast<float>(i));
    });
    for (EntryId id = 0; id < bank->size(); ++id) {
      auto want = lessons[id].key;
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = (want[i] - 0.1f) * (1.0f + static_cast<float>(i));
      const float length = simd::scalar::norm(want);
      for (float& v : want) v /= length;
      EXPECT_NEAR(bank->keys().similarity(KeyView{want}, id), 1.0f, type == KeyType::kF32 ? 1e-5f : 1e-3f);
    }
    EXPECT_TRUE(Bank::from_image(Snapshot::copy(*bank)).is_ok());
    bank->rekey([](std::span<float> key) { std::fill(key.begin(), key.end(), 0.0f); });
    EXPECT_TRUE(Bank::from_image(Snapshot::copy(*bank)).is_ok());
  }
}

TEST(Bank, ClearEmptiesIt) {
  std::mt19937 rng(12);
  auto bank = Bank::create(test::small_config()).value();
  const OwnedLesson lesson = test::random_lesson(bank->config(), rng);
  bank->commit({}, test::views({lesson}));
  bank->clear();
  EXPECT_EQ(bank->size(), 0u);
  std::vector<Neighbor> found(1);
  EXPECT_EQ(bank->nearest(lesson.key, found), 0u);
  bank->commit({}, test::views({lesson}));
  EXPECT_EQ(bank->entry(0).last_used, 1u);
}

TEST(BankConfig, RefusesEveryFieldOutsideItsBounds) {
  BankConfig good = test::small_config();
  EXPECT_TRUE(good.validate().is_ok());
  const auto refuse = [&](auto change, const char* name, const char* value) {
    BankConfig config = good;
    change(config);
    const Status status = config.validate();
    EXPECT_EQ(status.code(), Code::kInvalid) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(value), std::string::npos) << status.message();
    EXPECT_EQ(Bank::create(config).status().code(), Code::kInvalid);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  refuse([](BankConfig& c) { c.capacity = 0; }, "capacity", "0");
  refuse([](BankConfig& c) { c.capacity = 65'537; }, "capacity", "65537");
  refuse([](BankConfig& c) { c.key_dim = 0; }, "key_dim", "0");
  refuse([](BankConfig& c) { c.key_dim = 16'385; }, "key_dim", "16385");
  refuse([](BankConfig& c) { c.support = 0; }, "support", "0");
  refuse([](BankConfig& c) { c.support = 1'025; }, "support", "1025");
  refuse([](BankConfig& c) { c.vocab = 0; }, "vocab", "0");
  refuse([](BankConfig& c) { c.vocab = (1u << 24) + 1; }, "vocab", "16777217");
  refuse([](BankConfig& c) { c.key_type = static_cast<KeyType>(3); }, "key_type", "3");
  refuse([](BankConfig& c) { c.rate = static_cast<RateRule>(3); }, "rate", "3");
  refuse([](BankConfig& c) { c.tau = 1.5f; }, "tau", "1.5");
  refuse([=](BankConfig& c) { c.tau = nan; }, "tau", "nan");
  refuse([](BankConfig& c) { c.eta = 0.0f; }, "eta", "0");
  refuse([](BankConfig& c) { c.eta = 1.01f; }, "eta", "1.01");
  refuse([=](BankConfig& c) { c.eta = nan; }, "eta", "nan");
  BankConfig huge = good;
  huge.capacity = kMaxCapacity;
  huge.key_dim = kMaxKeyDim;
  EXPECT_EQ(huge.validate().code(), Code::kLimit);
  huge.key_type = KeyType::kF16;
  EXPECT_TRUE(huge.validate().is_ok()) << huge.validate().message();
}

}  // namespace
}  // namespace drift::bank
