// level.hpp - the levels a recalibration is made of, general to specific.
//
// Each level is a bank of its own key: nothing at all (global), the draft's hidden state, or the last 1 to 4 tokens. A chain applies
// them in this order, each correcting what is left after the one before, each by as much as it has earned (method.md, Levels).
// Threads: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "drift/base/status.hpp"

namespace drift::recal {

enum class Level : std::uint8_t { kGlobal = 0, kHidden, kNgram1, kNgram2, kNgram3, kNgram4 };

inline constexpr std::size_t kLevels = 6;
inline constexpr std::size_t kOrders = 4;  // n-gram levels: contexts of 1 .. kOrders tokens
inline constexpr std::array<const char*, kLevels> kLevelNames{"global", "hidden", "ngram1", "ngram2", "ngram3", "ngram4"};

constexpr Level ngram_level(std::size_t order) {
  return static_cast<Level>(static_cast<std::size_t>(Level::kNgram1) + order - 1);
}

class LevelSet {
 public:
  constexpr LevelSet() = default;
  constexpr LevelSet(std::initializer_list<Level> levels) {
    for (const Level level : levels) add(level);
  }
  constexpr void add(Level level) { bits_ = static_cast<std::uint8_t>(bits_ | 1u << static_cast<unsigned>(level)); }
  constexpr bool has(Level level) const { return (bits_ >> static_cast<unsigned>(level) & 1u) != 0; }
  constexpr bool has_ngrams() const { return bits_ >> static_cast<unsigned>(Level::kNgram1) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend bool operator==(const LevelSet&, const LevelSet&) = default;

 private:
  std::uint8_t bits_ = 0;
};

inline constexpr LevelSet kHiddenOnly{Level::kHidden};

std::optional<Level> find_level(std::string_view name);
// Names joined by `separator`, in order.
std::string level_names(LevelSet levels, std::string_view separator);
// Names joined by '+' or ','; "all" is all of them. Fails with kInvalid naming the piece.
Result<LevelSet> parse_levels(std::string_view text);

}  // namespace drift::recal
