// windows.hpp - training rows out of token streams, in an order that is a pure function of the seed: step t always sees the same.
//
// So a run that was stopped goes on with the same rows without keeping a position. Threads: one at a time per object.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::train {

// The tokens of one domain.
struct Stream {
  std::string domain;
  std::vector<std::int32_t> train, held_out;
  double weight = 1;  // how often an epoch passes over it; 0.5: over half of its windows, chosen anew each time
};

// Endless passes over 0 .. size - 1, each in an order of its own.
class Shuffled {
 public:
  Shuffled(std::uint64_t seed, std::size_t size);  // Requires: size >= 1.
  struct Place {
    std::uint64_t epoch;
    std::size_t index;
  };
  Place at(std::uint64_t i);  // Cost: O(1), O(size) where an epoch begins.

 private:
  std::uint64_t seed_, epoch_;
  std::vector<std::uint32_t> order_;
};

// Windows of length + 1 tokens (the inputs, and one more to predict) from several streams. Each epoch cuts at other places.
class Windows {
 public:
  // Requires: streams outlive this, and check() was ok.
  Windows(std::vector<const Stream*> streams, std::int64_t length, std::uint64_t seed);
  // Fails with kLimit: a stream is too short for windows of that length.
  static Status check(const Stream& stream, std::int64_t length);

  // Windows first .. first + count - 1 of the endless order: int64 [count, length + 1].
  torch::Tensor take(std::uint64_t first, std::int64_t count);
  std::uint64_t epoch_windows() const { return epoch_size_; }

 private:
  struct Window {
    std::uint32_t stream;
    std::uint32_t index;
  };
  void begin_epoch(std::uint64_t epoch);

  std::vector<const Stream*> streams_;
  std::int64_t length_;
  std::uint64_t seed_, epoch_size_ = 0, epoch_;
  std::vector<Window> windows_;        // of the epoch, shuffled
  std::vector<std::int64_t> offsets_;  // per stream, of the epoch
};

// The first windows of text held out, one behind the other: int64 [at most `most`, length + 1]. A text shorter than one window
// gives one shorter window.
torch::Tensor held_out_windows(const Stream& stream, std::int64_t length, std::int64_t most);

}  // namespace drift::train
