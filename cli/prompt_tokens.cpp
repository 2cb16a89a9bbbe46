#include "cli/prompt_tokens.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace drift::cli {

Result<std::vector<Token>> prompt_tokens(const Prompt& prompt, const Pair& pair, std::int64_t generate) {
  const bool chat = prompt.kind == PromptKind::kInstruction;
  std::string text = prompt.text;
  if (chat) {
    auto framed = frame_chat(pair, {{"user", prompt.text}});
    if (!framed.is_ok()) {
      return Status(framed.status().code(), fmt::format("prompt {} is an instruction: {}", prompt.id, framed.status().message()));
    }
    text = std::move(framed).value();
  }
  auto tokens = pair.text->tokenize(text, /*add_special=*/true, /*parse_special=*/chat);
  if (!tokens.is_ok()) return Status(tokens.status().code(), fmt::format("prompt {}: {}", prompt.id, tokens.status().message()));
  if (tokens->empty()) return Status(Code::kInvalid, fmt::format("prompt {} gives no tokens; it needs text", prompt.id));
  DRIFT_TRY(check_fits(pair, tokens->size(), generate, "prompt " + prompt.id));
  return tokens;
}

}  // namespace drift::cli
