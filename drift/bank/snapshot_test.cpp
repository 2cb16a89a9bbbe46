// A snapshot equals a copy made at its start, whatever is committed while it runs.
#include "drift/bank/snapshot.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "drift/bank/testing.hpp"

namespace drift::bank {
namespace {

using test::below;
using test::OwnedLesson;

std::unique_ptr<Bank> random_bank(const BankConfig& config, std::size_t lessons, std::mt19937& rng) {
  auto bank = Bank::create(config).value();
  for (std::size_t i = 0; i < lessons; ++i) bank->commit({}, test::views({test::random_lesson(config, rng)}));
  return bank;
}

void commit_some(Bank& bank, std::mt19937& rng) {
  std::vector<EntryId> touched;
  for (std::uint32_t i = 0; bank.size() > 0 && i < below(3, rng); ++i) touched.push_back(below(bank.size(), rng));
  std::vector<OwnedLesson> lessons;
  for (std::uint32_t i = 0; i < below(5, rng); ++i) lessons.push_back(test::random_lesson(bank.config(), rng));
  bank.commit(touched, test::views(lessons));
}

TEST(Snapshot, EqualsTheMomentItBegan) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    BankConfig config = test::small_config();
    config.capacity = 1 + below(40, rng);
    config.key_type = below(2, rng) ? KeyType::kF16 : KeyType::kF32;
    config.rate = RateRule::kError;
    config.tau = below(2, rng) ? 0.2f : 0.9f;  // updates as well as evictions
    auto bank = random_bank(config, below(60, rng), rng);
    const BankImage want = Snapshot::copy(*bank);
    auto snapshot = Snapshot::start(*bank).value();
    const std::size_t budget = below(400, rng);  // from one entry a call to several
    int calls = 0;
    while (!snapshot->done()) {
      commit_some(*bank, rng);
      snapshot->advance(budget);
      ASSERT_LE(++calls, 41);
    }
    commit_some(*bank, rng);
    test::expect_equal(snapshot->take(), want);
  }
}

TEST(Snapshot, WithARoomIsTheSameAndKeepsItsMemory) {
  std::mt19937 rng(4);
  const BankConfig config = test::small_config();
  auto bank = random_bank(config, 8, rng);
  const BankImage want = Snapshot::copy(*bank);
  BankImage room = Snapshot::room(config).value();
  for (int again = 0; again < 2; ++again) {  // the second time in the memory of the first image, content and all
    const std::byte* const memory = room.keys.data();
    auto snapshot = Snapshot::start(*bank, std::move(room)).value();
    while (!snapshot->done()) snapshot->advance(1);
    room = snapshot->take();
    EXPECT_EQ(room.keys.data(), memory);
    test::expect_equal(room, want);
  }
  EXPECT_EQ(Snapshot::room({}).status().code(), Code::kInvalid) << "a config without a key width";
}

TEST(Snapshot, OneAtATime) {
  std::mt19937 rng(1);
  auto bank = random_bank(test::small_config(), 8, rng);
  auto first = Snapshot::start(*bank).value();
  EXPECT_EQ(Snapshot::start(*bank).status().code(), Code::kBusy);
  first.reset();  // given up half-way
  auto second = Snapshot::start(*bank);
  ASSERT_TRUE(second.is_ok());
  second.value()->advance(1 << 20);
  EXPECT_TRUE(second.value()->done());
  EXPECT_TRUE(Snapshot::start(*bank).is_ok()) << "a finished one no longer counts";
}

TEST(Snapshot, SurvivesClearRestoreRekeyAndTheBanksEnd) {
  for (int way = 0; way < 4; ++way) {
    std::mt19937 rng(2);
    auto bank = random_bank(test::small_config(), 8, rng);
    const BankImage want = Snapshot::copy(*bank);
    auto other = random_bank(test::small_config(), 5, rng);
    auto snapshot = Snapshot::start(*bank).value();
    snapshot->advance(1);
    if (way == 0) bank->clear();
    if (way == 1) {
      ASSERT_TRUE(bank->restore(Snapshot::copy(*other)).is_ok());
    }
    if (way == 2) bank->rekey([](std::span<float> key) { key[0] += 1.0f; });
    if (way == 3) bank.reset();
    ASSERT_TRUE(snapshot->done());
    test::expect_equal(snapshot->take(), want);
  }
}

TEST(Snapshot, OfAnEmptyBankIsDoneAtOnce) {
  auto bank = Bank::create(test::small_config()).value();
  auto snapshot = Snapshot::start(*bank).value();
  EXPECT_TRUE(snapshot->done());
  EXPECT_EQ(snapshot->take().size, 0u);
}

TEST(Snapshot, HoldsWhenEveryEntryChangesBeforeItIsReached) {
  std::mt19937 rng(3);
  BankConfig config = test::small_config();
  config.capacity = 500;
  config.tau = 1.0f;
  auto bank = random_bank(config, 500, rng);
  const BankImage want = Snapshot::copy(*bank);
  auto snapshot = Snapshot::start(*bank).value();
  for (int i = 0; i < 1'200; ++i) bank->commit({}, test::views({test::random_lesson(config, rng)}));
  EXPECT_FALSE(snapshot->done());
  while (!snapshot->done()) snapshot->advance(1'000);
  test::expect_equal(snapshot->take(), want);
}

TEST(Snapshot, AnImageMakesTheSameBankAgain) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    BankConfig config = test::small_config();
    config.key_type = seed % 2 ? KeyType::kF16 : KeyType::kF32;
    config.int8_scan = seed % 3 == 0;
    config.rate = static_cast<RateRule>(seed % 3);
    config.tau = 0.3f;
    auto bank = random_bank(config, 30, rng);
    auto again = Bank::from_image(Snapshot::copy(*bank)).value();
    // Equal now, and after the same future: the order of use and the int8 copy have come back too.
    for (int i = 0; i < 20; ++i) {
      test::expect_equal(Snapshot::copy(*again), Snapshot::copy(*bank));
      std::mt19937 same_a(seed + 100), same_b(seed + 100);
      commit_some(*bank, same_a);
      commit_some(*again, same_b);
    }
  }
}

TEST(Image, EveryBrokenBoundIsRefusedAndChangesNothing) {
  std::mt19937 rng(4);
  BankConfig config = test::small_config();
  config.tau = 1.0f;
  auto bank = random_bank(config, 8, rng);
  BankImage good = Snapshot::copy(*bank);
  std::size_t id = 0;
  while (good.lengths[id] < 2 || good.lengths[id] == config.support) ++id;  // two tokens and a free slot
  const std::size_t slot = id * config.support;
  const auto refuse = [&](const char* what, auto change, Code code = Code::kCorrupt) {
    BankImage bad = good;
    change(bad);
    const Status status = bank->restore(bad);
    EXPECT_EQ(status.code(), code) << what << ": " << status.message();
    test::expect_equal(Snapshot::copy(*bank), good);
    EXPECT_FALSE(Bank::from_image(bad).is_ok() && code == Code::kCorrupt) << what;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto set_key = [&](BankImage& b, float v) { std::memcpy(b.keys.data(), &v, sizeof v); };
  refuse("size over capacity", [](BankImage& b) { b.size = b.config.capacity + 1; });
  refuse("size too small", [](BankImage& b) { --b.size; });
  refuse("lengths cut", [](BankImage& b) { b.lengths.pop_back(); });
  refuse("counts cut", [](BankImage& b) { b.counts.pop_back(); });
  refuse("last_used cut", [](BankImage& b) { b.last_used.pop_back(); });
  refuse("errors cut", [](BankImage& b) { b.errors.pop_back(); });
  refuse("tokens cut", [](BankImage& b) { b.tokens.pop_back(); });
  refuse("values cut", [](BankImage& b) { b.values.pop_back(); });
  refuse("keys cut", [](BankImage& b) { b.keys.pop_back(); });
  refuse("length over support", [&](BankImage& b) { b.lengths[id] = config.support + 1; });
  refuse("count 0", [](BankImage& b) { b.counts[0] = 0; });
  refuse("last use 0", [](BankImage& b) { b.last_used[0] = 0; });
  refuse("last use in the future", [](BankImage& b) { b.last_used[0] = b.use_counter + 1; });
  refuse("last use twice", [](BankImage& b) { b.last_used[0] = b.last_used[1]; });
  refuse("error NaN", [=](BankImage& b) { b.errors[0] = nan; });
  refuse("error over 1", [](BankImage& b) { b.errors[0] = 1.5f; });
  refuse("token negative", [&](BankImage& b) { b.tokens[slot] = -2; });
  refuse("token at vocab", [&](BankImage& b) { b.tokens[slot + good.lengths[id] - 1] = static_cast<Token>(config.vocab); });
  refuse("tokens unordered", [&](BankImage& b) { std::swap(b.tokens[slot], b.tokens[slot + 1]); });
  refuse("token twice", [&](BankImage& b) { b.tokens[slot + 1] = b.tokens[slot]; });
  refuse("value NaN", [&](BankImage& b) { b.values[slot] = nan; });
  refuse("unused token", [&](BankImage& b) { b.tokens[slot + config.support - 1] = 1; });
  refuse("unused value", [&](BankImage& b) { b.values[slot + config.support - 1] = 1.0f; });
  refuse("key NaN", [&](BankImage& b) { set_key(b, nan); });
  refuse("key too long", [&](BankImage& b) { set_key(b, 3.0f); });
  refuse("config invalid", [](BankImage& b) { b.config.eta = 2.0f; }, Code::kForeign);
  refuse("another config", [](BankImage& b) { b.config.vocab += 1; }, Code::kForeign);
  BankImage bad = good;
  bad.config.eta = 2.0f;
  EXPECT_EQ(Bank::from_image(bad).status().code(), Code::kCorrupt);
  EXPECT_TRUE(bank->restore(good).is_ok());
}

}  // namespace
}  // namespace drift::bank
