// verdict.hpp - the measured cost curves, and what they mean for drafting, in words.
//
// Threads: pure.
#pragma once

#include <string>

#include "drift/control/cost_curve.hpp"

namespace drift::cli {

// Both curves as a small table: milliseconds, and multiples of one row. `draft` may be null.
std::string curve_table(const control::CostCurve& target, const control::CostCurve* draft);

// Whether blocks of `draft_tokens` pay when each proposal stands with chance `alpha`, and if not, which side loses. `measured` is the
// speed-up a run really had (0: unknown): where it contradicts the curves, it has the last word.
std::string verdict(const control::CostCurve& target, const control::CostCurve& draft, int draft_tokens, double alpha,
                    const std::string& label, double measured = 0);

}  // namespace drift::cli
