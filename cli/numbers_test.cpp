#include "cli/numbers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace drift::cli {
namespace {

TEST(Numbers, WholeOnes) {
  EXPECT_EQ(parse_int("-n", "12", 1, 100).value(), 12);
  EXPECT_EQ(parse_int("-n", "-1", -1, 100).value(), -1);
  for (const char* bad : {"", "12x", " 12", "12 ", "1e3", "0x10", "1.0", "nan", "101", "0", "99999999999999999999", "+5"}) {
    const auto result = parse_int("-n", bad, 1, 100);
    ASSERT_FALSE(result.is_ok()) << bad;
    EXPECT_EQ(result.status().message(), std::string("-n is '") + bad + "'; it must be a whole number from 1 to 100");
  }
}

TEST(Numbers, RealOnes) {
  EXPECT_DOUBLE_EQ(parse_real("--x", "0.25", 0, 1).value(), 0.25);
  EXPECT_DOUBLE_EQ(parse_real("--x", "1e-3", 0, 1).value(), 1e-3);
  EXPECT_TRUE(parse_real("--x", "0", 0, 1).is_ok());
  EXPECT_FALSE(parse_real("--x", "0", 0, 1, /*open_low=*/true).is_ok());
  for (const char* bad : {"", "nan", "NaN", "inf", "-inf", "1e999", "0.5f", "0,5", "1.01", "-0.1", "--1"}) {
    const auto result = parse_real("--lambda", bad, 0, 1);
    ASSERT_FALSE(result.is_ok()) << bad;
    EXPECT_THAT(result.status().message(), testing::HasSubstr("--lambda is '"));
    EXPECT_THAT(result.status().message(), testing::HasSubstr("from 0 to 1"));
  }
}

TEST(Numbers, FloatsAboveABoundStayAboveIt) {
  EXPECT_FLOAT_EQ(parse_float("--x", "0.25", 0, 1, true).value(), 0.25f);
  EXPECT_EQ(parse_float("--top-p", "1e-50", 0, 1, true).status().message(), "--top-p is '1e-50', too small to be told from 0");
  EXPECT_TRUE(parse_float("--x", "1e-50", 0, 1).is_ok());
}

}  // namespace
}  // namespace drift::cli
