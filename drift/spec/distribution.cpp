#include "drift/spec/distribution.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "drift/base/check.hpp"
#include "drift/simd/simd.hpp"

namespace drift::spec {
namespace {

std::string number(double v) { return std::to_string(v); }

}  // namespace

float Distribution::of(Token token) const {
  const auto it = std::lower_bound(ids.begin(), ids.end(), token);
  return it != ids.end() && *it == token ? probs[static_cast<std::size_t>(it - ids.begin())] : 0.0f;
}

Status SamplerConfig::validate() const {
  if (!(temperature >= 0.0f && temperature <= 100.0f)) {
    return {Code::kInvalid, "temperature is " + number(temperature) + "; it must be 0 (greedy) or up to 100"};
  }
  if (top_k < 0) return {Code::kInvalid, "top-k is " + std::to_string(top_k) + "; it must be 0 (off) or more"};
  if (!(top_p > 0.0f && top_p <= 1.0f)) {
    return {Code::kInvalid, "top-p is " + number(top_p) + "; it must be above 0 and at most 1 (1 = off)"};
  }
  if (!(min_p >= 0.0f && min_p <= 1.0f)) {
    return {Code::kInvalid, "min-p is " + number(min_p) + "; it must be between 0 (off) and 1"};
  }
  return Status::ok();
}

SamplerConfig greedy_sampler() { return {.temperature = 0.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f}; }

void Sampler::apply(const SamplerConfig& config, std::span<const float> logits, Distribution& out) {
  static const SparseBias kNone;
  apply(config, logits, kNone, 0.0f, out);
}

void Sampler::apply(const SamplerConfig& config, std::span<const float> logits, const SparseBias& bias, float gain,
                    Distribution& out) {
  DRIFT_CHECK(!logits.empty(), "a distribution needs a vocabulary");
  if (!bias.empty() && gain != 0.0f) {
    biased_.assign(logits.begin(), logits.end());
    for (std::size_t i = 0; i < bias.size(); ++i) biased_[static_cast<std::size_t>(bias.tokens[i])] += gain * bias.values[i];
    logits = biased_;
  }
  if (config.greedy()) {
    out.ids.assign(1, static_cast<Token>(simd::argmax(logits)));
    out.probs.assign(1, 1.0f);
    return;
  }
  keep_candidates(config, logits, out);
}

// The candidate set is a prefix of the order (logit descending, id ascending): top-k, top-p and min-p each cut such a prefix,
// so the shortest one wins whatever the order they are applied in, given that top-p sums over the top-k set.
void Sampler::keep_candidates(const SamplerConfig& config, std::span<const float> logits, Distribution& out) {
  const std::size_t vocab = logits.size();
  const float max = logits[simd::argmax(logits)];
  const std::size_t limit = config.top_k > 0 ? std::min<std::size_t>(vocab, static_cast<std::size_t>(config.top_k)) : vocab;
  double total = 0.0;  // of exp(z - max) over the top-k set, what top-p's shares refer to

  order_.clear();
  if (limit < vocab) {
    order_.resize(limit);
    simd::top_k(logits, limit, order_);
    for (Token t : order_) total += std::exp(static_cast<double>(logits[static_cast<std::size_t>(t)] - max));
  } else {
    const float floor = config.min_p > 0.0f ? max + std::log(config.min_p) : -INFINITY;
    for (std::size_t i = 0; i < vocab; ++i) {
      if (logits[i] >= floor) order_.push_back(static_cast<Token>(i));
    }
    if (config.top_p < 1.0f) {
      exps_.resize(vocab);
      total = simd::exp_shifted(logits, max, 1.0f, exps_);
      std::stable_sort(order_.begin(), order_.end(), [&](Token a, Token b) {
        return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
      });
    }
  }

  std::size_t kept = order_.size();
  if (config.min_p > 0.0f && limit < vocab) {
    const float floor = max + std::log(config.min_p);
    kept = 1;  // the most likely token always stays
    while (kept < order_.size() && logits[static_cast<std::size_t>(order_[kept])] >= floor) ++kept;
  }
  if (config.top_p < 1.0f) {
    double mass = 0.0;
    for (std::size_t i = 0; i < kept; ++i) {
      mass += std::exp(static_cast<double>(logits[static_cast<std::size_t>(order_[i])] - max));
      if (mass >= static_cast<double>(config.top_p) * total) kept = i + 1;
    }
  }
  order_.resize(kept);
  std::sort(order_.begin(), order_.end());

  const float scale = 1.0f / config.temperature;
  out.ids.assign(order_.begin(), order_.end());
  out.probs.resize(kept);
  double sum;
  if (kept == vocab) {
    sum = simd::exp_shifted(logits, max, scale, out.probs);
  } else {
    sum = 0.0;
    for (std::size_t i = 0; i < kept; ++i) {
      out.probs[i] = std::exp((logits[static_cast<std::size_t>(out.ids[i])] - max) * scale);
      sum += static_cast<double>(out.probs[i]);
    }
  }
  const float norm = static_cast<float>(1.0 / sum);
  for (float& p : out.probs) p *= norm;
}

double overlap(const Distribution& a, const Distribution& b) {
  double sum = 0.0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a.ids[i] < b.ids[j])
      ++i;
    else if (a.ids[i] > b.ids[j])
      ++j;
    else
      sum += static_cast<double>(std::min(a.probs[i++], b.probs[j++]));
  }
  return sum;
}

double same_draw_chance(const Distribution& a, const Distribution& b) {
  double sum = 0.0, cdf_a = 0.0, cdf_b = 0.0;
  std::size_t j = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    while (j < b.size() && b.ids[j] < a.ids[i]) cdf_b += static_cast<double>(b.probs[j++]);
    const double next_a = cdf_a + static_cast<double>(a.probs[i]);
    if (j < b.size() && b.ids[j] == a.ids[i]) {
      const double next_b = cdf_b + static_cast<double>(b.probs[j]);
      sum += std::max(0.0, std::min(next_a, next_b) - std::max(cdf_a, cdf_b));
    }
    cdf_a = next_a;
  }
  return sum;
}

bool subtract(const Distribution& a, const Distribution& b, Distribution& out) {
  std::vector<Token> ids;
  std::vector<float> probs;
  double sum = 0.0;
  std::size_t j = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    while (j < b.size() && b.ids[j] < a.ids[i]) ++j;
    const float other = j < b.size() && b.ids[j] == a.ids[i] ? b.probs[j] : 0.0f;
    const float left = a.probs[i] - other;
    if (left > 0.0f) {
      ids.push_back(a.ids[i]);
      probs.push_back(left);
      sum += static_cast<double>(left);
    }
  }
  if (!(sum > 0.0)) return false;
  for (float& p : probs) p = static_cast<float>(static_cast<double>(p) / sum);
  out.ids = std::move(ids);
  out.probs = std::move(probs);
  return true;
}

}  // namespace drift::spec
