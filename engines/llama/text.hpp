// text.hpp - a model's vocabulary as text: tokens from text, bytes from tokens, chat templates, and the vocabulary pre-flight.
//
// Threads: immutable, share freely; it keeps its model alive. Limits: kTextBytesMax per text, valid UTF-8 only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"
#include "engines/llama/engine.hpp"

namespace drift::engine {

inline constexpr std::size_t kTextBytesMax = std::size_t{64} << 20;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class LlamaText {
 public:
  explicit LlamaText(std::shared_ptr<const LlamaModel> model) : model_(std::move(model)) {}
  explicit LlamaText(const LlamaEngine& engine) : model_(engine.model()) {}

  // Text to tokens. add_special adds what the model wants around a text (e.g. BOS); parse_special reads "<|im_start|>" and the like
  // as one token each: switch it on for text from chat(), off for text from people.
  // Fails with kInvalid (not UTF-8; the byte is named), kLimit (longer than kTextBytesMax).
  Result<std::vector<Token>> tokenize(std::string_view text, bool add_special, bool parse_special) const;
  // The bytes of one token, special ones by their name unless they are left out; possibly a part of a UTF-8 character. Empty for a
  // token out of range.
  std::string piece(Token token, bool special = true) const;
  // Whether the model ends its turn or text with this token.
  bool is_end(Token token) const;

  bool has_chat_template() const;
  // Messages as one prompt in the model's own chat format; add_assistant opens the answer. Tokenize it with parse_special.
  // The format is recognised among those llama.cpp knows, the template itself is not executed: a default system prompt
  // that a template would add by itself is not added.
  // Fails with kUnsupported (no template, or an unknown one), kInvalid (no messages, a NUL byte, not UTF-8), kLimit.
  Result<std::string> chat(const std::vector<ChatMessage>& messages, bool add_assistant) const;

 private:
  std::shared_ptr<const LlamaModel> model_;
};

// Whether draft tokens mean the same to the target: same kind of vocabulary, same BOS and EOS, same text of every token both have;
// sizes may differ by unused padding tokens only. Gives the number of tokens both have: use only that many of each row.
// Fails with kForeign, naming the first difference. Cost: milliseconds.
Result<std::size_t> check_same_vocabulary(const LlamaModel& target, const LlamaModel& draft);
Result<std::size_t> check_same_vocabulary(const LlamaEngine& target, const LlamaEngine& draft);

}  // namespace drift::engine
