// engine.hpp - the Engine over a trainable network: one pass gives hidden states and logits, and the weights may change in between.
//
// Each sequence has a KV cache of its own; sequences of one forward are computed one after the other. Nodes of a sequence form a
// line (Capabilities::trees is false); a second child is refused with kUnsupported.
// Weights: whoever holds net() may train it between steps. The engine sees that (LlamaNet::version) and computes the kept text of a
// sequence anew before its next nodes, so that rows are always those of a fresh decode; while nodes are pending a change is refused,
// which keeps the weights frozen within a step.
// Threads: one thread at a time, the network's trainer included.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drift/engine/engine.hpp"
#include "engines/torch/gguf_meta.hpp"
#include "engines/torch/model.hpp"

namespace drift::engine {

struct TorchConfig {
  std::string model;      // path of a .gguf file of architecture llama or qwen2
  int context = 4096;     // tokens one sequence may hold; 0 = what the model was trained for
  int max_sequences = 1;  // open at the same time
  int threads = 1;        // 1 or 2, see use_threads()
  bool hidden = false;    // rows carry hidden states: needed for a draft
};

class TorchEngine final : public Engine {
 public:
  // Reads config.model. Fails as read_gguf and make.
  static Result<std::unique_ptr<TorchEngine>> load(const TorchConfig& config);
  // An engine on a network in memory, which the caller may go on training; config.model is not looked at.
  // Fails with kInvalid (a setting out of bounds), kLimit (a context beyond the network's).
  static Result<std::unique_ptr<TorchEngine>> make(LlamaNet net, GgufMeta meta, const TorchConfig& config);

  // With content_hash: of the file while the weights are as read, else of the weights themselves. Reads all of either at the first
  // call after a change. Empty if the file has gone since.
  ModelInfo info() const override;
  // info() without the content hash: free of cost.
  ModelInfo describe() const;
  Counters counters() const override { return counters_; }

  Result<SeqId> open() override;
  Status forward(std::span<const Node> nodes, Rows& out) override;
  Status keep(SeqId seq, std::span<const NodeIndex> path) override;
  Result<SeqId> fork(SeqId seq) override;
  Status truncate(SeqId seq, Pos length) override;
  Pos length(SeqId seq) const override;
  void close(SeqId seq) override;

  LlamaNet& net() { return net_; }
  const GgufMeta& meta() const { return meta_; }
  // Equal stamps mean that rows came from the same weights.
  std::uint64_t weights_version() const { return net_->version(); }
  // Tokens computed anew because the weights had changed; not in counters().
  std::uint64_t refreshed_tokens() const { return refreshed_tokens_; }
  // Of all open sequences, as allocated now.
  std::uint64_t kv_bytes() const;

 private:
  struct Sequence {
    std::optional<KvCache> cache;  // holds kept and pending tokens; empty: not open
    std::vector<Token> tokens;     // the same tokens
    Pos kept = 0;
    std::uint64_t version = 0;  // of the weights the cache was computed with

    Pos pending() const { return static_cast<Pos>(tokens.size()) - kept; }
    void drop_from(Pos pos);
  };

  TorchEngine(LlamaNet net, GgufMeta meta) : net_(std::move(net)), meta_(std::move(meta)) {}
  bool is_open(SeqId seq) const;
  Status check_open(SeqId seq, const char* what) const;
  Status check_weights() const;
  Result<SeqId> free_slot() const;
  void refresh(Sequence& sequence);
  void compute(SeqId seq, std::span<const Node> nodes, Rows& out);
  Status check_rows() const;
  void roll_back(const std::vector<Pos>& lengths);

  LlamaNet net_;
  GgufMeta meta_;
  std::string path_;                 // empty: the network came from memory
  std::uint64_t file_version_ = 0;   // of the weights as read from path_
  std::vector<Sequence> sequences_;  // [max_sequences]
  Pos context_length_ = 0;
  bool hidden_ = false;
  Counters counters_;
  std::uint64_t refreshed_tokens_ = 0;
  mutable std::optional<std::string> content_hash_;
  mutable std::uint64_t hashed_version_ = 0;

  // Of the forward in progress.
  std::vector<Pos> added_;                              // [max_sequences] nodes added per sequence
  std::vector<torch::Tensor> row_logits_, row_hidden_;  // what the rows handed out point into, one per sequence
};

}  // namespace drift::engine
