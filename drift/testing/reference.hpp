// reference.hpp - slow and obvious twins of the sampling mathematics, in double, for tests to compare the product with.
//
// Written from the definitions (spec/distribution.hpp), sharing no code with them. Dense: element v belongs to token v.
// Threads: pure functions. Cost: sorts the vocabulary; for tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/spec/distribution.hpp"

namespace drift::testing {

inline std::vector<double> softmax(std::span<const float> logits, double temperature = 1.0) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(logits.size());
  double sum = 0.0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += p[v] = std::exp((static_cast<double>(logits[v]) - max) / temperature);
  for (double& x : p) x /= sum;
  return p;
}

// What SamplerConfig makes of logits: top-k, top-p (over what top-k left), min-p, then temperature; arg max at temperature 0.
inline std::vector<double> reference_distribution(const spec::SamplerConfig& config, std::span<const float> logits) {
  const std::size_t vocab = logits.size();
  std::vector<std::size_t> order(vocab);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> out(vocab, 0.0);
  if (config.greedy()) {
    out[order[0]] = 1.0;
    return out;
  }
  if (config.top_k > 0 && static_cast<std::size_t>(config.top_k) < vocab) order.resize(static_cast<std::size_t>(config.top_k));
  const std::vector<double> p = softmax(logits);
  double total = 0.0;
  for (std::size_t v : order) total += p[v];
  if (config.top_p < 1.0f) {
    double mass = 0.0;
    std::size_t kept = 0;
    while (kept < order.size() && mass < static_cast<double>(config.top_p) * total) mass += p[order[kept++]];
    order.resize(std::max<std::size_t>(kept, 1));
  }
  const double floor = static_cast<double>(config.min_p) * p[order[0]];
  while (order.size() > 1 && p[order.back()] < floor) order.pop_back();
  double sum = 0.0;
  const double max = static_cast<double>(logits[order[0]]);
  for (std::size_t v : order)
    sum += out[v] = std::exp((static_cast<double>(logits[v]) - max) / static_cast<double>(config.temperature));
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace drift::testing
