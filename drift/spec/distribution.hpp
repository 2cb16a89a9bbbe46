// distribution.hpp - a probability distribution over tokens, and how logits become one.
//
// Order of the chain (as llama.cpp's default): bias, top-k, top-p, min-p, temperature. Top-p and min-p act on probabilities
// at temperature 1. Temperature 0 means the arg max, lowest id on ties, as a one-point distribution.
// Threads: a Sampler has scratch memory, one per thread. Cost: a few passes over the vocabulary per call; top-p without top-k
// also puts as many tokens in order as it keeps, rounded up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"
#include "drift/spec/sparse.hpp"

namespace drift::spec {

struct Distribution {
  std::vector<Token> ids;    // ascending
  std::vector<float> probs;  // same length, >= 0, sum 1 up to rounding
  // Probability of a token; 0 if it is not among ids. Cost: O(log size).
  float of(Token token) const;
  std::size_t size() const { return ids.size(); }
};

struct SamplerConfig {
  float temperature = 0.8f;  // 0 (greedy) or 0 < t <= 100
  int top_k = 40;            // 0 = off
  float top_p = 0.95f;       // (0, 1]; 1 = off
  float min_p = 0.05f;       // [0, 1]; 0 = off
  bool greedy() const { return temperature == 0.0f; }
  // 1 / temperature for a positive one, bounded so that the largest logit times it stays a number (0 * infinity is none).
  float inverse_temperature() const { return std::min(1.0f / temperature, 1e30f); }
  // Nothing is cut off: the distribution is the softmax at this temperature.
  bool keeps_all(std::size_t vocab) const {
    return !greedy() && top_p == 1.0f && min_p == 0.0f && (top_k == 0 || static_cast<std::size_t>(top_k) >= vocab);
  }
  // Fails with kInvalid naming the field, its value and its bounds.
  Status validate() const;
  friend bool operator==(const SamplerConfig&, const SamplerConfig&) = default;
};

SamplerConfig greedy_sampler();  // temperature 0, nothing else

class Sampler {
 public:
  // out = the distribution that logits + gain * bias give under `config`. An empty bias or gain 0 leaves logits untouched.
  // Requires: logits non-empty and finite, config valid, bias tokens < logits.size().
  void apply(const SamplerConfig& config, std::span<const float> logits, const SparseBias& bias, float gain, Distribution& out);
  void apply(const SamplerConfig& config, std::span<const float> logits, Distribution& out);

 private:
  void everything(const SamplerConfig& config, std::span<const float> logits, Distribution& out);
  void keep_candidates(const SamplerConfig& config, std::span<const float> logits, Distribution& out);
  std::size_t nucleus(std::span<const float> logits, float max, std::size_t kept, std::size_t in_order, double mass);
  std::vector<float> biased_;
  std::vector<float> exps_;
  std::vector<Token> order_;
};

// sum over v of min(a(v), b(v)): the chance that the rejection rule accepts one proposal (Leviathan et al. 2023, eq. 2).
double overlap(const Distribution& a, const Distribution& b);
// The chance that inverse-CDF draws from a and b with one shared uniform number give the same token.
double same_draw_chance(const Distribution& a, const Distribution& b);
// out = norm(max(a - b, 0)); returns false (out untouched) if nothing is left.
bool subtract(const Distribution& a, const Distribution& b, Distribution& out);

}  // namespace drift::spec
