// simd.hpp - the few vector kernels DRIFT needs, chosen at run time for the CPU (Highway), a scalar twin beside each.
//
// Threads: pure functions. Alignment: none required, 64 bytes is fastest. Non-finite input: the caller's border checks it
// (all_finite); kernels give unspecified numbers for it but never read or write out of bounds.
// Twins live in drift::simd::scalar with the same signatures and are compared in simd_test.cpp over awkward sizes.
// Numbers: sums are reassociated by vector width, so equal inputs give equal outputs for one build and one CPU target only.
// A row's dot product does not depend on how many rows are asked for together, nor on its place: dot(row, q) equals dot_rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "drift/base/ids.hpp"

namespace drift::simd {

using f16_bits = std::uint16_t;  // IEEE half precision, as bits

// Name of the Highway target in use, e.g. "AVX3_DL".
const char* target_name();

float dot(std::span<const float> a, std::span<const float> b);
float norm(std::span<const float> x);  // Euclidean
bool all_finite(std::span<const float> x);

// out[i] = dot(row i, query). Rows are `stride` elements apart and start at `rows`; dim elements of each count.
// Cost: one pass over count * dim elements; bound by memory bandwidth when the rows do not fit the cache.
void dot_rows(const float* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out);
void dot_rows_f16(const f16_bits* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out);
// Integer dot of signed bytes; |values| <= 127, dim <= 65,536 so that int32 cannot overflow.
void dot_rows_i8(const std::int8_t* rows, std::size_t stride, std::size_t count, std::span<const std::int8_t> query,
                 std::int32_t* out);

void to_f16(std::span<const float> in, f16_bits* out);  // round to nearest even
void from_f16(const f16_bits* in, std::span<float> out);

// Index of the largest element, the lowest index on ties. Requires: non-empty.
std::size_t argmax(std::span<const float> x);
// log(sum(exp(x))), computed against the maximum; terms are floats, their sum is a double. -inf elements weigh nothing.
// Requires: non-empty, no NaN, no +inf.
double log_sum_exp(std::span<const float> x);
// out[i] = exp((x[i] - max) * scale); returns the sum of what it wrote, in double. Requires: out.size() == x.size(), x <= max.
double exp_shifted(std::span<const float> x, float max, float scale, std::span<float> out);
// Sum of min(a[i], scale * b[i]), in double; with probabilities, their overlap. Requires: a.size() == b.size(), no NaN.
double min_sum(std::span<const float> a, std::span<const float> b, float scale);
// The min(k, x.size()) largest elements: their indices into `ids`, largest first, equal values by lowest index.
// Returns how many. Requires: ids.size() >= min(k, x.size()). Cost: about one pass over x; beyond k = 1,024 a sort of x that
// allocates.
std::size_t top_k(std::span<const float> x, std::size_t k, std::span<Token> ids);

namespace scalar {
float dot(std::span<const float> a, std::span<const float> b);
float norm(std::span<const float> x);
bool all_finite(std::span<const float> x);
void dot_rows(const float* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out);
void dot_rows_f16(const f16_bits* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out);
void dot_rows_i8(const std::int8_t* rows, std::size_t stride, std::size_t count, std::span<const std::int8_t> query,
                 std::int32_t* out);
void to_f16(std::span<const float> in, f16_bits* out);
void from_f16(const f16_bits* in, std::span<float> out);
std::size_t argmax(std::span<const float> x);
double log_sum_exp(std::span<const float> x);
double exp_shifted(std::span<const float> x, float max, float scale, std::span<float> out);
double min_sum(std::span<const float> a, std::span<const float> b, float scale);
std::size_t top_k(std::span<const float> x, std::size_t k, std::span<Token> ids);
}  // namespace scalar

}  // namespace drift::simd
