// text_stats.hpp - how much a generated text repeats itself. Loops flatter every memory: what came before comes again.
//
// Threads: plain values. Cost: O(tokens) hash look-ups.
#pragma once

#include <cstdint>
#include <span>

#include "drift/base/ids.hpp"

namespace drift::cli {

// Counts of one text or, added up, of many; a text's tokens are never compared with another's.
struct TextStats {
  std::uint64_t fourgrams = 0, distinct_fourgrams = 0;
  std::uint64_t trigrams = 0, seen_trigrams = 0;  // seen: the same three tokens stood earlier in the text
  std::uint64_t tokens = 0, repeated = 0;         // repeated: the token is among the 32 before it

  TextStats& operator+=(const TextStats& other);

  // Shares of 1; 0 where nothing was counted.
  double distinct_4() const;    // distinct 4-grams / 4-grams
  double trigram_seen() const;  // positions whose trigram the text has already produced / trigrams
  double repeat_32() const;     // tokens among the 32 before them / tokens (Welleck et al. 2020, rep/32)
};

TextStats text_stats(std::span<const Token> text);

}  // namespace drift::cli
