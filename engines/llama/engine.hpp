// engine.hpp - the Engine over llama.cpp: logits, and for a draft the hidden state, of each row from one decode.
//
// The KV memory is one pool for all sequences, so fork() copies no data; accepted nodes keep their KV (no second pass over them).
// Nodes of a sequence form a line (Capabilities::trees is false); a second child is refused with kUnsupported.
// Threads: one thread at a time per engine; different engines, also over one LlamaModel, are independent.
// Limits: context x max_sequences cells of KV; enforced before decoding. Cost: as llama.cpp's decode, plus one scan of each row
// for non-finite values (microseconds).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drift/engine/engine.hpp"
#include "engines/llama/hash.hpp"
#include "engines/llama/model.hpp"

struct llama_context;
struct llama_adapter_lora;

namespace drift::engine {

struct LlamaConfig {
  std::string model;               // path of a .gguf file
  std::vector<LoraAdapter> loras;  // applied to every forward of this engine
  int context = 4096;              // tokens one sequence may hold; 0 = what the model was trained for
  int max_sequences = 1;           // open at the same time
  int threads = 0;                 // 0 = one per hardware thread
  int gpu_layers = 0;              // see LlamaModelConfig
  int n_batch = 2048;              // most tokens in one decode; longer forwards are cut into several
  int n_ubatch = 512;              // most tokens llama.cpp computes at once
  bool hidden = false;             // rows carry hidden states: needed for a draft
  bool one_row_at_a_time = false;  // see set_one_row_at_a_time()
  bool verbose = false;            // llama.cpp's log to stderr, for the whole process
};

class LlamaEngine final : public Engine {
 public:
  // Loads config.model and makes an engine on it. Fails as LlamaModel::load and make.
  static Result<std::unique_ptr<LlamaEngine>> load(const LlamaConfig& config);
  // An engine on a model already in memory; config.model, gpu_layers and verbose are not looked at.
  // Fails with kInvalid (a setting out of bounds, a broken adapter), kNotFound (adapter file), kLimit (context beyond the model's,
  // memory), kUnsupported (an adapter that is switched on by certain tokens only).
  static Result<std::unique_ptr<LlamaEngine>> make(std::shared_ptr<LlamaModel> model, const LlamaConfig& config);
  ~LlamaEngine() override;

  // With content_hash: reads the model file once, at the first call. Empty hash if the file has gone since.
  ModelInfo info() const override;
  // info() without the content hash: free of cost, for programs that need no bank.
  ModelInfo describe() const;
  // Fails as engine::content_hash. Cost: the first call reads the model file.
  Result<std::string> content_hash() const;

  Counters counters() const override { return counters_; }
  std::uint64_t decodes() const { return decodes_; }  // calls of llama_decode: more than forwards where one was cut

  Result<SeqId> open() override;
  Status forward(std::span<const Node> nodes, Rows& out) override;
  Status keep(SeqId seq, std::span<const NodeIndex> path) override;
  Result<SeqId> fork(SeqId seq) override;
  Status truncate(SeqId seq, Pos length) override;
  Pos length(SeqId seq) const override;
  void close(SeqId seq) override;

  // When on, every row is decoded in a one-token call of its own, in node order, so that the floats of a row do not depend on
  // how many rows were asked for together: all modes of a program then make identical calls. Slow; for verification.
  void set_one_row_at_a_time(bool on) { one_row_at_a_time_ = on; }
  bool one_row_at_a_time() const { return one_row_at_a_time_; }

  const std::shared_ptr<LlamaModel>& model() const { return model_; }

 private:
  struct Sequence {
    bool open = false;
    Pos kept = 0;
    Pos pending = 0;  // nodes since the last keep; they form a line, so a count says it all
  };
  // One llama_decode: nodes order_[begin, end).
  struct Chunk {
    std::size_t begin = 0, end = 0;
    bool embeddings = false;
  };

  LlamaEngine() = default;
  Status add_adapters(const std::vector<LoraAdapter>& adapters);
  bool is_open(SeqId seq) const { return seq >= 0 && static_cast<std::size_t>(seq) < sequences_.size() && sequences_[seq].open; }
  Status check_open(SeqId seq, const char* what) const;
  void schedule(std::span<const Node> nodes);
  void append_chunks(std::size_t begin, std::size_t size_max, bool embeddings);
  Status decode(std::span<const Node> nodes, const Chunk& chunk);
  Status collect(std::span<const Node> nodes, const Chunk& chunk, bool last, Rows& out);
  void roll_back();
  Result<SeqId> free_slot() const;
  bool drop_from(SeqId seq, Pos pos);

  std::shared_ptr<LlamaModel> model_;
  llama_context* context_ = nullptr;
  std::vector<LoraAdapter> loras_;
  std::vector<llama_adapter_lora*> adapters_;
  std::vector<Sequence> sequences_;
  Pos context_length_ = 0;
  std::size_t n_batch_ = 0;
  bool hidden_ = false;
  bool one_row_at_a_time_ = false;
  Counters counters_;
  std::uint64_t decodes_ = 0;
  mutable std::optional<std::string> content_hash_;

  // Of the forward in progress.
  std::vector<Pos> added_;          // [max_sequences] nodes added per sequence
  std::vector<std::size_t> order_;  // node indices in decoding order
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> rank_;     // [nodes] row number of a node with wants_row
  std::vector<float> stored_logits_;  // [rows, vocab] rows of all decodes but the last
  std::vector<float> stored_hidden_;  // [rows, hidden_width]
  std::vector<std::int32_t> batch_token_, batch_pos_, batch_seq_, batch_seq_count_;
  std::vector<std::int32_t*> batch_seq_pointer_;
  std::vector<std::int8_t> batch_output_;
};

}  // namespace drift::engine
