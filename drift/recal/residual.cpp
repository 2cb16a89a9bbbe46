#include "drift/recal/residual.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "drift/base/mutant.hpp"
#include "drift/simd/simd.hpp"

namespace drift::recal {
namespace {

// log of the probability outside a support, floored: below a millionth it is rounding.
double log_mass_outside(std::span<const float> on_support, double log_z) {
  double inside = 0.0;
  for (const float z : on_support) inside += std::exp(static_cast<double>(z) - log_z);
  return std::log(std::max(1.0 - inside, 1e-6));
}

void top(std::span<const float> logits, std::size_t m, std::vector<Token>& out) {
  out.resize(std::min(m, logits.size()));
  out.resize(simd::top_k(logits, m, out));
  std::sort(out.begin(), out.end());
}

}  // namespace

void top_probabilities(std::span<const float> logits, double log_z, std::size_t m, spec::SparseVector& out) {
  top(logits, m, out.tokens);
  out.values.resize(out.tokens.size());
  for (std::size_t i = 0; i < out.tokens.size(); ++i)
    out.values[i] = static_cast<float>(std::exp(static_cast<double>(logits[static_cast<std::size_t>(out.tokens[i])]) - log_z));
}

void ResidualTaker::begin(std::span<const float> draft_logits, std::span<const float> target_logits) {
  draft_ = draft_logits;
  target_ = target_logits;
  log_zp_ = simd::log_sum_exp(target_logits);
  choose_support();
}

void ResidualTaker::choose_support() {
  const std::size_t m = config_.bank.support;
  support_.clear();
  if (config_.support != SupportRule::kDraft) top(target_, m, top_p_);
  if (config_.support != SupportRule::kTarget) top(draft_, m, top_q_);
  switch (config_.support) {
    case SupportRule::kTarget: support_ = top_p_; break;
    case SupportRule::kDraft: support_ = top_q_; break;
    case SupportRule::kUnion:
      std::set_union(top_p_.begin(), top_p_.end(), top_q_.begin(), top_q_.end(), std::back_inserter(support_));
      break;
    case SupportRule::kIntersection:
      std::set_intersection(top_p_.begin(), top_p_.end(), top_q_.begin(), top_q_.end(), std::back_inserter(support_));
      break;
  }
}

void ResidualTaker::take(spec::SparseResidual& out) {
  out.tokens = support_;
  draft_on_.resize(support_.size());
  for (std::size_t i = 0; i < support_.size(); ++i) draft_on_[i] = draft_[static_cast<std::size_t>(support_[i])];
  subtract(simd::log_sum_exp(draft_), out);
}

void ResidualTaker::take(const ReducedRow& row, std::span<const double> correction, spec::SparseResidual& out) {
  merged_.clear();
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (correction[i] != 0.0 && support_.size() + merged_.size() < bank::kMaxLessonTokens) merged_.push_back(row.tokens[i]);
  }
  out.tokens.clear();
  std::set_union(support_.begin(), support_.end(), merged_.begin(), merged_.end(), std::back_inserter(out.tokens));
  draft_on_.resize(out.tokens.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    const Token t = out.tokens[i];
    while (at < row.size() && row.tokens[at] < t) ++at;
    const double added = at < row.size() && row.tokens[at] == t ? correction[at] : 0.0;
    draft_on_[i] = static_cast<float>(static_cast<double>(draft_[static_cast<std::size_t>(t)]) + added);
  }
  subtract(log_z(row, correction), out);
}

// r = log p - log q on out.tokens, from draft_on_; both relative to the mass outside, or renormalised on the support, as configured.
void ResidualTaker::subtract(double log_zq, spec::SparseResidual& out) {
  target_on_.resize(out.tokens.size());
  for (std::size_t i = 0; i < out.tokens.size(); ++i) target_on_[i] = target_[static_cast<std::size_t>(out.tokens[i])];
  double log_zp = log_zp_;
  if (config_.renormalise && !out.tokens.empty()) {
    log_zp = simd::log_sum_exp(target_on_);
    log_zq = simd::log_sum_exp(draft_on_);
  }
  if (config_.centre && !out.tokens.empty()) {
    // The same subtraction, with the mass outside the support as the common measure.
    log_zp += log_mass_outside(target_on_, log_zp);
    log_zq += log_mass_outside(draft_on_, log_zq);
  }
  out.values.resize(out.tokens.size());
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    const double r = (static_cast<double>(target_on_[i]) - log_zp) - (static_cast<double>(draft_on_[i]) - log_zq);
    const float value = static_cast<float>(r);
    out.values[i] = is_mutant(Mutant::kResidualNotClipped) ? value : std::clamp(value, -config_.clip, config_.clip);
  }
}

}  // namespace drift::recal
