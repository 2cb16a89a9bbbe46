// config.hpp - what a bank is made of, with bounds. Every value from outside passes validate() first.
#pragma once

#include <cstdint>
#include <span>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"

namespace drift::bank {

// What a key is, and how keys of record are stored.
enum class KeyType : std::uint8_t {
  kF32 = 0,   // a unit vector of floats: near by cosine
  kF16 = 1,   // the same in half precision
  kHash = 2,  // a 64-bit hash of a token context: equal (similarity 1) or nothing. key_dim is 1
};

// How fast an entry follows new residuals. kFixed is the seed's; the others are its "per-prototype adaptive rates".
enum class RateRule : std::uint8_t {
  kFixed = 0,  // eta
  kCount = 1,  // max(eta, 1 / (count + 1)): a plain mean at first
  // clamp(e, eta, 1), e the entry's running residual error: e <- 3/4 e + 1/4 miss, from 1 for a new entry, taken before the
  // update; miss = sum |r - b| / sum (|r| + |b|) over both supports, in [0, 1]: 0 if r repeats b, 1 if they share nothing.
  kError = 2,
};

inline constexpr std::uint32_t kMaxCapacity = 65'536;  // N
inline constexpr std::uint32_t kMaxKeyDim = 16'384;    // d
inline constexpr std::uint32_t kMaxSupport = 1'024;    // m
inline constexpr std::uint32_t kMaxNeighbors = 256;    // k
inline constexpr std::uint32_t kMaxVocab = 1u << 24;
inline constexpr std::uint32_t kMaxLessonTokens = 2 * kMaxSupport;  // tokens one lesson may bring: the union of two top-m sets
inline constexpr std::uint64_t kMaxBankBytes = 4ull << 30;          // all arrays of one bank together

struct BankConfig {
  std::uint32_t capacity = 4'096;  // N, entries; 1 .. kMaxCapacity
  std::uint32_t key_dim = 0;       // d, floats of a key; 1 .. kMaxKeyDim; the draft's hidden width for hidden keys, 1 for hashes
  std::uint32_t support = 32;      // m, tokens an entry may hold; 1 .. kMaxSupport
  std::uint32_t vocab = 0;         // token ids are 0 .. vocab-1; 1 .. 2^24
  KeyType key_type = KeyType::kF32;
  bool int8_scan = false;    // scan a rounded int8 copy first, rescore the best by the key of record
  bool standardise = false;  // keys are standardised per dimension; statistics learned at commits, frozen after 1,024
  float tau = 0.99f;         // cosine from which an entry is updated rather than a new one made; [-1, 1]
  float eta = 0.3f;          // update rate; (0, 1]
  RateRule rate = RateRule::kFixed;

  // Fails with kInvalid naming the field, its value and its bounds; kLimit if the bank would exceed kMaxBankBytes.
  Status validate() const;
  // All bytes the bank will own, exactly as Bank::bytes() reports after construction.
  std::uint64_t bytes() const;
  friend bool operator==(const BankConfig&, const BankConfig&) = default;
};

}  // namespace drift::bank
