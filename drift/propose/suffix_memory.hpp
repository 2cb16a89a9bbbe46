// suffix_memory.hpp - the answers given before, searchable by their token suffixes: proposals that outlive a request.
//
// A ring of tokens with, for each indexed order, a hash table of chains through the ring (as in LZ77 compressors): one slot a
// token, the oldest text is overwritten. Every candidate is compared token by token, so a stale link or a hash collision costs
// time and nothing else.
// Threads: none inside; search() is const. The stepper's thread owns it and adds between steps only: frozen within a step.
// Limits: a fixed number of tokens; all memory at construction, bytes() reports it exactly. A search walks at most
// kMostCandidates links per order.
// Order: deterministic; the latest occurrence is offered first.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "drift/base/aligned.hpp"
#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"
#include "drift/propose/continuation.hpp"

namespace drift::propose {

inline constexpr std::uint32_t kLeastMemoryTokens = 64;
inline constexpr std::uint32_t kMostMemoryTokens = 1u << 24;
inline constexpr std::uint32_t kDefaultMemoryTokens = 1u << 18;
inline constexpr int kMostCandidates = 256;  // occurrences compared per order

class SuffixMemory {
 public:
  // Fails with kInvalid (outside kLeastMemoryTokens .. kMostMemoryTokens), kIo (no memory).
  static Result<std::unique_ptr<SuffixMemory>> create(std::uint32_t tokens);

  // Remembers a finished text. What does not fit is forgotten: of the text its beginning, of the others the oldest.
  // Requires: tokens >= 0. Cost: a few hash table writes per token.
  void add(std::span<const Token> text);
  // Offers what followed earlier occurrences of the text's end. Longer indexed orders first; a shorter one is walked only if
  // no longer one matched. Cost: kMostCandidates comparisons per order.
  void search(std::span<const Token> text, Continuations& found) const;
  void clear();

  std::uint32_t capacity() const { return static_cast<std::uint32_t>(ring_.size()); }
  std::uint32_t tokens() const { return held_; }  // slots in use, one separator per text included
  std::uint64_t bytes() const;

 private:
  static constexpr std::array<int, 3> kOrders{8, 4, kLeastMatch};  // longest first; the last finds every match that may propose

  explicit SuffixMemory(std::uint32_t tokens);
  void push(Token token);
  std::uint32_t before(std::uint32_t slot, std::uint32_t back) const;
  std::uint32_t age_of(std::uint32_t slot) const;
  std::uint32_t bucket_of(std::size_t order, std::span<const Token> gram) const;
  int match_at(std::uint32_t slot, std::uint32_t age, std::span<const Token> text) const;
  bool walk(std::size_t order, std::span<const Token> text, Continuations& found) const;

  AlignedBuffer<Token> ring_;                                         // [capacity]; kNoToken between texts
  std::array<AlignedBuffer<std::uint32_t>, kOrders.size()> heads_;    // [power of two] 1 + slot of the latest gram's last token
  std::array<AlignedBuffer<std::uint32_t>, kOrders.size()> earlier_;  // [capacity] the same for the gram before it in its bucket
  std::uint32_t next_ = 0;                                            // slot written next
  std::uint32_t held_ = 0;
};

}  // namespace drift::propose
