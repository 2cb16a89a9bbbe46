#include "cli/verdict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace drift::cli {
namespace {

using testing::HasSubstr;

control::CostCurve curve(double first, double each) {
  control::CostCurve c;
  for (std::size_t n = 1; n <= control::kCurveRows; ++n) c.ms[n - 1] = first + each * static_cast<double>(n - 1);
  return c;
}

TEST(Verdict, NamesTheSideThatLoses) {
  EXPECT_THAT(verdict(curve(30, 0.5), curve(1, 0), 3, 0.8, "drift"), HasSubstr("Drafting pays here"));
  // A run that was slower has the last word.
  EXPECT_THAT(verdict(curve(30, 0.5), curve(1, 0), 3, 0.8, "drift", 0.3), HasSubstr("had 0.30x: drafting loses here"));
  EXPECT_THAT(verdict(curve(30, 0.5), curve(1, 0), 3, 0.8, "drift", 1.3), HasSubstr("Drafting pays here"));
  EXPECT_THAT(verdict(curve(30, 0.5), curve(25, 0), 3, 0.8, "drift"), HasSubstr("the draft is too dear"));
  EXPECT_THAT(verdict(curve(30, 30), curve(1, 0), 3, 0.8, "drift"), HasSubstr("verifying several rows is too dear"));
  EXPECT_THAT(verdict(curve(30, 30), curve(25, 0), 3, 0.8, "drift"), HasSubstr("cannot pay here"));
}

TEST(Verdict, TheTableShowsMultiplesOfOneRow) {
  const control::CostCurve target = curve(10, 10), draft = curve(5, 0);
  EXPECT_THAT(curve_table(target, &draft), HasSubstr("8.00x"));
  EXPECT_THAT(curve_table(target, nullptr), testing::Not(HasSubstr("draft")));
}

}  // namespace
}  // namespace drift::cli
