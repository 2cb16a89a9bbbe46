// interruptible.hpp - Ctrl-C for loops over an engine that do not look at it themselves.
//
// Threads: the engine's. Cost: one more virtual call a pass.
#pragma once

#include <cstddef>
#include <span>

#include "cli/console.hpp"
#include "drift/engine/wrapper.hpp"

namespace drift::cli {

inline constexpr std::size_t kPrefillChunk = 64;  // tokens decoded between two looks at Ctrl-C

// An engine whose forward() fails with kCancelled once the program is interrupted; the engine is unchanged then. Requires: the
// engine outlives it.
class Interruptible final : public engine::Wrapper {
 public:
  using Wrapper::Wrapper;

  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override {
    if (interrupted()) return {Code::kCancelled, "interrupted"};
    return Wrapper::forward(nodes, out);
  }
};

}  // namespace drift::cli
