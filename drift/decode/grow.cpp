// grow.cpp - stages 1 to 4 of a step: a line of proposals, each with the q it was drawn from.
//
// At each depth every sequence whose mode matches asks the text and the memory first; those for which nothing is found are
// drafted together in one pass. A draft that was not asked for a while lacks decided tokens and earlier proposals of the block:
// it gets them as a line of nodes before the row that is wanted.
#include <algorithm>
#include <cmath>

#include "drift/base/mutant.hpp"
#include "drift/decode/stepper_impl.hpp"

namespace drift::decode {
namespace {

// Decided tokens the draft may lack before they are fed apart, without rows. One pass of a block's shape is cheaper below that.
constexpr std::size_t kLineMax = 16;
constexpr std::size_t kCatchUpChunk = 512;  // tokens of one such pass

// Who looks at the text with the block so far: what copies, and levels keyed by token contexts.
bool keeps_text(const SequenceConfig& config) {
  return copies(config.mode) || (recalibrates(config.mode) && config.recal->config().levels.has_ngrams());
}

}  // namespace

// Proposals this step may make: never more than the answer or either context can still take.
int Stepper::Impl::block_length(const Sequence& s) const {
  if (s.config_.mode == Mode::kOff) return 0;
  const auto size = static_cast<std::int64_t>(s.tokens_.size());
  std::int64_t block = s.config_.draft_tokens;
  if (s.config_.max_tokens >= 0) {
    const auto emitted = size - static_cast<std::int64_t>(s.prompt_);
    block = std::min(block, s.config_.max_tokens - emitted - 1);
  }
  // Besides the proposals the step emits a token of the target's own, and the text ends when it fills the context: at the same
  // token in every mode.
  std::size_t context = target_info.context;
  if (drafts(s.config_.mode)) context = std::min(context, draft_info.context);
  block = std::min(block, static_cast<std::int64_t>(context) - size - 1);
  return static_cast<int>(std::max<std::int64_t>(block, 0));
}

// A token only the target knows cannot be fed to the draft: from then on the sequence goes on without it.
bool Stepper::Impl::draft_knows(const Sequence& s) const {
  for (auto i = static_cast<std::size_t>(draft->length(s.draft_)); i < s.tokens_.size(); ++i) {
    if (static_cast<std::size_t>(s.tokens_[i]) >= draft_info.vocab) return false;
  }
  return true;
}

void Stepper::Impl::begin_block(Sequence& s) {
  s.tree_.clear();
  s.by_draft_.clear();
  s.draft_fed_ = 0;
  s.block_ = block_length(s);
  s.can_draft_ = drafts(s.config_.mode) && draft_knows(s);
  if (keeps_text(s.config_)) s.text_ = s.tokens_;
}

Status Stepper::Impl::grow(std::vector<trace::StepEvent>& events, trace::StepTimes& times) {
  int deepest = 0;
  for (const Sequence* s : stepping) deepest = std::max(deepest, s->block_);
  for (int depth = 0; depth < deepest; ++depth) {
    drafting.clear();
    for (std::size_t i = 0; i < stepping.size(); ++i) {
      Sequence& s = *stepping[i];
      if (s.block_ <= depth || propose_copy(s, depth, events[i])) continue;
      if (s.can_draft_)
        drafting.push_back(i);
      else
        s.block_ = depth;  // nobody proposes anything further
    }
    if (drafting.empty()) continue;
    DRIFT_TRY(draft_forward(depth, times));
    std::size_t row = 0;
    for (const std::size_t i : drafting) DRIFT_TRY(propose_draft(*stepping[i], row++, depth, events[i]));
  }
  return Status::ok();
}

void Stepper::Impl::add(Sequence& s, const trace::ProposedToken& proposed, bool by_draft, trace::StepEvent& event) {
  const auto depth = static_cast<NodeIndex>(s.tree_.size());
  s.tree_.add(depth == 0 ? kPrefix : depth - 1, proposed.token, dist, proposed.from_bank);
  s.by_draft_.push_back(by_draft);
  if (keeps_text(s.config_)) s.text_.push_back(proposed.token);
  event.proposed.push_back(proposed);
  event.proposed.back().q = dist.of(proposed.token);
}

// What followed the longest match of the text with the block so far; false if the mode does not match or nothing is found.
bool Stepper::Impl::propose_copy(Sequence& s, int depth, trace::StepEvent& event) {
  if (!copies(s.config_.mode)) return false;
  Timer timer(event.times.lookup_ns);
  const propose::SuffixMemory* memory = remembers(s.config_.mode) ? s.config_.suffix : nullptr;
  if (!propose::continue_text(s.text_, s.config_.copy, memory, common, found)) return false;
  // At temperature 0 the target has one token, and so has the proposal.
  found.distribution(s.config_.sampler.greedy() ? propose::QRule::kTop : s.config_.copy.q, dist);
  const DrawKey key{key_name(s.config_), event.first + depth, Purpose::kDraw, 0};
  trace::ProposedToken proposed;
  proposed.token = dist.ids[s.config_.choices->pick(key, dist.probs)];
  proposed.match = found.match();
  if (is_mutant(Mutant::kMemoryQIsCounts)) found.distribution(propose::QRule::kCounts, dist);
  add(s, proposed, /*by_draft=*/false, event);
  return true;
}

// Brings a draft that lacks many decided tokens to the last of them, which goes with the next forward.
Status Stepper::Impl::catch_up(Sequence& s) {
  if (s.draft_fed_ > 0 || s.tokens_.size() - static_cast<std::size_t>(draft->length(s.draft_)) <= kLineMax) return Status::ok();
  const std::size_t end = s.tokens_.size() - 1;
  while (static_cast<std::size_t>(draft->length(s.draft_)) < end)
    DRIFT_TRY(feed(*draft, s.draft_, s.tokens_, end, kCatchUpChunk, nodes, rows));
  return Status::ok();
}

// Stage 1 for the sequences in `drafting`: the decided tokens the draft has not seen, then the block's proposals it has not seen;
// the last of them gives the row.
Status Stepper::Impl::draft_forward(int depth, trace::StepTimes& times) {
  Timer timer(times.draft_ns);
  for (const std::size_t i : drafting) DRIFT_TRY(catch_up(*stepping[i]));
  nodes.clear();
  for (const std::size_t i : drafting) {
    Sequence& s = *stepping[i];
    const Pos kept = draft->length(s.draft_);
    const NodeIndex line = static_cast<NodeIndex>(s.tokens_.size()) - kept, end = line + depth;
    for (NodeIndex n = s.draft_fed_; n < end; ++n) {
      const Token token = n < line ? s.tokens_[static_cast<std::size_t>(kept + n)] : s.tree_.node(n - line).token;
      nodes.push_back({s.draft_, token, kept + n, n == 0 ? kPrefix : n - 1, n + 1 == end});
    }
    s.draft_fed_ = end;
  }
  return draft->forward(nodes, rows);
}

// Stages 2-4 for one sequence at one depth: q is what the token is drawn from, and what is recorded with it.
Status Stepper::Impl::propose_draft(Sequence& s, std::size_t row, int depth, trace::StepEvent& event) {
  const auto d = static_cast<std::size_t>(depth);
  const std::span<const float> logits = rows.logits_row(row).first(common);
  DRIFT_TRY(check_row(logits, "draft", draft_info));
  const DrawKey key{key_name(s.config_), event.first + depth, Purpose::kDraw, 0};
  trace::ProposedToken proposed;
  static const spec::SparseBias kNoBias;
  const spec::SparseBias* bias = &kNoBias;
  float gain = 0.0f;
  Token raw = kNoToken;
  const std::span<const float> wanted =
      is_mutant(Mutant::kDraftUnconstrained) ? logits : edited(s, depth == 0 ? kPrefix : depth - 1, logits);

  if (recalibrates(s.config_.mode)) {
    if (s.lookups_.size() <= d) {
      s.lookups_.resize(d + 1);
      s.biases_.resize(d + 1);
      s.draft_rows_.resize(d + 1);
    }
    {
      Timer timer(event.times.residual_ns);  // the copy is there for the residual only
      s.draft_rows_[d].assign(logits.begin(), logits.end());
    }
    {
      Timer timer(event.times.lookup_ns);
      const std::span<const float> hidden = rows.hidden.empty() ? std::span<const float>{} : rows.hidden_row(row);
      DRIFT_TRY(s.config_.recal->lookup({hidden, s.text_}, s.lookups_[d]));
    }
    {
      Timer timer(event.times.bias_ns);
      s.config_.recal->bias(s.lookups_[d], logits, {s.config_.rule == spec::JudgeRule::kRejection, s.config_.sampler},
                            s.biases_[d]);
      bias = &s.biases_[d].bias;
      gain = s.biases_[d].gain;
      if (gain != 0.0f && !bias->empty()) {  // what the raw draft would have said, with the same random number
        sampler.apply(s.config_.sampler, wanted, dist);
        raw = dist.ids[s.config_.choices->pick(key, dist.probs)];
      }
    }
    proposed.gain = gain;
    proposed.similarity = s.lookups_[d].similarity;
  }

  Timer timer(event.times.sample_ns);
  if (is_mutant(Mutant::kFilterBeforeBias)) {
    sampler.apply(s.config_.sampler, wanted, dist);
    for (std::size_t i = 0; i < bias->size(); ++i) {
      const auto at = std::lower_bound(dist.ids.begin(), dist.ids.end(), bias->tokens[i]);
      if (at != dist.ids.end() && *at == bias->tokens[i])
        dist.probs[static_cast<std::size_t>(at - dist.ids.begin())] *= std::exp(gain * bias->values[i]);
    }
  } else {
    sampler.apply(s.config_.sampler, wanted, *bias, gain, dist);
  }
  proposed.token = dist.ids[s.config_.choices->pick(key, dist.probs)];
  proposed.from_bank = raw != kNoToken && raw != proposed.token;
  if (is_mutant(Mutant::kQRecordedRaw)) sampler.apply(s.config_.sampler, wanted, dist);
  if (is_mutant(Mutant::kFilterBeforeBias))
    sampler.apply({s.config_.sampler.temperature, 0, 1.0f, 0.0f}, wanted, *bias, gain, dist);
  add(s, proposed, /*by_draft=*/true, event);
  return Status::ok();
}

}  // namespace drift::decode
