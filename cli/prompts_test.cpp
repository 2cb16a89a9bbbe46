#include "cli/prompts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace drift::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Prompts, RowsAndPlainLines) {
  const auto prompts = parse_prompts(
      "dir/p.jsonl",
      "{\"id\": \"a\", \"domain\": \"law\", \"kind\": \"instruction\", \"prompt\": \"Hi\", \"split\": \"eval\", \"extra\": [1]}\n"
      "\n"
      "{\"prompt\": \"Go on\"}\r\n");
  ASSERT_TRUE(prompts.is_ok()) << prompts.status().message();
  const std::vector<Prompt>& rows = prompts.value();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].id, "a");
  EXPECT_EQ(rows[0].kind, PromptKind::kInstruction);
  EXPECT_EQ(rows[0].split, "eval");
  EXPECT_EQ(rows[1].id, "p.jsonl:3");
  EXPECT_EQ(rows[1].kind, PromptKind::kPrefix);
}

TEST(Prompts, AMalformedLineIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"prompt\": \"a\"}\n{\"prompt\": ", "p:2: column 12: not valid JSON: unexpected end of input"},
      {"[1]", "p:1: a row must be"},
      {"{\"prompt\": \"\"}", "missing or empty"},
      {"{\"id\": \"a\"}", "missing or empty"},
      {"{\"prompt\": 3}", "\"prompt\" must be a string"},
      {"{\"prompt\": \"a\", \"kind\": \"poem\"}", "it must be prefix or instruction"},
      {"{\"prompt\": \"a\"}\n{\"prompt\": \"\xff\"}", "p:2: byte 13 is not valid UTF-8"},
      {"{\"prompt\": 1e999}", "p:1: not valid JSON: a number is too large"},
      {"{\"prompt\": nul}", "not valid JSON: invalid literal"},
      {"{\"prompt\": \"a\", \"id\": \"\\u001b[2J\"}", "\"id\" must be at most 256 bytes without control characters"},
      {"{\"prompt\": \"a\", \"domain\": \"\\u0007\"}", "\"domain\" must be at most 256 bytes"},
      {"{\"prompt\": \"a\", \"split\": \"\\u009b\"}", "\"split\" must be at most 256 bytes"},
      {"", "holds no prompts"},
      {" \n\n", "holds no prompts"},
  };
  for (const auto& [text, why] : cases) {
    const auto prompts = parse_prompts("p", text);
    ASSERT_FALSE(prompts.is_ok()) << text;
    EXPECT_EQ(prompts.status().code(), Code::kInvalid);
    EXPECT_THAT(prompts.status().message(), HasSubstr(why));
    EXPECT_THAT(prompts.status().message(), Not(HasSubstr("json.exception")));
  }
}

TEST(Prompts, NothingOfAnyLengthIsQuoted) {
  const std::string big(100'000, 'y');
  for (const std::string& text :
       {"{\"prompt\": \"" + big, "{\"prompt\": \"a\", \"kind\": \"" + big + "\"}",
        "{\"prompt\": \"a\", \"kind\": \"" + big.substr(0, 200) + "\"}", "{\"prompt\": \"a\", \"id\": \"" + big + "\"}",
        "{" + big, "{\"prompt\": 1" + std::string(5'000, '0') + "}"}) {
    const auto prompts = parse_prompts("p", text);
    ASSERT_FALSE(prompts.is_ok()) << text.substr(0, 100);
    EXPECT_LT(prompts.status().message().size(), 200u);
  }
  EXPECT_TRUE(parse_prompts("p", "{\"prompt\": \"a\", \"id\": \"" + big.substr(0, 256) + "\"}").is_ok());
}

TEST(Prompts, TheEndingInCapitalsIsTheSame) {
  const std::string path = testing::TempDir() + "drift-prompts.JSONL";
  std::ofstream(path) << "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n";
  const auto prompts = load_prompts(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(prompts.is_ok()) << prompts.status().message();
  EXPECT_EQ(prompts.value().size(), 2u);
  EXPECT_EQ(prompts.value()[1].id, "drift-prompts.JSONL:2");
}

TEST(Prompts, MissingFilesAndFolders) {
  EXPECT_EQ(load_prompts("no/such/file.jsonl").status().code(), Code::kNotFound);
  EXPECT_EQ(load_prompts(".").status().code(), Code::kInvalid);
}

std::vector<Prompt> many() {
  std::vector<Prompt> out;
  for (int i = 0; i < 60; ++i) {
    Prompt p;
    p.id = "row-" + std::to_string(i);
    p.domain = i % 3 == 0 ? "law" : "code";
    p.kind = i < 45 ? PromptKind::kPrefix : PromptKind::kInstruction;
    p.split = i % 2 == 0 ? "eval" : "tune";
    p.text = "x";
    out.push_back(p);
  }
  return out;
}

TEST(Prompts, SelectionIsBalancedStableAndKeepsOrder) {
  const auto chosen = select_prompts(many(), "eval", 10);
  ASSERT_TRUE(chosen.is_ok());
  ASSERT_EQ(chosen.value().size(), 10u);
  std::set<std::string> ids;
  int instructions = 0, last = -1;
  for (const Prompt& p : chosen.value()) {
    EXPECT_EQ(p.split, "eval");
    ids.insert(p.id);
    instructions += p.kind == PromptKind::kInstruction;
    const int number = std::stoi(p.id.substr(4));
    EXPECT_GT(number, last);
    last = number;
  }
  EXPECT_EQ(instructions, 5);
  // Another order of the same rows gives the same choice; a larger limit contains the smaller one.
  std::vector<Prompt> turned = many();
  std::reverse(turned.begin(), turned.end());
  std::set<std::string> again, larger;
  const auto second = select_prompts(turned, "eval", 10), third = select_prompts(many(), "eval", 14);
  for (const Prompt& p : second.value()) again.insert(p.id);
  for (const Prompt& p : third.value()) larger.insert(p.id);
  EXPECT_EQ(ids, again);
  for (const std::string& id : ids) EXPECT_TRUE(larger.contains(id));
}

TEST(Prompts, SelectionTakesAllWhenItCanAndRefusesAnEmptySplit) {
  EXPECT_EQ(select_prompts(many(), "", 0).value().size(), 60u);
  EXPECT_EQ(select_prompts(many(), "tune", 1000).value().size(), 30u);
  EXPECT_FALSE(select_prompts(many(), "test", 0).is_ok());
}

TEST(Prompts, TheHashIsFnv1a) {
  EXPECT_EQ(fixed_hash(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(fixed_hash("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fixed_hash("foobar"), 0x85944171f73967e8ull);
}

}  // namespace
}  // namespace drift::cli
