// text_model.hpp - the target's vocabulary as text, as far as the server needs it. The interface only: engines/llama gives the real
// one (cli/serve.cpp), tests a toy.
//
// Threads: immutable, shared by all HTTP threads and the decode thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"

namespace drift::server {

struct ToolCall {
  std::string id, name;
  std::string arguments;  // JSON, as text
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct Message {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
  std::vector<ToolCall> calls;  // an assistant's
  std::string call_id, name;    // of a tool's answer
};

struct Tool {
  std::string name, description;
  std::string parameters;  // a JSON schema, as text
};

enum class ToolChoice { kNone, kAuto, kRequired };

struct ToolRequest {
  std::vector<Tool> tools;  // none: nothing else counts
  ToolChoice choice = ToolChoice::kAuto;
  bool parallel = false;  // several calls in one answer
};

// What an answer says: text, and calls.
struct ToolAnswer {
  std::string content;
  std::vector<ToolCall> calls;
};

// Reads the answers of one request. Threads: immutable.
class ToolReader {
 public:
  virtual ~ToolReader() = default;
  // Of a text that is not complete, what is sure of it. Fails with kInvalid: the text is not of the form the template wants.
  virtual Result<ToolAnswer> read(const std::string& text, bool complete) const = 0;
};

// A prompt with tools, and what it takes to have answers that call them.
struct ToolPrompt {
  std::string prompt;
  std::string grammar;                // GBNF; empty: anything may be answered
  std::vector<std::string> triggers;  // the grammar begins with one of these, and holds from there; empty: from the start
  bool required = false;              // ... or that the answer is to begin with
  std::string read;                   // the end of the prompt, which the grammar begins with
  std::vector<std::string> stops;
  std::vector<std::string> shown;  // control tokens that belong to the text of these answers
  std::shared_ptr<const ToolReader> reader;
};

class TextModel {
 public:
  virtual ~TextModel() = default;
  // add_special adds what the model wants around a text (BOS); parse_special reads "<|im_start|>" and the like as one token each.
  // Fails with kInvalid (not UTF-8), kLimit (too long).
  virtual Result<std::vector<Token>> tokenize(std::string_view text, bool add_special, bool parse_special) const = 0;
  // The bytes an answer shows for a token, possibly a part of a UTF-8 character; empty for control tokens and out of range.
  virtual std::string piece(Token token) const = 0;
  // Whether the model ends its turn or text with this token.
  virtual bool is_end(Token token) const = 0;
  virtual bool has_chat_template() const = 0;
  // Messages as one prompt in the model's chat format, to be tokenized with parse_special.
  // Fails with kUnsupported (no template, or an unknown one), kInvalid, kLimit.
  virtual Result<std::string> chat(const std::vector<Message>& messages, bool add_assistant) const = 0;
  virtual std::size_t vocab() const = 0;
  // The same with tools. Fails with kUnsupported (the template knows none), kInvalid.
  virtual Result<ToolPrompt> chat_with_tools(const std::vector<Message>& /*messages*/, const ToolRequest& /*tools*/) const {
    return Status(Code::kUnsupported, "this server knows no tools");
  }
  // A JSON schema as a GBNF grammar. Fails with kUnsupported, kInvalid. Requires: api::check_schema().
  virtual Result<std::string> schema_grammar(const std::string& /*schema*/) const {
    return Status(Code::kUnsupported, "this server makes no grammars of schemas");
  }
};

}  // namespace drift::server
