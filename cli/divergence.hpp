// divergence.hpp - where a mode's text leaves plain decoding's, and whether float noise can explain it.
//
// Batch shape moves the last bits of a row, so a near tie may fall the other way. The margin of a difference is how far
// from a tie plain decoding was; what is allowed is twice the p99.9 of what batch shape moved in the same run.
// Threads: pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/spec/distribution.hpp"
#include "drift/trace/event.hpp"

namespace drift::cli {

struct Difference {
  std::size_t position = 0;  // of the generated text, 0 = first
  double margin = 0;         // greedy: logits; sampling: probability. Infinite if no near tie is possible (below)
};

// The first difference, if any. `margins[i]` belongs to reference[i].
// Greedy: the gap in the reference row between its token and the other's; infinite if the other is not among its best few.
// Sampling: from the draw to the boundary of the reference token's interval on the other token's side.
// A text that merely ends earlier differs with an infinite margin.
std::optional<Difference> first_difference(std::span<const Token> reference, std::span<const Token> other,
                                           std::span<const trace::Margin> margins, bool greedy);

// How much one row moved between two decodes of the same text. Greedy: the change of (best - second best) of the reference.
// Requires: margin.top.size() >= 2, both < row.size().
double greedy_change(const trace::Margin& reference, std::span<const float> row);
// Sampling: the change of the distance from the draw to its nearest boundary, negative outside the interval.
double draw_change(const trace::Margin& reference, Token token, const spec::Distribution& now);

// The smallest value with at least a share q of all values at or below it. Requires: not empty, q in (0, 1].
double quantile(std::vector<double> values, double q);

}  // namespace drift::cli
