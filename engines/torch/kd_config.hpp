// kd_config.hpp - the settings of online distillation and their bounds. Knows no LibTorch: programs built without it read them too.
//
// Threads: plain values.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "drift/base/status.hpp"

namespace drift::engine {

// Which way the draft's q is pulled to the target's p.
enum class KdLoss {
  kForward,  // KL(p || q): cover what the target may say
  kReverse,  // KL(q || p): say only what the target would
  kJs,       // Jensen-Shannon: the mean of both, each against the mixture of p and q
};

// Which verified positions are learnt from.
enum class KdPositions {
  kVerified,  // all of them
  kRejected,  // those whose proposal fell, as in Liu et al. 2024
};

inline constexpr float kKdRateMax = 1.0f;
inline constexpr std::uint32_t kKdPositionsMax = 1u << 16;  // of `every` and `buffer`
inline constexpr std::uint32_t kKdPassesMax = 64;
inline constexpr std::uint32_t kKdLabelsMax = 4'096;
inline constexpr std::uint32_t kKdWindowMax = 8'192;
inline constexpr std::uint32_t kKdRankMax = 256;
inline constexpr std::uint64_t kKdBufferBytesMax = std::uint64_t{1} << 31;

struct KdConfig {
  float rate = 1e-3f;          // of AdamW
  std::uint32_t every = 64;    // new positions from one update to the next
  std::uint32_t buffer = 256;  // newest positions an update learns from; at least `every`
  std::uint32_t passes = 1;    // AdamW steps of one update, each over the whole buffer
  std::uint32_t labels = 64;   // the target's likeliest tokens kept per position, the rest being one outcome; 0: all tokens
  std::uint32_t window = 256;  // tokens of a text before its first position in the buffer that are read with it
  std::uint32_t rank = 0;      // low-rank adapters of this rank are trained; 0: all weights
  KdLoss loss = KdLoss::kForward;
  KdPositions positions = KdPositions::kVerified;

  // Bytes of the labels of a full buffer over a vocabulary.
  std::uint64_t label_bytes(std::size_t vocab) const {
    const bool whole = labels == 0 || labels >= vocab;
    return std::uint64_t{buffer} * (whole ? vocab * sizeof(float) : labels * (sizeof(float) + sizeof(std::int32_t)));
  }

  // Fails with kInvalid naming the value and its bounds, kLimit when a full buffer would need more than kKdBufferBytesMax.
  Status validate(std::size_t vocab) const {
    const auto outside = [](const std::string& what, const std::string& value, const std::string& bounds) {
      return Status(Code::kInvalid, "online distillation: " + what + " is " + value + "; it must be " + bounds);
    };
    const auto whole = [&](const char* what, std::uint32_t value, std::uint32_t low, std::uint32_t high) {
      if (value >= low && value <= high) return Status::ok();
      return outside(what, std::to_string(value), std::to_string(low) + " to " + std::to_string(high));
    };
    if (!(rate > 0) || rate > kKdRateMax) return outside("the learning rate", std::to_string(rate), "above 0, to 1");
    DRIFT_TRY(whole("the number of positions between updates", every, 1, kKdPositionsMax));
    DRIFT_TRY(whole("the buffer", buffer, 1, kKdPositionsMax));
    if (buffer < every) {
      return outside("the buffer", std::to_string(buffer),
                     "at least the " + std::to_string(every) + " positions between updates, or some would never be learnt from");
    }
    DRIFT_TRY(whole("the number of passes", passes, 1, kKdPassesMax));
    DRIFT_TRY(whole("the number of labels", labels, 0, kKdLabelsMax));
    DRIFT_TRY(whole("the window", window, 1, kKdWindowMax));
    DRIFT_TRY(whole("the rank", rank, 0, kKdRankMax));
    if (label_bytes(vocab) > kKdBufferBytesMax) {
      return {Code::kLimit, "online distillation: a buffer of " + std::to_string(buffer) + " positions needs " +
                                std::to_string(label_bytes(vocab) >> 20) + " MiB; at most " +
                                std::to_string(kKdBufferBytesMax >> 20) + " are taken: use fewer labels or a smaller buffer"};
    }
    return Status::ok();
  }
};

}  // namespace drift::engine
