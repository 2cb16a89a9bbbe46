// Every kernel on every CPU target this machine can run, against its scalar twin, over sizes around each vector width,
// misaligned by one element, with NaN beyond the end.
#include "drift/simd/simd.hpp"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace drift::simd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kSeed = 20'240'611;

const std::size_t kSizes[] = {0,  1,  2,  3,  4,  5,  7,  8,   9,   15,  16,  17,  24,  31,   32,   33,   47,   48,
                              49, 63, 64, 65, 66, 67, 96, 127, 128, 129, 255, 257, 896, 1000, 2047, 2048, 2049, 2560};

// Runs a body once per usable target; the dispatch tables are told to use exactly that one.
template <class Body>
void on_every_target(Body body) {
  int targets = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(std::string("target ") + hwy::TargetName(target) + ", seed " + std::to_string(kSeed));
    EXPECT_STREQ(target_name(), hwy::TargetName(target));
    body();
    ++targets;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_GE(targets, 1);
}

// `size` random values that begin `offset` elements into an aligned block and are followed by NaN.
class Padded {
 public:
  Padded(std::size_t size, std::size_t offset, std::mt19937& rng, float spread = 1.0f) : size_(size), offset_(offset) {
    data_.assign(offset + size + 80, kNan);
    std::normal_distribution<float> normal(0.0f, spread);
    for (std::size_t i = 0; i < size; ++i) data_[offset + i] = normal(rng);
  }
  std::span<float> span() { return {data_.data() + offset_, size_}; }
  float* data() { return data_.data() + offset_; }

 private:
  std::size_t size_, offset_;
  std::vector<float> data_;
};

// A float sum of n products in any order differs from the exact one by at most about n * 2^-24 * sum|a_i b_i|
// (Higham, Accuracy and Stability, section 3.1). Vectors form sums of n / lanes terms, so this is generous by the width.
double dot_tolerance(std::span<const float> a, std::span<const float> b) {
  double magnitude = 0;
  for (std::size_t i = 0; i < b.size(); ++i) magnitude += std::fabs(double{a[i]} * double{b[i]});
  return (static_cast<double>(b.size()) + 2) * 0x1p-24 * magnitude;
}

TEST(Simd, PrintsTheTargetThatRuns) {
  std::printf("Highway target: %s; also testable here:", target_name());
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) std::printf(" %s", hwy::TargetName(target));
  std::printf("\n");
  // What runs must be the best of what was compiled and what the CPU has, never the plain baseline by accident.
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  EXPECT_STREQ(target_name(), hwy::TargetName(usable & -usable));
}

TEST(Simd, DotAndNormAgreeWithTheTwin) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t size : kSizes) {
      for (const std::size_t offset : {0u, 1u, 3u}) {
        Padded a(size, offset, rng), b(size, 2 * offset, rng);
        EXPECT_NEAR(dot(a.span(), b.span()), scalar::dot(a.span(), b.span()), dot_tolerance(a.span(), b.span())) << size;
        // sqrt halves the relative error of the sum of squares.
        EXPECT_NEAR(norm(a.span()), scalar::norm(a.span()), scalar::norm(a.span()) * (static_cast<double>(size) + 2) * 0x1p-24)
            << size;
      }
    }
  });
}

TEST(Simd, NormOfHugeAndTinyVectors) {
  const std::vector<float> huge(100, 1e30f), tiny(100, 1e-30f);
  EXPECT_NEAR(norm(huge), 1e31f, 1e25f);
  EXPECT_NEAR(norm(tiny), 1e-29f, 1e-35f);
  EXPECT_EQ(norm(std::vector<float>(7, 0.0f)), 0.0f);
}

TEST(Simd, AllFiniteSeesOneBadElementAnywhere) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t size : kSizes) {
      Padded x(size, 1, rng, 1e38f);
      for (float& v : x.span()) v = std::clamp(v, -3e38f, 3e38f);
      EXPECT_TRUE(all_finite(x.span())) << size;
      for (std::size_t i = 0; i < size; i += 1 + size / 40) {
        for (const float bad : {kNan, kInf, -kInf}) {
          const float good = std::exchange(x.span()[i], bad);
          EXPECT_FALSE(all_finite(x.span())) << size << " at " << i;
          x.span()[i] = good;
        }
      }
    }
  });
}

TEST(Simd, DotRowsAgreesWithTheTwinAndWithARowAlone) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t dim : {0u, 1u, 7u, 16u, 31u, 64u, 65u, 130u, 896u}) {
      for (const std::size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 11u}) {
        const std::size_t stride = dim + 5;  // what lies between the rows is NaN
        Padded rows(stride * count, 1, rng), query(dim, 3, rng);
        for (std::size_t r = 0; r < count; ++r)
          for (std::size_t i = dim; i < stride; ++i) rows.data()[r * stride + i] = kNan;
        std::vector<float> out(count + 1, 77.0f), want(count);
        dot_rows(rows.data(), stride, count, query.span(), out.data());
        scalar::dot_rows(rows.data(), stride, count, query.span(), want.data());
        for (std::size_t r = 0; r < count; ++r) {
          const std::span<const float> row{rows.data() + r * stride, dim};
          EXPECT_NEAR(out[r], want[r], dot_tolerance(row, query.span())) << dim << " row " << r;
          EXPECT_EQ(out[r], dot(row, query.span())) << "a row's score must not depend on its neighbours";
        }
        EXPECT_EQ(out[count], 77.0f) << "wrote past the end";
      }
    }
  });
}

TEST(Simd, DotRowsF16AgreesWithTheTwinAndWithARowAlone) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t dim : {0u, 1u, 7u, 16u, 31u, 64u, 65u, 130u, 896u}) {
      for (const std::size_t count : {0u, 1u, 3u, 4u, 5u, 8u, 11u}) {
        const std::size_t stride = dim + 5;
        std::vector<f16_bits> rows(stride * count + 80, 0x7E00);  // NaN
        std::vector<float> wide(dim);
        Padded query(dim, 3, rng);
        std::normal_distribution<float> normal;
        for (std::size_t r = 0; r < count; ++r) {
          for (float& v : wide) v = normal(rng);
          scalar::to_f16(wide, rows.data() + r * stride);
        }
        std::vector<float> out(count + 1, 77.0f), want(count);
        dot_rows_f16(rows.data(), stride, count, query.span(), out.data());
        scalar::dot_rows_f16(rows.data(), stride, count, query.span(), want.data());
        for (std::size_t r = 0; r < count; ++r) {
          scalar::from_f16(rows.data() + r * stride, wide);
          EXPECT_NEAR(out[r], want[r], dot_tolerance(wide, query.span())) << dim << " row " << r;
          float alone = 0;
          dot_rows_f16(rows.data() + r * stride, stride, 1, query.span(), &alone);
          EXPECT_EQ(out[r], alone) << "a row's score must not depend on its neighbours";
        }
        EXPECT_EQ(out[count], 77.0f) << "wrote past the end";
      }
    }
  });
}

TEST(Simd, DotRowsI8IsExactAlsoAtTheExtremes) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    std::uniform_int_distribution<int> byte(-127, 127);
    for (const std::size_t dim : {0u, 1u, 15u, 16u, 17u, 31u, 32u, 33u, 64u, 65u, 129u, 896u, 65'536u}) {
      for (const std::size_t count : {0u, 1u, 3u, 4u, 5u, 9u}) {
        const std::size_t stride = dim + 3;
        std::vector<std::int8_t> rows(stride * count, 127), query(dim, 127);
        if (dim != 65'536) {  // the largest dim keeps the largest values: the sum is 127 * 127 * 65536 < 2^31
          for (auto& v : rows) v = static_cast<std::int8_t>(byte(rng));
          for (auto& v : query) v = static_cast<std::int8_t>(byte(rng));
        }
        std::vector<std::int32_t> out(count + 1, 77), want(count);
        dot_rows_i8(rows.data(), stride, count, query, out.data());
        scalar::dot_rows_i8(rows.data(), stride, count, query, want.data());
        for (std::size_t r = 0; r < count; ++r) EXPECT_EQ(out[r], want[r]) << dim << " row " << r;
        EXPECT_EQ(out[count], 77) << "wrote past the end";
      }
    }
  });
}

TEST(Simd, EveryFiniteHalfWidensExactlyAndComesBack) {
  on_every_target([] {
    std::vector<f16_bits> halves, back(65'536);
    for (int bits = 0; bits < 65'536; ++bits) halves.push_back(static_cast<f16_bits>(bits));
    std::vector<float> wide(halves.size()), want(halves.size());
    from_f16(halves.data(), wide);
    scalar::from_f16(halves.data(), want);
    to_f16(wide, back.data());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      if ((i & 0x7C00) == 0x7C00) {  // infinity and NaN: the twin's business only, CPUs without conversion hardware differ
        EXPECT_FALSE(std::isfinite(want[i])) << i;
      } else {
        ASSERT_EQ(wide[i], want[i]) << i;
        ASSERT_EQ(back[i], halves[i]) << i;
      }
    }
  });
}

TEST(Simd, HalvesRoundToNearestEven) {
  // Around 1, halves are 2^-10 apart: the midpoint goes to the even neighbour, anything beyond it away.
  const float one = 1.0f, step = 0x1p-10f;
  const std::vector<float> in = {one + step / 2,
                                 one + step / 2 + 0x1p-23f,
                                 one + 3 * step / 2,
                                 65'504.0f,
                                 65'519.9f,
                                 65'520.0f,
                                 0x1p-24f,
                                 0x1p-25f,
                                 0x1.000002p-25f,
                                 0x1p-26f,
                                 -0.0f,
                                 -0x1p-14f + 0x1p-25f,
                                 std::nextafter(0x1p-14f, 0.0f),
                                 1e-40f,
                                 -kInf};
  const std::vector<f16_bits> want = {0x3C00, 0x3C01, 0x3C02, 0x7BFF, 0x7BFF, 0x7C00, 0x0001, 0x0000,
                                      0x0001, 0x0000, 0x8000, 0x8400, 0x0400, 0x0000, 0xFC00};
  std::vector<f16_bits> out(in.size());
  scalar::to_f16(in, out.data());
  EXPECT_EQ(out, want);
  on_every_target([&] {
    std::vector<float> many;
    for (int i = 0; i < 4; ++i) many.insert(many.end(), in.begin(), in.end());
    std::mt19937 rng(kSeed);
    std::uniform_real_distribution<float> exponent(-27.0f, 17.0f);
    for (int i = 0; i < 100'000; ++i) many.push_back((i % 2 ? -1.0f : 1.0f) * std::exp2(exponent(rng)));
    std::vector<f16_bits> got(many.size()), twin(many.size());
    to_f16(many, got.data());
    scalar::to_f16(many, twin.data());
    EXPECT_EQ(got, twin);
  });
}

TEST(Simd, ArgmaxTakesTheLowestOfEquals) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t size : kSizes) {
      if (size == 0) continue;
      Padded x(size, 1, rng);
      for (float& v : x.span()) v = std::round(v * 2);  // few distinct values: many ties
      EXPECT_EQ(argmax(x.span()), scalar::argmax(x.span())) << size;
      std::fill(x.span().begin(), x.span().end(), -kInf);
      EXPECT_EQ(argmax(x.span()), 0u);
      x.span()[size - 1] = -1e30f;
      EXPECT_EQ(argmax(x.span()), size - 1);
    }
    std::vector<float> zeros = {-1.0f, -0.0f, 0.0f};
    EXPECT_EQ(argmax(zeros), 1u) << "the zeros are equal";
    std::vector<float> far(10'000, 1.0f);
    far[3'000] = far[9'000] = 2.0f;
    EXPECT_EQ(argmax(far), 3'000u);
  });
}

// exp() here has a relative error of a few 2^-24 per term (Highway states 1 ulp at best, 4 at worst); the terms are summed
// exactly enough in double, so 8 * 2^-24 covers the sum, and the logarithm turns it into an absolute error. The argument
// (x - max) * scale is itself rounded: relative error 2 * 2^-24 of at most 104 in size, where terms are not yet zero.
constexpr double kExpTolerance = 8 * 0x1p-24;

TEST(Simd, LogSumExpAgreesWithTheTwin) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t size : {1u, 2u, 15u, 16u, 17u, 63u, 65u, 1'000u, 32'001u, 151'936u}) {
      for (const float spread : {0.01f, 4.0f, 60.0f}) {
        Padded x(size, 1, rng, spread);
        const double want = scalar::log_sum_exp(x.span());
        // The rounding of x - max moves every term by up to |x - max| 2^-24; weighted by exp it stays below log(size) + 1.
        const double tolerance = kExpTolerance * (2 + std::log(static_cast<double>(size)));
        EXPECT_NEAR(log_sum_exp(x.span()), want, tolerance) << size << " spread " << spread;
      }
    }
    std::vector<float> masked(100, -kInf);
    EXPECT_EQ(log_sum_exp(masked), -std::numeric_limits<double>::infinity());
    masked[37] = 3.5f;
    EXPECT_EQ(log_sum_exp(masked), 3.5) << "masked logits weigh nothing";
    EXPECT_NEAR(log_sum_exp(std::vector<float>(1'000, 1e30f)), 1e30, 1e23);
  });
}

TEST(Simd, ExpShiftedAgreesWithTheTwinAndSumsWhatItWrote) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t size : kSizes) {
      for (const float scale : {1.0f, 1.25f, 0.1f}) {
        Padded x(size, 1, rng, 5.0f);
        const float max = size == 0 ? 0.0f : *std::max_element(x.span().begin(), x.span().end());
        std::vector<float> out(size + 1, 77.0f), want(size);
        const double sum = exp_shifted(x.span(), max, scale, {out.data(), size});
        const double want_sum = scalar::exp_shifted(x.span(), max, scale, want);
        double written = 0;
        for (std::size_t i = 0; i < size; ++i) {
          // Relative: the argument's rounding (its size times 2 * 2^-24) plus exp's own error.
          const double argument = std::fabs(double{x.span()[i] - max} * double{scale});
          EXPECT_NEAR(out[i], want[i], want[i] * (kExpTolerance + argument * 0x1p-23) + 1e-44) << size << " at " << i;
          written += double{out[i]};
        }
        EXPECT_NEAR(sum, written, 1e-12 * written);
        EXPECT_NEAR(sum, want_sum, want_sum * kExpTolerance * 8);
        EXPECT_EQ(out[size], 77.0f) << "wrote past the end";
      }
    }
    const std::vector<float> far = {0.0f, -90.0f, -1e30f, -kInf};
    std::vector<float> out(far.size());
    exp_shifted(far, 0.0f, 1.0f, out);
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[2], 0.0f);
    EXPECT_EQ(out[3], 0.0f);
  });
}

TEST(Simd, MinSumAgreesWithTheTwin) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t size : kSizes) {
      for (const float scale : {0.0f, 0.5f, 1.0f, 3.0f}) {
        Padded a(size, 1, rng), b(size, 3, rng);
        const double want = scalar::min_sum(a.span(), b.span(), scale);
        // The terms are the same floats; only the order of their double sum differs.
        EXPECT_NEAR(min_sum(a.span(), b.span(), scale), want, 1e-9 * (1.0 + static_cast<double>(size))) << size << ", " << scale;
      }
    }
  });
}

TEST(Simd, TopKIsExactWithTiesByLowestIndex) {
  on_every_target([] {
    std::mt19937 rng(kSeed);
    for (const std::size_t size : {0u, 1u, 2u, 31u, 32u, 33u, 64u, 65u, 129u, 1'000u, 5'003u, 151'936u}) {
      for (const std::size_t k : {0u, 1u, 2u, 8u, 32u, 33u, 64u, 1'000u, 1'024u, 1'500u}) {
        for (const int kind : {0, 1, 2, 3}) {
          Padded x(size, 1, rng, 4.0f);
          if (kind == 1)  // heavy ties, zeros of both signs
            for (float& v : x.span()) v = std::trunc(v);
          if (kind == 2) std::sort(x.span().begin(), x.span().end());  // every element enters: the worst order
          if (kind == 3)
            for (float& v : x.span()) v = v > 5.0f ? v : -kInf;  // mostly masked
          const std::size_t expected = std::min(k, size);
          std::vector<Token> got(expected + 1, 77), want(expected + 1, 77);
          ASSERT_EQ(top_k(x.span(), k, got), expected);
          ASSERT_EQ(scalar::top_k(x.span(), k, want), expected);
          ASSERT_EQ(got, want) << "size " << size << " k " << k << " kind " << kind;
        }
      }
    }
  });
}

TEST(Simd, NanNeverLeadsOutOfBounds) {
  on_every_target([] {
    const std::vector<float> nans(1'000, kNan);
    std::vector<Token> ids(32, 0);
    EXPECT_LT(argmax(nans), nans.size());
    EXPECT_EQ(top_k(nans, 32, ids), 32u);
    for (const Token id : ids) EXPECT_TRUE(id >= 0 && id < 1'000);
  });
}

}  // namespace
}  // namespace drift::simd
