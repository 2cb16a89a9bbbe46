// hash_index.cpp - keys as 64-bit hashes of token contexts: equal or not.
//
// Open addressing with linear probing over a power of two at least twice the capacity. The table maps a hash to the entry that
// took it last, so an entry owns at most one slot; slots are freed by shifting back what was displaced (Knuth 6.4, algorithm R).
// Entries at or beyond `size` (left by a clear()) are not found, and lose their slot when they are assigned anew.
#include <bit>
#include <cstring>
#include <string>

#include "drift/bank/key_index.hpp"
#include "drift/bank/layout.hpp"
#include "drift/base/aligned.hpp"
#include "drift/base/check.hpp"

namespace drift::bank {
namespace {

class HashIndex final : public KeyIndex {
 public:
  explicit HashIndex(const BankConfig& config)
      : hashes_(config.capacity), slots_(hash_slots(config.capacity)), mask_(slots_.size() - 1) {}

  std::size_t nearest(const KeyView& key, std::uint32_t size, std::span<Neighbor> out) const override {
    const std::uint32_t taken = slots_[slot_of(key.hash)];
    if (out.empty() || taken == 0 || taken - 1 >= size) return 0;
    out[0] = {taken - 1, 1.0f};
    return 1;
  }

  float similarity(const KeyView& key, EntryId entry) const override { return hashes_[entry] == key.hash ? 1.0f : -1.0f; }

  void copy(EntryId, std::span<float>) const override { DRIFT_CHECK(false, "a hash is no vector"); }

  void assign(EntryId entry, const KeyView& key) override {
    const std::size_t old = slot_of(hashes_[entry]);
    if (slots_[old] == entry + 1) free_slot(old);
    hashes_[entry] = key.hash;
    slots_[slot_of(key.hash)] = entry + 1;
  }

  void move(EntryId, const KeyView&, float) override {}  // an equal key is the same key
  void transform(EntryId, const std::function<void(std::span<float>)>&) override {}

  std::size_t record_bytes() const override { return sizeof(std::uint64_t); }
  void read_record(EntryId entry, std::span<std::byte> out) const override {
    DRIFT_CHECK(out.size() == record_bytes(), "a record has record_bytes() bytes");
    std::memcpy(out.data(), &hashes_[entry], out.size());
  }
  Status check_record(std::span<const std::byte> in) const override {
    if (in.size() == record_bytes()) return Status::ok();
    return {Code::kCorrupt, "a key has " + std::to_string(in.size()) + " bytes, " + std::to_string(record_bytes()) + " expected"};
  }
  Status write_record(EntryId entry, std::span<const std::byte> in) override {
    DRIFT_TRY(check_record(in));
    KeyView key;
    std::memcpy(&key.hash, in.data(), in.size());
    assign(entry, key);
    return Status::ok();
  }
  std::uint64_t bytes() const override { return hashes_.bytes() + slots_.bytes(); }

 private:
  std::size_t home(std::uint64_t hash) const { return static_cast<std::size_t>((hash * 0x9e3779b97f4a7c15ull) >> 32) & mask_; }

  // The slot that holds the hash, or the free one where it belongs.
  std::size_t slot_of(std::uint64_t hash) const {
    std::size_t slot = home(hash);
    for (std::size_t step = 0; step <= mask_; ++step, slot = (slot + 1) & mask_) {
      if (slots_[slot] == 0 || hashes_[slots_[slot] - 1] == hash) return slot;
    }
    DRIFT_CHECK(false, "the table is at most half full");
    return 0;
  }

  void free_slot(std::size_t hole) {
    for (std::size_t at = (hole + 1) & mask_; slots_[at] != 0; at = (at + 1) & mask_) {
      // What sits at `at` may fill the hole unless its home lies between them.
      const std::size_t from_home = (at - home(hashes_[slots_[at] - 1])) & mask_;
      if (from_home < ((at - hole) & mask_)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = 0;
  }

  AlignedBuffer<std::uint64_t> hashes_;  // [capacity]
  AlignedBuffer<std::uint32_t> slots_;   // [power of two] 1 + entry; 0: free
  const std::size_t mask_;
};

}  // namespace

std::unique_ptr<KeyIndex> make_hash_index(const BankConfig& config) { return std::make_unique<HashIndex>(config); }

}  // namespace drift::bank
