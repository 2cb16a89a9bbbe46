// online_kd.hpp - a draft that is distilled from its target while it serves: the gradient baseline (Liu et al. 2024, "Online
// Speculative Decoding").
//
// A buffer holds the newest verified positions: their texts and the target's distributions. Whenever `every` new ones have come, a
// commit makes one or several AdamW steps on the mean divergence over the buffer. Gradients are clipped to a norm of 1; an update
// whose gradients are not finite is left out and counted.
// Weights change inside commit() only, so they are frozen within a step; TorchEngine then computes the kept text of its sequences
// anew, and that time counts as drafting.
// Threads: one, that of the engine. Limits: KdConfig's; a text is read from `window` tokens before its first position in the buffer
// on, and cut after kKdTextTokens more. Memory: as stats() says, and during an update the activations of one text.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "drift/engine/learner.hpp"
#include "engines/torch/engine.hpp"
#include "engines/torch/kd_config.hpp"

namespace torch::optim {
class AdamW;
}

namespace drift::engine {

inline constexpr std::size_t kKdTextTokens = 512;

class OnlineKd final : public Learner {
 public:
  // `vocab`: tokens both models know. Requires: the engine outlives the learner, and nobody else trains its network.
  // Fails as KdConfig::validate, and with kInvalid if the engine's vocabulary is smaller than `vocab`.
  static Result<std::unique_ptr<OnlineKd>> create(TorchEngine& draft, std::size_t vocab, const KdConfig& config);
  ~OnlineKd() override;

  Status observe(const Verified& verified) override;
  Status commit() override;
  void discard() override { staged_.clear(); }
  LearnerStats stats() const override;

  std::size_t buffered() const { return buffered_; }  // positions
  const KdConfig& config() const { return config_; }

 private:
  // Positions of one text. Position i follows tokens[0 .. after[i]].
  struct Text {
    std::uint64_t sequence = 0;
    std::size_t from = 0;  // place of tokens[0] in the text
    std::vector<Token> tokens;
    std::vector<std::uint32_t> after;  // [n]
    std::vector<std::int32_t> ids;     // [n, labels], or empty: all tokens
    std::vector<float> log_p;          // [n, labels or vocab]

    std::uint64_t bytes() const {
      return sizeof(Text) + tokens.capacity() * sizeof(Token) + after.capacity() * sizeof(std::uint32_t) +
             ids.capacity() * sizeof(std::int32_t) + log_p.capacity() * sizeof(float);
    }
  };

  OnlineKd(TorchEngine& draft, std::size_t vocab, const KdConfig& config);
  std::size_t width() const;  // labels of a position
  bool go_on(Text& text, const Text& next) const;
  void evict();
  void forget_first(Text& text, std::size_t count) const;
  Status update();
  double train(const Text& text);
  std::vector<torch::Tensor> trained() const;

  TorchEngine& draft_;
  std::size_t vocab_;
  KdConfig config_;
  std::unique_ptr<torch::optim::AdamW> optimiser_;
  std::vector<Text> staged_;
  std::deque<Text> texts_;  // oldest first
  std::size_t buffered_ = 0, fresh_ = 0;
  LearnerStats stats_;
};

}  // namespace drift::engine
