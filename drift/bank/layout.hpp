// layout.hpp - how many elements each array of a bank has: the one place that construction and bytes() both follow.
//
// Internal to drift/bank.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "drift/bank/bank.hpp"
#include "drift/base/aligned.hpp"
#include "drift/simd/simd.hpp"

namespace drift::bank {

struct TokenValue {
  Token token = kNoToken;
  float value = 0;
};

// Rows of keys begin on cache lines: `dim` elements of `element` bytes, rounded up to 64 bytes; counted in elements.
constexpr std::size_t padded_row(std::size_t dim, std::size_t element) {
  const std::size_t per_line = kAlignment / element;
  return (dim + per_line - 1) / per_line * per_line;
}

// Room for one merge: an entry's residual and a lesson's side by side.
constexpr std::size_t merge_slots(const BankConfig& c) { return std::size_t{c.support} + kMaxLessonTokens; }

// Arrays of Bank::Impl.
constexpr std::uint64_t entry_bytes(const BankConfig& c) {
  const std::uint64_t n = c.capacity;
  return n * c.support * (sizeof(Token) + sizeof(float))                            // tokens, values
         + n * (2 * sizeof(std::uint32_t) + sizeof(std::uint64_t) + sizeof(float))  // lengths, counts, last_used, errors
         + n * 3 * sizeof(EntryId)                                                  // older, newer, changed list
         + n * sizeof(std::uint8_t)                                                 // changed flags
         + merge_slots(c) * sizeof(TokenValue);
}

// Slots of HashIndex's table: a power of two, at most half of them taken.
constexpr std::uint64_t hash_slots(std::uint64_t capacity) { return std::bit_ceil(2 * capacity); }

// Bytes of one key of record.
constexpr std::uint64_t key_record_bytes(const BankConfig& c) {
  if (c.key_type == KeyType::kHash) return sizeof(std::uint64_t);
  return std::uint64_t{c.key_dim} * (c.key_type == KeyType::kF16 ? sizeof(simd::f16_bits) : sizeof(float));
}

// Arrays of the KeyIndex.
constexpr std::uint64_t key_bytes(const BankConfig& c) {
  const std::uint64_t n = c.capacity;
  if (c.key_type == KeyType::kHash) return n * sizeof(std::uint64_t) + hash_slots(n) * sizeof(std::uint32_t);
  const std::uint64_t element = c.key_type == KeyType::kF32 ? sizeof(float) : sizeof(simd::f16_bits);
  std::uint64_t total = n * padded_row(c.key_dim, element) * element;
  if (c.int8_scan) total += n * (padded_row(c.key_dim, 1) + sizeof(float));  // rounded copy, scales
  return total + c.key_dim * sizeof(float);                                  // scratch for one key
}

}  // namespace drift::bank
