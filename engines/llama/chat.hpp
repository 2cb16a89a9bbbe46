// chat.hpp - chat templates as they are written (Jinja), tools and the calls that answers make of them, JSON schemas as grammars:
// llama-common's, behind plain structs. The one file that uses it.
//
// Without llama-common (a llama.cpp that ./dev setup has not built) everything here fails with kUnsupported.
// Threads: immutable, share freely. Errors of templates and schemas come back as kInvalid; nothing throws, nothing ends the process.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"
#include "engines/llama/model.hpp"
#include "engines/llama/text.hpp"

namespace drift::engine {

// Whether this build has llama-common.
bool has_llama_common();

// A JSON schema as a GBNF grammar. Fails with kInvalid: no JSON, or what the converter does not know. Requires: the schema's size,
// nesting and references are bounded; the converter trusts them.
Result<std::string> schema_grammar(const std::string& schema);

struct ToolCall {
  std::string id, name;
  std::string arguments;  // JSON, as text
};

struct ToolMessage {
  std::string role, content;
  std::vector<ToolCall> calls;  // an assistant's
  std::string call_id, name;    // of a tool's answer
};

struct Tool {
  std::string name, description;
  std::string parameters;  // a JSON schema, as text
};

enum class ToolChoice { kNone, kAuto, kRequired };

struct ToolRequest {
  std::vector<ToolMessage> messages;
  std::vector<Tool> tools;
  ToolChoice choice = ToolChoice::kAuto;
  bool parallel = false;  // several calls in one answer
};

// What an answer says: text, and calls.
struct ToolAnswer {
  std::string content;
  std::vector<ToolCall> calls;
};

// Reads the answers of one request. Cost: linear in the text.
class ToolReader {
 public:
  virtual ~ToolReader() = default;
  // Of a text that is not complete, what is sure of it. Fails with kInvalid: the text is not of the form the template wants.
  virtual Result<ToolAnswer> read(const std::string& text, bool complete) const = 0;
};

struct ToolPrompt {
  std::string prompt;                 // to be tokenized with parse_special
  std::string grammar;                // GBNF; empty: anything may be answered
  std::vector<std::string> triggers;  // words that the grammar begins with and is to wait for; empty: it holds from the start
  bool required = false;              // ... or that the answer is to begin with
  std::string read;                   // the end of the prompt, which the grammar begins with
  std::vector<std::string> stops;
  std::vector<std::string> shown;  // special tokens that belong to the text of an answer
  std::shared_ptr<const ToolReader> reader;
};

class ChatTemplate {
 public:
  // `source` is Jinja, or "chatml"; empty: the model's own. Fails with kInvalid (the template cannot be read, or not be used on a plain
  // message), kUnsupported (the model has none; no llama-common).
  static Result<std::shared_ptr<const ChatTemplate>> make(std::shared_ptr<const LlamaModel> model, const std::string& source);
  virtual ~ChatTemplate() = default;

  // Messages as one prompt. Fails with kInvalid: what the template says of them; no messages; not UTF-8; a NUL byte.
  virtual Result<std::string> apply(const std::vector<ToolMessage>& messages, bool add_assistant) const = 0;
  // Whether the template can tell of tools and of calls.
  virtual bool knows_tools() const = 0;
  // Fails as apply(), and with kUnsupported: the template knows no tools.
  virtual Result<ToolPrompt> apply_tools(const ToolRequest& request) const = 0;
  virtual const std::string& source() const = 0;
};

}  // namespace drift::engine
