// scalar.cpp - the twins: slow, obvious, in double where it helps. The vector kernels are judged against these.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "drift/simd/simd.hpp"

namespace drift::simd::scalar {
namespace {

// IEEE 754 binary32 -> binary16, to nearest even. NaN stays NaN.
f16_bits half_of(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<f16_bits>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));  // quiet NaN
  if (magnitude >= 0x47800000u) return static_cast<f16_bits>(sign | 0x7C00u);                                // >= 2^16: infinity
  if (magnitude < 0x33000000u) return static_cast<f16_bits>(sign);                                           // < 2^-25: zero
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;  // 24 bits
  const int drop = exponent < -14 ? 13 + (-14 - exponent) : 13;  // bits that do not fit; more for subnormal results
  const std::uint32_t rest = mantissa & ((1u << drop) - 1u);
  const std::uint32_t half = 1u << (drop - 1);
  mantissa >>= drop;
  if (rest > half || (rest == half && (mantissa & 1u))) ++mantissa;
  // The implicit bit, and a carry out of the mantissa, add into the exponent field by themselves.
  const std::uint32_t field = exponent < -14 ? 0u : static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<f16_bits>(sign | (field + mantissa));
}

float float_of(f16_bits half) {
  const int exponent = (half >> 10) & 0x1F;
  const int mantissa = half & 0x3FF;
  float magnitude;
  if (exponent == 0x1F) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return std::copysign(magnitude, (half & 0x8000) ? -1.0f : 1.0f);
}

}  // namespace

float dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) sum += double{a[i]} * double{b[i]};
  return static_cast<float>(sum);
}

float norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * double{v};
  return static_cast<float>(std::sqrt(sum));
}

bool all_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

void dot_rows(const float* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out) {
  for (std::size_t row = 0; row < count; ++row) out[row] = dot({rows + row * stride, query.size()}, query);
}

void dot_rows_f16(const f16_bits* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out) {
  for (std::size_t row = 0; row < count; ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < query.size(); ++i) sum += double{float_of(rows[row * stride + i])} * double{query[i]};
    out[row] = static_cast<float>(sum);
  }
}

void dot_rows_i8(const std::int8_t* rows, std::size_t stride, std::size_t count, std::span<const std::int8_t> query,
                 std::int32_t* out) {
  for (std::size_t row = 0; row < count; ++row) {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < query.size(); ++i) sum += std::int32_t{rows[row * stride + i]} * std::int32_t{query[i]};
    out[row] = sum;
  }
}

void to_f16(std::span<const float> in, f16_bits* out) {
  for (const float v : in) *out++ = half_of(v);
}

void from_f16(const f16_bits* in, std::span<float> out) {
  for (float& v : out) v = float_of(*in++);
}

std::size_t argmax(std::span<const float> x) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < x.size(); ++i)
    if (x[i] > x[best]) best = i;
  return best;
}

double log_sum_exp(std::span<const float> x) {
  const float max = x[argmax(x)];
  if (max == -std::numeric_limits<float>::infinity()) return double{max};
  double sum = 0;
  for (const float v : x) sum += std::exp(double{v} - double{max});
  return double{max} + std::log(sum);
}

double exp_shifted(std::span<const float> x, float max, float scale, std::span<float> out) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[i] = std::exp((x[i] - max) * scale);
    sum += double{out[i]};
  }
  return sum;
}

double min_sum(std::span<const float> a, std::span<const float> b, float scale) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{std::min(a[i], scale * b[i])};
  return sum;
}

std::size_t top_k(std::span<const float> x, std::size_t k, std::span<Token> ids) {
  k = std::min(k, x.size());
  std::vector<Token> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    [&](Token a, Token b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
  std::copy_n(order.begin(), k, ids.begin());
  return k;
}

}  // namespace drift::simd::scalar
