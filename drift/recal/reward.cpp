#include "drift/recal/reward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "drift/simd/simd.hpp"

namespace drift::recal {
namespace {

constexpr std::size_t kGains = kGainGrid.size();
using PerGain = std::array<double, kGains>;

// The chance that one shared number gives the same token: both laws cut [0, 1) into one interval per token, in id order, and
// this is the length on which the cuts agree. All gains walk along together.
PerGain same_draw_chances(std::span<const float> p, std::span<const float> rest, const PerGain& factor,
                          std::span<const Token> support, std::span<const PerGain> on_support) {
  PerGain sum{}, cdf{};
  double cdf_p = 0.0;
  const auto step = [&](double pv, const PerGain& qv) {
    const double next_p = cdf_p + pv;
    for (std::size_t g = 0; g < kGains; ++g) {
      const double next = cdf[g] + qv[g];
      sum[g] += std::max(0.0, std::min(next_p, next) - std::max(cdf_p, cdf[g]));
      cdf[g] = next;
    }
    cdf_p = next_p;
  };
  std::size_t v = 0;
  for (std::size_t i = 0; i <= support.size(); ++i) {
    const std::size_t end = i < support.size() ? static_cast<std::size_t>(support[i]) : p.size();
    for (; v < end; ++v) {
      PerGain qv;
      for (std::size_t g = 0; g < kGains; ++g) qv[g] = static_cast<double>(rest[v]) * factor[g];
      step(static_cast<double>(p[v]), qv);
    }
    if (i < support.size()) step(static_cast<double>(p[v++]), on_support[i]);
  }
  return sum;
}

}  // namespace

GainTable::Scores Reward::of(const Judging& judging, const spec::SparseBias& bias, float lambda,
                             std::span<const float> draft_logits, std::span<const float> target_logits) {
  sampler_.apply(judging.sampler, target_logits, p_);
  const std::size_t vocab = draft_logits.size();
  GainTable::Scores out = judging.sampler.keeps_all(vocab) && bias.size() < vocab
                              ? at_once(judging, bias, lambda, draft_logits)
                              : one_by_one(judging, bias, lambda, draft_logits);
  for (double& score : out) score = std::clamp(score, 0.0, 1.0);
  return out;
}

GainTable::Scores Reward::one_by_one(const Judging& judging, const spec::SparseBias& bias, float lambda,
                                     std::span<const float> draft_logits) {
  GainTable::Scores out{};
  for (std::size_t g = 0; g < kGains; ++g) {
    sampler_.apply(judging.sampler, draft_logits, bias, lambda * kGainGrid[g], q_);
    out[g] = judging.sampler.greedy() ? (p_.ids[0] == q_.ids[0] ? 1.0 : 0.0)
             : judging.rejection      ? spec::overlap(p_, q_)
                                      : spec::same_draw_chance(p_, q_);
  }
  return out;
}

// q_gain(v) = exp(z(v) / T) / Z outside the support and exp((z(v) + gain * b(v)) / T) / Z on it. The mass outside is summed by
// itself, never as a difference: a bias may push down all that was likely.
GainTable::Scores Reward::at_once(const Judging& judging, const spec::SparseBias& bias, float lambda,
                                  std::span<const float> draft_logits) {
  const float scale = judging.sampler.inverse_temperature();
  const double per_temperature = static_cast<double>(scale);
  const auto logit = [&](std::size_t i) { return static_cast<double>(draft_logits[static_cast<std::size_t>(bias.tokens[i])]); };

  masked_.assign(draft_logits.begin(), draft_logits.end());
  for (const Token t : bias.tokens) masked_[static_cast<std::size_t>(t)] = -std::numeric_limits<float>::infinity();
  rest_.resize(masked_.size());
  const float max = masked_[simd::argmax(masked_)];
  const double rest = simd::exp_shifted(masked_, max, scale, rest_);

  PerGain factor;
  on_support_.resize(bias.size());
  for (std::size_t g = 0; g < kGains; ++g) {
    const double gain = static_cast<double>(lambda * kGainGrid[g]);
    double top = static_cast<double>(max);
    for (std::size_t i = 0; i < bias.size(); ++i) top = std::max(top, logit(i) + gain * static_cast<double>(bias.values[i]));
    const double shrink = std::exp((static_cast<double>(max) - top) * per_temperature);
    double z = rest * shrink;
    for (std::size_t i = 0; i < bias.size(); ++i) {
      on_support_[i][g] = std::exp((logit(i) + gain * static_cast<double>(bias.values[i]) - top) * per_temperature);
      z += on_support_[i][g];
    }
    factor[g] = shrink / z;
    for (std::size_t i = 0; i < bias.size(); ++i) on_support_[i][g] /= z;
  }

  if (!judging.rejection) return same_draw_chances(p_.probs, rest_, factor, bias.tokens, on_support_);
  GainTable::Scores out{};
  for (std::size_t g = 0; g < kGains; ++g) {
    out[g] = simd::min_sum(p_.probs, rest_, static_cast<float>(factor[g]));
    for (std::size_t i = 0; i < bias.size(); ++i)
      out[g] += std::min(static_cast<double>(p_.probs[static_cast<std::size_t>(bias.tokens[i])]), on_support_[i][g]);
  }
  return out;
}

}  // namespace drift::recal
