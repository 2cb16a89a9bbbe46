#include "text/stop.hpp"

#include <gtest/gtest.h>

#include <string>

namespace drift::text {
namespace {

TEST(StopStrings, AcrossEveryChunkBorder) {
  const std::string text = "one two<|stop|>three";
  for (std::size_t a = 0; a <= text.size(); ++a) {
    for (std::size_t b = a; b <= text.size(); ++b) {
      auto stops = StopStrings::make({"<|stop|>", "###"});
      ASSERT_TRUE(stops.is_ok());
      std::string shown;
      for (const std::string& piece : {text.substr(0, a), text.substr(a, b - a), text.substr(b)}) shown += stops->push(piece);
      shown += stops->finish();
      EXPECT_EQ(shown, "one two") << a << " " << b;
      EXPECT_EQ(stops->found(), "<|stop|>");
    }
  }
}

TEST(StopStrings, NothingIsLostWithoutAStop) {
  auto stops = StopStrings::make({"abcd"});
  ASSERT_TRUE(stops.is_ok());
  EXPECT_EQ(stops->push("xab"), "x");
  EXPECT_EQ(stops->push("ab"), "ab");
  EXPECT_EQ(stops->push("c"), "");
  EXPECT_FALSE(stops->stopped());
  EXPECT_EQ(stops->finish(), "abc");
}

TEST(StopStrings, EarliestWinsThenLongest) {
  auto stops = StopStrings::make({"b", "ab", "abc"});
  ASSERT_TRUE(stops.is_ok());
  EXPECT_EQ(stops->push("xabc"), "x");
  EXPECT_EQ(stops->found(), "abc");
  EXPECT_EQ(stops->push("more"), "");
}

TEST(StopStrings, RefusesEmptyAndTooMany) {
  EXPECT_EQ(StopStrings::make({""}).status().code(), Code::kInvalid);
  EXPECT_EQ(StopStrings::make(std::vector<std::string>(kStopStringsMax + 1, "x")).status().code(), Code::kLimit);
  EXPECT_EQ(StopStrings::make({std::string(kStopBytesMax + 1, 'x')}).status().code(), Code::kLimit);
}

}  // namespace
}  // namespace drift::text
