#include "drift/recal/chain.hpp"

#include <algorithm>

#include "drift/bank/blob.hpp"
#include "drift/bank/snapshot.hpp"
#include "drift/base/check.hpp"
#include "drift/base/mutant.hpp"
#include "drift/simd/simd.hpp"

namespace drift::recal {
namespace {

constexpr std::uint32_t kGlobalSupport = 128;  // tokens of the one global residual
constexpr float kGlobalEta = 0.02f;            // its rate once it is a mean of 50
constexpr float kNgramEta = 0.05f;             // likewise: a context's mean follows the last 20 or so
constexpr std::size_t kOthers = 64;            // likely tokens of a reduced row that no level names
constexpr float kGlobalKey[] = {1.0f};         // the global level has one key and one entry

// The finaliser of SplitMix64: a bijection with full avalanche.
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

bool is_ngram(Level level) { return level >= Level::kNgram1; }
std::size_t order_of(Level level) { return static_cast<std::size_t>(level) - static_cast<std::size_t>(Level::kNgram1) + 1; }

bank::BankConfig bank_config(Level level, const RecalConfig& config) {
  bank::BankConfig c;
  c.vocab = config.bank.vocab;
  c.key_dim = 1;
  c.rate = bank::RateRule::kCount;
  if (is_ngram(level)) {
    c.key_type = bank::KeyType::kHash;
    c.capacity = config.ngram_capacity;
    c.support = std::min(config.ngram_support, c.vocab);
    c.tau = 0.5f;  // equal contexts score 1
    c.eta = kNgramEta;
  } else {
    c.capacity = 1;
    c.support = std::min(kGlobalSupport, c.vocab);
    c.tau = -1.0f;  // whatever the key: the one entry
    c.eta = kGlobalEta;
  }
  return c;
}

template <std::size_t N>
std::size_t bin_above(const std::array<std::uint32_t, N>& edges, std::uint32_t count) {
  std::size_t bin = 0;
  while (bin < N && count >= edges[bin]) ++bin;
  return bin;
}

std::string bank_block(Level level) { return std::string("level.") + kLevelNames[static_cast<std::size_t>(level)]; }
std::string score_block(Level level) { return std::string("scores.") + kLevelNames[static_cast<std::size_t>(level)]; }

bank::KeyView key_of(Level level, const ContextLookup& found) {
  if (is_ngram(level)) return {{}, found.hashes[order_of(level) - 1]};
  return {kGlobalKey, 0};
}

// Whether the position has a key at this level: there may be fewer tokens before it than the order takes.
bool has_key(Level level, const ContextLookup& found) { return !is_ngram(level) || order_of(level) <= found.orders; }

}  // namespace

Chain::Chain(const RecalConfig& config) : config_(config) {}

Result<std::unique_ptr<Chain>> Chain::create(const RecalConfig& config) {
  std::unique_ptr<Chain> chain(new Chain(config));
  for (std::size_t i = 0; i < kLevels; ++i) {
    const auto level = static_cast<Level>(i);
    if (level == Level::kHidden || !config.levels.has(level)) continue;
    DRIFT_ASSIGN(chain->stores_[i].bank, bank::Bank::create(bank_config(level, config)));
    const std::size_t bins = is_ngram(level) ? kMixCountEdges.size() + 1 : kGlobalCountEdges.size() + 1;
    chain->stores_[i].scores = std::make_unique<ScoreTable>(chain->strengths(level), bins);
  }
  return chain;
}

const bank::Bank* Chain::bank(Level level) const { return stores_[static_cast<std::size_t>(level)].bank.get(); }
const ScoreTable* Chain::scores(Level level) const { return stores_[static_cast<std::size_t>(level)].scores.get(); }

std::uint64_t Chain::bytes() const {
  std::uint64_t sum = 0;
  for (const Store& s : stores_) {
    if (s.bank) sum += s.bank->bytes() + s.scores->bytes();
  }
  return sum;
}

std::span<const float> Chain::strengths(Level level) const {
  return is_ngram(level) ? std::span<const float>(kMixGrid) : std::span<const float>(kGainGrid);
}

std::size_t Chain::bin_of(Level level, std::uint32_t count) const {
  return is_ngram(level) ? bin_above(kMixCountEdges, count) : bin_above(kGlobalCountEdges, count);
}

// ---- lookup and bias ----

void Chain::look_up(std::span<const Token> context, ContextLookup& out) const {
  out = {};
  out.orders = std::min(kOrders, context.size());
  std::uint64_t hash = 0;
  for (std::size_t n = 0; n < out.orders; ++n) {  // from the last token backwards, so that each order continues the one below
    const Token t = context[context.size() - 1 - n];
    hash = scramble(hash * 0x9e3779b97f4a7c15ull + static_cast<std::uint32_t>(t) + 1);
    out.hashes[n] = hash;
  }
  for (std::size_t i = 0; i < kLevels; ++i) {
    const auto level = static_cast<Level>(i);
    if (!stores_[i].bank || !has_key(level, out)) continue;
    bank::Neighbor nearest;
    if (stores_[i].bank->nearest(key_of(level, out), {&nearest, 1}) == 1) out.entries[i] = nearest.entry;
  }
}

void Chain::name_tokens(const ContextLookup& found, const HiddenSaid& hidden) {
  named_.clear();
  if (hidden.bias != nullptr) named_ = hidden.bias->tokens;
  for (std::size_t i = 0; i < kLevels; ++i) {
    if (!found.entries[i]) continue;
    const bank::EntryView e = stores_[i].bank->entry(*found.entries[i]);
    named_.insert(named_.end(), e.tokens.begin(), e.tokens.end());
  }
  std::sort(named_.begin(), named_.end());
  named_.erase(std::unique(named_.begin(), named_.end()), named_.end());
}

void Chain::fill(Said& said, const ContextLookup& found, const HiddenSaid& hidden, const ReducedRow& row) const {
  said.named.at.clear();
  said.named.values.clear();
  said.bin = said.choice = 0;
  std::span<const Token> tokens;
  std::span<const float> values;
  if (said.level == Level::kHidden) {
    if (hidden.bias == nullptr) return;
    tokens = hidden.bias->tokens;
    values = hidden.bias->values;
    said.bin = hidden.bin;
    said.choice = hidden.choice;
  } else {
    const auto i = static_cast<std::size_t>(said.level);
    if (!found.entries[i]) return;
    const bank::EntryView e = stores_[i].bank->entry(*found.entries[i]);
    tokens = e.tokens;
    values = e.values;
    said.bin = bin_of(said.level, e.count);
  }
  for (const Token t : tokens) {
    const auto at = std::lower_bound(row.tokens.begin(), row.tokens.end(), t) - row.tokens.begin();
    said.named.at.push_back(static_cast<std::uint32_t>(at));
  }
  said.named.values.assign(values.begin(), values.end());
}

// What a strength of a level adds at its named places, given the levels below. `log_z_now` is used by mixtures only.
void Chain::deltas_of(const ReducedRow& row, const Said& said, std::size_t choice, double log_z_now) {
  const double strength = static_cast<double>(strengths(said.level)[choice]);
  if (is_ngram(said.level)) {
    mix(row, correction_, log_z_now, said.named, strength, deltas_);
    return;
  }
  deltas_.resize(said.named.values.size());
  const double gain = static_cast<double>(config_.lambda) * strength;
  for (std::size_t i = 0; i < deltas_.size(); ++i) deltas_[i] = gain * static_cast<double>(said.named.values[i]);
}

void Chain::apply(const Said& said) {
  for (std::size_t i = 0; i < said.named.at.size(); ++i) correction_[said.named.at[i]] += deltas_[i];
}

void Chain::bias(const ContextLookup& found, const HiddenSaid& hidden, std::span<const float> draft_logits,
                 const Judging& judging, spec::SparseBias& out, ChainUse& use) {
  out.clear();
  use.count = 0;
  if (config_.lambda == 0.0f) return;
  name_tokens(found, hidden);
  const int top_k = judging.sampler.top_k;
  reducer_.reduce(draft_logits, named_, std::clamp<std::size_t>(static_cast<std::size_t>(top_k), kOthers, 4 * kOthers), use.row);
  correction_.assign(use.row.size(), 0.0);
  const GainClass cls{judging.rejection, judging.sampler.greedy()};
  for (std::size_t i = 0; i < kLevels; ++i) {
    const auto level = static_cast<Level>(i);
    if (!config_.levels.has(level)) continue;
    if (use.count == use.said.size()) use.said.emplace_back();
    Said& said = use.said[use.count++];
    said.level = level;
    fill(said, found, hidden, use.row);
    if (said.named.at.empty()) continue;
    if (level != Level::kHidden) {
      const bool fixed = config_.gain == GainRule::kFixed && !is_ngram(level);
      said.choice = fixed ? kGainGrid.size() - 1 : stores_[i].scores->best(cls, said.bin);
    }
    if (said.choice == 0) continue;
    deltas_of(use.row, said, said.choice, is_ngram(level) ? log_z(use.row, correction_) : 0.0);
    apply(said);
  }
  for (std::size_t i = 0; i < use.row.size(); ++i) {
    if (correction_[i] == 0.0) continue;
    out.tokens.push_back(use.row.tokens[i]);
    out.values.push_back(static_cast<float>(correction_[i]));
  }
}

// ---- learning ----

Chain::Staged& Chain::stage() {
  if (staged_ == staged_positions_.size()) staged_positions_.emplace_back();
  Staged& s = staged_positions_[staged_++];
  s.rewards.clear();
  s.scored.clear();
  s.drafted = false;
  return s;
}

bool Chain::observe(const ContextLookup& found, const ChainUse& use, std::span<const float> draft_logits,
                    std::span<const float> target_logits, const Judging& judging, ResidualTaker& residuals,
                    spec::SparseResidual& hidden_residual, std::array<double, kGainGrid.size()>& hidden_rewards) {
  Staged& s = stage();
  s.found = found;
  s.drafted = true;
  s.cls = {judging.rejection, judging.sampler.greedy()};
  if (config_.levels.has_ngrams()) top_probabilities(target_logits, residuals.log_z_target(), config_.ngram_support, s.target);
  if (use.count == 0) {  // lambda is 0: nothing was corrected, and no strength differs from another
    residuals.take(s.global);
    residuals.take(hidden_residual);
    return false;
  }
  bool hidden_scored = false;
  correction_.assign(use.row.size(), 0.0);
  reward_.begin(judging, use.row, draft_logits, target_logits);
  for (std::size_t n = 0; n < use.count; ++n) {
    const Said& said = use.said[n];
    const double log_z_now = is_ngram(said.level) ? log_z(use.row, correction_) : 0.0;
    if (!is_ngram(said.level) && !is_mutant(Mutant::kLevelSeesOwnBias))
      residuals.take(use.row, correction_, said.level == Level::kHidden ? hidden_residual : s.global);
    if (!said.named.at.empty()) {
      reward_.base(correction_);
      const std::size_t first = s.rewards.size();
      for (std::size_t choice = 0; choice < strengths(said.level).size(); ++choice) {
        deltas_of(use.row, said, choice, log_z_now);
        s.rewards.push_back(reward_.of(said.named.at, deltas_));
      }
      if (said.level == Level::kHidden) {
        std::copy_n(s.rewards.begin() + static_cast<std::ptrdiff_t>(first), hidden_rewards.size(), hidden_rewards.begin());
        s.rewards.resize(first);
        hidden_scored = true;
      } else {
        s.scored.emplace_back(said.level, said.bin);
      }
      deltas_of(use.row, said, said.choice, log_z_now);
      if (said.choice != 0) apply(said);
    }
    if (!is_ngram(said.level) && is_mutant(Mutant::kLevelSeesOwnBias))
      residuals.take(use.row, correction_, said.level == Level::kHidden ? hidden_residual : s.global);
  }
  return hidden_scored;
}

void Chain::observe_target(const ContextLookup& found, std::span<const float> target_logits) {
  Staged& s = stage();
  s.found = found;
  top_probabilities(target_logits, simd::log_sum_exp(target_logits), config_.ngram_support, s.target);
}

// One level's touches and lessons of all staged positions, in order.
void Chain::teach(Level level) {
  const auto i = static_cast<std::size_t>(level);
  touched_.clear();
  lessons_.clear();
  neighbors_.resize(staged_);
  for (std::size_t n = 0; n < staged_; ++n) {
    const Staged& s = staged_positions_[n];
    if (!has_key(level, s.found) || (!is_ngram(level) && !s.drafted)) continue;
    std::span<const bank::Neighbor> neighbors;
    if (s.found.entries[i]) {
      touched_.push_back(*s.found.entries[i]);
      neighbors_[n] = {*s.found.entries[i], 1.0f};
      neighbors = {&neighbors_[n], 1};
    }
    const spec::SparseVector& lesson = is_ngram(level) ? s.target : s.global;
    const bank::KeyView key = key_of(level, s.found);
    if (!lesson.empty()) lessons_.push_back({key.vector, neighbors, lesson.tokens, lesson.values, key.hash});
  }
  stores_[i].bank->commit(touched_, lessons_);
}

void Chain::commit() {
  for (std::size_t i = 0; i < kLevels; ++i) {
    if (stores_[i].bank) teach(static_cast<Level>(i));
  }
  for (std::size_t n = 0; n < staged_; ++n) {
    const Staged& s = staged_positions_[n];
    std::size_t first = 0;
    for (const auto& [level, bin] : s.scored) {
      const std::size_t count = strengths(level).size();
      stores_[static_cast<std::size_t>(level)].scores->learn(s.cls, bin, std::span(s.rewards).subspan(first, count));
      first += count;
    }
  }
  staged_ = 0;
}

// ---- the bank file ----

void Chain::save(std::map<std::string, std::vector<std::byte>>& extras) const {
  for (std::size_t i = 0; i < kLevels; ++i) {
    if (!stores_[i].bank) continue;
    const auto level = static_cast<Level>(i);
    extras[bank_block(level)] = bank::to_blob(bank::Snapshot::copy(*stores_[i].bank));
    extras[score_block(level)] = stores_[i].scores->save();
  }
}

Status Chain::restore(const std::map<std::string, std::vector<std::byte>>& extras) {
  std::array<Store, kLevels> fresh;
  for (std::size_t i = 0; i < kLevels; ++i) {
    if (!stores_[i].bank) continue;
    const auto level = static_cast<Level>(i);
    const char* name = kLevelNames[i];
    const bank::BankConfig wanted = bank_config(level, config_);
    fresh[i].scores = std::make_unique<ScoreTable>(strengths(level),
                                                   is_ngram(level) ? kMixCountEdges.size() + 1 : kGlobalCountEdges.size() + 1);
    const auto stored = extras.find(bank_block(level)), scores = extras.find(score_block(level));
    if (stored == extras.end() && scores == extras.end()) {
      DRIFT_ASSIGN(fresh[i].bank, bank::Bank::create(wanted));
      continue;
    }
    if (stored == extras.end() || scores == extras.end())
      return {Code::kCorrupt, std::string("level ") + name + " is stored in part only"};
    DRIFT_ASSIGN(const bank::BankImage image, bank::from_blob(stored->second));
    const bank::BankConfig& c = image.config;
    if (c.vocab != wanted.vocab || c.key_type != wanted.key_type || c.key_dim != 1 || c.capacity > kMaxNgramCapacity ||
        c.support > std::max(kMaxNgramSupport, kGlobalSupport))
      return {Code::kCorrupt, std::string("level ") + name + " is stored with another vocabulary, kind of key or size"};
    DRIFT_ASSIGN(fresh[i].bank, bank::Bank::from_image(image));
    DRIFT_TRY(fresh[i].scores->load(scores->second));
  }
  stores_ = std::move(fresh);
  staged_ = 0;
  return Status::ok();
}

}  // namespace drift::recal
