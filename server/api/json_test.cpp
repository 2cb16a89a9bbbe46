#include "server/api/json.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace drift::server::api {
namespace {

std::string refusal(std::string_view body) {
  const auto parsed = parse_body(body);
  EXPECT_FALSE(parsed.is_ok()) << body.substr(0, 80);
  return parsed.is_ok() ? "" : parsed.status().message();
}

TEST(Json, OnlyWholeObjectsAreTaken) {
  EXPECT_TRUE(parse_body("{}").is_ok());
  EXPECT_EQ(parse_body(R"({"a": 1, "a": 2})").value()["a"], 2);
  EXPECT_EQ(refusal(""), "the body is not valid JSON at byte 1");
  EXPECT_EQ(refusal("{\"a\": }"), "the body is not valid JSON at byte 7");
  EXPECT_NE(refusal("{} {}").find("byte 4"), std::string::npos);
  EXPECT_EQ(refusal("[]"), "the body is a JSON array; it must be an object");
  EXPECT_NE(refusal("null").find("must be an object"), std::string::npos);
  EXPECT_NE(refusal("{\"a\": \"\xFF\"}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("{\"a\": NaN}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(std::string("{\"a\": \"\0\"}", 10)).find("not valid JSON"), std::string::npos);
}

TEST(Json, DepthIsBounded) {
  const auto nested = [](std::size_t depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_TRUE(parse_body(nested(kJsonDepthMax - 1)).is_ok());
  EXPECT_NE(refusal(nested(kJsonDepthMax + 1)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refusal(nested(1'000'000)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refusal("{\"a\":" + std::string(4'000'000, '[')).find("the body is"), std::string::npos);
}

TEST(Json, ManyFieldsTakeNoMoreThanTheirSorting) {
  std::string body = "{";
  for (int i = 0; i < 400'000; ++i) body += "\"" + std::to_string(i) + "\":0,";
  body.back() = '}';
  const auto from = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_body(body).value().size(), 400'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(20));
}

TEST(Json, WhatIsNoUtf8ComesOutAsAReplacement) { EXPECT_EQ(dump({{"a", "x\xFF"}}), "{\"a\":\"x\xEF\xBF\xBD\"}"); }

}  // namespace
}  // namespace drift::server::api
