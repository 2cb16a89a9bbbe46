// gain.hpp - the gain a bank has earned, per kind of context.
//
// Every verified position reveals p, so for each gain of a small grid it is known what would have been accepted. Scores are
// discounted sums per bin (similarity of the nearest entry x how often it was taught) and per class (judge x greedy or not);
// the best gain so far is used, the lowest on ties, and 0 is always in the grid: where memory does not help, the draft is
// left alone. Full-information follow-the-leader with discount (method.md section 5).
// Threads: as the Recalibrator that owns it. Memory: fixed, a few KB.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::recal {

inline constexpr std::array<float, 4> kGainGrid{0.0f, 0.3f, 0.6f, 1.0f};
inline constexpr std::array<float, 5> kSimilarityEdges{0.5f, 0.7f, 0.8f, 0.9f, 0.97f};  // 6 bins
inline constexpr std::array<std::uint32_t, 3> kCountEdges{2, 4, 16};                    // 4 bins: 1, 2-3, 4-15, 16+
inline constexpr double kGainDiscount = 0.998;  // per observation of a bin: a memory of about 500 positions
// A gain above 0 must lead by this many expected acceptances before it is used.
inline constexpr double kGainMargin = 0.0;

inline constexpr std::size_t kGainBins = (kSimilarityEdges.size() + 1) * (kCountEdges.size() + 1);
inline constexpr std::size_t kGainClasses = 4;

// Which scores apply: what the judge rewards differs by rule and temperature.
struct GainClass {
  bool rejection = false;
  bool greedy = true;
  std::size_t index() const { return (rejection ? 2u : 0u) + (greedy ? 0u : 1u); }
};

std::size_t gain_bin(float similarity, std::uint32_t count);

class GainTable {
 public:
  using Scores = std::array<double, kGainGrid.size()>;

  // Index into kGainGrid.
  std::size_t best(GainClass cls, std::size_t bin) const;
  // gains[i] = what the judge would have rewarded at kGainGrid[i], in [0, 1].
  void learn(GainClass cls, std::size_t bin, const Scores& rewards);
  const Scores& scores(GainClass cls, std::size_t bin) const { return scores_[cls.index() * kGainBins + bin]; }

  std::vector<std::byte> save() const;
  // Fails with kCorrupt (wrong size, other edges or grid, not finite); the table is then unchanged.
  Status load(std::span<const std::byte> bytes);

 private:
  std::array<Scores, kGainClasses * kGainBins> scores_{};
};

}  // namespace drift::recal
