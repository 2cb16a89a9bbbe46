#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "drift/bank/bank.hpp"
#include "drift/bank/blob.hpp"
#include "drift/bank/layout.hpp"
#include "drift/bank/snapshot.hpp"
#include "drift/base/rng.hpp"

namespace drift::bank {
namespace {

BankConfig hashed(std::uint32_t capacity) {
  BankConfig c;
  c.capacity = capacity;
  c.key_dim = 1;
  c.support = 4;
  c.vocab = 100;
  c.key_type = KeyType::kHash;
  c.tau = 0.5f;
  c.eta = 0.05f;
  c.rate = RateRule::kCount;
  return c;
}

std::unique_ptr<Bank> make(std::uint32_t capacity) {
  auto made = Bank::create(hashed(capacity));
  EXPECT_TRUE(made.is_ok()) << made.status().message();
  return std::move(made).value();
}

// Few distinct hashes, some of which share their home slot, so that entries are displaced, found and taken out again.
TEST(HashIndex, FindsTheLastEntryThatTookAHash) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const RngStream random(seed);
    const std::uint32_t capacity = 1 + static_cast<std::uint32_t>(seed % 9);
    const BankConfig config = hashed(capacity);
    const auto index = make_hash_index(config);
    std::vector<std::uint64_t> held(capacity, 0);  // by entry
    std::map<std::uint64_t, EntryId> owner;
    for (Pos i = 0; i < 400; ++i) {
      const auto entry = static_cast<EntryId>(random.uniform({1, i, Purpose::kDraw, 0}) * capacity);
      const auto hash = static_cast<std::uint64_t>(random.uniform({2, i, Purpose::kDraw, 0}) * 12.0) << (seed % 40);
      if (owner.count(held[entry]) != 0 && owner[held[entry]] == entry) owner.erase(held[entry]);
      index->assign(entry, {{}, hash});
      held[entry] = hash;
      owner[hash] = entry;
      for (std::uint64_t h = 0; h < 13; ++h) {
        const std::uint64_t asked = h << (seed % 40);
        Neighbor found;
        const std::size_t n = index->nearest({{}, asked}, capacity, {&found, 1});
        ASSERT_EQ(n, owner.count(asked)) << "seed " << seed << ", step " << i << ", hash " << h;
        if (n == 0) continue;
        EXPECT_EQ(found.entry, owner[asked]);
        EXPECT_EQ(found.score, 1.0f);
        EXPECT_EQ(index->similarity({{}, asked}, found.entry), 1.0f);
        EXPECT_EQ(index->nearest({{}, asked}, found.entry, {&found, 1}), 0u) << "entries beyond the size are not there";
      }
    }
    EXPECT_EQ(index->bytes(), key_bytes(config));
  }
}

// A bank of hashes against the plain thing: a map with counts, means and the order of use.
TEST(HashedBank, AgreesWithItsTwin) {
  struct Entry {
    std::map<Token, float> values;
    std::uint32_t count = 0;
  };
  for (const std::uint32_t capacity : {1u, 3u, 20u}) {
    const RngStream random(capacity);
    auto bank = make(capacity);
    std::map<std::uint64_t, Entry> twin;
    std::list<std::uint64_t> by_use;  // oldest first
    std::uint64_t updates = 0, evictions = 0;
    for (Pos i = 0; i < 600; ++i) {
      const auto hash = static_cast<std::uint64_t>(random.uniform({1, i, Purpose::kDraw, 0}) * 30.0) * 0x1234567'89abcdefull;
      const auto token = static_cast<Token>(random.uniform({2, i, Purpose::kDraw, 0}) * 3.0);
      const std::vector<Token> tokens{token, 7};
      const std::vector<float> values{0.75f, 0.25f};
      Neighbor found;
      std::vector<Neighbor> neighbors;
      if (bank->nearest(KeyView{{}, hash}, {&found, 1}) == 1) neighbors.push_back(found);
      ASSERT_EQ(neighbors.size(), twin.count(hash)) << "step " << i;
      const Lesson lesson{{}, neighbors, tokens, values, hash};
      bank->commit({}, {&lesson, 1});
      if (twin.count(hash) == 0 && twin.size() == capacity) {
        twin.erase(by_use.front());
        by_use.pop_front();
        ++evictions;
      }
      by_use.remove(hash);
      by_use.push_back(hash);
      Entry& e = twin[hash];
      const float rate = std::max(0.05f, 1.0f / (static_cast<float>(e.count) + 1.0f));
      updates += e.count > 0 ? 1 : 0;
      std::map<Token, float> next;
      for (const auto& [t, v] : e.values) next[t] += (1.0f - rate) * v;
      for (std::size_t j = 0; j < tokens.size(); ++j) next[tokens[j]] += (e.count == 0 ? 1.0f : rate) * values[j];
      e.values = next;  // at most four tokens, so none is dropped
      ++e.count;
      ASSERT_EQ(bank->nearest(KeyView{{}, hash}, {&found, 1}), 1u);
      const EntryView view = bank->entry(found.entry);
      EXPECT_EQ(view.count, e.count);
      ASSERT_EQ(view.tokens.size(), e.values.size());
      for (std::size_t j = 0; j < view.tokens.size(); ++j) EXPECT_NEAR(view.values[j], e.values[view.tokens[j]], 1e-5);
    }
    EXPECT_GT(updates, 5u);
    EXPECT_EQ(bank->stats().evicted, evictions);
    EXPECT_EQ(bank->bytes(), bank->config().bytes());
  }
}

TEST(HashedBank, TwoLessonsOfOneCommitWithOneContextMakeOneEntry) {
  auto bank = make(4);
  const std::vector<Token> tokens{1};
  const std::vector<float> values{1.0f};
  const Lesson twice[] = {{{}, {}, tokens, values, 42}, {{}, {}, tokens, values, 42}};
  bank->commit({}, twice);
  EXPECT_EQ(bank->size(), 1u);
  EXPECT_EQ(bank->entry(0).count, 2u);
}

TEST(HashedBank, AClearedBankHoldsNothingAndLearnsAgain) {
  auto bank = make(3);
  const std::vector<Token> tokens{1};
  const std::vector<float> values{1.0f};
  for (std::uint64_t hash = 1; hash <= 3; ++hash) {
    const Lesson lesson{{}, {}, tokens, values, hash};
    bank->commit({}, {&lesson, 1});
  }
  bank->clear();
  Neighbor found;
  for (std::uint64_t hash = 1; hash <= 3; ++hash) EXPECT_EQ(bank->nearest(KeyView{{}, hash}, {&found, 1}), 0u);
  for (const std::uint64_t hash : {3u, 1u, 2u, 9u}) {  // other places than before, and one more than fits
    const Lesson lesson{{}, {}, tokens, values, hash};
    bank->commit({}, {&lesson, 1});
    ASSERT_EQ(bank->nearest(KeyView{{}, hash}, {&found, 1}), 1u) << hash;
  }
  EXPECT_EQ(bank->nearest(KeyView{{}, 3}, {&found, 1}), 0u) << "the least recently used is gone";
}

TEST(HashedBank, ConfigBoundsAreNamed) {
  for (const auto change : {+[](BankConfig& c) { c.key_dim = 2; }, +[](BankConfig& c) { c.int8_scan = true; },
                            +[](BankConfig& c) { c.standardise = true; }}) {
    BankConfig c = hashed(4);
    change(c);
    EXPECT_EQ(c.validate().code(), Code::kInvalid);
  }
}

// ---- as one block of bytes ----

bool same(const BankImage& a, const BankImage& b) {
  return a.config == b.config && a.size == b.size && a.use_counter == b.use_counter && a.lengths == b.lengths &&
         a.counts == b.counts && a.last_used == b.last_used && a.errors == b.errors && a.tokens == b.tokens &&
         a.values == b.values && a.keys == b.keys;
}

BankImage sample() {
  auto bank = make(5);
  for (std::uint64_t i = 0; i < 9; ++i) {
    const std::vector<Token> tokens{static_cast<Token>(i), static_cast<Token>(20 + i)};
    const std::vector<float> values{0.5f, 0.25f};
    const Lesson lesson{{}, {}, std::span(tokens).first(1 + i % 2), std::span(values).first(1 + i % 2), 1'000 + i % 7};
    bank->commit({}, {&lesson, 1});
  }
  return Snapshot::copy(*bank);
}

TEST(Blob, GivesBackEveryBit) {
  const BankImage image = sample();
  const std::vector<std::byte> blob = to_blob(image);
  EXPECT_LE(blob.size(), blob_bytes(image.config));
  const auto back = from_blob(blob);
  ASSERT_TRUE(back.is_ok()) << back.status().message();
  EXPECT_TRUE(same(back.value(), image));
  auto bank = Bank::from_image(back.value());
  ASSERT_TRUE(bank.is_ok()) << bank.status().message();
  EXPECT_TRUE(same(Snapshot::copy(**bank), image));
  Neighbor found;
  EXPECT_EQ((*bank)->nearest(KeyView{{}, 1'001}, {&found, 1}), 1u) << "the restored index finds its keys";
  const auto empty = from_blob(to_blob(Snapshot::copy(*make(5))));
  ASSERT_TRUE(empty.is_ok());
  EXPECT_EQ(empty->size, 0u);
}

// Nothing that is cut or changed is taken for more than it is: refused, or an image that a bank still checks.
TEST(Blob, DamageIsRefusedOrHarmless) {
  const std::vector<std::byte> blob = to_blob(sample());
  for (std::size_t cut = 0; cut < blob.size(); ++cut) EXPECT_FALSE(from_blob(std::span(blob).first(cut)).is_ok()) << cut;
  std::vector<std::byte> longer = blob;
  longer.push_back({});
  EXPECT_FALSE(from_blob(longer).is_ok());
  std::size_t refused = 0;
  for (std::size_t at = 0; at < blob.size(); ++at) {
    for (const unsigned bit : {0u, 3u, 7u}) {
      std::vector<std::byte> changed = blob;
      changed[at] ^= static_cast<std::byte>(1u << bit);
      const auto image = from_blob(changed);
      if (!image.is_ok()) {
        ++refused;
        EXPECT_FALSE(image.status().message().empty());
        continue;
      }
      (void)Bank::from_image(image.value());  // must not crash
    }
  }
  EXPECT_GT(refused, 100u);
  std::vector<std::byte> newer = blob;
  newer[8] = std::byte{2};
  EXPECT_EQ(from_blob(newer).status().code(), Code::kForeign);
}

}  // namespace
}  // namespace drift::bank
