#include "drift/base/rng.hpp"

#include "drift/base/check.hpp"

namespace drift {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with full avalanche.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

double RngStream::uniform(const DrawKey& key) const {
  std::uint64_t x = mix(seed_);
  x = mix(x ^ key.sequence);
  x = mix(x ^ static_cast<std::uint32_t>(key.position));
  x = mix(x ^ (static_cast<std::uint64_t>(key.purpose) << 32 | key.round));
  return static_cast<double>(x >> 11) * 0x1.0p-53;
}

std::size_t inverse_cdf(std::span<const float> weights, double u) {
  double sum = 0.0;
  for (float w : weights) sum += static_cast<double>(w);
  DRIFT_CHECK(sum > 0.0, "a draw needs a positive weight");
  const double aim = u * sum;
  double cdf = 0.0;
  std::size_t last = 0;  // the last index of positive weight: rounding may leave aim just above the final cdf
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0.0f)) continue;
    cdf += static_cast<double>(weights[i]);
    last = i;
    if (aim < cdf) return i;
  }
  return last;
}

std::size_t RngStream::pick(const DrawKey& key, std::span<const float> weights) { return inverse_cdf(weights, uniform(key)); }

}  // namespace drift
