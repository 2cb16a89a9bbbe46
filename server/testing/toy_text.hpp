// toy_text.hpp - a vocabulary for the toy engine: one token per printable ASCII character, an end token, and the bytes of "é" apart.
#pragma once

#include <string>
#include <vector>

#include "server/text_model.hpp"

namespace drift::server::testing {

inline constexpr std::size_t kToyVocab = 98;
inline constexpr Token kToyEnd = 95;

class ToyText final : public TextModel {
 public:
  Result<std::vector<Token>> tokenize(std::string_view text, bool /*add_special*/, bool /*parse_special*/) const override {
    std::vector<Token> out;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0xC3) {
        out.push_back(96);
      } else if (byte == 0xA9) {
        out.push_back(97);
      } else if (byte >= 32 && byte < 127) {
        out.push_back(byte - 32);
      } else if (byte == '\n') {
        out.push_back(0);
      } else {
        return Status(Code::kInvalid, "the toy knows no byte " + std::to_string(byte));
      }
    }
    return out;
  }
  std::string piece(Token token) const override {
    if (token < 0 || token == kToyEnd) return {};
    if (token == 96) return "\xC3";
    if (token == 97) return "\xA9";
    return std::string(1, static_cast<char>(32 + token));
  }
  bool is_end(Token token) const override { return token == kToyEnd; }
  bool has_chat_template() const override { return chat_; }
  Result<std::string> chat(const std::vector<Message>& messages, bool add_assistant) const override {
    if (!chat_) return Status(Code::kUnsupported, "the toy has no chat template");
    std::string out;
    for (const Message& message : messages) out += message.role + ": " + message.content + "\n";
    if (add_assistant) out += "assistant: ";
    return out;
  }
  std::size_t vocab() const override { return kToyVocab; }
  // Whatever is answered is calls, eight bytes each.
  Result<ToolPrompt> chat_with_tools(const std::vector<Message>& messages, const ToolRequest& tools) const override {
    class Eights final : public ToolReader {
     public:
      explicit Eights(std::string name) : name_(std::move(name)) {}
      Result<ToolAnswer> read(const std::string& text, bool /*complete*/) const override {
        ToolAnswer out;
        for (std::size_t at = 0; at < text.size(); at += 8) out.calls.push_back({"", name_, text.substr(at, 8)});
        return out;
      }

     private:
      std::string name_;
    };
    ToolPrompt out;
    DRIFT_ASSIGN(out.prompt, chat(messages, true));
    out.reader = std::make_shared<const Eights>(tools.tools.front().name);
    return out;
  }
  Result<std::string> schema_grammar(const std::string& /*schema*/) const override { return std::string("root ::= \"{}\""); }

  bool chat_ = true;
};

}  // namespace drift::server::testing
