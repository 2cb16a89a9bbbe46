// score_table.hpp - which of a few strengths has earned most, per class and bin: the earned gain of levels other than the hidden
// one (that one's is GainTable, whose bins and file format are its own).
//
// Discounted sums of what each choice would have earned at verified positions; the best so far is used, the first on ties, and
// choice 0 is always "not at all": another must lead it by one expected acceptance before it is used. Full-information follow-the-leader with discount.
// Threads: as the Recalibrator that owns it. Memory: fixed at construction, bytes() exactly.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "drift/base/status.hpp"
#include "drift/recal/gain.hpp"

namespace drift::recal {

class ScoreTable {
 public:
  // Requires: choices[0] == 0; `choices` outlives the table; bins > 0.
  ScoreTable(std::span<const float> choices, std::size_t bins);

  std::span<const float> choices() const { return choices_; }
  // Index into choices().
  std::size_t best(GainClass cls, std::size_t bin) const;
  // rewards[i] = what the judge would have paid at choices()[i], in [0, 1].
  void learn(GainClass cls, std::size_t bin, std::span<const double> rewards);
  std::span<const double> scores(GainClass cls, std::size_t bin) const;
  std::size_t bytes() const { return scores_.size() * sizeof(double); }

  std::vector<std::byte> save() const;
  // Fails with kCorrupt (wrong size, other choices or bins, a score out of range); the table is then unchanged.
  Status load(std::span<const std::byte> bytes);

 private:
  std::vector<std::byte> header() const;
  std::size_t at(GainClass cls, std::size_t bin) const { return (cls.index() * bins_ + bin) * choices_.size(); }

  std::span<const float> choices_;
  std::size_t bins_;
  std::vector<double> scores_;  // [classes, bins, choices]
};

}  // namespace drift::recal
