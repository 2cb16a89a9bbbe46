#include "engines/llama/text.hpp"

#include <llama.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>

#include "text/utf8.hpp"

namespace drift::engine {
namespace {

Status check_text(std::string_view text, const char* what) {
  if (text.size() > kTextBytesMax) {
    return Status(Code::kLimit, std::string(what) + " has " + std::to_string(text.size()) + " bytes; at most " +
                                    std::to_string(kTextBytesMax) + " are taken");
  }
  const std::size_t valid = text::valid_prefix(text);
  if (valid < text.size()) {
    return Status(Code::kInvalid,
                  std::string(what) + " is not valid UTF-8 at byte " + std::to_string(valid) + "; convert it first");
  }
  return Status::ok();
}

// A token's text between quotes, with bytes outside printable ASCII as \xNN, cut to a readable length.
std::string quoted(const llama_vocab* vocab, Token token) {
  const char* text = llama_vocab_get_text(vocab, token);
  std::string out = "\"";
  for (std::size_t i = 0; text != nullptr && text[i] != '\0'; ++i) {
    if (i == 48) return out + "...\"";
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte < 0x7F) {
      out += text[i];
    } else {
      std::array<char, 5> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", byte);
      out += hex.data();
    }
  }
  return out + "\"";
}

const char* kind_name(enum llama_vocab_type type) {
  switch (type) {
    case LLAMA_VOCAB_TYPE_NONE: return "none";
    case LLAMA_VOCAB_TYPE_SPM: return "SentencePiece";
    case LLAMA_VOCAB_TYPE_BPE: return "byte-level BPE";
    case LLAMA_VOCAB_TYPE_WPM: return "WordPiece";
    case LLAMA_VOCAB_TYPE_UGM: return "unigram";
    case LLAMA_VOCAB_TYPE_RWKV: return "RWKV";
    case LLAMA_VOCAB_TYPE_PLAMO2: return "PLaMo 2";
    default: return "unknown";
  }
}

// A token that fills the vocabulary up to a round size and never occurs in a text.
bool is_padding(const llama_vocab* vocab, Token token) {
  const char* text = llama_vocab_get_text(vocab, token);
  return (llama_vocab_get_attr(vocab, token) & LLAMA_TOKEN_ATTR_UNUSED) != 0 ||
         (text != nullptr && std::strncmp(text, "[PAD", 4) == 0);
}

// The special token must be the same in both, where either model adds or ends with it.
Status check_special(const char* what, const llama_vocab* target, Token of_target, const llama_vocab* draft, Token of_draft) {
  if (of_target == of_draft) return Status::ok();
  const auto say = [](const llama_vocab* vocab, Token token) {
    return token < 0 ? std::string("none") : std::to_string(token) + " " + quoted(vocab, token);
  };
  return Status(Code::kForeign, std::string("vocabularies differ: ") + what + " is " + say(target, of_target) +
                                    " in the target, " + say(draft, of_draft) +
                                    " in the draft; choose a draft of the target's family");
}

}  // namespace

Result<std::vector<Token>> LlamaText::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  DRIFT_TRY(check_text(text, "the text"));
  const llama_vocab* vocab = model_->vocab_handle();
  const auto bytes = static_cast<std::int32_t>(text.size());
  // No tokenizer makes more tokens than bytes, plus BOS and EOS, and a space that some put in front; ask again if one does.
  std::vector<Token> tokens(text.size() + 8);
  try {
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::int32_t count = llama_tokenize(vocab, text.data(), bytes, tokens.data(),
                                                static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
      if (count >= 0) {
        tokens.resize(static_cast<std::size_t>(count));
        return tokens;
      }
      if (count == std::numeric_limits<std::int32_t>::min()) break;
      tokens.resize(static_cast<std::size_t>(-count));
    }
  } catch (const std::exception& error) {
    return Status(Code::kInternal, "llama.cpp cannot tokenize the text for " + model_->name() + ": " + error.what());
  }
  return Status(Code::kLimit, "the text makes more tokens than can be counted; shorten it");
}

std::string LlamaText::piece(Token token, bool special) const {
  if (token < 0 || static_cast<std::size_t>(token) >= model_->vocab()) return {};
  std::string bytes(32, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int32_t count = llama_token_to_piece(model_->vocab_handle(), token, bytes.data(),
                                                    static_cast<std::int32_t>(bytes.size()), /*lstrip=*/0, special);
    if (count >= 0) {
      bytes.resize(static_cast<std::size_t>(count));
      return bytes;
    }
    bytes.resize(static_cast<std::size_t>(-count));
  }
  return {};
}

bool LlamaText::is_end(Token token) const {
  return token >= 0 && static_cast<std::size_t>(token) < model_->vocab() && llama_vocab_is_eog(model_->vocab_handle(), token);
}

bool LlamaText::has_chat_template() const { return llama_model_chat_template(model_->handle(), nullptr) != nullptr; }

Result<std::string> LlamaText::chat(const std::vector<ChatMessage>& messages, bool add_assistant) const {
  const char* own = llama_model_chat_template(model_->handle(), nullptr);
  if (own == nullptr) return Status(Code::kUnsupported, model_->name() + " has no chat template; use --raw");
  if (messages.empty()) return Status(Code::kInvalid, "a chat needs at least one message");
  std::size_t bytes = 0;
  std::vector<llama_chat_message> views;
  for (const ChatMessage& message : messages) {
    DRIFT_TRY(check_text(message.role, "a message's role"));
    DRIFT_TRY(check_text(message.content, "a message"));
    if (message.role.find('\0') != std::string::npos || message.content.find('\0') != std::string::npos) {
      return Status(Code::kInvalid, "a message holds a NUL byte; remove it");
    }
    bytes += message.role.size() + message.content.size() + 64;
    views.push_back({message.role.c_str(), message.content.c_str()});
  }
  if (bytes > kTextBytesMax) {
    return Status(Code::kLimit,
                  "the chat has " + std::to_string(bytes) + " bytes; at most " + std::to_string(kTextBytesMax) + " are taken");
  }
  std::string prompt(2 * bytes + 256, '\0');
  try {
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::int32_t count = llama_chat_apply_template(own, views.data(), views.size(), add_assistant, prompt.data(),
                                                           static_cast<std::int32_t>(prompt.size()));
      if (count < 0) break;
      const bool fits = static_cast<std::size_t>(count) <= prompt.size();
      prompt.resize(static_cast<std::size_t>(count));
      if (fits) return prompt;
    }
  } catch (const std::exception& error) {
    return Status(Code::kInternal, "llama.cpp cannot apply the chat template of " + model_->name() + ": " + error.what());
  }
  return Status(Code::kUnsupported, "the chat template of " + model_->name() +
                                        " is not one llama.cpp recognises; format the prompt yourself and use --raw");
}

Result<std::size_t> check_same_vocabulary(const LlamaModel& target, const LlamaModel& draft) {
  const llama_vocab* of_target = target.vocab_handle();
  const llama_vocab* of_draft = draft.vocab_handle();
  if (llama_vocab_type(of_target) != llama_vocab_type(of_draft)) {
    return Status(Code::kForeign, std::string("vocabularies differ in kind: the target's is ") +
                                      kind_name(llama_vocab_type(of_target)) + ", the draft's " +
                                      kind_name(llama_vocab_type(of_draft)) + "; choose a draft of the target's family");
  }
  const auto common = static_cast<Token>(std::min(target.vocab(), draft.vocab()));
  for (Token token = 0; token < common; ++token) {
    const char* a = llama_vocab_get_text(of_target, token);
    const char* b = llama_vocab_get_text(of_draft, token);
    if (std::strcmp(a != nullptr ? a : "", b != nullptr ? b : "") == 0) continue;
    return Status(Code::kForeign, "vocabularies differ first at token " + std::to_string(token) + ": " +
                                      quoted(of_target, token) + " in the target (" + target.name() + "), " +
                                      quoted(of_draft, token) + " in the draft (" + draft.name() +
                                      "); choose a draft of the target's family");
  }
  const bool target_larger = target.vocab() > draft.vocab();
  const LlamaModel& larger = target_larger ? target : draft;
  for (auto token = common; static_cast<std::size_t>(token) < larger.vocab(); ++token) {
    if (is_padding(larger.vocab_handle(), token)) continue;
    return Status(Code::kForeign, "vocabularies differ first at token " + std::to_string(token) + ": " +
                                      quoted(larger.vocab_handle(), token) + " in the " + (target_larger ? "target" : "draft") +
                                      ", none in the " + (target_larger ? "draft" : "target") + " (sizes " +
                                      std::to_string(target.vocab()) + " and " + std::to_string(draft.vocab()) +
                                      "); choose a draft of the target's family");
  }
  DRIFT_TRY(check_special("BOS", of_target, llama_vocab_bos(of_target), of_draft, llama_vocab_bos(of_draft)));
  DRIFT_TRY(check_special("EOS", of_target, llama_vocab_eos(of_target), of_draft, llama_vocab_eos(of_draft)));
  if (llama_vocab_get_add_bos(of_target) != llama_vocab_get_add_bos(of_draft)) {
    return Status(Code::kForeign, std::string("vocabularies differ: only the ") +
                                      (llama_vocab_get_add_bos(of_target) ? "target" : "draft") +
                                      " begins a text with BOS; choose a draft of the target's family");
  }
  return static_cast<std::size_t>(common);
}

Result<std::size_t> check_same_vocabulary(const LlamaEngine& target, const LlamaEngine& draft) {
  return check_same_vocabulary(*target.model(), *draft.model());
}

}  // namespace drift::engine
