// reward.hpp - what each gain of the grid would have earned at a verified position (method.md section 5).
//
// The reward is what the judge pays: the chance that a proposal drawn from softmax(draft + gain * bias) stands.
//   greedy:    1 if the two arg maxes agree, else 0
//   rejection: sum over v of min(p(v), q_gain(v))
//   match:     the chance that inverse-CDF draws from p and q_gain with one shared number agree
// Threads: holds scratch memory, one per thread. Cost: greedy, or with a filter, one sampler pass per gain. Without a filter the
// gains share one exp pass over the vocabulary: outside the bias's support q_gain is q_0 times one factor.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "drift/recal/gain.hpp"
#include "drift/spec/distribution.hpp"
#include "drift/spec/sparse.hpp"

namespace drift::recal {

// How the request judges and samples: decides what a gain would have earned.
struct Judging {
  bool rejection = false;
  spec::SamplerConfig sampler;
};

class Reward {
 public:
  // scores[i] belongs to the gain lambda * kGainGrid[i]; each in [0, 1].
  // Requires: raw finite logits of one length; bias tokens ascending and below it.
  GainTable::Scores of(const Judging& judging, const spec::SparseBias& bias, float lambda, std::span<const float> draft_logits,
                       std::span<const float> target_logits);

 private:
  GainTable::Scores one_by_one(const Judging& judging, const spec::SparseBias& bias, float lambda,
                               std::span<const float> draft_logits);
  GainTable::Scores at_once(const Judging& judging, const spec::SparseBias& bias, float lambda,
                            std::span<const float> draft_logits);

  spec::Sampler sampler_;
  spec::Distribution p_, q_;
  std::vector<float> masked_;                                     // [vocab] draft logits, -inf on the support
  std::vector<float> rest_;                                       // [vocab] their exps, 0 on the support
  std::vector<std::array<double, kGainGrid.size()>> on_support_;  // [support] q_gain there
};

}  // namespace drift::recal
