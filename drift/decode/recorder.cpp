#include "drift/decode/recorder.hpp"

#include <algorithm>
#include <string>

#include "drift/base/check.hpp"
#include "drift/decode/stepper_impl.hpp"
#include "drift/simd/simd.hpp"

namespace drift::decode {
namespace {

constexpr std::size_t kChunk = 64;  // tokens passed between two looks at `stop`

Status stopped() { return {Code::kCancelled, "interrupted"}; }

const char* ending_name(Ending ending) {
  return ending == Ending::kEnd ? "end" : ending == Ending::kLength ? "length" : "context";
}

}  // namespace

// ---- the tap ----

RowTap::RowTap(engine::Engine& inner, std::size_t vocab, std::size_t row_tokens, bool hidden)
    : Wrapper(inner), vocab_(vocab), row_tokens_(row_tokens), hidden_(hidden) {
  DRIFT_CHECK(vocab <= inner.info().vocab, "a tap's rows are no wider than the engine's");
}

engine::ModelInfo RowTap::info() const {
  engine::ModelInfo info = Wrapper::info();
  info.vocab = vocab_;
  info.can.prompt_rows = false;  // a trace has none, and what taught the run must be there when it is replayed
  if (!hidden_) {
    info.hidden_width = 0;
    info.can.hidden = false;
  }
  return info;
}

Status RowTap::forward(std::span<const engine::Node> nodes, engine::Rows& out) {
  DRIFT_TRY(Wrapper::forward(nodes, out));
  Timer timer(own_ns_);
  if (!hidden_) out.hidden.clear();
  std::size_t row = 0;
  for (const engine::Node& node : nodes) {
    if (node.wants_row) DRIFT_TRY(reduce(node, row++, out));
  }
  out.vocab = vocab_;
  if (!hidden_) out.hidden_width = 0;
  return Status::ok();
}

// Puts a row as a trace keeps it in the place of the engine's.
Status RowTap::reduce(const engine::Node& node, std::size_t row, engine::Rows& out) {
  const std::span<const float> logits(out.logits[row], vocab_);
  if (!simd::all_finite(logits)) return Status::ok();  // the stepper refuses it and names the model
  if (seen_.size() == count_) seen_.emplace_back();
  Seen& seen = seen_[count_];
  seen.position = node.pos + 1;
  trace::reduce_logits(logits, row_tokens_, seen.row);
  seen.row.hidden.clear();
  if (logits_.size() <= row) {
    logits_.resize(row + 1);
    states_.resize(row + 1);
  }
  logits_[row].resize(vocab_);
  trace::expand_logits(seen.row, logits_[row]);
  out.logits[row] = logits_[row].data();
  if (hidden_) {
    DRIFT_TRY(trace::reduce_hidden(out.hidden_row(row), seen.row));
    states_[row].resize(out.hidden_width);
    trace::expand_hidden(seen.row, states_[row]);
    out.hidden[row] = states_[row].data();
  }
  ++count_;
  return Status::ok();
}

// ---- the recorder ----

Recorder::Recorder(engine::Engine& target, engine::Engine* draft, trace::Header header) : header_(std::move(header)) {
  const engine::ModelInfo t = target.info();
  if (header_.row_tokens == 0) header_.row_tokens = static_cast<std::uint32_t>(trace::kRowTokens);
  header_.target.vocab = static_cast<std::uint32_t>(t.vocab);
  header_.draft.vocab = 0;
  header_.hidden_width = 0;
  std::size_t context = t.context;
  target_ = std::make_unique<RowTap>(target, t.vocab, header_.row_tokens, /*hidden=*/false);
  if (draft != nullptr) {
    const engine::ModelInfo d = draft->info();
    // What only the draft knows is never proposed.
    const std::size_t common = std::min(t.vocab, d.vocab);
    header_.draft.vocab = static_cast<std::uint32_t>(common);
    header_.hidden_width = d.can.hidden ? static_cast<std::uint32_t>(d.hidden_width) : 0;
    draft_ = std::make_unique<RowTap>(*draft, common, header_.row_tokens, d.can.hidden);
    context = std::min(context, d.context);
  }
  header_.context = static_cast<std::uint32_t>(std::min(context, trace::kMaxPromptTokens));
  stepper_ = std::make_unique<Stepper>(*target_, draft_.get());
}

Status Recorder::check(const SequenceConfig& config) const {
  DRIFT_TRY(header_.validate());
  if (learns(config.mode)) {
    return {
        Code::kUnsupported,
        "a draft that learns says something else each time: its rows are no function of the text, so there is no trace of it"};
  }
  if (config.edit != nullptr) return {Code::kUnsupported, "a run whose logits are edited is not recorded"};
  const trace::Sampling& s = header_.sampling;
  const spec::SamplerConfig& c = config.sampler;
  const bool same = s.temperature == c.temperature && s.top_k == c.top_k && s.top_p == c.top_p && s.min_p == c.min_p &&
                    s.rejection == (config.rule == spec::JudgeRule::kRejection);
  if (!same) return {Code::kInvalid, "the trace's header names another sampler or judge than the run has"};
  return trace::check_drawable(s, header_.target.vocab, header_.row_tokens);
}

Status Recorder::record(const trace::Prompt& prompt, const SequenceConfig& config, trace::Writer& writer,
                        const std::function<bool()>& stop, const std::function<void(const trace::StepEvent&)>& done) {
  DRIFT_TRY(check(config));
  SequenceConfig own = config;
  own.name = prompt.sequence;
  DRIFT_ASSIGN(const std::unique_ptr<Sequence> sequence, stepper_->open(prompt.tokens, own));
  Status status = writer.begin_prompt(prompt);
  if (status.is_ok()) status = run(*sequence, writer, stop, done);
  stepper_->close(*sequence);
  if (status.is_ok() && draft_) status = fill_draft_rows(sequence->tokens(), prompt.tokens.size(), writer, stop);
  if (status.is_ok()) status = writer.end_prompt(ending_name(sequence->ending()), prefill_ns_);
  if (status.is_ok()) return status;
  const Status dropped = writer.drop_prompt();
  return dropped.is_ok() || status.code() != Code::kCancelled ? status : dropped;
}

Status Recorder::prefill(Sequence& sequence, const std::function<bool()>& stop) {
  prefill_ns_ = 0;
  for (bool over = false; !over;) {
    if (stop && stop()) return stopped();
    Timer timer(prefill_ns_);
    DRIFT_TRY(stepper_->prefill(sequence, kChunk, over));
  }
  return Status::ok();
}

Status Recorder::run(Sequence& sequence, trace::Writer& writer, const std::function<bool()>& stop,
                     const std::function<void(const trace::StepEvent&)>& done) {
  DRIFT_TRY(prefill(sequence, stop));
  drafted_.clear();
  std::vector<trace::StepEvent> events;
  Sequence* const one[] = {&sequence};
  while (sequence.ending() == Ending::kRunning) {
    if (stop && stop()) return stopped();
    target_->forget();
    if (draft_) draft_->forget();
    const std::int64_t draft_ns = draft_ ? draft_->own_ns() : 0, target_ns = target_->own_ns();
    DRIFT_TRY(stepper_->step(one, events));
    DRIFT_TRY(write_step(events[0], draft_ns, target_ns, writer));
    if (done) done(events[0]);
  }
  return Status::ok();
}

// `draft_ns`, `target_ns`: what the taps had taken before the step.
Status Recorder::write_step(trace::StepEvent& event, std::int64_t draft_ns, std::int64_t target_ns, trace::Writer& writer) {
  const std::int64_t in_draft = (draft_ ? draft_->own_ns() : 0) - draft_ns, in_verify = target_->own_ns() - target_ns;
  event.times.draft_ns -= in_draft;
  event.times.verify_ns -= in_verify;
  event.times.total_ns -= in_draft + in_verify;
  DRIFT_TRY(writer.add_step(event));
  // Rows behind the first proposal that fell, or behind an end token, belong to no emitted position.
  const Pos end = event.first + static_cast<Pos>(event.emitted.size());
  drafted_.resize(drafted_.size() + event.emitted.size(), 0);
  for (const RowTap::Seen& seen : target_->seen()) {
    if (seen.position >= event.first && seen.position < end)
      DRIFT_TRY(writer.add_row(trace::Side::kTarget, seen.position, seen.row));
  }
  if (!draft_) return Status::ok();
  const std::size_t before = drafted_.size() - event.emitted.size();
  for (const RowTap::Seen& seen : draft_->seen()) {
    if (seen.position < event.first || seen.position >= end) continue;
    DRIFT_TRY(writer.add_row(trace::Side::kDraft, seen.position, seen.row));
    drafted_[before + static_cast<std::size_t>(seen.position - event.first)] = 1;
  }
  return Status::ok();
}

// The draft was not asked where a block ended early, or where a token was copied: it reads the whole text once more.
Status Recorder::fill_draft_rows(std::span<const Token> text, std::size_t prompt, trace::Writer& writer,
                                 const std::function<bool()>& stop) {
  if (std::find(drafted_.begin(), drafted_.end(), 0) == drafted_.end()) return Status::ok();
  DRIFT_ASSIGN(const SeqId seq, draft_->open());
  const Status status = fill_from(seq, text, prompt, writer, stop);
  draft_->close(seq);
  return status;
}

Status Recorder::fill_from(SeqId seq, std::span<const Token> text, std::size_t prompt, trace::Writer& writer,
                           const std::function<bool()>& stop) {
  std::vector<engine::Node> nodes;
  std::vector<NodeIndex> path;
  engine::Rows rows;
  const std::size_t end = text.size() - 1;  // nothing follows the last token
  for (std::size_t from = 0; from < end; from += kChunk) {
    if (stop && stop()) return stopped();
    nodes.clear();
    path.clear();
    for (std::size_t i = from; i < std::min(end, from + kChunk); ++i) {
      if (static_cast<std::size_t>(text[i]) >= header_.draft.vocab)
        return {Code::kUnsupported, "an answer holds a token that the draft does not know: its rows cannot be computed"};
      const auto index = static_cast<NodeIndex>(i - from);
      const bool wanted = i + 1 >= prompt && drafted_[i + 1 - prompt] == 0;
      nodes.push_back({seq, text[i], static_cast<Pos>(i), index == 0 ? kPrefix : index - 1, wanted});
      path.push_back(index);
    }
    draft_->forget();
    DRIFT_TRY(draft_->forward(nodes, rows));
    for (std::size_t i = 0; i < rows.size(); ++i) DRIFT_TRY(check_row(rows.logits_row(i), "draft", draft_->info()));
    DRIFT_TRY(draft_->keep(seq, path));
    for (const RowTap::Seen& seen : draft_->seen()) {
      trace::Row row = seen.row;
      row.seen = false;
      DRIFT_TRY(writer.add_row(trace::Side::kDraft, seen.position, row));
    }
  }
  return Status::ok();
}

}  // namespace drift::decode
