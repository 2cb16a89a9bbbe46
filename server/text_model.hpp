// text_model.hpp - the target's vocabulary as text, as far as the server needs it. The interface only: engines/llama gives the real
// one (cli/serve.cpp), tests a toy.
//
// Threads: immutable, shared by all HTTP threads and the decode thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"

namespace drift::server {

struct Message {
  std::string role;  // "system", "user", "assistant", ...
  std::string content;
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
};

}  // namespace drift::server
