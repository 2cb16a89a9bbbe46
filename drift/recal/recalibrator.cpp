#include "drift/recal/recalibrator.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "drift/base/check.hpp"
#include "drift/base/mutant.hpp"
#include "drift/simd/simd.hpp"

namespace drift::recal {
namespace {

constexpr float kTouchWeight = 0.1f;  // a retrieved entry counts as used from this kernel weight on
constexpr const char* kGainsName = "gains";
constexpr const char* kKeyStatsName = "key_stats";

// Gaussian kernel over cosine distance (method.md section 2).
float kernel(float cosine, float sigma) {
  const float distance = 1.0f - cosine;
  return std::exp(-distance * distance / (2.0f * sigma * sigma));
}

// log of the probability outside a support, floored: below a millionth it is rounding.
double log_mass_outside(std::span<const float> logits, std::span<const Token> support, double log_z) {
  double inside = 0.0;
  for (const Token t : support) inside += std::exp(static_cast<double>(logits[static_cast<std::size_t>(t)]) - log_z);
  return std::log(std::max(1.0 - inside, 1e-6));
}

}  // namespace

Recalibrator::Recalibrator(const RecalConfig& config) : config_(config), keyer_(config.bank.key_dim, config.bank.standardise) {}

Result<std::unique_ptr<Recalibrator>> Recalibrator::create(const RecalConfig& config) {
  DRIFT_TRY(config.validate());
  std::unique_ptr<Recalibrator> r(new Recalibrator(config));
  DRIFT_ASSIGN(r->bank_, bank::Bank::create(config.bank));
  return r;
}

Status Recalibrator::lookup(std::span<const float> hidden, Lookup& out) const {
  out.unit.resize(config_.bank.key_dim);
  out.key.resize(config_.bank.key_dim);
  DRIFT_TRY(keyer_.make(hidden, out.unit, out.key));
  out.neighbors.resize(config_.neighbors);
  out.neighbors.resize(bank_->nearest(out.key, out.neighbors));
  out.similarity = out.neighbors.empty() ? -1.0f : out.neighbors[0].score;
  out.bin = out.neighbors.empty() ? gain_bin(-1.0f, 0) : gain_bin(out.similarity, bank_->entry(out.neighbors[0].entry).count);
  return Status::ok();
}

// b = sum_j w_j b_j over the neighbours, merged by token.
void Recalibrator::combine(const Lookup& lookup, spec::SparseBias& out) const {
  out.clear();
  pairs_.clear();
  float sum = 0.0f, largest = 0.0f;
  for (const bank::Neighbor& n : lookup.neighbors) {
    const float w = kernel(n.score, config_.sigma);
    sum += w;
    largest = std::max(largest, w);
  }
  if (!(sum > 0.0f)) return;
  const float scale = config_.weights == WeightRule::kNormalised ? largest / sum : 1.0f;
  for (const bank::Neighbor& n : lookup.neighbors) {
    const float w = kernel(n.score, config_.sigma) * scale;
    if (w < 1e-6f) continue;  // below a millionth of a nat per nat: nothing
    const bank::EntryView e = bank_->entry(n.entry);
    for (std::size_t i = 0; i < e.tokens.size(); ++i) pairs_.emplace_back(e.tokens[i], w * e.values[i]);
  }
  std::stable_sort(pairs_.begin(), pairs_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [token, value] : pairs_) {
    if (!out.tokens.empty() && out.tokens.back() == token) {
      out.values.back() += value;
    } else {
      out.tokens.push_back(token);
      out.values.push_back(value);
    }
  }
}

void Recalibrator::bias(const Lookup& lookup, const Judging& judging, Bias& out) const {
  out.gain = 0.0f;
  out.bias.clear();
  if (lookup.neighbors.empty() || config_.lambda == 0.0f) return;
  combine(lookup, out.bias);
  if (out.bias.empty()) return;
  out.gain = config_.lambda;
  if (config_.gain == GainRule::kEarned) {
    out.gain *= kGainGrid[gains_.best({judging.rejection, judging.sampler.greedy()}, lookup.bin)];
  }
}

void Recalibrator::choose_support(std::span<const float> draft_logits, std::span<const float> target_logits) {
  const std::size_t m = config_.bank.support;
  const std::size_t vocab = draft_logits.size();
  const auto top = [&](std::span<const float> logits, std::vector<Token>& out) {
    out.resize(std::min(m, vocab));
    out.resize(simd::top_k(logits, m, out));
    std::sort(out.begin(), out.end());
  };
  support_.clear();
  if (config_.support != SupportRule::kDraft) top(target_logits, top_p_);
  if (config_.support != SupportRule::kTarget) top(draft_logits, top_q_);
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

void Recalibrator::residual(std::span<const float> draft_logits, std::span<const float> target_logits,
                            spec::SparseResidual& out) {
  choose_support(draft_logits, target_logits);
  double log_zp, log_zq;
  if (config_.renormalise && !support_.empty()) {
    std::vector<float> on_support(support_.size());
    const auto normaliser = [&](std::span<const float> logits) {
      for (std::size_t i = 0; i < support_.size(); ++i) on_support[i] = logits[static_cast<std::size_t>(support_[i])];
      return simd::log_sum_exp(on_support);
    };
    log_zp = normaliser(target_logits);
    log_zq = normaliser(draft_logits);
  } else {
    log_zp = simd::log_sum_exp(target_logits);
    log_zq = simd::log_sum_exp(draft_logits);
  }
  if (config_.centre && !support_.empty()) {
    // The same subtraction, with the mass outside the support as the common measure.
    log_zp += log_mass_outside(target_logits, support_, log_zp);
    log_zq += log_mass_outside(draft_logits, support_, log_zq);
  }
  out.tokens = support_;
  out.values.resize(support_.size());
  for (std::size_t i = 0; i < support_.size(); ++i) {
    const std::size_t v = static_cast<std::size_t>(support_[i]);
    const double r = (static_cast<double>(target_logits[v]) - log_zp) - (static_cast<double>(draft_logits[v]) - log_zq);
    const float value = static_cast<float>(r);
    out.values[i] = is_mutant(Mutant::kResidualNotClipped) ? value : std::clamp(value, -config_.clip, config_.clip);
  }
}

Status Recalibrator::observe(const Lookup& found, const Bias& used, std::span<const float> draft_logits,
                             std::span<const float> target_logits, const Judging& judging) {
  const std::size_t vocab = config_.bank.vocab;
  if (draft_logits.size() != vocab || target_logits.size() != vocab) {
    return {Code::kInvalid, "logits have " + std::to_string(draft_logits.size()) + " (draft) and " +
                                std::to_string(target_logits.size()) + " (target) elements; this bank's vocabulary has " +
                                std::to_string(vocab)};
  }
  if (found.key.size() != config_.bank.key_dim || found.unit.size() != config_.bank.key_dim) {
    return {Code::kInvalid, "an observation needs the lookup of its own position"};
  }
  if (!simd::all_finite(draft_logits)) return {Code::kInvalid, "draft logits hold a NaN or an infinity"};
  if (!simd::all_finite(target_logits)) return {Code::kInvalid, "target logits hold a NaN or an infinity"};
  if (staged_ == lessons_.size()) lessons_.emplace_back();
  StagedLesson& lesson = lessons_[staged_];
  lesson.unit = found.unit;
  lesson.key = found.key;
  lesson.neighbors = found.neighbors;
  lesson.bin = found.bin;
  lesson.cls = {judging.rejection, judging.sampler.greedy()};
  lesson.scored = config_.gain == GainRule::kEarned && !used.bias.empty();
  if (lesson.scored) lesson.rewards = reward_.of(judging, used.bias, config_.lambda, draft_logits, target_logits);
  if (is_mutant(Mutant::kResidualFromBiased)) {
    biased_.assign(draft_logits.begin(), draft_logits.end());
    for (std::size_t i = 0; i < used.bias.size(); ++i)
      biased_[static_cast<std::size_t>(used.bias.tokens[i])] += used.gain * used.bias.values[i];
    residual(biased_, target_logits, lesson.residual);
  } else {
    residual(draft_logits, target_logits, lesson.residual);
  }
  ++staged_;
  return Status::ok();
}

void Recalibrator::commit() {
  if (frozen_) {
    staged_ = 0;
    return;
  }
  touched_.clear();
  views_.clear();
  for (std::size_t i = 0; i < staged_; ++i) {
    const StagedLesson& lesson = lessons_[i];
    // Farthest first, so that the nearest ends as the most recently used.
    for (std::size_t n = lesson.neighbors.size(); n-- > 0;) {
      if (kernel(lesson.neighbors[n].score, config_.sigma) >= kTouchWeight) touched_.push_back(lesson.neighbors[n].entry);
    }
    if (!lesson.residual.empty())
      views_.push_back({lesson.key, lesson.neighbors, lesson.residual.tokens, lesson.residual.values});
    if (lesson.scored) gains_.learn(lesson.cls, lesson.bin, lesson.rewards);
  }
  bank_->commit(touched_, views_);
  for (std::size_t i = 0; i < staged_; ++i) {
    if (keyer_.learn(lessons_[i].unit)) {
      bank_->rekey([this](std::span<float> key) { keyer_.convert(key); });
    }
  }
  staged_ = 0;
}

void Recalibrator::discard() { staged_ = 0; }

bank::StoredBank Recalibrator::save(const bank::Fingerprint& fingerprint) const {
  return save(fingerprint, bank::Snapshot::copy(*bank_));
}

bank::StoredBank Recalibrator::save(const bank::Fingerprint& fingerprint, bank::BankImage image) const {
  bank::StoredBank stored;
  stored.fingerprint = fingerprint;
  stored.image = std::move(image);
  stored.extras[kGainsName] = gains_.save();
  stored.extras[kKeyStatsName] = keyer_.save();
  return stored;
}

Status Recalibrator::restore(const bank::StoredBank& stored) {
  const auto find = [&](const char* name) -> std::span<const std::byte> {
    const auto it = stored.extras.find(name);
    return it == stored.extras.end() ? std::span<const std::byte>{} : std::span<const std::byte>(it->second);
  };
  GainTable gains;
  Keyer keyer(config_.bank.key_dim, config_.bank.standardise);
  // A bank that was emptied is a new one: nothing earned, nothing known of its keys.
  if (stored.image.size != 0 || !stored.extras.empty()) {
    DRIFT_TRY(gains.load(find(kGainsName)));
    DRIFT_TRY(keyer.load(find(kKeyStatsName)));
  }
  DRIFT_TRY(bank_->restore(stored.image));
  gains_ = gains;
  keyer_ = std::move(keyer);
  staged_ = 0;
  return Status::ok();
}

}  // namespace drift::recal
