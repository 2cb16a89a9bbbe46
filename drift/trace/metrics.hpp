// metrics.hpp - the figures of docs/method.md section 6, as a fold over step events.
//
// Threads: plain value. Cost: a few counters per event.
#pragma once

#include <cstdint>
#include <vector>

#include "drift/trace/event.hpp"

namespace drift::trace {

class Metrics {
 public:
  void add(const StepEvent& event);
  void merge(const Metrics& other);

  std::uint64_t steps = 0;   // target passes
  std::uint64_t blocks = 0;  // steps that proposed something
  std::uint64_t tokens = 0;  // emitted
  std::uint64_t drafted = 0;
  std::uint64_t accepted = 0;
  std::uint64_t accepted_bank = 0;  // accepted thanks to the bank
  std::uint64_t copied = 0;         // proposals copied from the text or the suffix memory: no draft ran for them
  std::uint64_t accepted_copied = 0;
  std::uint64_t tested = 0;  // proposals whose predecessors all stood: the first j such that 1..j-1 were accepted
  std::vector<std::uint64_t> tested_at, accepted_at;  // by position in the block, 0 = first
  std::vector<std::uint64_t> accepted_histogram;      // blocks by number accepted
  StepTimes times;                                    // sums
  std::vector<std::int64_t> step_ns;                  // one per step, for percentiles

  double acceptance() const;                 // accepted / drafted; 0 when nothing was drafted
  double acceptance_conditional() const;     // accepted / tested
  std::vector<double> per_position() const;  // alpha_j = accepted_at / tested_at
  double mean_accepted_per_block() const;    // without the target's own token
  double mean_length() const;                // tokens per step, with it
  double predicted_accepted() const;  // the seed's geometric sum alpha + alpha^2 + ... with alpha = acceptance_conditional()
  double tokens_per_s() const;        // emitted per second of steps (prefill is not a step)
  double overhead_fraction() const;   // overhead / (draft + verify)
  // Speed-up the counts would give with the given costs, in target one-token passes:
  // tokens / ((drafted - copied) * draft + steps * verify).
  double modelled_speedup(double draft_cost, double verify_cost) const;
  double step_percentile_ms(double q) const;  // q in [0, 1]
};

inline constexpr double kSeedDraftCost = 1.0 / 30.0;  // the seed's pair: 1.1B draft, 32B target
inline constexpr double kSeedVerifyCost = 1.05;

}  // namespace drift::trace
