// rng.hpp - randomness as a pure function of (seed, sequence, position, purpose).
//
// Every random decision of the decoding loop is one call of Choices. In production Choices is RngStream: one uniform number
// per key, turned into a token by the inverse CDF in token-id order. So the draft and the target at one position see the
// same number (which couples their draws and keeps modes comparable), batching cannot change an output, and a test can
// replace Choices by an enumerator that branches on every weighted choice.
// Threads: RngStream is immutable, share it freely. Cost: tens of ns per number.
#pragma once

#include <cstdint>
#include <span>

#include "drift/base/ids.hpp"

namespace drift {

// What a number is used for. kDraw is shared by the draft's proposal and the target's own draw at a position (common random
// numbers); acceptance tests and the draws after a rejection need numbers of their own to be exact.
enum class Purpose : std::uint32_t { kDraw = 0, kAccept = 1, kResample = 2 };

struct DrawKey {
  std::uint64_t sequence = 0;  // a stable name of the sequence (not its slot)
  Pos position = 0;            // position of the token being decided
  Purpose purpose = Purpose::kDraw;
  std::uint32_t round = 0;  // the i-th test at one position (several drafts for one token); 0 otherwise
  friend bool operator==(const DrawKey&, const DrawKey&) = default;
};

class Choices {
 public:
  virtual ~Choices() = default;
  // Picks index i with probability weights[i] / sum(weights), in index order.
  // Requires: non-empty, finite, >= 0, positive sum. The result always has a positive weight. Cost: O(weights.size()).
  virtual std::size_t pick(const DrawKey& key, std::span<const float> weights) = 0;
  // True with the given probability in [0, 1].
  virtual bool accept(const DrawKey& key, double probability) = 0;
};

class RngStream final : public Choices {
 public:
  explicit RngStream(std::uint64_t seed) : seed_(seed) {}
  // The number behind a key, uniform in [0, 1), 53 bits.
  double uniform(const DrawKey& key) const;
  std::size_t pick(const DrawKey& key, std::span<const float> weights) override;
  bool accept(const DrawKey& key, double probability) override { return uniform(key) < probability; }
  std::uint64_t seed() const { return seed_; }

 private:
  std::uint64_t seed_;
};

// The index i with cdf(i-1) <= u * sum < cdf(i), sums taken in double in index order; never an index of zero weight.
std::size_t inverse_cdf(std::span<const float> weights, double u);

}  // namespace drift
