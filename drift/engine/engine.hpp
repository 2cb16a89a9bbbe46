// engine.hpp - the seam between DRIFT and whatever runs a model. The interface only.
//
// An Engine owns the KV memory of any number of sequences. Per sequence there is a *kept* text, and on top of it the nodes
// forwarded since the last keep(): a little tree whose nodes are numbered 0, 1, 2, ... per sequence in the order forwarded,
// across several forward() calls. keep() turns a root-to-node path into kept text and drops all other nodes.
// Threads: one thread at a time. Cost: a forward is milliseconds, so virtual dispatch is free here, and only here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"

namespace drift::engine {

struct Node {
  SeqId seq = 0;
  Token token = 0;
  Pos pos = 0;                 // must be parent's position + 1; for kPrefix the kept length
  NodeIndex parent = kPrefix;  // a node of the same sequence since its last keep(), or kPrefix
  bool wants_row = false;      // false in prefill: no logits, no hidden state for it
};

struct Capabilities {
  bool hidden = false;   // rows carry hidden states (the lm_head input)
  bool trees = false;    // a node may have several children; without it parents must form a line
  bool truncate = true;  // truncate() to any position; false for recurrent memory
  bool fork = true;
  bool prompt_rows =
      true;  // rows may be asked for in prefill as well; false where only the rows of answers are to be had or seen
};

struct ModelInfo {
  std::string name;  // for people: general.name or the file's name
  std::string arch;
  std::size_t vocab = 0;  // width of a logits row
  std::size_t hidden_width = 0;
  std::size_t context = 0;  // most tokens one sequence may hold
  std::size_t max_sequences = 1;
  std::string content_hash;  // hex, of the model file's bytes and its adapters: binds a bank to a pair
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_bytes_per_token = 0;  // of one sequence; 0: not known
  Capabilities can;
};

// The rows of one forward, one per node with wants_row, in node order. Pointers into the engine, valid until its next call.
struct Rows {
  std::vector<const float*> logits;  // each [vocab], raw, before any sampler
  std::vector<const float*> hidden;  // each [hidden_width]; empty if the engine has no hidden states
  std::size_t vocab = 0;
  std::size_t hidden_width = 0;

  std::size_t size() const { return logits.size(); }
  std::span<const float> logits_row(std::size_t i) const { return {logits[i], vocab}; }
  std::span<const float> hidden_row(std::size_t i) const { return {hidden[i], hidden_width}; }
};

// How often and how much an engine worked: tests compare modes by it, reports print it.
struct Counters {
  std::uint64_t forwards = 0;  // calls that decoded something
  std::uint64_t tokens = 0;    // nodes decoded, prefill included
  std::uint64_t rows = 0;      // rows handed out
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual ModelInfo info() const = 0;
  virtual Counters counters() const = 0;

  // A new empty sequence. Fails with kLimit when max_sequences are open.
  virtual Result<SeqId> open() = 0;
  // Decodes nodes of one or several sequences in one pass; nodes of a sequence are ordered, parents first.
  // Fails with kInvalid on a malformed node (unknown sequence, parent or token, wrong position), kLimit when the context is
  // full; the engine is then unchanged. kInternal if the backend failed: the affected sequences must be closed.
  virtual Status forward(std::span<const Node> nodes, Rows& out) = 0;
  // The path (indices since the last keep, root first, each the parent of the next) becomes kept text; all else is dropped.
  // An empty path drops everything since the last keep.
  virtual Status keep(SeqId seq, std::span<const NodeIndex> path) = 0;
  // A second sequence with the same kept text. Requires: no nodes pending on seq.
  virtual Result<SeqId> fork(SeqId seq) = 0;
  // Shortens the kept text to `length` tokens and drops pending nodes. Fails with kInvalid if it is longer than the kept text.
  virtual Status truncate(SeqId seq, Pos length) = 0;
  virtual Pos length(SeqId seq) const = 0;  // kept tokens; -1 for an unknown sequence
  virtual void close(SeqId seq) = 0;
};

}  // namespace drift::engine
