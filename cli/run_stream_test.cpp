#include "cli/run_stream.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace drift::cli {
namespace {

text::StopStrings stops(std::vector<std::string> list) { return text::StopStrings::make(std::move(list)).value(); }

TEST(RunStream, PlainTextIsWholeCharactersWithoutTheStopString) {
  std::string shown;
  RunStream stream(stops({"END"}), false, [&](std::string_view text) { shown += text; });
  stream.token(Look::kAccepted, "caf\xC3");
  EXPECT_EQ(shown, "caf");
  stream.rejected("nope");
  stream.token(Look::kTarget, "\xA9 E");
  EXPECT_EQ(shown, "caf\xC3\xA9 ");
  stream.token(Look::kBank, "NDmore");
  EXPECT_TRUE(stream.stopped());
  stream.token(Look::kBank, "never");
  stream.finish();
  EXPECT_EQ(shown, "caf\xC3\xA9 ");
  EXPECT_EQ(stream.text(), shown);
}

TEST(RunStream, ColoursGoWithTheTokenThatBroughtTheText) {
  std::string shown;
  RunStream stream(stops({"xyz"}), true, [&](std::string_view text) { shown += text; });
  stream.token(Look::kAccepted, "ax");  // the x is held back
  stream.rejected("no\nline");
  stream.token(Look::kBank, "b");
  stream.finish();
  EXPECT_EQ(shown,
            "\x1b[32ma\x1b[0m"
            "\x1b[32mx\x1b[0m"
            "\x1b[9;31mno\\nline\x1b[0m"
            "\x1b[1;35mb\x1b[0m");
  EXPECT_EQ(stream.text(), "axb");
}

TEST(RunStream, TheEndShowsWhatWasHeldBack) {
  std::string shown;
  RunStream stream(stops({"stop"}), false, [&](std::string_view text) { shown += text; });
  stream.token(Look::kTarget, "a sto");
  EXPECT_EQ(shown, "a ");
  stream.finish();
  EXPECT_EQ(shown, "a sto");
  EXPECT_THAT(colour_legend(), testing::HasSubstr("thanks to the bank"));
}

}  // namespace
}  // namespace drift::cli
