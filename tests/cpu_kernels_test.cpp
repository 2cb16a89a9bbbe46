// Which vector kernels run: what ggml was compiled with against what ./dev setup found this machine to run, and which Highway
// target libdrift's own kernels took, with one kernel run on it and compared with its scalar twin.
#include <ggml-cpu.h>
#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "drift/simd/simd.hpp"

namespace drift {
namespace {

std::map<std::string, bool> ggml_families() {
  return {{"GGML_AVX", ggml_cpu_has_avx() != 0},
          {"GGML_AVX2", ggml_cpu_has_avx2() != 0},
          {"GGML_FMA", ggml_cpu_has_fma() != 0},
          {"GGML_F16C", ggml_cpu_has_f16c() != 0},
          {"GGML_BMI2", ggml_cpu_has_bmi2() != 0},
          {"GGML_AVX_VNNI", ggml_cpu_has_avx_vnni() != 0},
          {"GGML_AVX512", ggml_cpu_has_avx512() != 0},
          {"GGML_AVX512_VBMI", ggml_cpu_has_avx512_vbmi() != 0},
          {"GGML_AVX512_VNNI", ggml_cpu_has_avx512_vnni() != 0},
          {"GGML_AVX512_BF16", ggml_cpu_has_avx512_bf16() != 0}};
}

TEST(CpuKernels, GgmlHasExactlyWhatSetupFound) {
  const std::map<std::string, bool> families = ggml_families();
  std::string line;
  for (const auto& [name, on] : families) line += on ? " " + name.substr(5) : "";
  std::printf("ggml kernels:%s\n", line.empty() ? " portable" : line.c_str());
  EXPECT_EQ(ggml_cpu_has_amx_int8(), 0) << "AMX is never switched on";

  const std::string recorded = DRIFT_LLAMA_CPU_FLAGS;
  if (recorded.empty()) GTEST_SKIP() << "no record of CPU flags: another architecture, or llama.cpp was not built by ./dev setup";
  std::istringstream flags(recorded);
  std::size_t compared = 0;
  for (std::string flag; flags >> flag;) {
    const std::size_t equals = flag.find('=');
    ASSERT_NE(equals, std::string::npos) << flag;
    const auto family = families.find(flag.substr(0, equals));
    if (family == families.end()) continue;  // SSE42: ggml has no question for it
    EXPECT_EQ(family->second, flag.substr(equals + 1) == "ON") << flag;
    ++compared;
  }
  EXPECT_EQ(compared, families.size()) << "the record misses a family: " << recorded;
}

TEST(CpuKernels, LibdriftRunsTheBestHighwayTarget) {
  std::vector<float> a(1003);
  std::vector<float> b(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i % 17) - 8.0f;
    b[i] = static_cast<float>(i % 5) - 2.0f;
  }
  // Small integers: every order of summation is exact, so the twins agree to the bit.
  EXPECT_EQ(simd::dot(a, b), simd::scalar::dot(a, b));

  std::string usable_names;
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (std::int64_t bits = usable; bits != 0; bits &= bits - 1) usable_names += std::string(" ") + hwy::TargetName(bits & -bits);
  std::printf("highway target: %s (usable, best first:%s)\n", simd::target_name(), usable_names.c_str());
  EXPECT_STREQ(simd::target_name(), hwy::TargetName(usable & -usable));  // the best is the lowest bit
}

}  // namespace
}  // namespace drift
