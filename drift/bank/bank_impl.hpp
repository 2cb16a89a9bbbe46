// bank_impl.hpp - what stands behind Bank and Snapshot. Internal to drift/bank.
#pragma once

#include <memory>
#include <vector>

#include "drift/bank/bank.hpp"
#include "drift/bank/layout.hpp"
#include "drift/bank/snapshot.hpp"

namespace drift::bank {

inline constexpr EntryId kNoEntry = ~EntryId{0};

struct Bank::Impl {
  explicit Impl(const BankConfig& bank_config);

  // Order of use: a doubly linked list through the entries, oldest to newest.
  void link_newest(EntryId id);
  void unlink(EntryId id);
  void touch(EntryId id);
  // Rebuilds the list from last_used.
  void relink();

  void learn(const Lesson& lesson);
  // The entry a scan of the bank as it is now would put first. False if the bank is empty.
  bool find_nearest(const Lesson& lesson, Neighbor& best) const;
  void update(EntryId id, const Lesson& lesson);
  void allocate(const Lesson& lesson);
  float rate_of(EntryId id, const Lesson& lesson);
  // Stores the support largest |value| of merged[0, count), ties by lowest token, sorted by token.
  void keep_largest(EntryId id, std::size_t count);
  // To be called before the content of an entry changes: a running snapshot saves it, lookups of this commit are stale for it.
  void before_change(EntryId id);
  void clear();
  // Requires: check_image() passed.
  void load(const BankImage& image);
  std::uint64_t bytes() const;

  Token* tokens_of(EntryId id) { return tokens.data() + std::size_t{id} * config.support; }
  float* values_of(EntryId id) { return values.data() + std::size_t{id} * config.support; }
  const Token* tokens_of(EntryId id) const { return tokens.data() + std::size_t{id} * config.support; }
  const float* values_of(EntryId id) const { return values.data() + std::size_t{id} * config.support; }

  BankConfig config;
  std::uint32_t size = 0;
  std::uint64_t use_counter = 0;
  EntryId oldest = kNoEntry;
  EntryId newest = kNoEntry;
  std::uint32_t changed_count = 0;
  BankStats stats;

  std::unique_ptr<KeyIndex> keys;
  AlignedBuffer<std::uint32_t> lengths;    // [capacity] tokens held
  AlignedBuffer<std::uint32_t> counts;     // [capacity] residuals taught
  AlignedBuffer<std::uint64_t> last_used;  // [capacity]
  AlignedBuffer<float> errors;             // [capacity] running residual error
  AlignedBuffer<Token> tokens;             // [capacity, support]
  AlignedBuffer<float> values;             // [capacity, support]
  AlignedBuffer<EntryId> older, newer;     // [capacity] neighbours in the order of use
  AlignedBuffer<EntryId> changed;          // [capacity] entries changed in the commit under way
  AlignedBuffer<std::uint8_t> is_changed;  // [capacity]
  AlignedBuffer<TokenValue> merged;        // [support + kMaxLessonTokens]

  Snapshot::Impl* snapshot = nullptr;  // the one running, if any
};

// Everything restore() and from_image() demand of an image whose config is `keys`' own. Fails with kCorrupt.
Status check_image(const BankImage& image, const KeyIndex& keys);

struct Snapshot::Impl {
  // Copies the small arrays at once (20 bytes an entry) and makes room for the rest. May throw std::bad_alloc.
  Impl(const Bank::Impl& source, BankImage room);
  ~Impl();
  void attach(Bank::Impl& owner);
  void detach();
  void advance(std::size_t budget_bytes);
  void before_change(EntryId id);
  bool done() const { return cursor == image.size; }

  const Bank::Impl* bank;          // null once done
  Bank::Impl* attached = nullptr;  // the same, while its commits must tell us
  BankImage image;
  std::uint32_t cursor = 0;      // entries below are in the image
  std::size_t record_bytes = 0;  // one saved entry: tokens, values, key
  std::uint32_t saved_count = 0;
  std::vector<std::uint32_t> saved_slot;  // [size] 1 + place in `saved`, 0 if not saved
  std::unique_ptr<std::byte[]> saved;     // [size * record_bytes], pages touched when used
  std::vector<std::byte> key_scratch;

 private:
  void read_entry(EntryId id, std::byte* out) const;
  void append(EntryId id);
};

}  // namespace drift::bank
