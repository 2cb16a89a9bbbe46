#include "text/printable.hpp"

#include <gtest/gtest.h>

#include "text/utf8.hpp"

namespace drift::text {
namespace {

TEST(Printable, LeavesTextAlone) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("plain \\ 'text'"), "plain \\ 'text'");
  EXPECT_EQ(printable("na\xC3\xAFve \xE4\xBD\xA0 \xF0\x9F\x98\x80"), "na\xC3\xAFve \xE4\xBD\xA0 \xF0\x9F\x98\x80");
}

TEST(Printable, EscapesWhatCouldSteerATerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(printable("1\n2\r3\t4\x7F"), "1\\n2\\r3\\t4\\x7f");
  EXPECT_EQ(printable(std::string_view("\0z", 2)), "\\x00z");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\xc2\\x9b"
            "31m")
      << "an 8-bit escape sequence";
  EXPECT_EQ(printable("\xC2\xA0"), "\xC2\xA0") << "the first character that is no control";
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\xFFz"), "a\\xffz");
  EXPECT_EQ(printable("\xE4\xBD"), "\\xe4\\xbd") << "cut";
  EXPECT_EQ(printable("\xE4\xBDz"), "\\xe4\\xbdz");
  EXPECT_EQ(printable("\x80"), "\\x80");
}

TEST(Printable, CutsAtWholeCharactersAndEscapes) {
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc...");
  EXPECT_EQ(printable("\xC3\xA9\xC3\xA9\xC3\xA9", 2), "\xC3\xA9\xC3\xA9...");
  EXPECT_EQ(printable("ab\x1b", 4), "ab...");
  for (std::size_t most = 0; most < 12; ++most) {
    const std::string out = printable("\xF0\x9F\x98\x80\x1b\xFF\xE4\xBD\xA0xyz\n", most);
    EXPECT_EQ(valid_prefix(out), out.size());
    EXPECT_LE(out.size(), 4 * most + 3);
  }
}

}  // namespace
}  // namespace drift::text
