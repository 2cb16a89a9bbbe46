#include "engines/replay/replay.hpp"

#include <algorithm>
#include <string>

#include "drift/base/check.hpp"
#include "drift/engine/line.hpp"

namespace drift::engine {
namespace {

constexpr std::size_t kMaxSequences = 16;

Status cannot(const std::string& why) { return {Code::kUnsupported, "this trace cannot be replayed so: " + why}; }

}  // namespace

Status check_replay(const trace::Header& recorded, const ReplayUse& use) {
  if (use.trees) return cannot("it holds one text, and a tree asks for rows beside it");
  if (use.trains_draft) return cannot("a draft that learns would say something else than the recorded one");
  const trace::Sampling &was = recorded.sampling, &now = use.sampling;
  const bool greedy = now.temperature == 0.0f;
  if (now.rejection && !greedy)
    return cannot("above temperature 0 the rejection judge's text depends on what is proposed; use the match judge");
  if (was.rejection && was.temperature != 0.0f)
    return cannot("it was recorded with the rejection judge above temperature 0, so its text is not the target's own draws");
  if ((was.temperature == 0.0f) != greedy || (!greedy && was.temperature != now.temperature))
    return cannot("its text was drawn at another temperature");
  if (!greedy && (was.top_k != now.top_k || was.top_p != now.top_p || was.min_p != now.min_p))
    return cannot("its text was drawn with another top-k, top-p or min-p");
  if (!greedy && was.seed != now.seed) return cannot("its text was drawn with another seed");
  return trace::check_drawable(now, recorded.target.vocab, recorded.row_tokens);
}

Status check_replayed(const trace::PromptRecord& recorded, std::span<const Token> emitted) {
  const auto [was, now] = std::mismatch(recorded.emitted.begin(), recorded.emitted.end(), emitted.begin(), emitted.end());
  if (was == recorded.emitted.end() && now == emitted.end()) return Status::ok();
  return cannot("prompt " + recorded.prompt.id + " left the recorded answer at its token " +
                std::to_string(was - recorded.emitted.begin()) + "; are sampler, seed and length the recorded ones?");
}

Result<std::unique_ptr<ReplayEngine>> ReplayEngine::make(const trace::Reader& trace, trace::Side side) {
  if (side == trace::Side::kDraft && !trace.header().has_draft())
    return Status(Code::kUnsupported, "this trace was recorded without a draft; modes that need one cannot be replayed from it");
  DRIFT_CHECK(trace.prompts() > 0, "a replay needs a prompt");
  std::unique_ptr<ReplayEngine> engine(new ReplayEngine(trace, side));
  engine->sequences_.resize(kMaxSequences);
  engine->added_.resize(kMaxSequences);
  DRIFT_TRY(engine->select(0));
  return engine;
}

Status ReplayEngine::select(std::size_t index) {
  if (selected_ && selected_->index == index) return Status::ok();
  DRIFT_ASSIGN(trace::PromptRecord record, trace_.prompt(index));
  auto text = std::make_shared<Text>();
  text->index = index;
  text->prompt = record.prompt.tokens.size();
  text->tokens = std::move(record.prompt.tokens);
  text->tokens.insert(text->tokens.end(), record.emitted.begin(), record.emitted.end());
  selected_ = std::move(text);
  return Status::ok();
}

ModelInfo ReplayEngine::info() const {
  const trace::Header& header = trace_.header();
  const bool draft = side_ == trace::Side::kDraft;
  const trace::Model& model = draft ? header.draft : header.target;
  ModelInfo info;
  info.name = model.name;
  info.arch = "replay";
  info.vocab = model.vocab;
  info.hidden_width = draft ? header.hidden_width : 0;
  info.context = header.context;
  info.max_sequences = kMaxSequences;
  info.content_hash = model.hash;
  info.can = {.hidden = info.hidden_width > 0, .trees = false, .truncate = true, .fork = true, .prompt_rows = false};
  return info;
}

Result<SeqId> ReplayEngine::open() {
  const auto free = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.open; });
  if (free == sequences_.end())
    return Status(Code::kLimit, "replay: " + std::to_string(kMaxSequences) + " sequences are open already");
  *free = {};
  free->open = true;
  free->text = selected_;
  return static_cast<SeqId>(free - sequences_.begin());
}

Status ReplayEngine::off_text(const Text& text, Pos position) const {
  if (static_cast<std::size_t>(position) >= text.tokens.size())
    return cannot("prompt " + std::to_string(text.index) + " was recorded up to position " +
                  std::to_string(text.tokens.size() - 1) + " and not beyond");
  return cannot("prompt " + std::to_string(text.index) + " has another token than the recorded one at position " +
                std::to_string(position) + "; are prompt, sampler and seed the recorded ones?");
}

// The target is given decided text as the first node after a keep. What it decided must be what is recorded. (The draft's first
// nodes may be proposals; decided ones pass through the target in the same step.)
Status ReplayEngine::check_decided(const Node& node, const Sequence& s) const {
  const bool decided = side_ == trace::Side::kTarget && node.parent == kPrefix;
  const std::vector<Token>& tokens = s.text->tokens;
  const auto pos = static_cast<std::size_t>(node.pos);
  if (!decided || (pos < tokens.size() && tokens[pos] == node.token)) return Status::ok();
  return off_text(*s.text, node.pos);
}

Status ReplayEngine::forward(std::span<const Node> nodes, Rows& out) {
  if (nodes.empty()) return {Code::kInvalid, "forward: no nodes"};
  const ModelInfo own = info();
  const auto line_of = [this](SeqId seq) {
    if (!is_open(seq)) return Line{};
    const Sequence& s = sequences_[static_cast<std::size_t>(seq)];
    return Line{true, s.kept, s.pending};
  };
  DRIFT_TRY(check_line_nodes(nodes, own.vocab, static_cast<Pos>(own.context), line_of, added_));
  const std::vector<Sequence> before = sequences_;  // a failure leaves the engine unchanged
  out.vocab = own.vocab;
  out.hidden_width = own.hidden_width;
  out.logits.clear();
  out.hidden.clear();
  for (const Node& node : nodes) {
    Sequence& s = at(node.seq);
    const auto pos = static_cast<std::size_t>(node.pos);
    const bool on_path = s.on_path == s.pending && pos < s.text->tokens.size() && s.text->tokens[pos] == node.token;
    Status status = check_decided(node, s);
    if (status.is_ok() && node.wants_row) status = put_row(node, s, on_path, out);
    if (!status.is_ok()) {
      sequences_ = before;
      return status;
    }
    ++s.pending;
    if (on_path) ++s.on_path;
  }
  ++counters_.forwards;
  counters_.tokens += nodes.size();
  counters_.rows += out.size();
  return Status::ok();
}

Status ReplayEngine::put_row(const Node& node, const Sequence& s, bool on_path, Rows& out) {
  const std::size_t row = out.size();
  if (logits_.size() <= row) {
    logits_.resize(row + 1);
    hidden_.resize(row + 1);
  }
  // Off the path, and behind the last token of a block that ends the text: marked, not invented.
  logits_[row].assign(out.vocab, 0.0f);
  hidden_[row].assign(out.hidden_width, 0.0f);
  if (out.hidden_width > 0) hidden_[row][0] = 1.0f;  // a key needs a direction
  const Pos decides = node.pos + 1;
  if (on_path && static_cast<std::size_t>(decides) < s.text->tokens.size()) {
    if (static_cast<std::size_t>(decides) < s.text->prompt)
      return cannot("rows inside a prompt were not recorded (prompt " + std::to_string(s.text->index) + ", position " +
                    std::to_string(decides) + ")");
    DRIFT_TRY(trace_.row(s.text->index, side_, decides, row_));
    trace::expand_logits(row_, logits_[row]);
    trace::expand_hidden(row_, hidden_[row]);
  }
  out.logits.push_back(logits_[row].data());
  if (out.hidden_width > 0) out.hidden.push_back(hidden_[row].data());
  return Status::ok();
}

Status ReplayEngine::keep(SeqId seq, std::span<const NodeIndex> path) {
  if (!is_open(seq)) return {Code::kInvalid, "keep: sequence " + std::to_string(seq) + " is not open"};
  Sequence& s = at(seq);
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != static_cast<NodeIndex>(i) || path[i] >= s.pending)
      return {Code::kInvalid, "keep: node " + std::to_string(path[i]) + " does not continue the path"};
  }
  const auto kept = static_cast<Pos>(path.size());
  if (kept > s.on_path) return off_text(*s.text, s.kept + s.on_path);
  // Whoever keeps the last token wants to go on behind it.
  if (kept > 0 && static_cast<std::size_t>(s.kept + kept) >= s.text->tokens.size()) return off_text(*s.text, s.kept + kept);
  s.kept += kept;
  s.pending = s.on_path = 0;
  return Status::ok();
}

Result<SeqId> ReplayEngine::fork(SeqId seq) {
  if (!is_open(seq)) return Status(Code::kInvalid, "fork: sequence " + std::to_string(seq) + " is not open");
  if (at(seq).pending > 0) return Status(Code::kInvalid, "fork with pending nodes");
  DRIFT_ASSIGN(const SeqId fresh, open());
  at(fresh) = at(seq);
  return fresh;
}

Status ReplayEngine::truncate(SeqId seq, Pos length) {
  if (!is_open(seq)) return {Code::kInvalid, "truncate: sequence " + std::to_string(seq) + " is not open"};
  Sequence& s = at(seq);
  if (length < 0 || length > s.kept)
    return {Code::kInvalid, "cannot truncate " + std::to_string(s.kept) + " kept tokens to " + std::to_string(length)};
  s.kept = length;
  s.pending = s.on_path = 0;
  return Status::ok();
}

Pos ReplayEngine::length(SeqId seq) const { return is_open(seq) ? sequences_[static_cast<std::size_t>(seq)].kept : -1; }

void ReplayEngine::close(SeqId seq) {
  if (is_open(seq)) at(seq) = {};
}

}  // namespace drift::engine
