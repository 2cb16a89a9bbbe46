#include "drift/propose/suffix_memory.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <string>

#include "drift/base/check.hpp"

namespace drift::propose {

SuffixMemory::SuffixMemory(std::uint32_t tokens) : ring_(tokens) {
  const std::uint32_t buckets = std::bit_ceil(tokens);
  for (auto& table : heads_) table = AlignedBuffer<std::uint32_t>(buckets);
  for (auto& links : earlier_) links = AlignedBuffer<std::uint32_t>(tokens);
}

Result<std::unique_ptr<SuffixMemory>> SuffixMemory::create(std::uint32_t tokens) {
  if (tokens < kLeastMemoryTokens || tokens > kMostMemoryTokens) {
    return Status(Code::kInvalid, "the suffix memory has " + std::to_string(tokens) + " tokens; it must have " +
                                      std::to_string(kLeastMemoryTokens) + " to " + std::to_string(kMostMemoryTokens));
  }
  try {
    return std::unique_ptr<SuffixMemory>(new SuffixMemory(tokens));
  } catch (const std::bad_alloc&) {
    return Status(Code::kIo, "no memory for a suffix memory of " + std::to_string(tokens) + " tokens; ask for fewer");
  }
}

std::uint64_t SuffixMemory::bytes() const {
  std::uint64_t sum = ring_.bytes();
  for (const auto& table : heads_) sum += table.bytes();
  for (const auto& links : earlier_) sum += links.bytes();
  return sum;
}

void SuffixMemory::clear() {
  for (auto& table : heads_) std::fill_n(table.data(), table.size(), 0u);
  next_ = held_ = 0;
}

// The slot `back` places before `slot`. Requires: back < capacity.
std::uint32_t SuffixMemory::before(std::uint32_t slot, std::uint32_t back) const {
  return slot >= back ? slot - back : slot + capacity() - back;
}

// 0 for the token written last.
std::uint32_t SuffixMemory::age_of(std::uint32_t slot) const { return before(before(next_, 1), slot); }

// FNV-1a over the tokens, its high bits.
std::uint32_t SuffixMemory::bucket_of(std::size_t order, std::span<const Token> gram) const {
  std::uint64_t hash = 14'695'981'039'346'656'037ull;
  for (const Token t : gram) hash = (hash ^ static_cast<std::uint32_t>(t)) * 1'099'511'628'211ull;
  hash *= 0x9e3779b97f4a7c15ull;
  return static_cast<std::uint32_t>(hash >> 32) & static_cast<std::uint32_t>(heads_[order].size() - 1);
}

void SuffixMemory::push(Token token) {
  ring_[next_] = token;
  next_ = next_ + 1 == capacity() ? 0 : next_ + 1;
  held_ = std::min(held_ + 1, capacity());
}

void SuffixMemory::add(std::span<const Token> text) {
  if (text.empty()) return;
  text = text.last(std::min<std::size_t>(text.size(), capacity() - 1));
  for (std::size_t i = 0; i < text.size(); ++i) {
    DRIFT_CHECK(text[i] >= 0, "a text is made of tokens");
    const std::uint32_t slot = next_;
    push(text[i]);
    for (std::size_t o = 0; o < kOrders.size(); ++o) {
      const auto order = static_cast<std::size_t>(kOrders[o]);
      earlier_[o][slot] = 0;
      if (i + 1 < order) continue;
      std::uint32_t& head = heads_[o][bucket_of(o, text.subspan(i + 1 - order, order))];
      earlier_[o][slot] = head;
      head = slot + 1;
    }
  }
  push(kNoToken);
}

// How many tokens up to and including `slot` equal the last ones of `text`. Stops at a separator, which equals no token.
int SuffixMemory::match_at(std::uint32_t slot, std::uint32_t age, std::span<const Token> text) const {
  const std::size_t limit = std::min({text.size(), static_cast<std::size_t>(kMostMatch), std::size_t{held_} - age});
  std::size_t n = 0;
  while (n < limit && ring_[before(slot, static_cast<std::uint32_t>(n))] == text[text.size() - 1 - n]) ++n;
  return static_cast<int>(n);
}

// Follows one chain, latest first; true if something matched. Ages rise along a chain: a link that does not lead to an older
// slot leads to one that was overwritten, and ends it.
bool SuffixMemory::walk(std::size_t order, std::span<const Token> text, Continuations& found) const {
  const auto length = static_cast<std::size_t>(kOrders[order]);
  if (text.size() < length) return false;
  bool matched = false;
  std::uint32_t link = heads_[order][bucket_of(order, text.last(length))];
  std::int64_t last_age = -1;
  for (int i = 0; i < kMostCandidates && link != 0; ++i) {
    const std::uint32_t slot = link - 1, age = age_of(slot);
    if (static_cast<std::int64_t>(age) <= last_age || age >= held_) break;
    last_age = age;
    const int match = match_at(slot, age, text);
    const Token next = ring_[before(slot, capacity() - 1)];  // the slot after it; the newest slot is a separator, so there is one
    if (match >= kOrders[order] && next != kNoToken) {
      matched = true;
      found.offer(match, next);
    }
    link = earlier_[order][slot];
  }
  return matched;
}

void SuffixMemory::search(std::span<const Token> text, Continuations& found) const {
  for (std::size_t order = 0; order < kOrders.size(); ++order) {
    if (walk(order, text, found)) return;
  }
}

}  // namespace drift::propose
