#include "engines/torch/engine.hpp"

#include <ATen/Parallel.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "drift/engine/line.hpp"
#include "engines/llama/hash.hpp"
#include "engines/torch/gguf_read.hpp"

namespace drift::engine {
namespace {

constexpr int kSequencesMax = 256;
constexpr std::size_t kTokensAtOnce = 512;  // bounds the memory of attention scores in a long prefill

Status out_of_bounds(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  return {Code::kInvalid, std::string(what) + " is " + std::to_string(value) + "; it must lie between " + std::to_string(low) +
                              " and " + std::to_string(high)};
}

// [1, count] of int64.
torch::Tensor as_batch(std::span<const Token> tokens) {
  torch::Tensor batch = torch::empty({1, static_cast<std::int64_t>(tokens.size())}, torch::kLong);
  std::copy(tokens.begin(), tokens.end(), batch.data_ptr<std::int64_t>());
  return batch;
}

// XXH3-128 over the names and bytes of all parameters, 32 hex digits.
std::string hash_of(const LlamaNet& net) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (const auto& item : net->named_parameters()) {
    const torch::Tensor values = item.value().detach().contiguous();
    XXH3_128bits_update(state.get(), item.key().data(), item.key().size());
    XXH3_128bits_update(state.get(), values.data_ptr<float>(), values.nbytes());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

void TorchEngine::Sequence::drop_from(Pos pos) {
  cache->truncate(std::min<std::int64_t>(pos, cache->length()));  // shorter only after a refresh() that failed
  tokens.resize(static_cast<std::size_t>(pos));
}

Result<std::unique_ptr<TorchEngine>> TorchEngine::load(const TorchConfig& config) {
  DRIFT_ASSIGN(GgufModel model, read_gguf(config.model));
  DRIFT_ASSIGN(std::unique_ptr<TorchEngine> engine, make(std::move(model.net), std::move(model.meta), config));
  engine->path_ = config.model;
  engine->file_version_ = engine->net_->version();
  return engine;
}

Result<std::unique_ptr<TorchEngine>> TorchEngine::make(LlamaNet net, GgufMeta meta, const TorchConfig& config) {
  if (!net) return Status(Code::kInvalid, "no network given");
  const std::int64_t trained = net->shape().context;
  if (config.max_sequences < 1 || config.max_sequences > kSequencesMax)
    return out_of_bounds("max_sequences", config.max_sequences, 1, kSequencesMax);
  if (config.threads < 1 || config.threads > 2) return out_of_bounds("threads", config.threads, 1, 2);
  if (config.context < 0) return out_of_bounds("context", config.context, 0, trained);
  if (config.context > trained) {
    return Status(Code::kLimit, "a context of " + std::to_string(config.context) + " tokens was asked for, " + meta.name() +
                                    " was trained for " + std::to_string(trained) + "; ask for less");
  }
  use_threads(config.threads);
  std::unique_ptr<TorchEngine> engine(new TorchEngine(std::move(net), std::move(meta)));
  engine->context_length_ = static_cast<Pos>(config.context > 0 ? config.context : trained);
  engine->hidden_ = config.hidden;
  engine->sequences_.resize(static_cast<std::size_t>(config.max_sequences));
  engine->added_.resize(static_cast<std::size_t>(config.max_sequences));
  return engine;
}

ModelInfo TorchEngine::describe() const {
  const ModelShape& shape = net_->shape();
  ModelInfo info;
  info.name = meta_.name();
  info.arch = shape.rope == Rope::kHalves ? "qwen2" : "llama";
  info.vocab = static_cast<std::size_t>(shape.vocab);
  info.hidden_width = static_cast<std::size_t>(shape.width);
  info.context = static_cast<std::size_t>(context_length_);
  info.max_sequences = sequences_.size();
  info.weight_bytes = static_cast<std::uint64_t>(parameter_count(shape)) * sizeof(float);
  info.kv_bytes_per_token = static_cast<std::uint64_t>(2 * shape.layers * shape.kv_width()) * sizeof(float);
  info.can = Capabilities{/*hidden=*/hidden_, /*trees=*/false, /*truncate=*/true, /*fork=*/true};
  return info;
}

ModelInfo TorchEngine::info() const {
  ModelInfo info = describe();
  const std::uint64_t version = net_->version();
  if (!content_hash_ || hashed_version_ != version) {
    content_hash_.reset();
    if (path_.empty() || version != file_version_) {
      content_hash_ = hash_of(net_);
    } else {
      const Result<std::string> hash = file_hash(path_);
      if (hash.is_ok()) content_hash_ = hash.value();
    }
    hashed_version_ = version;
  }
  if (content_hash_) info.content_hash = *content_hash_;
  return info;
}

std::uint64_t TorchEngine::kv_bytes() const {
  std::uint64_t total = 0;
  for (const Sequence& sequence : sequences_) total += sequence.cache ? sequence.cache->bytes() : 0;
  return total;
}

bool TorchEngine::is_open(SeqId seq) const {
  return seq >= 0 && static_cast<std::size_t>(seq) < sequences_.size() && sequences_[seq].cache.has_value();
}

Status TorchEngine::check_open(SeqId seq, const char* what) const {
  if (is_open(seq)) return Status::ok();
  return {Code::kInvalid, std::string(what) + ": sequence " + std::to_string(seq) + " is not open"};
}

Result<SeqId> TorchEngine::free_slot() const {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    if (!sequences_[i].cache) return static_cast<SeqId>(i);
  }
  return Status(Code::kLimit, "all " + std::to_string(sequences_.size()) + " sequences of " + meta_.name() +
                                  " are open; close one or make the engine with more max_sequences");
}

Result<SeqId> TorchEngine::open() {
  DRIFT_ASSIGN(const SeqId seq, free_slot());
  sequences_[seq] = Sequence{KvCache(net_->shape(), /*batch=*/1, context_length_), {}, /*kept=*/0, net_->version()};
  return seq;
}

void TorchEngine::close(SeqId seq) {
  if (is_open(seq)) sequences_[seq] = Sequence{};
}

Pos TorchEngine::length(SeqId seq) const { return is_open(seq) ? sequences_[seq].kept : -1; }

Status TorchEngine::keep(SeqId seq, std::span<const NodeIndex> path) {
  DRIFT_TRY(check_open(seq, "keep"));
  Sequence& sequence = sequences_[seq];
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (static_cast<Pos>(i) >= sequence.pending() || path[i] != static_cast<NodeIndex>(i)) {
      return {Code::kInvalid, "keep: node " + std::to_string(path[i]) + " at place " + std::to_string(i) +
                                  " of the path does not continue it (" + std::to_string(sequence.pending()) +
                                  " nodes since the last keep, in a line)"};
    }
  }
  sequence.kept += static_cast<Pos>(path.size());
  sequence.drop_from(sequence.kept);
  return Status::ok();
}

Result<SeqId> TorchEngine::fork(SeqId seq) {
  DRIFT_TRY(check_open(seq, "fork"));
  const Sequence& sequence = sequences_[seq];
  if (sequence.pending() > 0)
    return Status(Code::kInvalid, "fork: sequence " + std::to_string(seq) + " has pending nodes; keep() first");
  DRIFT_ASSIGN(const SeqId copy, free_slot());
  try {
    sequences_[copy] = Sequence{sequence.cache->copy(), sequence.tokens, sequence.kept, sequence.version};
  } catch (const std::exception& error) {
    return Status(Code::kIo, "fork: no memory for a copy of sequence " + std::to_string(seq) + ": " + error.what());
  }
  return copy;
}

Status TorchEngine::truncate(SeqId seq, Pos length) {
  DRIFT_TRY(check_open(seq, "truncate"));
  Sequence& sequence = sequences_[seq];
  if (length < 0 || length > sequence.kept) {
    return {Code::kInvalid, "truncate: length " + std::to_string(length) + " of sequence " + std::to_string(seq) +
                                " is outside 0 .. " + std::to_string(sequence.kept) + " (its kept length)"};
  }
  sequence.kept = length;
  sequence.drop_from(length);
  return Status::ok();
}

// Weights are frozen within a step: between the first node since a keep() and that sequence's next keep().
Status TorchEngine::check_weights() const {
  const std::uint64_t version = net_->version();
  for (std::size_t seq = 0; seq < sequences_.size(); ++seq) {
    if (added_[seq] > 0 && sequences_[seq].pending() > 0 && sequences_[seq].version != version) {
      return {Code::kInvalid, "forward: the weights of " + meta_.name() + " were changed while sequence " + std::to_string(seq) +
                                  " has pending nodes; train between steps, after keep()"};
    }
  }
  return Status::ok();
}

// Computes the kept text anew when the weights have changed since.
void TorchEngine::refresh(Sequence& sequence) {
  const std::uint64_t version = net_->version();
  if (sequence.version == version) return;
  sequence.cache->truncate(0);
  const std::span<const Token> tokens = sequence.tokens;
  for (std::size_t at = 0; at < tokens.size(); at += kTokensAtOnce)
    net_->hidden_states(as_batch(tokens.subspan(at, std::min(kTokensAtOnce, tokens.size() - at))), &*sequence.cache);
  sequence.version = version;
  refreshed_tokens_ += tokens.size();
}

// Decodes the nodes of one sequence and puts its rows into their places of `out`.
void TorchEngine::compute(SeqId seq, std::span<const Node> nodes, Rows& out) {
  Sequence& sequence = sequences_[seq];
  refresh(sequence);
  std::vector<Token> tokens;
  std::vector<std::int64_t> wanted;  // which of them want a row
  std::vector<std::size_t> rows;     // and that row's number
  std::size_t row = 0;
  for (const Node& node : nodes) {
    if (node.seq == seq) {
      if (node.wants_row) {
        wanted.push_back(static_cast<std::int64_t>(tokens.size()));
        rows.push_back(row);
      }
      tokens.push_back(node.token);
    }
    row += node.wants_row ? 1 : 0;
  }
  std::vector<torch::Tensor> parts;
  for (std::size_t at = 0; at < tokens.size(); at += kTokensAtOnce) {
    const std::span<const Token> part = std::span<const Token>(tokens).subspan(at, std::min(kTokensAtOnce, tokens.size() - at));
    parts.push_back(net_->hidden_states(as_batch(part), &*sequence.cache)[0]);
    sequence.tokens.insert(sequence.tokens.end(), part.begin(), part.end());
  }
  if (wanted.empty()) return;
  const torch::Tensor all = parts.size() == 1 ? parts[0] : torch::cat(parts);  // [tokens, width]
  const torch::Tensor hidden = wanted.size() == tokens.size() ? all : all.index_select(0, torch::tensor(wanted, torch::kLong));
  row_hidden_.push_back(hidden.contiguous());
  row_logits_.push_back(net_->logits(hidden).contiguous());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out.logits[rows[i]] = row_logits_.back().data_ptr<float>() + i * out.vocab;
    if (hidden_) out.hidden[rows[i]] = row_hidden_.back().data_ptr<float>() + i * out.hidden_width;
  }
}

Status TorchEngine::check_rows() const {
  for (const auto* tensors : {&row_logits_, &row_hidden_}) {
    for (const torch::Tensor& rows : *tensors) {
      if (!torch::isfinite(rows).all().item<bool>()) {
        return {Code::kInternal,
                "a row of " + meta_.name() + " holds a value that is not finite; the weights are damaged, or training diverged"};
      }
    }
  }
  return Status::ok();
}

// Undoes a forward that failed half-way.
void TorchEngine::roll_back(const std::vector<Pos>& lengths) {
  for (std::size_t seq = 0; seq < sequences_.size(); ++seq) {
    Sequence& sequence = sequences_[seq];
    if (added_[seq] == 0) continue;
    // A cache cut short by a failed refresh() is computed anew next time: no weights have the version 0 - 1.
    if (sequence.cache->length() < lengths[seq]) sequence.version = ~std::uint64_t{0};
    sequence.cache->truncate(std::min<std::int64_t>(lengths[seq], sequence.cache->length()));
    sequence.tokens.resize(static_cast<std::size_t>(lengths[seq]));
  }
}

Status TorchEngine::forward(std::span<const Node> nodes, Rows& out) {
  out = Rows{};
  const auto line_of = [this](SeqId seq) {
    return is_open(seq) ? Line{true, sequences_[seq].kept, sequences_[seq].pending()} : Line{};
  };
  DRIFT_TRY(check_line_nodes(nodes, static_cast<std::size_t>(net_->shape().vocab), context_length_, line_of, added_));
  if (nodes.empty()) return Status::ok();
  DRIFT_TRY(check_weights());

  const auto rows =
      static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.wants_row; }));
  out.vocab = static_cast<std::size_t>(net_->shape().vocab);
  out.hidden_width = hidden_ ? static_cast<std::size_t>(net_->shape().width) : 0;
  out.logits.resize(rows);
  if (hidden_) out.hidden.resize(rows);
  row_logits_.clear();
  row_hidden_.clear();
  std::vector<Pos> lengths;
  for (const Sequence& sequence : sequences_) lengths.push_back(static_cast<Pos>(sequence.tokens.size()));

  Status status;
  try {
    const torch::NoGradGuard no_grad;
    at::init_num_threads();  // a number of threads is a thread's own in OpenMP: this may not be the one that made the engine
    for (std::size_t seq = 0; seq < sequences_.size(); ++seq) {
      if (added_[seq] > 0) compute(static_cast<SeqId>(seq), nodes, out);
    }
    status = check_rows();
  } catch (const std::exception& error) {
    status = Status(Code::kInternal, "LibTorch failed to decode with " + meta_.name() + ": " + error.what());
  }
  if (!status.is_ok()) {
    roll_back(lengths);
    out = Rows{};
    return status;
  }
  ++counters_.forwards;
  counters_.tokens += nodes.size();
  counters_.rows += rows;
  return Status::ok();
}

}  // namespace drift::engine
