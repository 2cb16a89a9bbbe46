#include "drift/decode/stepper.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "drift/base/check.hpp"
#include "drift/base/mutant.hpp"
#include "drift/decode/stepper_impl.hpp"
#include "drift/simd/simd.hpp"

namespace drift::decode {
namespace {

Status bad(const std::string& message) { return {Code::kInvalid, message}; }

}  // namespace

// What a sequence is called in random keys.
std::uint64_t key_name(const SequenceConfig& config) { return is_mutant(Mutant::kSequenceNotInKey) ? 0 : config.name; }

Status check_row(std::span<const float> logits, const char* role, const engine::ModelInfo& info) {
  if (simd::all_finite(logits)) return Status::ok();
  return {Code::kInternal, std::string(role) + " '" + info.name +
                               "' produced logits that are not finite; the model file or its backend is broken"};
}

Stepper::Impl::Impl(engine::Engine& t, engine::Engine* d) : target(t), draft(d), target_info(t.info()) {
  common = target_info.vocab;
  if (draft != nullptr) {
    draft_info = draft->info();
    common = std::min(common, draft_info.vocab);
  }
}

// ---- opening, prefill ----

Stepper::Stepper(engine::Engine& target, engine::Engine* draft) : impl_(std::make_unique<Impl>(target, draft)) {}
Stepper::~Stepper() = default;
std::size_t Stepper::vocab() const { return impl_->common; }

Status Stepper::Impl::check(const SequenceConfig& config) const {
  DRIFT_TRY(config.sampler.validate());
  if (config.choices == nullptr) return bad("a sequence needs a source of random choices");
  if (config.draft_tokens < 0 || config.draft_tokens > kMaxDraftTokens) {
    return bad("draft length is " + std::to_string(config.draft_tokens) + "; it must be 0 to " + std::to_string(kMaxDraftTokens));
  }
  if (config.logprobs < -1 || config.logprobs > kMaxLogprobs) {
    return bad("log-probabilities of " + std::to_string(config.logprobs) + " tokens were asked for; it must be 0 to " +
               std::to_string(kMaxLogprobs) + ", or -1 for none");
  }
  if (config.max_tokens < -1 || config.max_tokens == 0)
    return bad("the number of tokens to generate must be 1 or more, or -1 for no limit");
  if (drafts(config.mode) && draft == nullptr) return {Code::kUnsupported, "this mode needs a draft model"};
  if (learns(config.mode) && config.learner == nullptr) return bad("a mode that trains its draft needs a learner");
  if (copies(config.mode)) DRIFT_TRY(config.copy.validate());
  if (remembers(config.mode) && config.suffix == nullptr) return bad("a mode that remembers answers needs a suffix memory");
  if (recalibrates(config.mode)) {
    if (config.recal == nullptr) return bad("drift mode needs a bank");
    const bool hidden = config.recal->config().levels.has(recal::Level::kHidden);
    if (hidden && !draft_info.can.hidden) {
      return {Code::kUnsupported,
              "draft '" + draft_info.name +
                  "' gives no hidden states; drift mode needs them as keys, unless levels leaves 'hidden' out"};
    }
    const bank::BankConfig& b = config.recal->config().bank;
    if ((hidden && b.key_dim != draft_info.hidden_width) || b.vocab != common) {
      return bad("the bank has keys of " + std::to_string(b.key_dim) + " floats over " + std::to_string(b.vocab) +
                 " tokens; this pair needs " + std::to_string(draft_info.hidden_width) + " and " + std::to_string(common));
    }
  }
  return Status::ok();
}

Status Stepper::Impl::check(std::span<const Token> prompt, const SequenceConfig& config) const {
  DRIFT_TRY(check(config));
  if (prompt.empty()) return bad("the prompt is empty: there is nothing to continue");
  std::size_t context = target_info.context;
  if (drafts(config.mode)) context = std::min(context, draft_info.context);
  if (prompt.size() >= context) {
    return {Code::kLimit, "the prompt has " + std::to_string(prompt.size()) + " tokens; the context holds " +
                              std::to_string(context) +
                              ", at least one of them for the answer. Use a larger context or a shorter prompt"};
  }
  for (Token t : prompt) {
    if (t < 0 || static_cast<std::size_t>(t) >= common)
      return bad("prompt token " + std::to_string(t) + " is outside the vocabulary");
  }
  return Status::ok();
}

Result<std::unique_ptr<Sequence>> Stepper::open(std::span<const Token> prompt, const SequenceConfig& config) {
  DRIFT_TRY(impl_->check(prompt, config));
  auto s = std::make_unique<Sequence>();
  s->config_ = config;
  s->tokens_.assign(prompt.begin(), prompt.end());
  s->prompt_ = prompt.size();
  DRIFT_ASSIGN(s->target_, impl_->target.open());
  if (impl_->draft != nullptr) {
    Result<SeqId> draft = impl_->draft->open();
    if (!draft.is_ok()) {
      impl_->target.close(s->target_);
      return draft.status();
    }
    s->draft_ = *draft;
  }
  return s;
}

// An answer that is left enters the suffix memory, with the few tokens of the prompt that a match at its beginning needs.
void Stepper::Impl::remember(const Sequence& s) {
  if (!remembers(s.config_.mode) || s.emitted().empty()) return;
  const std::size_t lead = std::min<std::size_t>(s.prompt_, propose::kMostMatch);
  s.config_.suffix->add(std::span(s.tokens_).subspan(s.prompt_ - lead));
}

void Stepper::close(Sequence& s) {
  if (s.target_ >= 0) impl_->remember(s);
  if (s.target_ >= 0) impl_->target.close(s.target_);
  if (s.draft_ >= 0) impl_->draft->close(s.draft_);
  s.target_ = s.draft_ = -1;
}

Status feed(engine::Engine& engine, SeqId seq, std::span<const Token> tokens, std::size_t end, std::size_t most,
            std::vector<engine::Node>& nodes, engine::Rows& rows) {
  const Pos from = engine.length(seq);
  if (static_cast<std::size_t>(from) >= end) return Status::ok();
  const std::size_t count = std::min(most, end - static_cast<std::size_t>(from));
  nodes.clear();
  std::vector<NodeIndex> path(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<NodeIndex>(i);
    nodes.push_back({seq, tokens[static_cast<std::size_t>(from) + i], from + index, i == 0 ? kPrefix : index - 1, false});
    path[i] = index;
  }
  DRIFT_TRY(engine.forward(nodes, rows));
  return engine.keep(seq, path);
}

Status Stepper::prefill(Sequence& s, std::size_t max_tokens, bool& done) {
  if (impl_->prompt_teaches(s.config_)) return impl_->prefill_teaching(s, max_tokens, done);
  const std::size_t end = s.prompt_ - 1;  // the last prompt token goes with the first step, which needs its row
  DRIFT_TRY(feed(impl_->target, s.target_, s.tokens_, end, max_tokens, impl_->nodes, impl_->rows));
  done = static_cast<std::size_t>(impl_->target.length(s.target_)) >= end;
  if (drafts(s.config_.mode)) {
    DRIFT_TRY(feed(*impl_->draft, s.draft_, s.tokens_, end, max_tokens, impl_->nodes, impl_->rows));
    done = done && static_cast<std::size_t>(impl_->draft->length(s.draft_)) >= end;
  }
  return Status::ok();
}

Status Stepper::prefill(Sequence& s) {
  for (bool done = false; !done;) DRIFT_TRY(prefill(s, s.prompt_, done));
  return Status::ok();
}

Status Stepper::restart(Sequence& s, std::span<const Token> prompt, const SequenceConfig& config) {
  DRIFT_TRY(impl_->check(prompt, config));
  std::vector<Token> tokens(prompt.begin(), prompt.end());
  // What the engines keep is always the start of tokens_. The last prompt token is left out: the first step needs its row.
  const auto common = std::mismatch(s.tokens_.begin(), s.tokens_.end(), tokens.begin(), tokens.end()).first - s.tokens_.begin();
  const auto most = static_cast<Pos>(std::min<std::size_t>(static_cast<std::size_t>(common), tokens.size() - 1));
  DRIFT_TRY(impl_->target.truncate(s.target_, std::min(most, impl_->target.length(s.target_))));
  if (s.draft_ >= 0) DRIFT_TRY(impl_->draft->truncate(s.draft_, std::min(most, impl_->draft->length(s.draft_))));
  impl_->remember(s);
  s.config_ = config;
  s.tokens_ = std::move(tokens);
  s.prompt_ = s.tokens_.size();
  s.ending_ = Ending::kRunning;
  s.steps_ = 0;
  return Status::ok();
}

Status Stepper::rewind(Sequence& s, const SequenceConfig& config) {
  DRIFT_TRY(restart(s, std::span<const Token>(s.tokens_).first(s.prompt_), config));
  if (!impl_->prompt_teaches(config)) return Status::ok();
  const auto from = static_cast<Pos>(first_lesson(s.prompt_ - 1));
  DRIFT_TRY(impl_->target.truncate(s.target_, std::min(from, impl_->target.length(s.target_))));
  return impl_->draft->truncate(s.draft_, std::min(from, impl_->draft->length(s.draft_)));
}

// ---- the step ----

Status Stepper::step(std::span<Sequence* const> sequences, std::vector<trace::StepEvent>& events) {
  Impl& m = *impl_;
  events.resize(sequences.size());
  m.stepping.assign(sequences.begin(), sequences.end());
  trace::StepTimes shared;  // model passes, common to the batch
  std::int64_t total = 0, margins = 0;
  {
    Timer timer(total);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = *sequences[i];
      DRIFT_CHECK(s.ending_ == Ending::kRunning && s.target_ >= 0, "only running sequences step");
      events[i] = {};
      events[i].sequence = s.config_.name;
      events[i].step = s.steps_++;
      events[i].first = static_cast<Pos>(s.tokens_.size());
      events[i].sequences = static_cast<int>(sequences.size());
      m.begin_block(s);
    }
    DRIFT_TRY(m.grow(events, shared));
    if (is_mutant(Mutant::kMemoryLearnsProposals)) {
      for (const Sequence* s : sequences) {
        if (remembers(s->config_.mode)) s->config_.suffix->add(s->text_);
      }
    }
    DRIFT_TRY(m.verify(shared));
    if (is_mutant(Mutant::kBankChangesInStep) || is_mutant(Mutant::kQRecomputedAfterCommit)) {
      for (Sequence* s : sequences) m.spoil_q(*s);
    }
    if (is_mutant(Mutant::kWeightsChangeInStep) || is_mutant(Mutant::kQRecomputedAfterUpdate)) {
      for (Sequence* s : sequences) DRIFT_TRY(m.spoil_weights(*s));
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) m.judge(*sequences[i], events[i]);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i]->config_.record_margins) {
        Timer apart(margins);
        m.emit_margins(*sequences[i], events[i]);
      }
      if (sequences[i]->config_.logprobs >= 0) m.emit_logprobs(*sequences[i], events[i]);
    }
    // Rows live until the engine's next call, so lessons are taken before keep().
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Status learned = m.learn(*sequences[i], events[i]);
      if (!learned.is_ok()) return m.forget(learned);
    }
    for (Sequence* s : sequences) {
      const Status kept = m.keep(*s);
      if (!kept.is_ok()) return m.forget(kept);
    }
    const Status trained = m.commit_drafts(events);
    if (!trained.is_ok()) return m.forget(trained);
    m.commit(events);
    for (std::size_t i = 0; i < sequences.size(); ++i) m.emit(*sequences[i], events[i]);
  }
  for (trace::StepEvent& e : events) {
    e.times.draft_ns += shared.draft_ns;
    e.times.verify_ns += shared.verify_ns;
    e.times.total_ns = total - margins;
  }
  return Status::ok();
}

// Stage 5: the frontier token and all proposals of all sequences, one target pass.
Status Stepper::Impl::verify(trace::StepTimes& times) {
  nodes.clear();
  for (Sequence* s : stepping) {
    s->first_row_ = nodes.size();  // every node wants a row, so row numbers are node numbers
    const Pos kept = target.length(s->target_);
    DRIFT_CHECK(static_cast<std::size_t>(kept) + 1 == s->tokens_.size(), "the target lacks exactly the frontier token");
    nodes.push_back({s->target_, s->tokens_.back(), kept, kPrefix, true});
    for (std::size_t i = 0; i < s->tree_.size(); ++i) {
      const spec::DraftNode& n = s->tree_.nodes()[i];
      // Node 0 of the sequence is the frontier, so tree node i is node i + 1.
      nodes.push_back({s->target_, n.token, kept + 1 + n.depth, n.parent + 1, true});
    }
  }
  {
    Timer timer(times.verify_ns);
    DRIFT_TRY(target.forward(nodes, rows));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) DRIFT_TRY(check_row(rows.logits_row(i), "target", target_info));
  return Status::ok();
}

// Logits as the request wants them, after the decided text and the path that ends in `last`. The raw row stays as it is.
std::span<const float> Stepper::Impl::edited(const Sequence& s, NodeIndex last, std::span<const float> logits) {
  if (s.config_.edit == nullptr) return logits;
  path_tokens.clear();
  for (NodeIndex node = last; node != kPrefix; node = s.tree_.node(node).parent) path_tokens.push_back(s.tree_.node(node).token);
  std::reverse(path_tokens.begin(), path_tokens.end());
  edited_logits.assign(logits.begin(), logits.end());
  s.config_.edit->apply(s.tokens_, path_tokens, edited_logits);
  return edited_logits;
}

// The target's processed distribution after a node of the tree (kPrefix: after the frontier token).
void Stepper::Impl::target_distribution(const Sequence& s, NodeIndex node, spec::Distribution& out) {
  const std::span<const float> wanted = edited(s, node, target_row(s, node));
  const auto next = static_cast<std::size_t>(node + 1);
  if (is_mutant(Mutant::kTargetBiased) && recalibrates(s.config_.mode) && next < s.tree_.size() && s.by_draft_[next]) {
    const recal::Bias& b = s.biases_[next];
    sampler.apply(s.config_.sampler, wanted, b.bias, b.gain, out);
    return;
  }
  sampler.apply(s.config_.sampler, wanted, out);
}

// Stage 6, and the facts about each proposal that only the judge knows.
void Stepper::Impl::judge(Sequence& s, trace::StepEvent& event) {
  Timer timer(event.times.sample_ns);
  const auto target_at = [&](NodeIndex node) -> const spec::Distribution& {
    target_distribution(s, node, dist);
    // The chance of acceptance under the rejection rule, for the child that is about to be tested (lines: node + 1).
    const auto child = static_cast<std::size_t>(node + 1);
    if (!s.config_.sampler.greedy() && child < event.proposed.size()) {
      event.proposed[child].overlap = static_cast<float>(spec::overlap(dist, s.tree_.q(static_cast<NodeIndex>(child))));
    }
    return dist;
  };
  spec::judge(s.config_.rule, s.tree_, target_at, *s.config_.choices, key_name(s.config_), event.first, s.outcome_);
  // An end token ends the answer: what was accepted after it is not part of the text and teaches nothing.
  for (std::size_t i = 0; i < s.outcome_.accepted.size(); ++i) {
    if (is_mutant(Mutant::kEndIgnored)) break;
    if (s.config_.is_end && s.config_.is_end(s.tree_.node(s.outcome_.accepted[i]).token)) {
      s.outcome_.accepted.resize(i + 1);
      s.outcome_.next = kNoToken;
      break;
    }
  }
  for (NodeIndex node : s.outcome_.accepted) event.proposed[static_cast<std::size_t>(node)].accepted = true;
}

// Stage 8: drafted positions up to and including the first rejected one teach (method.md section 4). Where the draft did not run
// there is nothing to correct, but levels that store what the target said learn it.
Status Stepper::Impl::learn(Sequence& s, trace::StepEvent& event) {
  if (!recalibrates(s.config_.mode) && !learns(s.config_.mode)) return Status::ok();
  std::size_t taught = s.outcome_.accepted.size();
  if (s.outcome_.next != kNoToken) ++taught;  // the position where a proposal fell, if there was one
  taught = std::min(taught, s.tree_.size());
  if (is_mutant(Mutant::kTeachOffPath)) taught = s.tree_.size();
  Timer timer(event.times.residual_ns);
  if (learns(s.config_.mode)) return teach_draft(s, taught);
  const recal::Judging judging{s.config_.rule == spec::JudgeRule::kRejection, s.config_.sampler};
  for (std::size_t i = 0; i < taught; ++i) {
    const std::span<const float> target_logits = target_row(s, static_cast<NodeIndex>(i) - 1).first(common);
    const bool stale = is_mutant(Mutant::kSkippedDraftTeaches) && i < s.draft_rows_.size() && !s.draft_rows_[i].empty();
    if (!s.by_draft_[i] && !stale) {
      DRIFT_TRY(s.config_.recal->observe_target(std::span<const Token>(s.text_).first(s.tokens_.size() + i), target_logits));
      continue;
    }
    DRIFT_TRY(s.config_.recal->observe(s.lookups_[i], s.biases_[i], s.draft_rows_[i], target_logits, judging));
  }
  return Status::ok();
}

// The first `taught` drafted positions, as a lesson for the draft itself.
Status Stepper::Impl::teach_draft(const Sequence& s, std::size_t taught) {
  if (taught == 0) return Status::ok();
  lesson_text.assign(s.tokens_.begin(), s.tokens_.end());
  lesson_rows.clear();
  for (std::size_t i = 0; i < taught; ++i) {
    if (i > 0) lesson_text.push_back(s.tree_.node(static_cast<NodeIndex>(i) - 1).token);
    lesson_rows.push_back(target_row(s, static_cast<NodeIndex>(i) - 1).data());
  }
  return s.config_.learner->observe({s.config_.name, lesson_text, lesson_rows, common, taught > s.outcome_.accepted.size()});
}

// Stage 7: the accepted path stays in both engines, everything else goes.
Status Stepper::Impl::keep(Sequence& s) {
  const auto accepted = static_cast<NodeIndex>(s.outcome_.accepted.size());
  std::vector<NodeIndex> path;
  for (NodeIndex i = 0; i <= accepted; ++i) path.push_back(i);  // the frontier token, then the accepted proposals
  if (s.outcome_.next == kNoToken) path.pop_back();  // an end token closes the text: nothing follows it, its row is not needed
  DRIFT_TRY(target.keep(s.target_, path));
  if (s.draft_fed_ == 0) return Status::ok();
  // The draft was fed the decided tokens it lacked, then proposals, but not the last one.
  path.clear();
  const NodeIndex line = static_cast<NodeIndex>(s.tokens_.size()) - draft->length(s.draft_);
  const NodeIndex stood = s.outcome_.next == kNoToken ? accepted - 1 : accepted;
  const NodeIndex fed = is_mutant(Mutant::kDraftKeepsRejected) ? s.draft_fed_ : std::min(s.draft_fed_, line + stood);
  for (NodeIndex i = 0; i < fed; ++i) path.push_back(i);
  return draft->keep(s.draft_, path);
}

Status Stepper::Impl::forget(Status why) {
  if (is_mutant(Mutant::kFailedStepTeaches)) return why;
  for (Sequence* s : stepping) {
    if (recalibrates(s->config_.mode)) s->config_.recal->discard();
    if (learns(s->config_.mode)) s->config_.learner->discard();
  }
  return why;
}

// Stage 9: every bank once, in the order its sequences stand in the batch.
void Stepper::Impl::commit(std::vector<trace::StepEvent>& events) {
  to_commit.clear();
  for (std::size_t i = 0; i < stepping.size(); ++i) {
    recal::Recalibrator* r = recalibrates(stepping[i]->config_.mode) ? stepping[i]->config_.recal : nullptr;
    if (r == nullptr || std::find(to_commit.begin(), to_commit.end(), r) != to_commit.end()) continue;
    to_commit.push_back(r);
    Timer timer(events[i].times.commit_ns);
    r->commit();
  }
}

// Stage 9 for drafts that learn. No node is pending, so their weights may change.
Status Stepper::Impl::commit_drafts(std::vector<trace::StepEvent>& events) {
  learning.clear();
  for (std::size_t i = 0; i < stepping.size(); ++i) {
    engine::Learner* l = learns(stepping[i]->config_.mode) ? stepping[i]->config_.learner : nullptr;
    if (l == nullptr || std::find(learning.begin(), learning.end(), l) != learning.end()) continue;
    learning.push_back(l);
    Timer timer(events[i].times.commit_ns);
    DRIFT_TRY(l->commit());
  }
  return Status::ok();
}

// Stage 10: the decided tokens become text.
void Stepper::Impl::emit(Sequence& s, trace::StepEvent& event) {
  for (NodeIndex node : s.outcome_.accepted) {
    const spec::DraftNode& n = s.tree_.node(node);
    event.emitted.push_back({n.token, n.from_bank ? trace::Origin::kAcceptedBank : trace::Origin::kAccepted});
  }
  if (s.outcome_.next != kNoToken) event.emitted.push_back({s.outcome_.next, trace::Origin::kTarget});
  for (const trace::EmittedToken& e : event.emitted) s.tokens_.push_back(e.token);

  const std::size_t emitted = s.tokens_.size() - s.prompt_;
  std::size_t context = target_info.context;
  if (drafts(s.config_.mode)) context = std::min(context, draft_info.context);
  if (s.config_.is_end && s.config_.is_end(s.tokens_.back()))
    s.ending_ = Ending::kEnd;
  else if (s.config_.max_tokens >= 0 && emitted >= static_cast<std::size_t>(s.config_.max_tokens))
    s.ending_ = Ending::kLength;
  else if (s.tokens_.size() >= context)
    s.ending_ = Ending::kContext;
}

// For each token about to be emitted: how close the target was to another one.
void Stepper::Impl::emit_margins(const Sequence& s, trace::StepEvent& event) {
  constexpr std::size_t kTop = 8;
  const auto* stream = dynamic_cast<const RngStream*>(s.config_.choices);
  const std::size_t count = s.outcome_.accepted.size() + (s.outcome_.next != kNoToken ? 1 : 0);
  event.margins.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const NodeIndex before = i == 0 ? kPrefix : s.outcome_.accepted[i - 1];
    const Token token = i < s.outcome_.accepted.size() ? s.tree_.node(s.outcome_.accepted[i]).token : s.outcome_.next;
    trace::Margin& margin = event.margins[i];
    const std::span<const float> row = target_row(s, before);
    if (s.config_.sampler.greedy()) {
      margin.top.resize(std::min(kTop, row.size()));
      margin.top.resize(simd::top_k(row, margin.top.size(), margin.top));
      for (Token t : margin.top) margin.top_logits.push_back(row[static_cast<std::size_t>(t)]);
    } else if (stream != nullptr && s.config_.rule == spec::JudgeRule::kMatch) {
      sampler.apply(s.config_.sampler, row, dist);
      margin.draw = stream->uniform({key_name(s.config_), event.first + static_cast<Pos>(i), Purpose::kDraw, 0});
      for (std::size_t j = 0; j < dist.size() && dist.ids[j] < token; ++j) margin.low += static_cast<double>(dist.probs[j]);
      margin.high = margin.low + static_cast<double>(dist.of(token));
    }
  }
}

// What the target said of each token about to be emitted, before any edit or filter: as for a plain answer, so for accepted proposals.
void Stepper::Impl::emit_logprobs(const Sequence& s, trace::StepEvent& event) {
  const std::size_t count = s.outcome_.accepted.size() + (s.outcome_.next != kNoToken ? 1 : 0);
  event.logprobs.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const NodeIndex before = i == 0 ? kPrefix : s.outcome_.accepted[i - 1];
    const Token token = i < s.outcome_.accepted.size() ? s.tree_.node(s.outcome_.accepted[i]).token : s.outcome_.next;
    const std::span<const float> row = target_row(s, before);
    const double norm = simd::log_sum_exp(row);
    const auto logprob = [&](Token t) {
      return static_cast<float>(static_cast<double>(row[static_cast<std::size_t>(t)]) - norm);
    };
    trace::TokenLogprobs& out = event.logprobs[i];
    out.logprob = logprob(token);
    out.top.resize(std::min(static_cast<std::size_t>(s.config_.logprobs), row.size()));
    out.top.resize(simd::top_k(row, out.top.size(), out.top));
    out.top_logprobs.clear();
    for (Token t : out.top) out.top_logprobs.push_back(logprob(t));
  }
}

// Two of the deliberate bugs of mutant.hpp: q is taken from a bank that changed after the token was drawn.
void Stepper::Impl::spoil_q(Sequence& s) {
  if (!recalibrates(s.config_.mode) || s.tree_.size() == 0) return;
  recal::Recalibrator& r = *s.config_.recal;
  const recal::Judging judging{s.config_.rule == spec::JudgeRule::kRejection, s.config_.sampler};
  if (is_mutant(Mutant::kQRecomputedAfterCommit)) {
    for (std::size_t i = 0; i < s.tree_.size(); ++i) {
      if (!s.by_draft_[i]) continue;
      (void)r.observe(s.lookups_[i], s.biases_[i], s.draft_rows_[i], target_row(s, static_cast<NodeIndex>(i) - 1).first(common),
                      judging);
    }
    r.commit();
  } else {
    // Entries stay where they are, so that only what they say is wrong.
    r.bank().rekey([](std::span<float> key) {
      for (float& x : key) x = -x;
    });
  }
  for (std::size_t i = 0; i < s.tree_.size(); ++i) {
    if (!s.by_draft_[i]) continue;
    recal::Lookup lookup;
    recal::Bias bias;
    std::span<const Token> context(s.text_);
    if (!context.empty()) context = context.first(s.tokens_.size() + i);
    (void)r.lookup({s.lookups_[i].unit, context}, lookup);
    r.bias(lookup, s.draft_rows_[i], judging, bias);
    sampler.apply(s.config_.sampler, s.draft_rows_[i], bias.bias, bias.gain, s.tree_.mutable_q(static_cast<NodeIndex>(i)));
  }
}

// Two more: a draft's weights change while its proposals wait for their judge, and q is read from the draft again.
Status Stepper::Impl::spoil_weights(Sequence& s) {
  if (!learns(s.config_.mode) || s.block_ == 0) return Status::ok();
  if (is_mutant(Mutant::kQRecomputedAfterUpdate)) {
    DRIFT_TRY(teach_draft(s, s.tree_.size()));  // the real lesson, too early
  } else {
    std::vector<float> own(common, 0.0f);  // the draft becomes surer of its own first proposal
    own[static_cast<std::size_t>(s.tree_.node(0).token)] = 10.0f;
    const float* const rows_of_own[] = {own.data()};
    DRIFT_TRY(s.config_.learner->observe({s.config_.name, s.tokens_, rows_of_own, common, false}));
  }
  DRIFT_TRY(draft->keep(s.draft_, {}));
  DRIFT_TRY(s.config_.learner->commit());
  nodes.clear();
  const Pos kept = draft->length(s.draft_);
  const NodeIndex line = static_cast<NodeIndex>(s.tokens_.size()) - kept;  // decided tokens it has not kept
  for (NodeIndex i = 0; i < line + s.block_ - 1; ++i) {
    const NodeIndex proposal = i - line;
    const Token token = proposal < 0 ? s.tokens_[static_cast<std::size_t>(kept + i)] : s.tree_.node(proposal).token;
    nodes.push_back({s.draft_, token, kept + i, i == 0 ? kPrefix : i - 1, proposal >= -1});
  }
  engine::Rows again;
  DRIFT_TRY(draft->forward(nodes, again));
  for (std::size_t i = 0; i < s.tree_.size(); ++i)
    sampler.apply(s.config_.sampler, again.logits_row(i).first(common), s.tree_.mutable_q(static_cast<NodeIndex>(i)));
  return Status::ok();
}

}  // namespace drift::decode
