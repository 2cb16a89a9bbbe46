#include "train/narrow_embedding.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "drift/base/check.hpp"

namespace drift::train {
namespace {

constexpr double kCountPower = 0.75, kCountFloor = 0.5;
constexpr double kSize = 0.1;  // root mean square of the result
// Of logits at the beginning. The state of a token begins as its own embedding, so a larger one would say each token again.
constexpr double kLogitDeviation = 0.5;
constexpr double kNoise = 0.01;       // deviation of dimensions without a component
constexpr double kLogCountMax = 3.0;  // deviations: rarer or more frequent than that is the same
constexpr std::int64_t kEmbeddingRows = 8'192;

// Calls f(first row, rows in float64) over all rows of a tall matrix.
void over_rows(const torch::Tensor& matrix, const std::function<void(std::int64_t, const torch::Tensor&)>& f) {
  for (std::int64_t at = 0; at < matrix.size(0); at += kEmbeddingRows)
    f(at, matrix.narrow(0, at, std::min(kEmbeddingRows, matrix.size(0) - at)).to(torch::kDouble));
}

torch::Tensor standardised_log(const torch::Tensor& counts) {
  const torch::Tensor log_count = (counts + kCountFloor).log();
  const torch::Tensor centred = log_count - log_count.mean();
  const double deviation = std::sqrt(centred.square().mean().item<double>());
  return (centred / std::max(deviation, 1e-6)).clamp(-kLogCountMax, kLogCountMax);
}

}  // namespace

NarrowEmbedding narrow_embedding(const torch::Tensor& wide, const torch::Tensor& counts, std::int64_t width, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const std::int64_t vocab = wide.size(0), from = wide.size(1), components = std::min(width - 1, from);
  DRIFT_CHECK(width >= 2 && counts.size(0) == vocab, "a count for each token, and room for it");
  torch::Tensor share = (counts.to(torch::kDouble) + kCountFloor).pow(kCountPower);
  share = share / share.sum();
  torch::Tensor mean = torch::zeros({from}, torch::kDouble), second = torch::zeros({from, from}, torch::kDouble);
  over_rows(wide, [&](std::int64_t at, const torch::Tensor& rows) {
    const torch::Tensor weighted = rows * share.narrow(0, at, rows.size(0)).unsqueeze(1);
    mean += weighted.sum(0);
    second.addmm_(weighted.t(), rows);
  });
  const auto [values, vectors] = torch::linalg_eigh(second - torch::outer(mean, mean), "L");  // ascending
  const torch::Tensor spread = values.narrow(0, from - components, components).flip(0).clamp_min(1e-12);
  // A column's entry of largest size is positive: the sign is free, and libraries choose it differently.
  torch::Tensor axes = vectors.narrow(1, from - components, components).flip(1);
  const torch::Tensor largest = axes.gather(0, axes.abs().argmax(0, /*keepdim=*/true));
  axes = axes * largest.sign() / spread.pow(0.25);

  NarrowEmbedding out;
  out.kept = spread.sum().item<double>() / std::max(values.sum().item<double>(), 1e-12);
  out.weight = torch::empty({vocab, width});
  over_rows(wide, [&](std::int64_t at, const torch::Tensor& rows) {
    out.weight.narrow(0, at, rows.size(0)).narrow(1, 0, components).copy_(torch::mm(rows - mean, axes));
  });
  torch::Tensor part = out.weight.narrow(1, 0, components);
  const torch::Tensor square = part.square().mean(1).to(torch::kDouble);
  part.mul_(kSize / std::sqrt(std::max((square * share).sum().item<double>(), 1e-12)));
  if (const std::int64_t empty = width - 1 - components; empty > 0) {
    const torch::Generator generator = at::detail::createCPUGenerator(seed);
    out.weight.narrow(1, components, empty).normal_(0, kNoise, generator);
  }
  out.weight.select(1, width - 1).copy_(kSize * standardised_log(counts));
  out.gain = kLogitDeviation / (kSize * std::sqrt(static_cast<double>(width)));
  return out;
}

}  // namespace drift::train
