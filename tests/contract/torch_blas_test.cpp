// Which kernels of OpenBLAS are replaced, and by which.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engines/torch/blas.hpp"

namespace drift::engine {
namespace {

TEST(BlasKernels, OldOnesGiveWayToWhatTheCpuCanDo) {
  EXPECT_EQ(better_blas_kernels("Prescott", true, true), "SkylakeX");
  EXPECT_EQ(better_blas_kernels("Nehalem", true, false), "Haswell");
  EXPECT_EQ(better_blas_kernels("Prescott", false, false), "");
}

TEST(BlasKernels, AChoiceThatKnowsTheCpuStands) {
  for (const char* chosen : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids", "a newer one", ""})
    EXPECT_EQ(better_blas_kernels(chosen, true, true), "") << chosen;
}

TEST(BlasKernels, TheUsersWordStands) {
  ASSERT_EQ(::setenv("OPENBLAS_CORETYPE", "Prescott", 1), 0);
  use_fitting_blas_kernels(nullptr);  // would start this test anew without arguments
  EXPECT_STREQ(std::getenv("OPENBLAS_CORETYPE"), "Prescott");
  ::unsetenv("OPENBLAS_CORETYPE");
}

}  // namespace
}  // namespace drift::engine
