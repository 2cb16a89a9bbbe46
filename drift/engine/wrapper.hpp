// wrapper.hpp - an engine that passes every call on to another one; what is to differ is overridden.
//
// Threads: the other engine's. Cost: one more virtual call each. Requires: the other engine outlives it.
#pragma once

#include <span>

#include "drift/engine/engine.hpp"

namespace drift::engine {

class Wrapper : public Engine {
 public:
  explicit Wrapper(Engine& inner) : inner_(inner) {}

  ModelInfo info() const override { return inner_.info(); }
  Counters counters() const override { return inner_.counters(); }
  Result<SeqId> open() override { return inner_.open(); }
  Status forward(std::span<const Node> nodes, Rows& out) override { return inner_.forward(nodes, out); }
  Status keep(SeqId seq, std::span<const NodeIndex> path) override { return inner_.keep(seq, path); }
  Result<SeqId> fork(SeqId seq) override { return inner_.fork(seq); }
  Status truncate(SeqId seq, Pos length) override { return inner_.truncate(seq, length); }
  Pos length(SeqId seq) const override { return inner_.length(seq); }
  void close(SeqId seq) override { inner_.close(seq); }

 private:
  Engine& inner_;
};

}  // namespace drift::engine
