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
  if (config.keeps_all(logits.size())) {
    everything(config, logits, out);
  } else {
    keep_candidates(config, logits, out);
  }
}

void Sampler::everything(const SamplerConfig& config, std::span<const float> logits, Distribution& out) {
  out.ids.resize(logits.size());
  std::iota(out.ids.begin(), out.ids.end(), Token{0});
  out.probs.resize(logits.size());
  const double sum = simd::exp_shifted(logits, logits[simd::argmax(logits)], config.inverse_temperature(), out.probs);
  const float norm = static_cast<float>(1.0 / sum);
  for (float& p : out.probs) p *= norm;
}

// How many of the first `kept` candidates reach `mass` (of exp(z - max)), best first. The first `in_order` already stand in
// order; of the others no more are put in order than it takes, for a sort of a whole vocabulary costs as much as a forward.
std::size_t Sampler::nucleus(std::span<const float> logits, float max, std::size_t kept, std::size_t in_order, double mass) {
  const auto before = [&](Token a, Token b) {
    const float za = logits[static_cast<std::size_t>(a)], zb = logits[static_cast<std::size_t>(b)];
    return za > zb || (za == zb && a < b);
  };
  double sum = 0.0;
  for (std::size_t i = 0, batch = 256; i < kept; ++i) {
    if (i == in_order) {
      const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(i);
      const std::size_t next = std::min(i + batch, kept);
      const auto end = order_.begin() + static_cast<std::ptrdiff_t>(next);
      const auto last = order_.begin() + static_cast<std::ptrdiff_t>(kept);
      if (end != last) std::nth_element(begin, end, last, before);
      std::sort(begin, end, before);
      in_order = next;
      batch *= 8;
    }
    sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(order_[i])] - max));
    if (sum >= mass) return i + 1;
  }
  return kept;
}

// The candidate set is a prefix of the order (logit descending, id ascending): top-k, top-p and min-p each cut such a prefix,
// so the shortest one wins whatever the order they are applied in, given that top-p sums over the top-k set.
void Sampler::keep_candidates(const SamplerConfig& config, std::span<const float> logits, Distribution& out) {
  const std::size_t vocab = logits.size();
  const float max = logits[simd::argmax(logits)];
  const std::size_t limit = config.top_k > 0 ? std::min<std::size_t>(vocab, static_cast<std::size_t>(config.top_k)) : vocab;
  const float floor = config.min_p > 0.0f ? max + std::log(config.min_p) : -INFINITY;
  double total = 0.0;        // of exp(z - max) over the top-k set, what top-p's shares refer to
  std::size_t in_order = 0;  // how many of order_ stand best first

  order_.clear();
  if (limit < vocab) {
    order_.resize(limit);
    simd::top_k(logits, limit, order_);
    for (Token t : order_) total += std::exp(static_cast<double>(logits[static_cast<std::size_t>(t)] - max));
    // The most likely token always stays.
    while (order_.size() > 1 && logits[static_cast<std::size_t>(order_.back())] < floor) order_.pop_back();
    in_order = order_.size();
  } else {
    for (std::size_t i = 0; i < vocab; ++i) {
      if (logits[i] >= floor) order_.push_back(static_cast<Token>(i));
    }
    if (config.top_p < 1.0f) {
      exps_.resize(vocab);
      total = simd::exp_shifted(logits, max, 1.0f, exps_);
    }
  }
  if (config.top_p < 1.0f) {
    order_.resize(nucleus(logits, max, order_.size(), in_order, static_cast<double>(config.top_p) * total));
    in_order = 1;
  }
  if (in_order > 0) std::sort(order_.begin(), order_.end());  // else they were taken by id

  const float scale = config.inverse_temperature();
  out.ids.assign(order_.begin(), order_.end());
  out.probs.resize(out.ids.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < out.ids.size(); ++i) {
    out.probs[i] = std::exp((logits[static_cast<std::size_t>(out.ids[i])] - max) * scale);
    sum += static_cast<double>(out.probs[i]);
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
