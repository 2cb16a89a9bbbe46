#include "server/api/shape.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "server/api/schema.hpp"

namespace drift::server::api {
namespace {

// A part of the body as it was written, checked as a schema; `path` leads to it.
std::optional<std::string> read_schema(const Fields& fields, const std::string& place, const Input& value, std::string_view body,
                                       const std::vector<std::string>& path) {
  if (!value.is_object()) {
    fields.refuse(place, fmt::format("is a JSON {}; it must be an object, a JSON schema", value.type_name()));
    return std::nullopt;
  }
  if (const std::size_t values = count_values(value); values > kSchemaValuesMax) {
    fields.refuse(place, fmt::format("has {} values; at most {} are taken", values, kSchemaValuesMax));
    return std::nullopt;
  }
  Json schema;
  if (body.empty()) {
    schema = value;
  } else {
    schema = in_order(body, {path.front()});
    for (const std::string& step : path) {
      // Steps are names, but for those that are places in a list.
      if (schema.is_object() && schema.contains(step)) {
        schema = Json(schema[step]);
      } else if (schema.is_array() && std::stoul(step) < schema.size()) {
        schema = Json(schema[std::stoul(step)]);
      } else {
        fields.refuse(place, "is there twice; send it once");
        return std::nullopt;
      }
    }
  }
  const Status checked = check_schema(schema);
  if (!checked.is_ok()) {
    fields.refuse(place, "cannot be used: " + checked.message());
    return std::nullopt;
  }
  if (schema.empty()) return std::string(R"({"type":"object"})");
  return dump(schema);
}

void read_format(const Fields& fields, std::string_view body, Shape& out) {
  const Input* format = fields.find("response_format");
  if (format == nullptr) return;
  if (!format->is_object() || !format->contains("type") || !(*format)["type"].is_string())
    return fields.refuse("response_format", "must be an object with a type, such as {\"type\": \"text\"}");
  const std::string type = (*format)["type"].get<std::string>();
  if (type == "text") return;
  const auto take = [&](const std::string& place, const Input& schema, const std::vector<std::string>& path) {
    if (auto text = read_schema(fields, place, schema, body, path)) out = {"", std::move(*text), place};
  };
  if (type == "json_object") {
    if (format->contains("schema") && !(*format)["schema"].is_null())
      return take("response_format.schema", (*format)["schema"], {"response_format", "schema"});
    out = {"", R"({"type":"object"})", "response_format"};
    return;
  }
  if (type != "json_schema")
    return fields.refuse("response_format.type",
                         fmt::format("is '{}'; it must be text, json_object or json_schema", type.substr(0, 40)));
  const auto wrapper = format->find("json_schema");
  if (wrapper == format->end() || !wrapper->is_object())
    return fields.refuse("response_format.json_schema", "must be an object with a name and a schema");
  const auto schema = wrapper->find("schema");
  if (schema == wrapper->end() || schema->is_null())
    return fields.refuse("response_format.json_schema.schema", "is missing; it must be a JSON schema");
  take("response_format.json_schema.schema", *schema, {"response_format", "json_schema", "schema"});
}

std::optional<Tool> read_tool(const Fields& fields, const std::string& place, const Input& element, std::string_view body,
                              std::size_t number) {
  const auto refuse = [&](const std::string& where, const std::string& why) {
    fields.refuse(where, why);
    return std::nullopt;
  };
  if (!element.is_object()) return refuse(place, fmt::format("is a JSON {}; it must be an object", element.type_name()));
  const auto type = element.find("type");
  if (type == element.end() || *type != "function")
    return refuse(place + ".type", "must be \"function\": there are no other tools here");
  const auto function = element.find("function");
  if (function == element.end() || !function->is_object()) return refuse(place + ".function", "must be an object with a name");
  const auto text = [&](const char* name, std::size_t most, std::string& out) {
    const auto value = function->find(name);
    if (value == function->end() || value->is_null()) return true;
    if (value->is_string() && value->get_ref<const std::string&>().size() <= most) {
      out = value->get<std::string>();
      return true;
    }
    fields.refuse(place + ".function." + name, fmt::format("must be a string of at most {} bytes", most));
    return false;
  };
  Tool tool;
  if (!text("name", kToolNameBytesMax, tool.name) || !text("description", kToolTextBytesMax, tool.description))
    return std::nullopt;
  const bool plain = !tool.name.empty() && std::all_of(tool.name.begin(), tool.name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  });
  if (!plain) return refuse(place + ".function.name", "must be made of letters, digits, '_', '-' and '.'");
  const auto parameters = function->find("parameters");
  if (parameters == function->end() || parameters->is_null()) {
    tool.parameters = R"({"type":"object","properties":{}})";
    return tool;
  }
  auto schema = read_schema(fields, place + ".function.parameters", *parameters, body,
                            {"tools", std::to_string(number), "function", "parameters"});
  if (!schema) return std::nullopt;
  tool.parameters = parameters->empty() ? R"({"type":"object","properties":{}})" : std::move(*schema);
  return tool;
}

void read_choice(const Fields& fields, ToolRequest& out) {
  const Input* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  const std::string word = choice->is_string() ? choice->get<std::string>() : "";
  if (word == "auto" || word == "none" || word == "required") {
    out.choice = word == "auto" ? ToolChoice::kAuto : word == "none" ? ToolChoice::kNone : ToolChoice::kRequired;
    return;
  }
  const bool named = choice->is_object() && choice->contains("function") && (*choice)["function"].is_object() &&
                     (*choice)["function"].contains("name") && (*choice)["function"]["name"].is_string();
  if (!named)
    return fields.refuse("tool_choice",
                         "must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ...}}");
  const std::string name = (*choice)["function"]["name"].get<std::string>();
  const auto found = std::find_if(out.tools.begin(), out.tools.end(), [&](const Tool& tool) { return tool.name == name; });
  if (found == out.tools.end())
    return fields.refuse("tool_choice.function.name", fmt::format("is '{}', which is none of the tools", name.substr(0, 40)));
  out.tools = {Tool(*found)};
  out.choice = ToolChoice::kRequired;
}

}  // namespace

void read_shape(const Fields& fields, std::string_view body, Shape& out) {
  std::string grammar;
  fields.text("grammar", kGrammarFieldBytesMax, grammar);
  const Input* schema = fields.find("json_schema");
  Shape asked;
  if (schema != nullptr && !(schema->is_boolean() && !schema->get<bool>())) {
    if (auto text = read_schema(fields, "json_schema", *schema, body, {"json_schema"}))
      asked = {"", std::move(*text), "json_schema"};
  }
  read_format(fields, body, asked);
  if (!grammar.empty() && !asked.empty())
    return fields.refuse("grammar", fmt::format("cannot be used together with {}", asked.field));
  if (!grammar.empty()) asked = {std::move(grammar), "", "grammar"};
  if (!asked.empty()) out = std::move(asked);
}

void read_tools(const Fields& fields, std::string_view body, ToolRequest& out) {
  const Input* list = fields.find("tools");
  if (list == nullptr) return;
  if (!list->is_array()) return fields.refuse("tools", fmt::format("is a JSON {}; it must be a list", list->type_name()));
  if (list->size() > kToolsMax)
    return fields.refuse("tools", fmt::format("has {} tools; at most {} are taken", list->size(), kToolsMax));
  if (const std::size_t values = count_values(*list); values > kSchemaValuesMax)
    return fields.refuse("tools", fmt::format("has {} values; at most {} are taken", values, kSchemaValuesMax));
  for (std::size_t i = 0; i < list->size(); ++i) {
    auto tool = read_tool(fields, fmt::format("tools[{}]", i), (*list)[i], body, i);
    if (!tool) return;
    const bool twice = std::any_of(out.tools.begin(), out.tools.end(), [&](const Tool& t) { return t.name == tool->name; });
    if (twice) return fields.refuse(fmt::format("tools[{}].function.name", i), "is there twice");
    out.tools.push_back(std::move(*tool));
  }
  fields.boolean("parallel_tool_calls", out.parallel);
  if (!out.tools.empty()) read_choice(fields, out);
}

void read_calls(const Fields& message, std::vector<ToolCall>& out) {
  const Input* list = message.find("tool_calls");
  if (list == nullptr) return;
  if (!list->is_array() || list->size() > kCallsMax)
    return message.refuse("tool_calls", fmt::format("must be a list of at most {} calls", kCallsMax));
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Input& element = (*list)[i];
    const std::string place = fmt::format("tool_calls[{}]", i);
    const auto function = element.is_object() ? element.find("function") : element.end();
    if (!element.is_object() || function == element.end() || !function->is_object())
      return message.refuse(place, "must be an object with a function");
    ToolCall call;
    const auto text = [&](const Input& of, const char* name, std::size_t most, std::string& to) {
      const auto value = of.find(name);
      if (value == of.end() || value->is_null()) return true;
      if (!value->is_string() || value->get_ref<const std::string&>().size() > most) return false;
      to = value->get<std::string>();
      return true;
    };
    if (!text(element, "id", kToolNameBytesMax * 4, call.id)) return message.refuse(place + ".id", "must be a short string");
    if (!text(*function, "name", kToolNameBytesMax, call.name) || call.name.empty())
      return message.refuse(place + ".function.name", fmt::format("must be a string of 1 to {} bytes", kToolNameBytesMax));
    if (!text(*function, "arguments", kCallBytesMax, call.arguments))
      return message.refuse(place + ".function.arguments", fmt::format("must be a string of at most {} bytes", kCallBytesMax));
    if (!call.arguments.empty() && !parse_body(call.arguments).is_ok())
      return message.refuse(place + ".function.arguments", "must be the text of a JSON object");
    if (call.arguments.empty()) call.arguments = "{}";
    out.push_back(std::move(call));
  }
}

}  // namespace drift::server::api
