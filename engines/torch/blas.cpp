#include "engines/torch/blas.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace drift::engine {
namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

// OpenBLAS's names of x86 kernels that know no AVX2.
constexpr std::array<std::string_view, 14> kOldKernels = {"Katmai", "Coppermine", "Northwood",  "Prescott",   "Banias",
                                                          "Core2",  "Penryn",     "Dunnington", "Atom",       "Nehalem",
                                                          "Athlon", "Opteron",    "Barcelona",  "Sandybridge"};

}  // namespace

std::string better_blas_kernels(std::string_view chosen, bool avx2, bool avx512) {
  const bool old = std::find(kOldKernels.begin(), kOldKernels.end(), chosen) != kOldKernels.end();
  if (!old) return {};
  return avx512 ? "SkylakeX" : avx2 ? "Haswell" : "";
}

void use_fitting_blas_kernels([[maybe_unused]] char** argv) {
#if defined(__x86_64__)
  if (std::getenv(kVariable) != nullptr) return;  // the user's word, or our own of a moment ago
  // Not linked against: LibTorch may come with another BLAS.
  const auto name = reinterpret_cast<const char* (*)()>(::dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  if (name == nullptr) return;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const std::string better = better_blas_kernels(name(), avx2, avx512);
  if (better.empty() || ::setenv(kVariable, better.c_str(), 1) != 0) return;
  ::execv("/proc/self/exe", argv);
  ::unsetenv(kVariable);  // not started: as it was
#endif
}

}  // namespace drift::engine
