#include "drift/testing/toy_engine.hpp"

#include <algorithm>

namespace drift::testing {

using engine::Node;
using engine::Rows;

engine::ModelInfo ToyEngine::info() const {
  engine::ModelInfo info;
  info.name = model_.name;
  info.arch = "toy";
  info.vocab = model_.vocab;
  info.hidden_width = model_.hidden_width;
  info.context = model_.context;
  info.max_sequences = model_.max_sequences;
  info.content_hash = "toy:" + model_.name;
  info.can = {.hidden = model_.hidden_width > 0, .trees = true, .truncate = true, .fork = true};
  return info;
}

Result<SeqId> ToyEngine::open() {
  if (sequences_.size() >= model_.max_sequences) {
    return Status(Code::kLimit, "toy engine: " + std::to_string(model_.max_sequences) + " sequences are open already");
  }
  SeqId id = 0;
  while (sequences_.count(id) != 0) ++id;
  sequences_[id] = {};
  return id;
}

// `ahead` nodes of the same sequence come before this one in the same call.
Status ToyEngine::check(const Node& node, const Sequence& seq, std::size_t ahead) const {
  const auto known = static_cast<NodeIndex>(seq.pending.size() + ahead);
  if (node.token < 0 || static_cast<std::size_t>(node.token) >= model_.vocab) {
    return {Code::kInvalid,
            "toy engine: token " + std::to_string(node.token) + " is outside 0.." + std::to_string(model_.vocab - 1)};
  }
  if (node.parent < kPrefix || node.parent >= known)
    return {Code::kInvalid, "toy engine: node has an unknown parent " + std::to_string(node.parent)};
  if (node.pos < 0 || static_cast<std::size_t>(node.pos) >= model_.context) {
    return {Code::kLimit, "toy engine: position " + std::to_string(node.pos) + " does not fit the context of " +
                              std::to_string(model_.context)};
  }
  return Status::ok();
}

std::vector<Token> ToyEngine::context_of(const Sequence& seq, NodeIndex node) const {
  std::vector<Token> tail;
  for (NodeIndex i = node; i != kPrefix; i = seq.pending[static_cast<std::size_t>(i)].parent)
    tail.push_back(seq.pending[static_cast<std::size_t>(i)].token);
  std::vector<Token> context = seq.kept;
  context.insert(context.end(), tail.rbegin(), tail.rend());
  return context;
}

Status ToyEngine::forward(std::span<const Node> nodes, Rows& out) {
  if (nodes.empty()) return {Code::kInvalid, "toy engine: forward without nodes"};
  // Everything is checked, including positions, on a copy before anything changes.
  std::map<SeqId, Sequence> next;
  std::size_t rows = 0;
  for (const Node& node : nodes) {
    const auto found = sequences_.find(node.seq);
    if (found == sequences_.end()) return {Code::kInvalid, "toy engine: unknown sequence " + std::to_string(node.seq)};
    Sequence& seq = next.try_emplace(node.seq, found->second).first->second;
    DRIFT_TRY(check(node, seq, 0));
    seq.pending.push_back({node.token, node.parent});
    const auto depth = static_cast<Pos>(context_of(seq, static_cast<NodeIndex>(seq.pending.size()) - 1).size());
    if (node.pos != depth - 1) {
      return {Code::kInvalid,
              "toy engine: node at position " + std::to_string(node.pos) + " should be at " + std::to_string(depth - 1)};
    }
    rows += node.wants_row ? 1 : 0;
  }
  logits_.assign(rows * model_.vocab, 0.0f);
  hidden_.assign(rows * model_.hidden_width, 0.0f);
  out.vocab = model_.vocab;
  out.hidden_width = model_.hidden_width;
  out.logits.clear();
  out.hidden.clear();
  std::map<SeqId, NodeIndex> at;
  for (const Node& node : nodes) {
    const auto base = static_cast<NodeIndex>(sequences_[node.seq].pending.size());
    const NodeIndex index = base + at[node.seq]++;
    if (!node.wants_row) continue;
    float* logits = logits_.data() + out.logits.size() * model_.vocab;
    float* hidden = hidden_.data() + out.logits.size() * model_.hidden_width;
    const std::vector<Token> context = context_of(next[node.seq], index);
    model_.row(context, {logits, model_.vocab}, {hidden, model_.hidden_width});
    out.logits.push_back(logits);
    if (model_.hidden_width > 0) out.hidden.push_back(hidden);
  }
  for (auto& [id, seq] : next) sequences_[id] = std::move(seq);
  ++counters_.forwards;
  counters_.tokens += nodes.size();
  counters_.rows += rows;
  return Status::ok();
}

Status ToyEngine::keep(SeqId id, std::span<const NodeIndex> path) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return {Code::kInvalid, "toy engine: unknown sequence " + std::to_string(id)};
  Sequence& seq = found->second;
  NodeIndex parent = kPrefix;
  for (NodeIndex node : path) {
    if (node < 0 || static_cast<std::size_t>(node) >= seq.pending.size() ||
        seq.pending[static_cast<std::size_t>(node)].parent != parent) {
      return {Code::kInvalid, "toy engine: node " + std::to_string(node) + " does not continue the path"};
    }
    parent = node;
  }
  for (NodeIndex node : path) seq.kept.push_back(seq.pending[static_cast<std::size_t>(node)].token);
  seq.pending.clear();
  return Status::ok();
}

Result<SeqId> ToyEngine::fork(SeqId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return Status(Code::kInvalid, "toy engine: unknown sequence " + std::to_string(id));
  if (!found->second.pending.empty()) return Status(Code::kInvalid, "toy engine: fork with pending nodes");
  const Sequence copy = found->second;
  DRIFT_ASSIGN(const SeqId fresh, open());
  sequences_[fresh] = copy;
  return fresh;
}

Status ToyEngine::truncate(SeqId id, Pos length) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return {Code::kInvalid, "toy engine: unknown sequence " + std::to_string(id)};
  if (length < 0 || static_cast<std::size_t>(length) > found->second.kept.size()) {
    return {Code::kInvalid, "toy engine: cannot truncate " + std::to_string(found->second.kept.size()) + " kept tokens to " +
                                std::to_string(length)};
  }
  found->second.kept.resize(static_cast<std::size_t>(length));
  found->second.pending.clear();
  return Status::ok();
}

Pos ToyEngine::length(SeqId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? -1 : static_cast<Pos>(found->second.kept.size());
}

float hash_float(std::uint64_t seed, std::span<const Token> context, std::uint64_t salt) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ull + salt;
  const auto mix = [&](std::uint64_t v) {
    x ^= v + 0x9e3779b97f4a7c15ull + (x << 6) + (x >> 2);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
  };
  mix(salt);
  for (Token t : context) mix(static_cast<std::uint64_t>(static_cast<std::uint32_t>(t)) + 1);
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1.0p-52 - 1.0);
}

ToyModel random_model(std::uint64_t seed, std::size_t vocab, std::size_t hidden_width, std::size_t order, float spread) {
  ToyModel model;
  model.name = "random-" + std::to_string(seed);
  model.vocab = vocab;
  model.hidden_width = hidden_width;
  model.row = [=](std::span<const Token> context, std::span<float> logits, std::span<float> hidden) {
    const auto tail = context.last(std::min(order, context.size()));
    for (std::size_t v = 0; v < logits.size(); ++v) logits[v] = spread * hash_float(seed, tail, v);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = hash_float(seed ^ 0x5eedull, tail, i);
  };
  return model;
}

}  // namespace drift::testing
