#include "engines/llama/engine.hpp"

#include <llama.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <thread>

#include "drift/engine/line.hpp"
#include "engines/llama/log.hpp"

namespace drift::engine {
namespace {

// Up to so many nodes without a row are decoded together with the rows although a decode with hidden states computes logits for
// all its nodes: a few rows of lm_head cost less than a second pass over the weights.
constexpr std::size_t kJoinedPrefill = 16;
constexpr int kBatchMax = 1 << 16;
constexpr std::int64_t kCellsMax = std::int64_t{1} << 26;

// Whether all values are finite: a float with an all-ones exponent is an infinity or a NaN.
bool all_finite(const float* values, std::size_t count) {
  constexpr std::uint32_t kExponent = 0x7f800000U;
  constexpr std::size_t kBlock = 16;  // a fixed inner trip count, so that the compiler uses vectors
  std::uint32_t bad = 0;
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (std::size_t j = 0; j < kBlock; ++j)
      bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(values[i + j]) & kExponent) == kExponent);
  }
  for (; i < count; ++i) bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent);
  return bad == 0;
}

Status out_of_bounds(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  return Status(Code::kInvalid, std::string(what) + " is " + std::to_string(value) + "; it must lie between " +
                                    std::to_string(low) + " and " + std::to_string(high));
}

Status check_config(const LlamaConfig& config, const LlamaModel& model) {
  const auto sequences_limit = static_cast<std::int64_t>(llama_max_parallel_sequences());
  if (config.max_sequences < 1 || config.max_sequences > sequences_limit)
    return out_of_bounds("max_sequences", config.max_sequences, 1, sequences_limit);
  if (config.threads < 0 || config.threads > 512) return out_of_bounds("threads", config.threads, 0, 512);
  if (config.n_batch < 1 || config.n_batch > kBatchMax) return out_of_bounds("n_batch", config.n_batch, 1, kBatchMax);
  if (config.n_ubatch < 1 || config.n_ubatch > kBatchMax) return out_of_bounds("n_ubatch", config.n_ubatch, 1, kBatchMax);
  const auto trained = static_cast<std::int64_t>(model.trained_context());
  if (config.context < 0) return out_of_bounds("context", config.context, 0, trained);
  if (config.context > trained) {
    return Status(Code::kLimit, "a context of " + std::to_string(config.context) + " tokens was asked for, " + model.name() +
                                    " was trained for " + std::to_string(trained) + "; ask for less");
  }
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<LlamaEngine>> LlamaEngine::load(const LlamaConfig& config) {
  // Adapters are looked at first: a mistyped name should not cost the time to load a model.
  for (const LoraAdapter& adapter : config.loras) {
    const Status status = check_gguf(adapter.path);
    if (!status.is_ok()) return Status(status.code(), "LoRA adapter: " + status.message());
  }
  DRIFT_ASSIGN(std::shared_ptr<LlamaModel> model, LlamaModel::load({config.model, config.gpu_layers, config.verbose}));
  return make(std::move(model), config);
}

Result<std::unique_ptr<LlamaEngine>> LlamaEngine::make(std::shared_ptr<LlamaModel> model, const LlamaConfig& config) {
  if (!model) return Status(Code::kInvalid, "no model given");
  DRIFT_TRY(check_config(config, *model));
  const std::int64_t context = config.context > 0 ? config.context : static_cast<std::int64_t>(model->trained_context());
  const std::int64_t cells = context * config.max_sequences;
  if (context < 1 || cells > kCellsMax) {
    return Status(Code::kLimit, std::to_string(config.max_sequences) + " sequences of " + std::to_string(context) +
                                    " tokens are more than " + std::to_string(kCellsMax) + " in all; ask for a smaller context");
  }

  clear_llama_errors();
  const int threads = config.threads > 0 ? config.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(cells);
  params.n_batch = static_cast<std::uint32_t>(config.n_batch);
  params.n_ubatch = static_cast<std::uint32_t>(std::min(config.n_ubatch, config.n_batch));
  params.n_seq_max = static_cast<std::uint32_t>(config.max_sequences);
  params.n_threads = threads;
  params.n_threads_batch = threads;
  params.pooling_type = LLAMA_POOLING_TYPE_NONE;
  params.kv_unified = config.shared_cells;  // shared: fork is metadata only
  params.swa_full = true;                   // a sliding window must not evict cells that a rejected tail would need back
  params.no_perf = true;

  std::unique_ptr<LlamaEngine> engine(new LlamaEngine);
  engine->model_ = std::move(model);
  try {
    engine->context_ = llama_init_from_model(engine->model_->handle(), params);
  } catch (const std::exception& error) {
    return Status(Code::kIo,
                  "no context of " + std::to_string(cells) + " tokens for " + engine->model_->name() + ": " + error.what());
  }
  if (engine->context_ == nullptr) {
    return Status(Code::kIo, "no context of " + std::to_string(cells) + " tokens for " + engine->model_->name() + ": " +
                                 llama_errors("llama.cpp gives no reason") + "; a smaller context needs less memory");
  }
  DRIFT_TRY(engine->add_adapters(config.loras));
  engine->sequences_.resize(static_cast<std::size_t>(config.max_sequences));
  engine->added_.resize(static_cast<std::size_t>(config.max_sequences));
  engine->context_length_ = static_cast<Pos>(context);
  engine->n_batch_ = std::min<std::size_t>(static_cast<std::size_t>(config.n_batch), llama_n_batch(engine->context_));
  engine->hidden_ = config.hidden;
  engine->one_row_at_a_time_ = config.one_row_at_a_time;
  return engine;
}

Status LlamaEngine::add_adapters(const std::vector<LoraAdapter>& adapters) {
  std::vector<float> scales;
  for (const LoraAdapter& adapter : adapters) {
    if (!std::isfinite(adapter.scale))
      return Status(Code::kInvalid, "the scale of LoRA adapter " + adapter.path + " is not a finite number");
    const Status status = check_gguf(adapter.path);
    if (!status.is_ok()) return Status(status.code(), "LoRA adapter: " + status.message());
    clear_llama_errors();
    llama_adapter_lora* loaded = nullptr;
    try {
      loaded = llama_adapter_lora_init(model_->handle(), adapter.path.c_str());
    } catch (const std::exception& error) {
      return Status(Code::kInvalid, "LoRA adapter " + adapter.path + " does not fit " + model_->name() + ": " + error.what());
    }
    if (loaded == nullptr) {
      return Status(Code::kInvalid, "LoRA adapter " + adapter.path + " does not fit " + model_->name() + ": " +
                                        llama_errors("llama.cpp gives no reason"));
    }
    adapters_.push_back(loaded);
    if (llama_adapter_get_alora_n_invocation_tokens(loaded) > 0) {
      return Status(Code::kUnsupported, "LoRA adapter " + adapter.path +
                                            " is switched on by certain tokens; only adapters that are always on are supported");
    }
    scales.push_back(adapter.scale);
  }
  if (!adapters_.empty() && llama_set_adapters_lora(context_, adapters_.data(), adapters_.size(), scales.data()) != 0) {
    return Status(Code::kInternal,
                  "llama.cpp refuses the LoRA adapters of " + model_->name() + ": " + llama_errors("it gives no reason"));
  }
  loras_ = adapters;
  return Status::ok();
}

LlamaEngine::~LlamaEngine() {
  if (context_ != nullptr) llama_free(context_);
  for (llama_adapter_lora* adapter : adapters_) llama_adapter_lora_free(adapter);
}

ModelInfo LlamaEngine::describe() const {
  ModelInfo info;
  info.name = model_->name();
  info.arch = model_->arch();
  info.vocab = model_->vocab();
  info.hidden_width = model_->hidden_width();
  info.context = static_cast<std::size_t>(context_length_);
  info.max_sequences = sequences_.size();
  info.weight_bytes = model_->weight_bytes();
  info.kv_bytes_per_token = model_->kv_bytes_per_token();
  // One at a time, rows of a prompt would leave other keys and values there than reading it at once does.
  info.can =
      Capabilities{/*hidden=*/hidden_, /*trees=*/false, /*truncate=*/true, /*fork=*/true, /*prompt_rows=*/!one_row_at_a_time_};
  return info;
}

ModelInfo LlamaEngine::info() const {
  ModelInfo info = describe();
  Result<std::string> hash = content_hash();
  if (hash.is_ok()) info.content_hash = std::move(hash).value();
  return info;
}

Result<std::string> LlamaEngine::content_hash() const {
  if (!content_hash_) {
    DRIFT_ASSIGN(content_hash_, engine::content_hash(model_->path(), loras_));
  }
  return *content_hash_;
}

Status LlamaEngine::check_open(SeqId seq, const char* what) const {
  if (is_open(seq)) return Status::ok();
  return Status(Code::kInvalid, std::string(what) + ": sequence " + std::to_string(seq) + " is not open");
}

Result<SeqId> LlamaEngine::free_slot() const {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    if (!sequences_[i].open) return static_cast<SeqId>(i);
  }
  return Status(Code::kLimit, "all " + std::to_string(sequences_.size()) + " sequences of " + model_->name() +
                                  " are open; close one or make the engine with more max_sequences");
}

// Drops everything of a sequence from `pos` on.
bool LlamaEngine::drop_from(SeqId seq, Pos pos) { return llama_memory_seq_rm(llama_get_memory(context_), seq, pos, -1); }

Result<SeqId> LlamaEngine::open() {
  DRIFT_ASSIGN(const SeqId seq, free_slot());
  sequences_[seq] = Sequence{/*open=*/true, /*kept=*/0, /*pending=*/0};
  return seq;
}

void LlamaEngine::close(SeqId seq) {
  if (!is_open(seq)) return;
  drop_from(seq, 0);  // removing a whole sequence cannot fail
  sequences_[seq] = Sequence{};
}

Pos LlamaEngine::length(SeqId seq) const { return is_open(seq) ? sequences_[seq].kept : -1; }

Status LlamaEngine::keep(SeqId seq, std::span<const NodeIndex> path) {
  DRIFT_TRY(check_open(seq, "keep"));
  Sequence& sequence = sequences_[seq];
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (static_cast<Pos>(i) >= sequence.pending || path[i] != static_cast<NodeIndex>(i)) {
      return Status(Code::kInvalid, "keep: node " + std::to_string(path[i]) + " at place " + std::to_string(i) +
                                        " of the path does not continue it (" + std::to_string(sequence.pending) +
                                        " nodes since the last keep, in a line)");
    }
  }
  const auto kept_nodes = static_cast<Pos>(path.size());
  if (kept_nodes < sequence.pending && !drop_from(seq, sequence.kept + kept_nodes)) {
    return Status(Code::kInternal, "llama.cpp cannot drop the tail of sequence " + std::to_string(seq) + " of " + model_->name());
  }
  sequence.kept += kept_nodes;
  sequence.pending = 0;
  return Status::ok();
}

Result<SeqId> LlamaEngine::fork(SeqId seq) {
  DRIFT_TRY(check_open(seq, "fork"));
  if (sequences_[seq].pending > 0)
    return Status(Code::kInvalid, "fork: sequence " + std::to_string(seq) + " has pending nodes; keep() first");
  DRIFT_ASSIGN(const SeqId copy, free_slot());
  llama_memory_seq_cp(llama_get_memory(context_), seq, copy, -1, -1);
  sequences_[copy] = sequences_[seq];
  return copy;
}

Status LlamaEngine::truncate(SeqId seq, Pos length) {
  DRIFT_TRY(check_open(seq, "truncate"));
  Sequence& sequence = sequences_[seq];
  if (length < 0 || length > sequence.kept) {
    return Status(Code::kInvalid, "truncate: length " + std::to_string(length) + " of sequence " + std::to_string(seq) +
                                      " is outside 0 .. " + std::to_string(sequence.kept) + " (its kept length)");
  }
  if (!drop_from(seq, length)) {
    return Status(Code::kInternal, "llama.cpp cannot shorten sequence " + std::to_string(seq) + " of " + model_->name());
  }
  sequence.kept = length;
  sequence.pending = 0;
  return Status::ok();
}

// Cuts order_[begin, end of order_) into chunks of at most size_max nodes.
void LlamaEngine::append_chunks(std::size_t begin, std::size_t size_max, bool embeddings) {
  while (begin < order_.size()) {
    const std::size_t end = std::min(order_.size(), begin + size_max);
    chunks_.push_back({begin, end, embeddings});
    begin = end;
  }
}

// Decides which nodes are decoded together: fills order_ and chunks_.
// Nodes before the first row of their sequence are bulk: they need neither logits nor hidden states.
void LlamaEngine::schedule(std::span<const Node> nodes) {
  order_.clear();
  chunks_.clear();
  std::vector<char> row_seen(sequences_.size(), 0);
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].wants_row) row_seen[nodes[i].seq] = 1;
    (row_seen[nodes[i].seq] != 0 ? late : order_).push_back(i);
  }
  const std::size_t bulk = order_.size();
  const bool join = !one_row_at_a_time_ && !late.empty() && (!hidden_ || bulk <= kJoinedPrefill);
  if (join) {
    order_.resize(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) order_[i] = i;
    append_chunks(0, n_batch_, hidden_);
    return;
  }
  append_chunks(0, n_batch_, /*embeddings=*/false);
  order_.insert(order_.end(), late.begin(), late.end());
  append_chunks(bulk, one_row_at_a_time_ ? 1 : n_batch_, hidden_);
}

Status LlamaEngine::decode(std::span<const Node> nodes, const Chunk& chunk) {
  const std::size_t count = chunk.end - chunk.begin;
  for (auto* array : {&batch_token_, &batch_pos_, &batch_seq_, &batch_seq_count_}) array->resize(count);
  batch_seq_pointer_.resize(count);
  batch_output_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Node& node = nodes[order_[chunk.begin + i]];
    batch_token_[i] = node.token;
    batch_pos_[i] = node.pos;
    batch_seq_[i] = node.seq;
    batch_seq_count_[i] = 1;
    batch_seq_pointer_[i] = &batch_seq_[i];
    // With embeddings on every node is an output in any case; not marking it makes llama.cpp warn at each decode.
    batch_output_[i] = static_cast<std::int8_t>(node.wants_row || chunk.embeddings);
  }
  llama_batch batch{};
  batch.n_tokens = static_cast<std::int32_t>(count);
  batch.token = batch_token_.data();
  batch.pos = batch_pos_.data();
  batch.n_seq_id = batch_seq_count_.data();
  batch.seq_id = batch_seq_pointer_.data();
  batch.logits = batch_output_.data();

  llama_set_embeddings(context_, chunk.embeddings);
  clear_llama_errors();
  int code = 0;
  try {
    code = llama_decode(context_, batch);
  } catch (const std::exception& error) {
    return Status(Code::kInternal, "llama.cpp failed to decode with " + model_->name() + ": " + error.what());
  }
  ++decodes_;
  if (code == 0) return Status::ok();
  return Status(Code::kInternal, "llama.cpp failed to decode " + std::to_string(count) + " tokens with " + model_->name() +
                                     " (code " + std::to_string(code) + "): " + llama_errors("it gives no reason"));
}

// Reads the rows of the chunk just decoded into `out`; rows that a further decode would overwrite are copied.
Status LlamaEngine::collect(std::span<const Node> nodes, const Chunk& chunk, bool last, Rows& out) {
  for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
    if (!nodes[order_[i]].wants_row) continue;
    const std::size_t row = rank_[order_[i]];
    const auto place = static_cast<std::int32_t>(i - chunk.begin);
    const float* logits = llama_get_logits_ith(context_, place);
    const float* hidden = hidden_ ? llama_get_embeddings_ith(context_, place) : nullptr;
    if (logits == nullptr || (hidden_ && hidden == nullptr)) {
      return Status(Code::kInternal, "llama.cpp gives no " + std::string(logits == nullptr ? "logits" : "hidden state") +
                                         " for a row of " + model_->name());
    }
    if (!all_finite(logits, out.vocab) || (hidden_ && !all_finite(hidden, out.hidden_width))) {
      return Status(Code::kInternal, "a row of " + model_->name() + " after position " + std::to_string(nodes[order_[i]].pos) +
                                         " holds a value that is not finite; the model file may be damaged");
    }
    if (!last) {
      logits = static_cast<const float*>(std::memcpy(stored_logits_.data() + row * out.vocab, logits, out.vocab * sizeof(float)));
      if (hidden_)
        hidden = static_cast<const float*>(
            std::memcpy(stored_hidden_.data() + row * out.hidden_width, hidden, out.hidden_width * sizeof(float)));
    }
    out.logits[row] = logits;
    if (hidden_) out.hidden[row] = hidden;
  }
  return Status::ok();
}

// Undoes the decodes of a forward that failed half-way.
void LlamaEngine::roll_back() {
  for (std::size_t seq = 0; seq < sequences_.size(); ++seq) {
    if (added_[seq] > 0) drop_from(static_cast<SeqId>(seq), sequences_[seq].kept + sequences_[seq].pending);
  }
}

Status LlamaEngine::forward(std::span<const Node> nodes, Rows& out) {
  out = Rows{};
  const auto line_of = [this](SeqId seq) {
    return is_open(seq) ? Line{true, sequences_[seq].kept, sequences_[seq].pending} : Line{};
  };
  DRIFT_TRY(check_line_nodes(nodes, model_->vocab(), context_length_, line_of, added_));
  if (nodes.empty()) return Status::ok();
  schedule(nodes);

  rank_.assign(nodes.size(), 0);
  std::size_t rows = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].wants_row) rank_[i] = rows++;
  }
  out.vocab = model_->vocab();
  out.hidden_width = hidden_ ? model_->hidden_width() : 0;
  out.logits.resize(rows);
  if (hidden_) out.hidden.resize(rows);
  if (chunks_.size() > 1) {
    stored_logits_.resize(std::max(stored_logits_.size(), rows * out.vocab));
    stored_hidden_.resize(std::max(stored_hidden_.size(), rows * out.hidden_width));
  }

  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    Status status = decode(nodes, chunks_[c]);
    if (status.is_ok()) status = collect(nodes, chunks_[c], c + 1 == chunks_.size(), out);
    if (!status.is_ok()) {
      roll_back();
      out = Rows{};
      return status;
    }
  }
  for (std::size_t seq = 0; seq < sequences_.size(); ++seq) sequences_[seq].pending += added_[seq];
  ++counters_.forwards;
  counters_.tokens += nodes.size();
  counters_.rows += rows;
  return Status::ok();
}

}  // namespace drift::engine
