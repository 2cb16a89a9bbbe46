// key_index.hpp - the seam for what a bank is keyed by: given a key, which entries are near.
//
// A bank holds residuals, counts and the order of use; a KeyIndex holds the keys: VectorIndex (cosine over unit vectors, exact scan)
// or HashIndex (hashed token contexts: similarity 1 for equal hashes, else -1, and nothing else is near).
// Threads: as the bank's. Allocation: at construction only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "drift/bank/config.hpp"
#include "drift/base/ids.hpp"

namespace drift::bank {

// A key in the form a Keyer made it: a unit vector, or a hash for indexes that compare exactly.
struct KeyView {
  std::span<const float> vector;  // [key_dim], unit length
  std::uint64_t hash = 0;
};

struct Neighbor {
  EntryId entry = 0;
  float score = 0;  // cosine similarity, [-1, 1]
};

class KeyIndex {
 public:
  virtual ~KeyIndex() = default;
  // The `out.size()` best of entries 0 .. size-1, best first, equal scores by lowest id; returns how many there were.
  // Requires: out.size() <= kMaxNeighbors. Cost: one pass over size * key_dim key elements.
  virtual std::size_t nearest(const KeyView& key, std::uint32_t size, std::span<Neighbor> out) const = 0;
  virtual float similarity(const KeyView& key, EntryId entry) const = 0;
  // The entry's key, [key_dim]. Requires: keys are vectors.
  virtual void copy(EntryId entry, std::span<float> out) const = 0;
  virtual void assign(EntryId entry, const KeyView& key) = 0;
  // key of entry <- normalise((1 - rate) * old + rate * key); nothing where keys are not vectors.
  virtual void move(EntryId entry, const KeyView& key, float rate) = 0;
  // key of entry <- normalise(convert(key)); nothing where keys are not vectors.
  // Requires: convert gives finite values. What it turns into the zero vector becomes the first unit vector.
  virtual void transform(EntryId entry, const std::function<void(std::span<float>)>& convert) = 0;
  // Keys of record as stored bytes (native byte order), for snapshots. check_record and write_record fail with kCorrupt if the
  // bytes are not a valid key.
  virtual std::size_t record_bytes() const = 0;
  virtual void read_record(EntryId entry, std::span<std::byte> out) const = 0;
  virtual Status check_record(std::span<const std::byte> in) const = 0;
  virtual Status write_record(EntryId entry, std::span<const std::byte> in) = 0;
  virtual std::uint64_t bytes() const = 0;
};

// Cosine scan over unit vectors (f32 or f16 of record). Exact, unless config.int8_scan: then the scan reads a rounded int8 copy
// and rescores its best max(4k, 32) by the keys of record, so scores are exact but a true neighbour may be missed.
std::unique_ptr<KeyIndex> make_vector_index(const BankConfig& config);
// Equal hashes only: nearest() finds one entry or none. Cost: of every call constant.
std::unique_ptr<KeyIndex> make_hash_index(const BankConfig& config);

// The one that config.key_type names.
inline std::unique_ptr<KeyIndex> make_key_index(const BankConfig& config) {
  return config.key_type == KeyType::kHash ? make_hash_index(config) : make_vector_index(config);
}

}  // namespace drift::bank
