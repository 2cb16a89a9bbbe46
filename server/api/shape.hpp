// shape.hpp - what a request says about the form of its answers: response_format, json_schema, grammar; tools and tool_choice.
//
// Threads: pure. Limits: schema.hpp, and the constants below.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/api/fields.hpp"
#include "server/text_model.hpp"

namespace drift::server::api {

inline constexpr std::size_t kGrammarFieldBytesMax = std::size_t{256} << 10;
inline constexpr std::size_t kToolsMax = 128;
inline constexpr std::size_t kToolNameBytesMax = 64;
inline constexpr std::size_t kToolTextBytesMax = std::size_t{64} << 10;  // of a description
inline constexpr std::size_t kCallsMax = 128;                            // of one message
inline constexpr std::size_t kCallBytesMax = std::size_t{1} << 20;       // of a call's arguments

// At most one of the two.
struct Shape {
  std::string grammar;  // GBNF
  std::string schema;   // JSON, checked (check_schema)
  std::string field;    // that asks for it
  bool empty() const { return grammar.empty() && schema.empty(); }
};

// `body` is the request as it was written; empty: a schema's properties come in the order of their names.
void read_shape(const Fields& fields, std::string_view body, Shape& out);
// Where one tool is asked for by name, it is the only one left, and required.
void read_tools(const Fields& fields, std::string_view body, ToolRequest& out);
// An assistant message's calls.
void read_calls(const Fields& message, std::vector<ToolCall>& out);

}  // namespace drift::server::api
