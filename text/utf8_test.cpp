#include "text/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

namespace drift::text {
namespace {

TEST(Utf8, ValidPrefixNamesTheFirstBadByte) {
  EXPECT_EQ(valid_prefix(""), 0u);
  EXPECT_EQ(valid_prefix("abc"), 3u);
  EXPECT_EQ(valid_prefix("a\xC3\xA9z"), 4u);
  EXPECT_EQ(valid_prefix("ab\xFFz"), 2u);
  EXPECT_EQ(valid_prefix("a\xC0\x80"), 1u) << "overlong";
  EXPECT_EQ(valid_prefix("a\xED\xA0\x80"), 1u) << "surrogate";
  EXPECT_EQ(valid_prefix("a\xF4\x90\x80\x80"), 1u) << "above U+10FFFF";
  EXPECT_EQ(valid_prefix("a\xE4\xBD"), 1u) << "cut";
}

TEST(Utf8, ValidPrefixOfEveryKindOfBadByte) {
  EXPECT_EQ(valid_prefix(""), 0U);
  EXPECT_EQ(valid_prefix("plain"), 5U);
  EXPECT_EQ(valid_prefix("h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"), 12U);
  EXPECT_EQ(valid_prefix("ab\xff"), 2U);
  EXPECT_EQ(valid_prefix("\x80"), 0U) << "a continuation byte alone";
  EXPECT_EQ(valid_prefix("a\xc3"), 1U) << "cut in a character";
  EXPECT_EQ(valid_prefix("\xc0\xaf"), 0U) << "overlong";
  EXPECT_EQ(valid_prefix("\xe0\x80\xaf"), 0U) << "overlong";
  EXPECT_EQ(valid_prefix("\xed\xa0\x80"), 0U) << "surrogate";
  EXPECT_EQ(valid_prefix("\xf4\x90\x80\x80"), 0U) << "beyond U+10FFFF";
  EXPECT_EQ(valid_prefix("\xf0\x9f\x98"), 0U) << "cut in a character";
}

TEST(Utf8Hold, EveryCutOfATextComesOutWhole) {
  const std::string text = "na\xC3\xAFve \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80.";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Hold hold;
    const std::string first = hold.push(text.substr(0, cut));
    EXPECT_EQ(valid_prefix(first), first.size()) << "cut " << cut;
    EXPECT_LE(hold.held(), 3u);
    const std::string second = hold.push(text.substr(cut));
    EXPECT_EQ(hold.finish(), "") << "cut " << cut;
    EXPECT_EQ(first + second, text) << "cut " << cut;
  }
  Utf8Hold bytewise;
  std::string out;
  for (const char c : text) out += bytewise.push(std::string(1, c));
  EXPECT_EQ(out + bytewise.finish(), text);
}

TEST(Utf8Hold, BrokenBytesBecomeReplacementCharacters) {
  Utf8Hold hold;
  EXPECT_EQ(hold.push("a\xFF"
                      "b"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(hold.push("\xE4\xBD"
                      "c"),
            "\xEF\xBF\xBD"
            "c");
  EXPECT_EQ(hold.push("\xF0\x9F"), "");
  EXPECT_EQ(hold.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(hold.finish(), "");
}

}  // namespace
}  // namespace drift::text
