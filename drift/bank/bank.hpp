// bank.hpp - fixed-capacity memory of where the target disagreed with the draft.
//
// An entry is a key (see key_index.hpp) and a sparse residual: at most m (token, value) pairs, sorted by token, an additive
// correction to draft logits. Lookups are const and change nothing, not even the order of use: all changes happen in
// commit(), once per decoding step, so a step sees a frozen bank.
// Threads: none inside. The stepper's thread owns the bank; others get images (snapshot.hpp) taken between steps.
// Limits:  BankConfig; all memory is sized at construction, bytes() reports it exactly.
// Order:   deterministic. Equal scores and equal ages are ordered by entry id, lowest first; no clock but the use counter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drift/bank/config.hpp"
#include "drift/bank/key_index.hpp"
#include "drift/base/aligned.hpp"
#include "drift/base/status.hpp"

namespace drift::bank {

struct EntryView {
  std::span<const Token> tokens;  // ascending
  std::span<const float> values;  // log p - log q, smoothed
  std::uint32_t count = 0;        // residuals taught
  std::uint64_t last_used = 0;    // use counter at the last update or touch
};

// One verified position, ready to teach: made by recal, consumed by commit().
struct Lesson {
  std::span<const float> key;           // [key_dim], unit length, as used in the lookup
  std::span<const Neighbor> neighbors;  // what the lookup found in the frozen bank, best first (spares a second scan)
  std::span<const Token> tokens;        // residual support, ascending, unique; at most kMaxLessonTokens
  std::span<const float> values;        // finite
  std::uint64_t hash = 0;               // instead of `key` where keys are hashes
};

struct BankStats {
  std::uint64_t commits = 0;
  std::uint64_t allocated = 0;  // lessons that made an entry
  std::uint64_t updated = 0;    // lessons that updated one
  std::uint64_t evicted = 0;
};

// Everything a bank is, as plain memory: what snapshots, the store and copies are made of.
// Arrays hold entries 0 .. size-1 densely; tokens/values are [size * support], unused slots kNoToken and 0.
struct BankImage {
  BankConfig config;
  std::uint32_t size = 0;
  std::uint64_t use_counter = 0;
  std::vector<std::uint32_t> lengths;  // tokens held per entry
  std::vector<std::uint32_t> counts;
  std::vector<std::uint64_t> last_used;  // distinct, so the order of use is part of the content
  std::vector<float> errors;             // running residual error (RateRule::kError)
  std::vector<Token> tokens;
  std::vector<float> values;
  std::vector<std::byte> keys;  // [size * record_bytes]
};

class Snapshot;  // snapshot.hpp

class Bank {
 public:
  // Fails as BankConfig::validate(); kLimit if memory cannot be had.
  static Result<std::unique_ptr<Bank>> create(const BankConfig& config);
  // Fails with kCorrupt if the image breaks any bound or invariant; kLimit as create().
  static Result<std::unique_ptr<Bank>> from_image(const BankImage& image);
  ~Bank();

  const BankConfig& config() const;
  std::uint32_t size() const;
  std::uint64_t bytes() const;
  const BankStats& stats() const;
  EntryView entry(EntryId id) const;  // Requires: id < size().
  const KeyIndex& keys() const;

  // The best entries for a key, best first; returns how many.
  // Requires: a vector of key_dim elements and unit length, or a hash, as config() says; out.size() <= kMaxNeighbors.
  // Cost: one scan, or one table look-up.
  std::size_t nearest(const KeyView& key, std::span<Neighbor> out) const;
  std::size_t nearest(std::span<const float> key, std::span<Neighbor> out) const { return nearest(KeyView{key}, out); }

  // Applies one step's touches (entries used by lookups, oldest use first), then its lessons in order. For each lesson: the
  // nearest entry with score >= tau is updated, b <- (1 - eta) b + eta r, key likewise, the m largest |b| are kept (ties by
  // lowest token); otherwise a new entry (key, r), evicting the least recently used when full.
  // The nearest entry is the one a scan at that moment would give, seen through what earlier lessons of this commit changed.
  // (With int8_scan: the best of the lookup's unchanged neighbours and of all entries changed in this commit.)
  // Requires: what recal guarantees (unit finite keys, sorted unique tokens < vocab, finite values). Never fails, never
  // allocates. Cost: a few microseconds per lesson; one scan more if every neighbour was changed earlier in the same commit.
  void commit(std::span<const EntryId> touched, std::span<const Lesson> lessons);

  // Replaces all content; statistics start from 0. Fails with kCorrupt/kForeign (another config); the bank is then unchanged.
  // A running snapshot is completed first, here and in clear(), rekey() and the destructor: it keeps what it promised.
  Status restore(const BankImage& image);
  void clear();
  // Converts every key once, in place (a change of key space): reads it as floats, calls convert, renormalises, stores it.
  // Requires: convert gives finite values. Cost: size * key_dim, plus the conversions.
  void rekey(const std::function<void(std::span<float>)>& convert);

 private:
  friend class Snapshot;
  struct Impl;
  explicit Bank(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace drift::bank
