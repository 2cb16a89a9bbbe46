// keyer.hpp - from a draft's hidden state to a bank's key: unit length, optionally standardised first.
//
// Standardising: mean and variance per dimension of the *unit* hidden vectors are learned at commits and frozen after 1,024
// of them. Until then keys are the raw unit vectors; at the freeze the bank's keys are converted once and never move again.
// (Statistics are taken of unit vectors, so stored keys can be converted without their lost lengths.)
// Threads: as the Recalibrator that owns it. Memory: 3 * dim doubles/floats.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::recal {

class Keyer {
 public:
  static constexpr std::uint64_t kFreezeAfter = 1'024;  // vectors

  Keyer(std::uint32_t dim, bool standardise);
  // Fails with kInvalid when the width is wrong, an element is not finite or the vector is zero.
  // unit[dim] receives h/|h|, key[dim] the key.
  Status make(std::span<const float> hidden, std::span<float> unit, std::span<float> key) const;
  // Learns from one unit vector; true when this one froze the statistics (the bank must then be rekeyed with convert).
  bool learn(std::span<const float> unit);
  // Unit vector -> standardised unit vector, in place. Requires: frozen().
  void convert(std::span<float> unit) const;
  bool frozen() const { return frozen_; }
  bool standardise() const { return standardise_; }

  std::vector<std::byte> save() const;
  // Fails with kCorrupt; the keyer is then unchanged.
  Status load(std::span<const std::byte> bytes);

 private:
  std::uint32_t dim_;
  bool standardise_;
  bool frozen_ = false;
  std::uint64_t count_ = 0;
  std::vector<double> mean_, m2_;     // Welford's running moments, [dim]
  std::vector<float> shift_, scale_;  // after the freeze: key = normalise((u - shift) * scale)
};

}  // namespace drift::recal
