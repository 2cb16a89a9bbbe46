// cost_curve.hpp - what one pass of a model costs by its number of rows: the fact that decides whether drafting pays.
//
// Threads: the engine's. Cost: `depth` tokens of prefill, then (repeats + 1) passes for each number of rows.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "drift/base/status.hpp"
#include "drift/engine/engine.hpp"

namespace drift::control {

inline constexpr std::size_t kCurveRows = 8;

// Medians over the repeats. ms[n - 1] is one pass that decodes n tokens and gives a row for each.
struct CostCurve {
  std::array<double, kCurveRows> ms{};
  std::size_t depth = 0;  // tokens already in the context
  int repeats = 0;
  double at(std::size_t rows) const { return ms[rows - 1]; }
};

// Measures on a sequence of its own, which it closes again. `text` is decoded again and again as far as needed.
// Requires: text non-empty. Fails with kInvalid (repeats outside 1..100, depth + 8 beyond the context, empty text) and as
// Engine::open and forward.
Result<CostCurve> measure_cost(engine::Engine& engine, std::span<const Token> text, std::size_t depth, int repeats);

// Milliseconds of a pass of `rows` rows: measured up to kCurveRows, beyond that by the slope of the last four.
double pass_ms(const CostCurve& curve, std::size_t rows);

// The speed-up over one-token passes that blocks of `draft_tokens` give when each proposal stands with chance `alpha` given
// that all before it stood: (1 + alpha + ... + alpha^k) tokens for k draft passes and one of k + 1 rows.
double block_speedup(const CostCurve& target, const CostCurve& draft, int draft_tokens, double alpha);

// The smallest such alpha in [0, 1] with block_speedup >= 1, or above 1 (exactly 2) if even alpha = 1 loses.
double break_even(const CostCurve& target, const CostCurve& draft, int draft_tokens);

}  // namespace drift::control
