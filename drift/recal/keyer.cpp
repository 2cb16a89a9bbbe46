#include "drift/recal/keyer.hpp"

#include <cmath>
#include <cstring>
#include <string>

#include "drift/base/check.hpp"
#include "drift/simd/simd.hpp"

namespace drift::recal {
namespace {

constexpr double kVarianceFloor = 1e-12;  // of unit vectors' elements: a dimension that never varies stays near 0

void scale_to_unit(std::span<float> x) {
  const float n = simd::norm(x);
  if (!(n > 0.0f)) return;
  for (float& v : x) v /= n;
}

}  // namespace

Keyer::Keyer(std::uint32_t dim, bool standardise) : dim_(dim), standardise_(standardise) {
  if (standardise_) {
    mean_.resize(dim);
    m2_.resize(dim);
    shift_.resize(dim);
    scale_.resize(dim);
  }
}

Status Keyer::make(std::span<const float> hidden, std::span<float> unit, std::span<float> key) const {
  if (hidden.size() != dim_) {
    return {Code::kInvalid,
            "hidden state has " + std::to_string(hidden.size()) + " elements; this bank's keys have " + std::to_string(dim_)};
  }
  if (!simd::all_finite(hidden)) return {Code::kInvalid, "hidden state holds a NaN or an infinity"};
  // Scale by the largest element first, so that squares neither overflow nor vanish.
  float largest = 0.0f;
  for (float v : hidden) largest = std::max(largest, std::fabs(v));
  if (!(largest > 0.0f)) return {Code::kInvalid, "hidden state is the zero vector: it has no direction to look up"};
  const float inverse = 1.0f / largest;
  if (std::isfinite(inverse)) {
    for (std::size_t i = 0; i < dim_; ++i) unit[i] = hidden[i] * inverse;
  } else {  // subnormal magnitudes
    for (std::size_t i = 0; i < dim_; ++i) unit[i] = hidden[i] / largest;
  }
  scale_to_unit(unit);
  std::memcpy(key.data(), unit.data(), unit.size_bytes());
  if (frozen_) convert(key);
  return Status::ok();
}

bool Keyer::learn(std::span<const float> unit) {
  if (!standardise_ || frozen_) return false;
  ++count_;
  const double n = static_cast<double>(count_);
  for (std::size_t i = 0; i < dim_; ++i) {
    const double delta = static_cast<double>(unit[i]) - mean_[i];
    mean_[i] += delta / n;
    m2_[i] += delta * (static_cast<double>(unit[i]) - mean_[i]);
  }
  if (count_ < kFreezeAfter) return false;
  for (std::size_t i = 0; i < dim_; ++i) {
    shift_[i] = static_cast<float>(mean_[i]);
    scale_[i] = static_cast<float>(1.0 / std::sqrt(m2_[i] / n + kVarianceFloor));
  }
  frozen_ = true;
  return true;
}

void Keyer::convert(std::span<float> unit) const {
  DRIFT_CHECK(frozen_, "keys are converted once the statistics are frozen");
  for (std::size_t i = 0; i < dim_; ++i) unit[i] = (unit[i] - shift_[i]) * scale_[i];
  scale_to_unit(unit);
}

std::vector<std::byte> Keyer::save() const {
  // dim, standardise, frozen, count, then mean and m2: shift and scale follow from them.
  std::vector<std::byte> out;
  const auto put = [&](const void* p, std::size_t n) {
    const auto* b = static_cast<const std::byte*>(p);
    out.insert(out.end(), b, b + n);
  };
  const std::uint32_t flags = (standardise_ ? 1u : 0u) | (frozen_ ? 2u : 0u);
  put(&dim_, sizeof dim_);
  put(&flags, sizeof flags);
  put(&count_, sizeof count_);
  put(mean_.data(), mean_.size() * sizeof(double));
  put(m2_.data(), m2_.size() * sizeof(double));
  return out;
}

Status Keyer::load(std::span<const std::byte> bytes) {
  Keyer fresh(dim_, standardise_);
  const std::size_t expected = sizeof dim_ + sizeof(std::uint32_t) + sizeof count_ + 2 * fresh.mean_.size() * sizeof(double);
  if (bytes.size() != expected) return {Code::kCorrupt, "key statistics have the wrong size"};
  std::uint32_t dim, flags;
  const std::byte* at = bytes.data();
  const auto get = [&](void* p, std::size_t n) {
    if (n == 0) return;  // memcpy may not be given the null pointer of an empty array
    std::memcpy(p, at, n);
    at += n;
  };
  get(&dim, sizeof dim);
  get(&flags, sizeof flags);
  get(&fresh.count_, sizeof fresh.count_);
  get(fresh.mean_.data(), fresh.mean_.size() * sizeof(double));
  get(fresh.m2_.data(), fresh.m2_.size() * sizeof(double));
  if (dim != dim_ || (flags & 1u) != (standardise_ ? 1u : 0u) || flags > 3u)
    return {Code::kCorrupt, "key statistics belong to another configuration"};
  if (fresh.count_ > kFreezeAfter || ((flags & 2u) != 0) != (standardise_ && fresh.count_ == kFreezeAfter)) {
    return {Code::kCorrupt, "key statistics contradict themselves"};
  }
  for (std::size_t i = 0; i < fresh.mean_.size(); ++i) {
    if (!std::isfinite(fresh.mean_[i]) || !std::isfinite(fresh.m2_[i]) || fresh.m2_[i] < 0)
      return {Code::kCorrupt, "key statistics hold a value out of range"};
  }
  fresh.frozen_ = (flags & 2u) != 0;
  if (fresh.frozen_) {
    for (std::size_t i = 0; i < dim_; ++i) {
      fresh.shift_[i] = static_cast<float>(fresh.mean_[i]);
      fresh.scale_[i] = static_cast<float>(1.0 / std::sqrt(fresh.m2_[i] / static_cast<double>(fresh.count_) + kVarianceFloor));
    }
  }
  *this = std::move(fresh);
  return Status::ok();
}

}  // namespace drift::recal
