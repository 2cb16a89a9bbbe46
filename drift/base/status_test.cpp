#include "drift/base/status.hpp"

#include <memory>

#include <gtest/gtest.h>

namespace drift {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return {Code::kInvalid, "odd"};
  return x / 2;
}

Result<int> quarter(int x) {
  DRIFT_ASSIGN(const int h, half(x));
  return half(h);
}

Status both_even(int a, int b) {
  DRIFT_TRY(half(a).status());
  return half(b).status();
}

TEST(Status, IsOkUntilItIsNot) {
  EXPECT_TRUE(Status().is_ok());
  EXPECT_TRUE(Status::ok().is_ok());
  const Status bad(Code::kLimit, "too many");
  EXPECT_FALSE(bad.is_ok());
  EXPECT_EQ(bad.code(), Code::kLimit);
  EXPECT_EQ(bad.message(), "too many");
}

TEST(Status, EveryCodeHasAName) {
  for (int c = 0; c <= static_cast<int>(Code::kInternal); ++c) EXPECT_STRNE(code_name(static_cast<Code>(c)), "unknown");
  EXPECT_STREQ(code_name(static_cast<Code>(99)), "unknown");
}

TEST(Status, TryAndAssignReturnTheFirstError) {
  EXPECT_TRUE(both_even(2, 4).is_ok());
  EXPECT_FALSE(both_even(1, 4).is_ok());
  EXPECT_FALSE(both_even(2, 3).is_ok());
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
}

TEST(Result, MovesItsValueOut) {
  Result<std::unique_ptr<int>> r(std::make_unique<int>(7));
  ASSERT_TRUE(r.is_ok());
  const std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 7);
}

TEST(ResultDeathTest, ValueOfAFailureIsABug) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Result<int> failed = half(1);
  EXPECT_DEATH((void)failed.value(), "failed Result");
  EXPECT_DEATH((void)Result<int>(Status::ok()), "needs an error");
}

}  // namespace
}  // namespace drift
