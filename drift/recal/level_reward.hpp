// level_reward.hpp - what each strength of a level would have earned at a verified position, on the reduced row.
//
// A chain scores a few dozen strengths per position, so each costs the reduced row and not the vocabulary:
//   greedy:         1 if the two arg maxes agree, else 0 (exact)
//   nothing cut:    rejection: sum over v of min(p(v), q(v)), the bucket counted as one token; match: the chance of the same draw,
//                   all between two kept tokens counted as one. Exact but for what is counted as one, an upper bound there
//   with a filter:  the same, the filter applied to the reduced row without its bucket
// Threads: holds scratch memory. Cost: begin() a sampler pass over the target's row, and without a filter one over the draft's;
// of() one pass over the reduced row.
#pragma once

#include <span>
#include <vector>

#include "drift/recal/reduced.hpp"
#include "drift/recal/reward.hpp"
#include "drift/spec/distribution.hpp"

namespace drift::recal {

class LevelReward {
 public:
  // Requires: finite rows of one length; `row` reduced from draft_logits; both outlive the calls of of().
  void begin(const Judging& judging, const ReducedRow& row, std::span<const float> draft_logits,
             std::span<const float> target_logits);
  // The correction of the levels below.
  void base(std::span<const double> correction);
  // The chance in [0, 1] that a proposal stands, with deltas added to the base at the named places.
  double of(std::span<const std::uint32_t> at, std::span<const double> deltas);

 private:
  void weigh();
  bool reweigh(std::span<const std::uint32_t> at, std::span<const double> deltas);
  double greedy() const;
  double overlap() const;
  double filtered();

  Judging judging_;
  const ReducedRow* row_ = nullptr;
  bool keeps_all_ = false;
  spec::Sampler sampler_;
  spec::Distribution p_, q_;                    // the target's, over tokens; the draft's, over places in the reduced row
  std::vector<float> p_on_;                     // [row] the target's probabilities there; with nothing cut
  double p_rest_ = 0;                           // and on all other tokens together
  double log_rest_ = 0;                         // log of the bucket's weight at the request's temperature
  std::vector<double> base_;                    // [row] logits with the levels below
  std::vector<double> logits_;                  // [row] and with this one
  std::vector<float> narrow_;                   // [row] the same, for the sampler; nothing cut: p between kept tokens, [row + 1]
  std::vector<double> weights_, base_weights_;  // [row] with nothing cut: exp(logit / temperature - high)
  double high_ = 0, rest_ = 0, base_high_ = 0, base_rest_ = 0;
  std::vector<float> exps_;  // [vocab]; then the bucket's shares between kept tokens, [row + 1]
};

}  // namespace drift::recal
