// Which vector kernels run: what ggml was compiled with against what ./dev setup found this machine to run, and which Highway
// target the run-time choice takes, executed once and compared with plain arithmetic.
#include <ggml-cpu.h>
#include <gtest/gtest.h>
#include <stddef.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/cpu_kernels_test.cpp"
#include <hwy/foreach_target.h>
// Highway asks for its main header after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace drift::HWY_NAMESPACE {

// Doubles `count` floats and says for which target this copy of the code was compiled.
int64_t double_floats(float* values, size_t count) {
  const hwy::HWY_NAMESPACE::ScalableTag<float> d;
  const size_t lanes = hwy::HWY_NAMESPACE::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hwy::HWY_NAMESPACE::LoadU(d, values + i);
    hwy::HWY_NAMESPACE::StoreU(hwy::HWY_NAMESPACE::Add(v, v), d, values + i);
  }
  for (; i < count; ++i) values[i] += values[i];
  return HWY_TARGET;
}

}  // namespace drift::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace drift {
HWY_EXPORT(double_floats);

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

TEST(CpuKernels, GgmlRunsExactlyWhatSetupFound) {
  std::string line;
  for (const auto& [name, on] : ggml_families()) line += on ? " " + name.substr(5) : "";
  std::printf("ggml kernels:%s\n", line.empty() ? " portable" : line.c_str());
  EXPECT_FALSE(ggml_cpu_has_amx_int8()) << "AMX is never switched on";

  const std::string recorded = DRIFT_LLAMA_CPU_FLAGS;
  if (recorded.empty()) GTEST_SKIP() << "this llama.cpp was not built by ./dev setup: no record of its CPU flags to compare with";
  std::map<std::string, bool> families = ggml_families();
  std::istringstream flags(recorded);
  std::string flag;
  size_t compared = 0;
  while (std::getline(flags, flag, ';')) {
    const size_t equals = flag.find('=');
    ASSERT_NE(equals, std::string::npos) << flag;
    const auto family = families.find(flag.substr(0, equals));
    if (family == families.end()) continue;  // SSE42 has no ggml_cpu_has function
    EXPECT_EQ(family->second, flag.substr(equals + 1) == "ON") << flag;
    ++compared;
  }
  EXPECT_EQ(compared, families.size()) << "the record names not every family: " << recorded;
}

TEST(CpuKernels, HighwayTargetRuns) {
  std::vector<float> values(1003);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const int64_t target = HWY_DYNAMIC_DISPATCH(double_floats)(values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(2 * i)) << i;

  std::string supported;
  for (int64_t bits = hwy::SupportedTargets() & HWY_TARGETS; bits != 0; bits &= bits - 1) {
    supported += std::string(" ") + hwy::TargetName(bits & -bits);
  }
  std::printf("highway target: %s (compiled and supported, best first:%s)\n", hwy::TargetName(target), supported.c_str());
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  EXPECT_EQ(target, usable & -usable) << "the best usable target is the lowest bit";
}

}  // namespace
}  // namespace drift
#endif  // HWY_ONCE
