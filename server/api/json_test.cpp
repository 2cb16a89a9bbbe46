#include "server/api/json.hpp"

#include <gtest/gtest.h>

#include <ctime>

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
  EXPECT_NE(refusal("{\"a\": 1e999}").find("too large"), std::string::npos);
  EXPECT_NE(refusal("{\"a\": NaN}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(std::string("{\"a\": \"\0\"}", 10)).find("not valid JSON"), std::string::npos);
}

TEST(Json, DepthIsBounded) {
  const auto nested = [](std::size_t depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_TRUE(parse_body(nested(kJsonDepthMax - 1)).is_ok());
  EXPECT_NE(refusal(nested(kJsonDepthMax + 1)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refusal(nested(200'000)).find("deeper than 64"), std::string::npos);
  EXPECT_NE(refusal("{\"a\":" + std::string(400'000, '[')).find("the body is"), std::string::npos);
}

TEST(Json, ManyFieldsTakeNoMoreThanTheirSorting) {
  const auto cost = [](std::size_t fields) {  // processor time: other load does not count
    std::string body = "{";
    for (std::size_t i = 0; i < fields; ++i) body += "\"" + std::to_string(i) + "\":0,";
    body.back() = '}';
    const std::clock_t from = std::clock();
    EXPECT_EQ(parse_body(body).value().size(), fields);
    return static_cast<double>(std::clock() - from + 1);
  };
  EXPECT_LT(cost(80'000) / cost(10'000), 30.0) << "sorting gives 10, comparing each with each 64";
}

TEST(Json, WhatIsNoUtf8ComesOutAsAReplacement) { EXPECT_EQ(dump({{"a", "x\xFF"}}), "{\"a\":\"x\xEF\xBF\xBD\"}"); }

}  // namespace
}  // namespace drift::server::api
