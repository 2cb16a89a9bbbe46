#include "drift/recal/kriging.hpp"

#include <algorithm>
#include <cmath>

namespace drift::recal {

float kriging_kernel(float cosine, float sigma) { return std::exp((cosine - 1.0f) / sigma); }

void Kriging::weigh(std::span<const Known> neighbors, float sigma, std::vector<float>& out) {
  const std::size_t n = neighbors.size();
  matrix_.resize(n * n);
  a_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto& [bank, near] = neighbors[i];
    key_.resize(bank->config().key_dim);
    bank->keys().copy(near.entry, key_);
    for (std::size_t j = 0; j < i; ++j) {
      const float cosine = neighbors[j].bank->keys().similarity({key_, 0}, neighbors[j].neighbor.entry);
      matrix_[i * n + j] = static_cast<double>(kriging_kernel(cosine, sigma));
    }
    const std::uint32_t lessons = std::clamp<std::uint32_t>(bank->entry(near.entry).count, 1, kNoiseCount);
    matrix_[i * n + i] = 1.0 + kLessonNoise / static_cast<double>(lessons);
    a_[i] = static_cast<double>(kriging_kernel(near.score, sigma));
  }
  // Cholesky: K + D = L L^T, then L y = k and L^T a = y. Rounded keys may make K indefinite by their rounding; D covers it, and
  // the floor is for what it does not.
  constexpr double kLeastPivot = 1e-6;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = matrix_[i * n + j];
      for (std::size_t t = 0; t < j; ++t) sum -= matrix_[i * n + t] * matrix_[j * n + t];
      matrix_[i * n + j] = j < i ? sum / matrix_[j * n + j] : std::sqrt(std::max(sum, kLeastPivot));
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t t = 0; t < i; ++t) a_[i] -= matrix_[i * n + t] * a_[t];
    a_[i] /= matrix_[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t t = i + 1; t < n; ++t) a_[i] -= matrix_[t * n + i] * a_[t];
    a_[i] /= matrix_[i * n + i];
  }
  out.resize(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(a_[i]);
}

}  // namespace drift::recal
