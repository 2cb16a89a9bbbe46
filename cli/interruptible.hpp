// interruptible.hpp - Ctrl-C for loops over an engine that do not look at it themselves.
//
// Threads: the engine's. Cost: one more virtual call a pass.
#pragma once

#include <cstddef>
#include <span>

#include "cli/console.hpp"
#include "drift/engine/engine.hpp"

namespace drift::cli {

inline constexpr std::size_t kPrefillChunk = 64;  // tokens decoded between two looks at Ctrl-C

// An engine whose forward() fails with kCancelled once the program is interrupted; the engine is unchanged then. Requires: the
// engine outlives it.
class Interruptible final : public engine::Engine {
 public:
  explicit Interruptible(engine::Engine& engine) : engine_(engine) {}

  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override {
    if (interrupted()) return {Code::kCancelled, "interrupted"};
    return engine_.forward(nodes, out);
  }

  engine::ModelInfo info() const override { return engine_.info(); }
  engine::Counters counters() const override { return engine_.counters(); }
  Result<SeqId> open() override { return engine_.open(); }
  Status keep(SeqId seq, std::span<const NodeIndex> path) override { return engine_.keep(seq, path); }
  Result<SeqId> fork(SeqId seq) override { return engine_.fork(seq); }
  Status truncate(SeqId seq, Pos length) override { return engine_.truncate(seq, length); }
  Pos length(SeqId seq) const override { return engine_.length(seq); }
  void close(SeqId seq) override { engine_.close(seq); }

 private:
  engine::Engine& engine_;
};

}  // namespace drift::cli
