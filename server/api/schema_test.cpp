#include "server/api/schema.hpp"

#include <gtest/gtest.h>

#include "server/api/request.hpp"

namespace drift::server::api {
namespace {

GenerateRequest asked(const std::string& fields) {
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}";
  const auto input = parse_body(body);
  EXPECT_TRUE(input.is_ok()) << body.substr(0, 200);
  auto read = read_generate(Route::kChat, input.value(), {}, body);
  EXPECT_TRUE(std::holds_alternative<GenerateRequest>(read)) << std::get<Problem>(read).message;
  return std::get<GenerateRequest>(std::move(read));
}
Problem refused(const std::string& fields) {
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}";
  const auto input = parse_body(body);
  EXPECT_TRUE(input.is_ok()) << body.substr(0, 200);
  const auto read = read_generate(Route::kChat, input.value(), {}, body);
  if (const auto* problem = std::get_if<Problem>(&read)) return *problem;
  ADD_FAILURE() << fields.substr(0, 200) << " was taken";
  return {};
}
Status checked(const std::string& schema) { return check_schema(Json::parse(schema)); }

TEST(Shape, TheFieldsThatAskForOne) {
  EXPECT_TRUE(asked(R"("response_format": {"type": "text"}, "grammar": "", "tools": [])").shape.empty());
  EXPECT_EQ(asked(R"("response_format": {"type": "json_object"})").shape.schema, R"({"type":"object"})");
  EXPECT_EQ(asked(R"("grammar": "root ::= \"x\"")").shape.grammar, "root ::= \"x\"");
  const Shape shape = asked(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema":
            {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "null"}, "m": {}}}}})")
                          .shape;
  EXPECT_EQ(shape.schema, R"({"type":"object","properties":{"z":{"type":"string"},"a":{"type":"null"},"m":{}}})") << "as written";
  EXPECT_EQ(shape.field, "response_format.json_schema.schema");
  EXPECT_EQ(asked(R"("json_schema": {"b": 1, "a": 2})").shape.schema, R"({"b":1,"a":2})");
  struct Case {
    const char* fields;
    const char* param;
  };
  for (const Case& c : std::vector<Case>{
           {R"("response_format": "json")", "response_format"},
           {R"("response_format": {"type": "xml"})", "response_format.type"},
           {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})", "response_format.json_schema.schema"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"schema": [1]}})",
            "response_format.json_schema.schema"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}})",
            "response_format.json_schema.schema"},
           {R"("grammar": 5)", "grammar"},
           {R"("json_schema": "x")", "json_schema"},
           {R"("grammar": "root ::= x", "json_schema": {})", "grammar"},
           {R"("json_schema": {}, "tools": [{"type": "function", "function": {"name": "f"}}])", "json_schema"},
       }) {
    EXPECT_EQ(refused(c.fields).param, c.param) << c.fields;
  }
}

TEST(Shape, ToolsAndWhichOfThem) {
  const std::string two =
      R"("tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"properties": {"z": {}, "a": {}}}}},
          {"type": "function", "function": {"name": "g"}}])";
  const ToolRequest both = asked(two + R"(, "parallel_tool_calls": true)").tools;
  ASSERT_EQ(both.tools.size(), 2u);
  EXPECT_EQ(both.tools[0].parameters, R"({"properties":{"z":{},"a":{}}})");
  EXPECT_EQ(both.tools[1].parameters, R"({"type":"object","properties":{}})");
  EXPECT_EQ(both.choice, ToolChoice::kAuto);
  EXPECT_TRUE(both.parallel);
  EXPECT_EQ(asked(two + R"(, "tool_choice": "required")").tools.choice, ToolChoice::kRequired);
  const ToolRequest one = asked(two + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})").tools;
  ASSERT_EQ(one.tools.size(), 1u);
  EXPECT_EQ(one.tools[0].name, "g");
  EXPECT_EQ(one.choice, ToolChoice::kRequired);
  EXPECT_EQ(asked(two + R"(, "tool_choice": "none", "json_schema": {})").tools.choice, ToolChoice::kNone);
  struct Case {
    std::string fields;
    const char* param;
  };
  for (const Case& c : std::vector<Case>{
           {R"("tools": {})", "tools"},
           {R"("tools": ["f"])", "tools[0]"},
           {R"("tools": [{"type": "web"}])", "tools[0].type"},
           {R"("tools": [{"type": "function"}])", "tools[0].function"},
           {R"("tools": [{"type": "function", "function": {"name": "f g"}}])", "tools[0].function.name"},
           {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}])", "tools[0].function.parameters"},
           {two + R"(, "tool_choice": "some")", "tool_choice"},
           {two + R"(, "tool_choice": {"function": {"name": "h"}})", "tool_choice.function.name"},
       }) {
    EXPECT_EQ(refused(c.fields).param, c.param) << c.fields;
  }
}

// What would send the converter in circles, or take it long, does not reach it.
TEST(Schema, HostileOnesAreRefused) {
  const auto nested = [](const std::string& before, const std::string& after, int depth) {
    std::string out;
    for (int i = 0; i < depth; ++i) out += before;
    out += "{}";
    for (int i = 0; i < depth; ++i) out += after;
    return out;
  };
  for (const std::string& bad : {
           std::string(R"({"$ref": "#"})"),
           std::string(R"({"$ref": "http://example.org/schema"})"),
           std::string(R"({"$ref": "#/nowhere"})"),
           std::string(R"({"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]})"),
           std::string(R"({"$defs": {"a": {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}]}}}}, "$ref": "#/$defs/a"})"),
           std::string(R"({"$defs": {"a": {"anyOf": [{"allOf": [{"anyOf": [{"$ref": "#/$defs/a"}]}]}]}}, "$ref": "#/$defs/a"})"),
           nested(R"({"type": ["object", "array"], "properties": {"a": )", "}}", 40),
           R"({"properties": {")" + std::string(200, 'x') + R"(": {}}})",
           R"({"pattern": ")" + std::string(3'000, '(') + "\"}",
       }) {
    EXPECT_FALSE(checked(bad).is_ok()) << bad.substr(0, 100);
  }
  // Each definition stands for the one below twice.
  std::string doubling = R"({"$defs": {"d0": {"properties": {"x": {}}})";
  for (int i = 1; i < 40; ++i) {
    const std::string below = R"({"$ref": "#/$defs/d)" + std::to_string(i - 1) + "\"}";
    doubling += ", \"d" + std::to_string(i) + R"(": {"allOf": [)" + below + ", " + below + "]}";
  }
  EXPECT_NE(checked(doubling + R"(}, "allOf": [{"$ref": "#/$defs/d39"}]})").message().find("too large"), std::string::npos);
  std::string chain = R"({"$defs": {"d0": {})";
  for (int i = 1; i < 2'000; ++i)
    chain += ", \"d" + std::to_string(i) + R"(": {"items": {"$ref": "#/$defs/d)" + std::to_string(i - 1) + "\"}}";
  EXPECT_NE(checked(chain + R"(}, "$ref": "#/$defs/d1999"})").message().find("levels"), std::string::npos);
  std::string wide = R"({"properties": {"a": {})";
  for (int i = 0; i < 900; ++i) wide += ", \"p" + std::to_string(i) + "\": {}";
  EXPECT_NE(checked(wide + "}}").message().find("too large"), std::string::npos) << "so many may be left out";
  // A field that is there twice: only the last counts, and the first is not worth a second.
  std::string first = R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1)";
  for (int i = 0; i < 60'000; ++i) first += ", \"" + std::to_string(i) + "\": 1";
  EXPECT_EQ(refused(first + R"(}}}, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}})").param,
            "response_format.json_schema.schema");
  std::string values = R"("json_schema": {"enum": [0)";
  for (int i = 0; i < 20'000; ++i) values += ",1";
  EXPECT_EQ(refused(values + "]}").param, "json_schema");
}

TEST(Schema, SoundOnesPass) {
  for (
      const char* good : {
          R"({"type": "object", "properties": {"name": {"type": "string"}, "enum": {"enum": [1, 2]}}, "required": ["name"]})",
          R"({"$defs": {"Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}},
               "$ref": "#/$defs/Node"})",
          R"({"definitions": {"a/b": {}, "c": {"type": "string", "pattern": "^[a-z]{2,5}$"}}, "items": {"$ref": "#/definitions/c"}})",
          R"({"$defs": {"c": {"enum": ["x"]}}, "properties": {"c": {"allOf": [{"$ref": "#/$defs/c"}]}}})",
      }) {
    EXPECT_TRUE(checked(good).is_ok()) << checked(good).message();
  }
}

}  // namespace
}  // namespace drift::server::api
