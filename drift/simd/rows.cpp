// rows.cpp - one query against many rows: the scan of a bank. Compiled once per CPU target (Highway foreach_target).
//
// A row's sum is formed in one fixed order that does not depend on how many rows are computed together: kAcc running vectors
// take the row's vectors in turn, then they are added pairwise. So dot_rows() of a row alone equals dot_rows() of it among
// thousands, bit for bit, which lets a bank rescore one entry and compare the score with those of an earlier scan.
#include "drift/simd/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "drift/simd/rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace drift::simd {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // No vectors on this CPU: the twins are the implementation.

void dot_rows(const float* rows, std::size_t stride, std::size_t count, const float* query, std::size_t dim, float* out) {
  scalar::dot_rows(rows, stride, count, {query, dim}, out);
}
void dot_rows_f16(const f16_bits* rows, std::size_t stride, std::size_t count, const float* query, std::size_t dim, float* out) {
  scalar::dot_rows_f16(rows, stride, count, {query, dim}, out);
}
void dot_rows_i8(const std::int8_t* rows, std::size_t stride, std::size_t count, const std::int8_t* query, std::size_t dim,
                 std::int32_t* out) {
  scalar::dot_rows_i8(rows, stride, count, {query, dim}, out);
}
void to_f16(const float* in, std::size_t size, f16_bits* out) { scalar::to_f16({in, size}, out); }
void from_f16(const f16_bits* in, float* out, std::size_t size) { scalar::from_f16(in, {out, size}); }

#else

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using I16 = hn::ScalableTag<std::int16_t>;
using I32 = hn::ScalableTag<std::int32_t>;
using F16 = hn::Rebind<hwy::float16_t, F>;  // as many halves as F has floats
using U16 = hn::Rebind<std::uint16_t, F>;
using I8 = hn::Rebind<std::int8_t, I16>;  // as many bytes as I16 has words

constexpr int kRows = 4;  // rows per pass: one load of the query serves all of them
constexpr int kAcc = 2;   // running sums per row, to hide the latency of the multiply-add

// Bytes ahead of the present row that are asked for early. Rows follow each other in memory, so they are needed soon, by this
// row or one of the next; the CPU's own prefetchers lose the thread at the end of each row. Measured on Sapphire Rapids with
// keys larger than the cache: f16 and int8 scans about twice as fast as without, 4 and 8 KiB alike, 2 KiB less.
constexpr int kFetchAhead = 4'096;
HWY_INLINE void fetch_ahead(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + kFetchAhead); }

HWY_INLINE hn::Vec<F> load_floats(const float* p) { return hn::LoadU(F(), p); }
HWY_INLINE hn::Vec<F> load_floats(const f16_bits* p) { return hn::PromoteTo(F(), hn::BitCast(F16(), hn::LoadU(U16(), p))); }

// Sums of kCount rows that lie `stride` apart. T is float or f16_bits.
template <int kCount, class T>
HWY_INLINE void dot_block(const T* HWY_RESTRICT rows, std::size_t stride, const float* HWY_RESTRICT query, std::size_t dim,
                          float* HWY_RESTRICT out) {
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<F> sum[kCount][kAcc];
  for (int r = 0; r < kCount; ++r)
    for (int a = 0; a < kAcc; ++a) sum[r][a] = hn::Zero(d);

  std::size_t i = 0;
  for (; i + kAcc * lanes <= dim; i += kAcc * lanes) {
    for (int a = 0; a < kAcc; ++a) {
      const auto q = hn::LoadU(d, query + i + a * lanes);
      for (int r = 0; r < kCount; ++r) {
        const T* const p = rows + r * stride + i + a * lanes;
        if (kCount > 1 && (sizeof(T) == sizeof(float) || a % 2 == 0)) fetch_ahead(p);  // about once per cache line
        sum[r][a] = hn::MulAdd(load_floats(p), q, sum[r][a]);
      }
    }
  }
  for (; i + lanes <= dim; i += lanes) {
    const auto q = hn::LoadU(d, query + i);
    for (int r = 0; r < kCount; ++r) sum[r][0] = hn::MulAdd(load_floats(rows + r * stride + i), q, sum[r][0]);
  }
  if (i < dim) {  // The last, partial vector goes through zero-filled copies: nothing beyond dim is read.
    HWY_ALIGN float q_tail[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(q_tail, query + i, (dim - i) * sizeof(float));
    const auto q = hn::Load(d, q_tail);
    for (int r = 0; r < kCount; ++r) {
      HWY_ALIGN T row_tail[HWY_MAX_BYTES / sizeof(float)] = {};
      std::memcpy(row_tail, rows + r * stride + i, (dim - i) * sizeof(T));
      sum[r][kAcc - 1] = hn::MulAdd(load_floats(row_tail), q, sum[r][kAcc - 1]);
    }
  }
  for (int r = 0; r < kCount; ++r) {
    auto total = sum[r][0];
    for (int a = 1; a < kAcc; ++a) total = hn::Add(total, sum[r][a]);
    out[r] = hn::GetLane(hn::SumOfLanes(d, total));
  }
}

template <class T>
HWY_INLINE void dot_all(const T* rows, std::size_t stride, std::size_t count, const float* query, std::size_t dim, float* out) {
  std::size_t row = 0;
  for (; row + kRows <= count; row += kRows) dot_block<kRows>(rows + row * stride, stride, query, dim, out + row);
  for (; row < count; ++row) dot_block<1>(rows + row * stride, stride, query, dim, out + row);
}

void dot_rows(const float* rows, std::size_t stride, std::size_t count, const float* query, std::size_t dim, float* out) {
  dot_all(rows, stride, count, query, dim, out);
}
void dot_rows_f16(const f16_bits* rows, std::size_t stride, std::size_t count, const float* query, std::size_t dim, float* out) {
  dot_all(rows, stride, count, query, dim, out);
}

// Integer sums are exact, so their order is free. Bytes are widened to 16 bits, pairs of products are added to 32.
template <int kCount>
HWY_INLINE void dot_block_i8(const std::int8_t* HWY_RESTRICT rows, std::size_t stride, const std::int8_t* HWY_RESTRICT query,
                             std::size_t dim, std::int32_t* HWY_RESTRICT out) {
  const I8 d8;
  const I16 d16;
  const I32 d32;
  const std::size_t lanes = hn::Lanes(d16);
  hn::Vec<I32> even[kCount];  // ReorderWidenMulAccumulate may split its sums over two registers
  hn::Vec<I32> odd[kCount];
  for (int r = 0; r < kCount; ++r) even[r] = odd[r] = hn::Zero(d32);
  std::size_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    const auto q0 = hn::PromoteTo(d16, hn::LoadU(d8, query + i));
    const auto q1 = hn::PromoteTo(d16, hn::LoadU(d8, query + i + lanes));
    for (int r = 0; r < kCount; ++r) {
      const std::int8_t* const p = rows + r * stride + i;
      if (kCount > 1) fetch_ahead(p);
      const auto x0 = hn::PromoteTo(d16, hn::LoadU(d8, p));
      const auto x1 = hn::PromoteTo(d16, hn::LoadU(d8, p + lanes));
      even[r] = hn::ReorderWidenMulAccumulate(d32, x0, q0, even[r], odd[r]);
      even[r] = hn::ReorderWidenMulAccumulate(d32, x1, q1, even[r], odd[r]);
    }
  }
  for (; i + lanes <= dim; i += lanes) {
    const auto q = hn::PromoteTo(d16, hn::LoadU(d8, query + i));
    for (int r = 0; r < kCount; ++r) {
      const auto x = hn::PromoteTo(d16, hn::LoadU(d8, rows + r * stride + i));
      even[r] = hn::ReorderWidenMulAccumulate(d32, x, q, even[r], odd[r]);
    }
  }
  for (int r = 0; r < kCount; ++r) {
    std::int32_t total = hn::GetLane(hn::SumOfLanes(d32, hn::Add(even[r], odd[r])));
    for (std::size_t j = i; j < dim; ++j) total += std::int32_t{rows[r * stride + j]} * std::int32_t{query[j]};
    out[r] = total;
  }
}

void dot_rows_i8(const std::int8_t* rows, std::size_t stride, std::size_t count, const std::int8_t* query, std::size_t dim,
                 std::int32_t* out) {
  std::size_t row = 0;
  for (; row + kRows <= count; row += kRows) dot_block_i8<kRows>(rows + row * stride, stride, query, dim, out + row);
  for (; row < count; ++row) dot_block_i8<1>(rows + row * stride, stride, query, dim, out + row);
}

void to_f16(const float* in, std::size_t size, f16_bits* out) {
  std::size_t i = 0;
#if HWY_TARGET <= HWY_AVX2  // These CPUs convert in hardware, to nearest even; Highway's emulation on older ones truncates.
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= size; i += lanes) hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(F16(), hn::LoadU(d, in + i))), U16(), out + i);
#endif
  scalar::to_f16({in + i, size - i}, out + i);
}

void from_f16(const f16_bits* in, float* out, std::size_t size) {
  const F d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) hn::StoreU(load_floats(in + i), d, out + i);
  scalar::from_f16(in + i, {out + i, size - i});
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace drift::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace drift::simd {

HWY_EXPORT(dot_rows);
HWY_EXPORT(dot_rows_f16);
HWY_EXPORT(dot_rows_i8);
HWY_EXPORT(to_f16);
HWY_EXPORT(from_f16);

const char* target_name() {
  hwy::ChosenTarget& chosen = hwy::GetChosenTarget();
  if (!chosen.IsInitialized()) chosen.Update(hwy::SupportedTargets());
  // The dispatch table holds the generated targets only; the best of those that the CPU supports is the one that runs.
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);  // lower bits are better targets
}

float dot(std::span<const float> a, std::span<const float> b) {
  float out = 0;
  HWY_DYNAMIC_DISPATCH(dot_rows)(a.data(), a.size(), 1, b.data(), b.size(), &out);
  return out;
}

void dot_rows(const float* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out) {
  HWY_DYNAMIC_DISPATCH(dot_rows)(rows, stride, count, query.data(), query.size(), out);
}
void dot_rows_f16(const f16_bits* rows, std::size_t stride, std::size_t count, std::span<const float> query, float* out) {
  HWY_DYNAMIC_DISPATCH(dot_rows_f16)(rows, stride, count, query.data(), query.size(), out);
}
void dot_rows_i8(const std::int8_t* rows, std::size_t stride, std::size_t count, std::span<const std::int8_t> query,
                 std::int32_t* out) {
  HWY_DYNAMIC_DISPATCH(dot_rows_i8)(rows, stride, count, query.data(), query.size(), out);
}
void to_f16(std::span<const float> in, f16_bits* out) { HWY_DYNAMIC_DISPATCH(to_f16)(in.data(), in.size(), out); }
void from_f16(const f16_bits* in, std::span<float> out) { HWY_DYNAMIC_DISPATCH(from_f16)(in, out.data(), out.size()); }

}  // namespace drift::simd
#endif  // HWY_ONCE
