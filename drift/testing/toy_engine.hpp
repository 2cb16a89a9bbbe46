// toy_engine.hpp - an Engine over a small function instead of a network: exact p and q, hidden states, trees, all in memory.
//
// The model is a pure function of the context (all tokens so far), so every property of the loop can be checked against
// enumeration. Follows the contract of engine.hpp to the letter, bitwise.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drift/engine/engine.hpp"

namespace drift::testing {

struct ToyModel {
  std::string name = "toy";
  std::size_t vocab = 8;
  std::size_t hidden_width = 0;  // 0: no hidden states
  std::size_t context = 4'096;
  std::size_t max_sequences = 16;
  // context (never empty) -> logits[vocab], hidden[hidden_width]
  std::function<void(std::span<const Token> context, std::span<float> logits, std::span<float> hidden)> row;
};

class ToyEngine final : public engine::Engine {
 public:
  explicit ToyEngine(ToyModel model) : model_(std::move(model)) {}

  engine::ModelInfo info() const override;
  engine::Counters counters() const override { return counters_; }
  Result<SeqId> open() override;
  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override;
  Status keep(SeqId seq, std::span<const NodeIndex> path) override;
  Result<SeqId> fork(SeqId seq) override;
  Status truncate(SeqId seq, Pos length) override;
  Pos length(SeqId seq) const override;
  void close(SeqId seq) override { sequences_.erase(seq); }

 private:
  struct Pending {
    Token token;
    NodeIndex parent;
  };
  struct Sequence {
    std::vector<Token> kept;
    std::vector<Pending> pending;
  };
  Status check(const engine::Node& node, const Sequence& seq, std::size_t ahead) const;
  std::vector<Token> context_of(const Sequence& seq, NodeIndex node) const;

  ToyModel model_;
  std::map<SeqId, Sequence> sequences_;
  engine::Counters counters_;
  std::vector<float> logits_, hidden_;  // the rows handed out last
};

// A number in [-1, 1) that depends on everything given, and on nothing else.
float hash_float(std::uint64_t seed, std::span<const Token> context, std::uint64_t salt);

// Logits drawn per context of the last `order` tokens: spread * hash. Hidden states (if any) likewise.
ToyModel random_model(std::uint64_t seed, std::size_t vocab, std::size_t hidden_width, std::size_t order, float spread);

}  // namespace drift::testing
