// reduce.cpp - reductions over one long vector (a row of logits). Compiled once per CPU target (Highway foreach_target).
#include "drift/simd/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "drift/simd/reduce.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

// Only after foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#ifndef DRIFT_SIMD_TOP_LIST
#define DRIFT_SIMD_TOP_LIST
namespace drift::simd {

inline constexpr std::size_t kMaxVectorTopK = 1'024;  // larger k takes the scalar twin, which allocates

// The best k of what was offered, as one 64-bit number each: the value's order in the upper half, the complement of the
// index in the lower, so that plain integer order is "largest value first, then lowest index".
class TopList {
 public:
  explicit TopList(std::size_t k) : k_(k), capacity_(std::max<std::size_t>(2 * k, k + 64)) {}

  // A value not above this cannot enter any more: a full list has k values at least as large, all at lower indices.
  float threshold() const { return threshold_; }

  void offer(float value, std::size_t index) {
    items_[size_++] = order_of(value) << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(index));
    if (size_ == capacity_) shrink();
  }

  // Fixes the threshold once the first k elements are in.
  void shrink() {
    if (size_ < k_) return;
    std::nth_element(items_.begin(), items_.begin() + (k_ - 1), items_.begin() + size_, std::greater<>());
    size_ = k_;
    threshold_ = value_of(items_[k_ - 1] >> 32);
  }

  void finish(Token* ids) {
    shrink();
    std::sort(items_.begin(), items_.begin() + size_, std::greater<>());
    for (std::size_t i = 0; i < size_; ++i) ids[i] = static_cast<Token>(0xFFFFFFFFu - static_cast<std::uint32_t>(items_[i]));
  }

 private:
  static std::uint64_t order_of(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value + 0.0f);  // -0 equals +0
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  }
  static float value_of(std::uint64_t order) {
    const std::uint32_t o = static_cast<std::uint32_t>(order);
    return std::bit_cast<float>((o & 0x80000000u) ? o & 0x7FFFFFFFu : ~o);
  }

  std::size_t k_;
  std::size_t capacity_;
  std::size_t size_ = 0;
  float threshold_ = -std::numeric_limits<float>::infinity();
  std::array<std::uint64_t, 2 * kMaxVectorTopK> items_;
};

}  // namespace drift::simd
#endif  // DRIFT_SIMD_TOP_LIST

HWY_BEFORE_NAMESPACE();
namespace drift::simd {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // No vectors on this CPU: the twins are the implementation.

bool all_finite(const float* x, std::size_t size) { return scalar::all_finite({x, size}); }
std::size_t argmax(const float* x, std::size_t size) { return scalar::argmax({x, size}); }
double log_sum_exp(const float* x, std::size_t size) { return scalar::log_sum_exp({x, size}); }
double exp_shifted(const float* x, std::size_t size, float max, float scale, float* out) {
  return scalar::exp_shifted({x, size}, max, scale, {out, size});
}
double min_sum(const float* a, const float* b, std::size_t size, float scale) {
  return scalar::min_sum({a, size}, {b, size}, scale);
}
std::size_t top_k(const float* x, std::size_t size, std::size_t k, Token* ids) { return scalar::top_k({x, size}, k, {ids, k}); }

#else

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using D = hn::ScalableTag<double>;
using HalfF = hn::Half<F>;

bool all_finite(const float* x, std::size_t size) {
  // A float is finite if its exponent is not all ones; x - x is 0 then and NaN otherwise.
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  auto bad = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    bad = hn::Add(bad, hn::Sub(v, v));
  }
  if (!hn::AllTrue(d, hn::Eq(bad, hn::Zero(d)))) return false;
  return scalar::all_finite({x + i, size - i});
}

HWY_INLINE float max_of(const float* x, std::size_t size) {
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  float best = -std::numeric_limits<float>::infinity();
  std::size_t i = 0;
  if (size >= 4 * lanes) {
    auto m0 = hn::LoadU(d, x), m1 = m0, m2 = m0, m3 = m0;
    for (; i + 4 * lanes <= size; i += 4 * lanes) {
      m0 = hn::Max(m0, hn::LoadU(d, x + i));
      m1 = hn::Max(m1, hn::LoadU(d, x + i + lanes));
      m2 = hn::Max(m2, hn::LoadU(d, x + i + 2 * lanes));
      m3 = hn::Max(m3, hn::LoadU(d, x + i + 3 * lanes));
    }
    best = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
  }
  for (; i < size; ++i) best = std::max(best, x[i]);
  return best;
}

std::size_t argmax(const float* x, std::size_t size) {
  constexpr std::size_t kBlock = 2'048;  // still in the first-level cache when the winner's place is looked up
  float best = -std::numeric_limits<float>::infinity();
  std::size_t best_block = 0;
  for (std::size_t i = 0; i < size; i += kBlock) {
    const float m = max_of(x + i, std::min(kBlock, size - i));
    if (m > best) {
      best = m;
      best_block = i;
    }
  }
  const std::size_t end = std::min(best_block + kBlock, size);
  for (std::size_t i = best_block; i < end; ++i)
    if (x[i] == best) return i;
  return 0;  // only for NaN, where any index is allowed
}

// Adds a float vector to two double vectors, losslessly.
HWY_INLINE void add_as_double(hn::Vec<F> v, hn::Vec<D>& low, hn::Vec<D>& high) {
  low = hn::Add(low, hn::PromoteTo(D(), hn::LowerHalf(HalfF(), v)));
  high = hn::Add(high, hn::PromoteTo(D(), hn::UpperHalf(HalfF(), v)));
}

// sum(exp((x - max) * scale)); stores the terms if out is not null. The tail goes through a padded copy, so that every
// element meets the same exp and the result does not depend on where a vector begins.
template <bool kStore>
HWY_INLINE double sum_exp(const float* HWY_RESTRICT x, std::size_t size, float max, float scale, float* HWY_RESTRICT out) {
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  const auto vmax = hn::Set(d, max);
  const auto vscale = hn::Set(d, scale);
  auto low = hn::Zero(D()), high = hn::Zero(D());
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto e = hn::Exp(d, hn::Mul(hn::Sub(hn::LoadU(d, x + i), vmax), vscale));
    if (kStore) hn::StoreU(e, d, out + i);
    add_as_double(e, low, high);
  }
  double sum = hn::GetLane(hn::SumOfLanes(D(), hn::Add(low, high)));
  if (i < size) {
    HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(tail, x + i, (size - i) * sizeof(float));
    hn::Store(hn::Exp(d, hn::Mul(hn::Sub(hn::Load(d, tail), vmax), vscale)), d, tail);
    for (std::size_t j = 0; i + j < size; ++j) {
      sum += double{tail[j]};
      if (kStore) out[i + j] = tail[j];
    }
  }
  return sum;
}

double log_sum_exp(const float* x, std::size_t size) {
  const float max = max_of(x, size);
  if (max == -std::numeric_limits<float>::infinity()) return double{max};
  return double{max} + std::log(sum_exp<false>(x, size, max, 1.0f, nullptr));
}

double exp_shifted(const float* x, std::size_t size, float max, float scale, float* out) {
  return sum_exp<true>(x, size, max, scale, out);
}

double min_sum(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::size_t size, float scale) {
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  const auto vscale = hn::Set(d, scale);
  auto low = hn::Zero(D()), high = hn::Zero(D());
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    add_as_double(hn::Min(hn::LoadU(d, a + i), hn::Mul(hn::LoadU(d, b + i), vscale)), low, high);
  }
  return hn::GetLane(hn::SumOfLanes(D(), hn::Add(low, high))) + scalar::min_sum({a + i, size - i}, {b + i, size - i}, scale);
}

std::size_t top_k(const float* x, std::size_t size, std::size_t k, Token* ids) {
  if (k > kMaxVectorTopK) return scalar::top_k({x, size}, k, {ids, k});
  k = std::min(k, size);
  if (k == 0) return 0;
  TopList top(k);
  std::size_t i = 0;
  for (; i < k; ++i) top.offer(x[i], i);
  top.shrink();
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    const auto m = hn::Max(hn::Max(hn::LoadU(d, x + i), hn::LoadU(d, x + i + lanes)),
                           hn::Max(hn::LoadU(d, x + i + 2 * lanes), hn::LoadU(d, x + i + 3 * lanes)));
    if (HWY_LIKELY(hn::AllFalse(d, hn::Gt(m, hn::Set(d, top.threshold()))))) continue;
    for (std::size_t j = i; j < i + 4 * lanes; ++j)
      if (x[j] > top.threshold()) top.offer(x[j], j);
  }
  for (; i < size; ++i)
    if (x[i] > top.threshold()) top.offer(x[i], i);
  top.finish(ids);
  return k;
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace drift::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace drift::simd {

HWY_EXPORT(all_finite);
HWY_EXPORT(argmax);
HWY_EXPORT(log_sum_exp);
HWY_EXPORT(exp_shifted);
HWY_EXPORT(min_sum);
HWY_EXPORT(top_k);

float norm(std::span<const float> x) {
  const float squared = dot(x, x);
  // Outside this range the float sum has overflowed or lost small squares; inside, its relative error is that of dot().
  if (squared > 1e-30f && squared < 1e30f) return std::sqrt(squared);
  return scalar::norm(x);
}
bool all_finite(std::span<const float> x) { return HWY_DYNAMIC_DISPATCH(all_finite)(x.data(), x.size()); }
std::size_t argmax(std::span<const float> x) { return HWY_DYNAMIC_DISPATCH(argmax)(x.data(), x.size()); }
double log_sum_exp(std::span<const float> x) { return HWY_DYNAMIC_DISPATCH(log_sum_exp)(x.data(), x.size()); }
double exp_shifted(std::span<const float> x, float max, float scale, std::span<float> out) {
  return HWY_DYNAMIC_DISPATCH(exp_shifted)(x.data(), x.size(), max, scale, out.data());
}
double min_sum(std::span<const float> a, std::span<const float> b, float scale) {
  return HWY_DYNAMIC_DISPATCH(min_sum)(a.data(), b.data(), a.size(), scale);
}
std::size_t top_k(std::span<const float> x, std::size_t k, std::span<Token> ids) {
  return HWY_DYNAMIC_DISPATCH(top_k)(x.data(), x.size(), std::min(k, x.size()), ids.data());
}

}  // namespace drift::simd
#endif  // HWY_ONCE
