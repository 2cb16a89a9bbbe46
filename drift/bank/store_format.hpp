// store_format.hpp - a bank's content as text fields and one hash, independent of SQLite. Format: docs/bank-format.md.
//
// Threads: pure functions. Limits: below; every value read from a file is checked against them before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "drift/bank/store.hpp"

namespace drift::bank::format {

inline constexpr std::int32_t kApplicationId = 0x44524654;  // "DRFT"
inline constexpr std::int32_t kVersion = 1;                 // user_version
inline constexpr std::uint32_t kChunkEntries = 1'024;       // entries of one row of `chunks`
inline constexpr std::size_t kMaxNameBytes = 1'024;         // target_name, draft_name
inline constexpr std::size_t kMaxHashChars = 256;           // target_hash, draft_hash
inline constexpr std::size_t kMaxExtras = 32;
inline constexpr std::size_t kMaxExtraName = 64;
inline constexpr std::size_t kMaxExtraBytes = 16u << 20;
inline constexpr std::uint64_t kMaxFileBytes = kMaxBankBytes + (1ull << 30);  // arrays, extras and SQLite's own pages

using Meta = std::map<std::string, std::string>;

// Everything of a stored bank but arrays and extras, as text; without content_hash.
Meta make_meta(const StoredBank& bank);
// The meta of a bank nothing was saved into yet.
Meta make_empty_meta();
bool is_empty(const Meta& meta);
// The inverse of make_meta: arrays and extras are left empty. Fails with kCorrupt naming the field.
Result<StoredBank> parse_meta(const Meta& meta);

// XXH3-128, 32 hex digits, over the canonical serialisation of meta (without content_hash), arrays and extras.
// `bank` may be null: an empty bank. Cost: one pass over the content.
std::string content_hash(const Meta& meta, const StoredBank* bank);

// Bytes of one key of record.
std::uint64_t record_bytes(const BankConfig& config);

// Every bound and invariant of an image that needs no bank to be built: sizes, order and range of tokens, finite numbers,
// distinct ages. Fails with kCorrupt naming the entry. Cost: one pass.
Status check_image(const BankImage& image);

// check_image and all else that is stored. Fails with kInvalid or kLimit naming what cannot be stored, kCorrupt.
Status check_bank(const StoredBank& bank);

}  // namespace drift::bank::format
