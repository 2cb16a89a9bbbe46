#include "drift/recal/reduced.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "drift/base/check.hpp"
#include "drift/simd/simd.hpp"

namespace drift::recal {
namespace {

constexpr double kRounding = 1e-7;  // of a row's mass: what is left after subtracting all but less than this is rounding

double log_add(double a, double b) {
  const double high = std::max(a, b);
  return std::isinf(high) ? high : high + std::log1p(std::exp(std::min(a, b) - high));
}

}  // namespace

void Reducer::reduce(std::span<const float> logits, std::span<const Token> named, std::size_t others, ReducedRow& out) {
  DRIFT_CHECK(others >= 1, "the most likely token is always kept");
  // The best `others` besides the named ones are among the best `others + named`.
  top_.resize(std::min(logits.size(), others + named.size()));
  top_.resize(simd::top_k(logits, top_.size(), top_));
  out.tokens.assign(named.begin(), named.end());
  float least = std::numeric_limits<float>::infinity();  // logit of the last one kept: no other token has more
  for (const Token t : top_) {
    if (others == 0) break;
    if (std::binary_search(named.begin(), named.end(), t)) continue;
    out.tokens.push_back(t);
    least = logits[static_cast<std::size_t>(t)];
    --others;
  }
  std::sort(out.tokens.begin() + static_cast<std::ptrdiff_t>(named.size()), out.tokens.end());
  std::inplace_merge(out.tokens.begin(), out.tokens.begin() + static_cast<std::ptrdiff_t>(named.size()), out.tokens.end());
  out.logits.resize(out.tokens.size());
  const double log_all = simd::log_sum_exp(logits);
  double kept = 0.0;
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    out.logits[i] = logits[static_cast<std::size_t>(out.tokens[i])];
    kept += std::exp(static_cast<double>(out.logits[i]) - log_all);
  }
  const std::size_t left = logits.size() - out.tokens.size();
  if (left == 0) {
    out.log_rest = -std::numeric_limits<double>::infinity();
    return;
  }
  const double bound = std::log(static_cast<double>(left)) + static_cast<double>(least);
  out.log_rest = std::min(std::log(std::max(1.0 - kept, kRounding)) + log_all, bound);
}

double log_z(const ReducedRow& row, std::span<const double> correction) {
  double high = row.log_rest;
  for (std::size_t i = 0; i < row.size(); ++i) high = std::max(high, static_cast<double>(row.logits[i]) + correction[i]);
  double sum = std::exp(row.log_rest - high);
  for (std::size_t i = 0; i < row.size(); ++i) sum += std::exp(static_cast<double>(row.logits[i]) + correction[i] - high);
  return high + std::log(sum);
}

void mix(const ReducedRow& row, std::span<const double> correction, double log_z, const Named& named, double weight,
         std::vector<double>& deltas) {
  deltas.resize(named.at.size());
  double q_named = 0.0, p_named = 0.0;
  for (std::size_t i = 0; i < named.at.size(); ++i) {
    const std::uint32_t at = named.at[i];
    deltas[i] = static_cast<double>(row.logits[at]) + correction[at] - log_z;  // log q, for now
    q_named += std::exp(deltas[i]);
    p_named += static_cast<double>(named.values[i]);
  }
  // q of every other token is multiplied by this much; deltas are relative to it, because theirs is 0.
  const double others = 1.0 - weight + weight * std::max(1.0 - p_named, 0.0) / std::max(1.0 - q_named, kRounding);
  const double log_keep = std::log(1.0 - weight), log_weight = std::log(weight), log_others = std::log(others);
  for (std::size_t i = 0; i < named.at.size(); ++i) {
    const double log_p = std::log(static_cast<double>(named.values[i]));
    const double log_ratio = log_add(log_keep, log_weight + log_p - deltas[i]);
    deltas[i] = std::clamp(log_ratio - log_others, -kMixBound, kMixBound);
  }
}

}  // namespace drift::recal
