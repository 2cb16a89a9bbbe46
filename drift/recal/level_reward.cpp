#include "drift/recal/level_reward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "drift/simd/simd.hpp"

namespace drift::recal {
namespace {

// What lies before each kept token and after the last: out[i], [kept + 1]. `values` [vocab] or empty: all zero. May be `out` itself.
void sum_between(std::span<const Token> kept, std::span<const float> values, std::vector<float>& out) {
  std::vector<float> sums(kept.size() + 1, 0.0f);
  std::size_t v = 0;
  for (std::size_t i = 0; i <= kept.size() && !values.empty(); ++i) {
    const std::size_t end = i < kept.size() ? static_cast<std::size_t>(kept[i]) : values.size();
    double sum = 0.0;
    for (; v < end; ++v) sum += static_cast<double>(values[v]);
    sums[i] = static_cast<float>(sum);
    ++v;
  }
  out = std::move(sums);
}

// The chance that one shared number draws the same token from both: they cut [0, 1) into one interval per token, in id order, and
// this is the length on which the cuts agree. What lies between two kept tokens counts as one.
double same_draw(std::span<const float> p, std::span<const float> p_between, std::span<const double> weights,
                 std::span<const float> rest_shares, double rest) {
  double all = rest;
  for (const double w : weights) all += w;
  const double share = 1.0 / all;
  double same = 0.0, cdf_p = 0.0, cdf_q = 0.0;
  const auto step = [&](double pv, double qv) {
    const double next_p = cdf_p + pv, next_q = cdf_q + qv;
    same += std::max(0.0, std::min(next_p, next_q) - std::max(cdf_p, cdf_q));
    cdf_p = next_p;
    cdf_q = next_q;
  };
  for (std::size_t i = 0; i <= weights.size(); ++i) {
    step(static_cast<double>(p_between[i]), static_cast<double>(rest_shares[i]) * rest * share);
    if (i < weights.size()) step(static_cast<double>(p[i]), weights[i] * share);
  }
  return same;
}

}  // namespace

void LevelReward::begin(const Judging& judging, const ReducedRow& row, std::span<const float> draft_logits,
                        std::span<const float> target_logits) {
  judging_ = judging;
  row_ = &row;
  sampler_.apply(judging.sampler, target_logits, p_);
  keeps_all_ = judging.sampler.keeps_all(draft_logits.size());
  if (!keeps_all_) return;
  double kept = 0.0;
  p_on_.resize(row.size());
  for (std::size_t i = 0; i < row.size(); ++i)
    kept += static_cast<double>(p_on_[i] = p_.probs[static_cast<std::size_t>(row.tokens[i])]);
  p_rest_ = std::max(1.0 - kept, 0.0);
  log_rest_ = row.log_rest;
  const float scale = judging.sampler.inverse_temperature();
  const bool whole = row.size() == draft_logits.size(), by_place = !judging.rejection;
  exps_.clear();
  if (!whole && (scale != 1.0f || by_place)) {
    // The bucket's weight at another temperature: the whole row less what is kept.
    exps_.resize(draft_logits.size());
    const float max = draft_logits[simd::argmax(draft_logits)];
    double rest = simd::exp_shifted(draft_logits, max, scale, exps_);
    for (const Token t : row.tokens) rest -= static_cast<double>(exps_[static_cast<std::size_t>(t)]);
    if (scale != 1.0f) log_rest_ = std::log(std::max(rest, 0.0)) + static_cast<double>(max) * static_cast<double>(scale);
  }
  if (by_place) {
    sum_between(row.tokens, p_.probs, narrow_);
    sum_between(row.tokens, exps_, exps_);
    const float rest = std::accumulate(exps_.begin(), exps_.end(), 0.0f);
    for (float& share : exps_) share = rest > 0.0f ? share / rest : 0.0f;
  }
}

void LevelReward::base(std::span<const double> correction) {
  base_.resize(row_->size());
  for (std::size_t i = 0; i < base_.size(); ++i) base_[i] = static_cast<double>(row_->logits[i]) + correction[i];
  if (!keeps_all_) return;
  logits_ = base_;
  weigh();
  base_weights_ = weights_;
  base_high_ = high_;
  base_rest_ = rest_;
}

double LevelReward::of(std::span<const std::uint32_t> at, std::span<const double> deltas) {
  const auto kept = [this] { return judging_.rejection ? overlap() : same_draw(p_on_, narrow_, weights_, exps_, rest_); };
  if (keeps_all_ && reweigh(at, deltas)) return std::clamp(kept(), 0.0, 1.0);
  logits_ = base_;
  for (std::size_t i = 0; i < at.size(); ++i) logits_[at[i]] += deltas[i];
  if (keeps_all_) weigh();
  const double reward = judging_.sampler.greedy() ? greedy() : keeps_all_ ? kept() : filtered();
  return std::clamp(reward, 0.0, 1.0);
}

// The most likely token of all others is in the row, so its best is the whole row's. Lowest id on ties: places follow ids.
double LevelReward::greedy() const {
  const auto best = std::max_element(logits_.begin(), logits_.end()) - logits_.begin();
  return row_->tokens[static_cast<std::size_t>(best)] == p_.ids[0] ? 1.0 : 0.0;
}

// weights_ and rest_ from logits_, relative to the largest.
void LevelReward::weigh() {
  const double scale = static_cast<double>(judging_.sampler.inverse_temperature());
  high_ = log_rest_;
  for (const double z : logits_) high_ = std::max(high_, z * scale);
  rest_ = std::exp(log_rest_ - high_);
  weights_.resize(logits_.size());
  for (std::size_t i = 0; i < logits_.size(); ++i) weights_[i] = std::exp(logits_[i] * scale - high_);
}

// The same from the base's weights, where only the named ones change. False where they rise or fall too far for that.
bool LevelReward::reweigh(std::span<const std::uint32_t> at, std::span<const double> deltas) {
  constexpr double kFar = 300.0;  // nats: doubles hold e^700
  const double scale = static_cast<double>(judging_.sampler.inverse_temperature());
  high_ = base_high_;
  rest_ = base_rest_;
  weights_ = base_weights_;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double z = (base_[at[i]] + deltas[i]) * scale - high_;
    if (z > kFar) return false;
    weights_[at[i]] = std::exp(z);
  }
  return std::max(rest_, *std::max_element(weights_.begin(), weights_.end())) > std::exp(-kFar);
}

double LevelReward::overlap() const {
  double sum = rest_;
  for (const double w : weights_) sum += w;
  const double share = 1.0 / sum;
  double both = std::min(p_rest_, rest_ * share);
  for (std::size_t i = 0; i < weights_.size(); ++i) both += std::min(static_cast<double>(p_on_[i]), weights_[i] * share);
  return both;
}

double LevelReward::filtered() {
  narrow_.assign(logits_.begin(), logits_.end());
  sampler_.apply(judging_.sampler, narrow_, q_);
  for (Token& id : q_.ids) id = row_->tokens[static_cast<std::size_t>(id)];  // from places to tokens; both rise
  return judging_.rejection ? spec::overlap(p_, q_) : spec::same_draw_chance(p_, q_);
}

}  // namespace drift::recal
