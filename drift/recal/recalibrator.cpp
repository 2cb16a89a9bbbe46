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

// Over cosine distance (method.md section 2): how near an entry is, in [0, 1].
float kernel(float cosine, const RecalConfig& config) {
  const float sigma = config.sigma;
  if (config.weights == WeightRule::kKriged) return kriging_kernel(cosine, sigma);
  const float distance = 1.0f - cosine;
  return std::exp(-distance * distance / (2.0f * sigma * sigma));
}

}  // namespace

Recalibrator::Recalibrator(const RecalConfig& config)
    : config_(config), keyer_(config.bank.key_dim, config.bank.standardise), residuals_(config_) {}

Result<std::unique_ptr<Recalibrator>> Recalibrator::create(const RecalConfig& config) {
  DRIFT_TRY(config.validate());
  std::unique_ptr<Recalibrator> r(new Recalibrator(config));
  DRIFT_ASSIGN(r->bank_, bank::Bank::create(config.bank));
  if (!(config.levels == kHiddenOnly)) {
    DRIFT_ASSIGN(r->chain_, Chain::create(r->config_));
  }
  return r;
}

std::uint64_t Recalibrator::bytes() const { return bank_->bytes() + (chain_ ? chain_->bytes() : 0); }

Status Recalibrator::lookup(const Place& place, Lookup& out) const {
  if (chain_) chain_->look_up(place.context, out.context);
  if (!config_.levels.has(Level::kHidden)) {
    out.neighbors.clear();
    out.similarity = -1.0f;
    return Status::ok();
  }
  DRIFT_TRY(look_up(place.hidden, out));
  out.lent.resize(loans_.size());
  for (std::size_t i = 0; i < loans_.size(); ++i) DRIFT_TRY(loans_[i].bank->look_up(place.hidden, out.lent[i]));
  return Status::ok();
}

// In this bank alone.
Status Recalibrator::look_up(std::span<const float> hidden, Lookup& out) const {
  out.unit.resize(config_.bank.key_dim);
  out.key.resize(config_.bank.key_dim);
  DRIFT_TRY(keyer_.make(hidden, out.unit, out.key));
  out.neighbors.resize(config_.neighbors);
  out.neighbors.resize(bank_->nearest(out.key, out.neighbors));
  out.similarity = out.neighbors.empty() ? -1.0f : out.neighbors[0].score;
  out.bin = out.neighbors.empty() ? gain_bin(-1.0f, 0) : gain_bin(out.similarity, bank_->entry(out.neighbors[0].entry).count);
  return Status::ok();
}

// weights_ of the neighbours in all parts, one part after the other.
void Recalibrator::weigh(std::span<const Part> parts) const {
  weights_.clear();
  known_.clear();
  float sum = 0.0f, largest = 0.0f;
  for (const Part& part : parts) {
    for (const bank::Neighbor& n : part.found->neighbors) {
      known_.push_back({part.bank->bank_.get(), n});
      weights_.push_back(kernel(n.score, config_));
      sum += weights_.back();
      largest = std::max(largest, weights_.back());
    }
  }
  if (config_.weights == WeightRule::kKriged) return kriging_.weigh(known_, config_.sigma, weights_);
  if (config_.weights != WeightRule::kNormalised || !(sum > 0.0f)) return;
  const float scale = largest / sum;
  for (float& w : weights_) w *= scale;
}

// b = sum_j w_j b_j over the neighbours in all parts, merged by token.
void Recalibrator::combine(std::span<const Part> parts, spec::SparseBias& out) const {
  out.clear();
  pairs_.clear();
  weigh(parts);
  std::size_t next = 0;
  for (const Part& part : parts) {
    for (const bank::Neighbor& n : part.found->neighbors) {
      const float w = weights_[next++];
      if (!(std::fabs(w) >= 1e-6f)) continue;  // below a millionth of a nat per nat: nothing
      const bank::EntryView e = part.bank->bank_->entry(n.entry);
      for (std::size_t i = 0; i < e.tokens.size(); ++i) pairs_.emplace_back(e.tokens[i], part.gain * (w * e.values[i]));
    }
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
  // An estimate may lie outside what its samples span; what one lesson may say bounds it as well.
  if (config_.weights == WeightRule::kKriged) {
    for (float& value : out.values) value = std::clamp(value, -config_.clip, config_.clip);
  }
}

void Recalibrator::combine(const Lookup& lookup, spec::SparseBias& out) const {
  const Part own{this, &lookup};
  combine({&own, 1}, out);
}

// Index into kGainGrid. No table: nothing was earned yet.
std::size_t Recalibrator::earned(const GainTable* gains, std::size_t bin, const Judging& judging) const {
  if (config_.gain == GainRule::kFixed) return kGainGrid.size() - 1;
  return gains == nullptr ? 0 : gains->best({judging.rejection, judging.sampler.greedy()}, bin);
}

void Recalibrator::bias(const Lookup& lookup, const Judging& judging, Bias& out) const {
  DRIFT_CHECK(!chain_, "a chain needs the draft's logits");
  out.gain = 0.0f;
  out.bias.clear();
  out.own.clear();
  out.lent.assign(lookup.lent.size(), {});
  if (config_.lambda == 0.0f) return;
  if (!lookup.lent.empty()) return bias_of_all(lookup, judging, out);
  if (lookup.neighbors.empty()) return;
  combine(lookup, out.bias);
  if (!out.bias.empty()) out.gain = config_.lambda * kGainGrid[earned(&gains_, lookup.bin, judging)];
}

// What each bank says by itself, and parts_: those of the borrowed ones and the own one that have earned a say here.
void Recalibrator::take_parts(const Lookup& lookup, const Judging& judging, Bias& out) const {
  parts_.clear();
  const auto take = [&](const Recalibrator& bank, const Lookup& found, const GainTable* gains, spec::SparseBias& alone) {
    bank.combine(found, alone);
    const std::size_t choice = alone.empty() ? 0 : earned(gains, found.bin, judging);
    if (choice > 0) parts_.push_back({&bank, &found, kGainGrid[choice]});
  };
  take(*this, lookup, &gains_, out.own);
  for (std::size_t i = 0; i < loans_.size(); ++i) take(*loans_[i].bank, lookup.lent[i], gains_with(loans_[i].owner), out.lent[i]);
}

// With borrowed banks: those that have earned nothing here have no say, the others' neighbours are weighed together.
void Recalibrator::bias_of_all(const Lookup& lookup, const Judging& judging, Bias& out) const {
  take_parts(lookup, judging, out);
  if (parts_.empty()) return;
  out.gain = config_.lambda;
  if (parts_.size() == 1) {  // as if that bank were the only one
    out.gain *= parts_[0].gain;
    parts_[0].gain = 1.0f;
  }
  combine(parts_, out.bias);
  if (out.bias.empty()) out.gain = 0.0f;
}

void Recalibrator::bias(const Lookup& lookup, std::span<const float> draft_logits, const Judging& judging, Bias& out) const {
  if (!chain_) return bias(lookup, judging, out);
  out.own.clear();
  out.lent.assign(lookup.lent.size(), {});
  parts_.clear();
  HiddenSaid hidden;
  if (!lookup.lent.empty()) {
    take_parts(lookup, judging, out);
  } else if (!lookup.neighbors.empty()) {
    combine(lookup, out.own);
  }
  if (!lookup.neighbors.empty()) hidden = {&out.own, lookup.bin, earned(&gains_, lookup.bin, judging)};
  // Strengths of all levels are learned from what the own levels say by themselves: none depends on what was borrowed.
  chain_->bias(lookup.context, hidden, draft_logits, judging, out.bias, out.chain);
  const bool lent = std::any_of(parts_.begin(), parts_.end(), [this](const Part& part) { return part.bank != this; });
  if (lent) {  // then the hidden level's place is taken by what all that have a say know together
    combine(parts_, hidden_bias_);
    chain_->bias(lookup.context, {&hidden_bias_, lookup.bin, kGainGrid.size() - 1}, draft_logits, judging, out.bias, with_lent_);
  }
  out.gain = out.bias.empty() ? 0.0f : 1.0f;
}

void Recalibrator::residual(std::span<const float> draft_logits, std::span<const float> target_logits,
                            spec::SparseResidual& out) {
  residuals_.begin(draft_logits, target_logits);
  residuals_.take(out);
}

Status Recalibrator::observe(const Lookup& found, const Bias& used, std::span<const float> draft_logits,
                             std::span<const float> target_logits, const Judging& judging) {
  const std::size_t vocab = config_.bank.vocab;
  if (draft_logits.size() != vocab || target_logits.size() != vocab) {
    return {Code::kInvalid, "logits have " + std::to_string(draft_logits.size()) + " (draft) and " +
                                std::to_string(target_logits.size()) + " (target) elements; this bank's vocabulary has " +
                                std::to_string(vocab)};
  }
  const bool hidden = config_.levels.has(Level::kHidden);
  if (hidden && (found.key.size() != config_.bank.key_dim || found.unit.size() != config_.bank.key_dim)) {
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
  lesson.hidden = hidden;
  lesson.lent.clear();
  if (chain_) {
    residuals_.begin(draft_logits, target_logits);
    lesson.scored = chain_->observe(found.context, used.chain, draft_logits, target_logits, judging, residuals_, lesson.residual,
                                    lesson.rewards) &&
                    config_.gain == GainRule::kEarned;
    score_lent(found, used, draft_logits, target_logits, judging, lesson);
    ++staged_;
    return Status::ok();
  }
  const spec::SparseBias& own = found.lent.empty() ? used.bias : used.own;
  lesson.scored = config_.gain == GainRule::kEarned && !own.empty();
  if (lesson.scored) lesson.rewards = reward_.of(judging, own, config_.lambda, draft_logits, target_logits);
  score_lent(found, used, draft_logits, target_logits, judging, lesson);
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

// What each gain of each borrowed bank would have earned, on the raw draft.
void Recalibrator::score_lent(const Lookup& found, const Bias& used, std::span<const float> draft_logits,
                              std::span<const float> target_logits, const Judging& judging, StagedLesson& lesson) {
  for (std::size_t i = 0; i < used.lent.size() && config_.gain == GainRule::kEarned; ++i) {
    if (used.lent[i].empty()) continue;
    lesson.lent.push_back({i, found.lent[i].bin, reward_.of(judging, used.lent[i], config_.lambda, draft_logits, target_logits)});
  }
}

Status Recalibrator::observe_target(std::span<const Token> context, std::span<const float> target_logits) {
  if (!config_.levels.has_ngrams()) return Status::ok();
  if (target_logits.size() != config_.bank.vocab) {
    return {Code::kInvalid, "target logits have " + std::to_string(target_logits.size()) +
                                " elements; this bank's vocabulary has " + std::to_string(config_.bank.vocab)};
  }
  if (!simd::all_finite(target_logits)) return {Code::kInvalid, "target logits hold a NaN or an infinity"};
  chain_->look_up(context, context_);
  chain_->observe_target(context_, target_logits);
  return Status::ok();
}

void Recalibrator::commit() {
  if (frozen_) return discard();
  touched_.clear();
  views_.clear();
  for (std::size_t i = 0; i < staged_; ++i) {
    const StagedLesson& lesson = lessons_[i];
    if (!lesson.hidden) continue;
    // Farthest first, so that the nearest ends as the most recently used.
    for (std::size_t n = lesson.neighbors.size(); n-- > 0;) {
      if (kernel(lesson.neighbors[n].score, config_) >= kTouchWeight) touched_.push_back(lesson.neighbors[n].entry);
    }
    if (!lesson.residual.empty())
      views_.push_back({lesson.key, lesson.neighbors, lesson.residual.tokens, lesson.residual.values});
    if (lesson.scored) gains_.learn(lesson.cls, lesson.bin, lesson.rewards);
    for (const LoanScores& lent : lesson.lent) loan_gains_[loans_[lent.loan].owner].learn(lesson.cls, lent.bin, lent.rewards);
  }
  bank_->commit(touched_, views_);
  if (chain_) chain_->commit();
  for (std::size_t i = 0; i < staged_; ++i) {
    if (lessons_[i].hidden && keyer_.learn(lessons_[i].unit)) {
      bank_->rekey([this](std::span<float> key) { keyer_.convert(key); });
    }
  }
  staged_ = 0;
}

void Recalibrator::discard() {
  staged_ = 0;
  if (chain_) chain_->discard();
}

void Recalibrator::borrow(std::span<const Loan> loans) {
  DRIFT_CHECK(staged_ == 0, "banks are borrowed between steps");
  if (std::equal(loans.begin(), loans.end(), loans_.begin(), loans_.end())) return;
  for (const Loan& loan : loans)
    DRIFT_CHECK(may_borrow() && loan.bank->may_borrow() && loan.bank->config_.bank.key_dim == config_.bank.key_dim &&
                    loan.bank->config_.bank.vocab == config_.bank.vocab,
                "a bank that is borrowed is one of the same pair, with the hidden level and without the global one");
  loans_.assign(loans.begin(), loans.end());
  if (loan_gains_.size() <= kLoanGainsMax) return;
  std::erase_if(loan_gains_, [&](const auto& kept) {
    return std::none_of(loans.begin(), loans.end(), [&](const Loan& loan) { return loan.owner == kept.first; });
  });
}

void Recalibrator::forget_loan(const std::string& owner) { loan_gains_.erase(owner); }

const GainTable* Recalibrator::gains_with(const std::string& owner) const {
  const auto it = loan_gains_.find(owner);
  return it == loan_gains_.end() ? nullptr : &it->second;
}

bank::StoredBank Recalibrator::save(const bank::Fingerprint& fingerprint) const {
  return save(fingerprint, bank::Snapshot::copy(*bank_));
}

bank::StoredBank Recalibrator::save(const bank::Fingerprint& fingerprint, bank::BankImage image) const {
  bank::StoredBank stored;
  stored.fingerprint = fingerprint;
  stored.image = std::move(image);
  stored.extras = carried_;
  if (chain_) chain_->save(stored.extras);
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
  std::unique_ptr<Chain> chain;
  if (chain_) {
    DRIFT_ASSIGN(chain, Chain::create(config_));
    DRIFT_TRY(chain->restore(stored.extras));
  }
  DRIFT_TRY(bank_->restore(stored.image));
  chain_ = std::move(chain);
  // Blocks of levels that are not in use here go back into the file as they came; save() overwrites its own.
  carried_ = stored.extras;
  for (std::size_t order = 1; chain_ && order <= kOrders; ++order) {  // what the file brings is what is in use
    if (const bank::Bank* stored_level = chain_->bank(ngram_level(order))) {
      config_.ngram_capacity = stored_level->config().capacity;
      config_.ngram_support = stored_level->config().support;
    }
  }
  gains_ = gains;
  loan_gains_.clear();
  keyer_ = std::move(keyer);
  staged_ = 0;
  return Status::ok();
}

}  // namespace drift::recal
