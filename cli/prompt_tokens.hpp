// prompt_tokens.hpp - a prompt of a file as the tokens a pair of models goes on from.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/pair.hpp"
#include "cli/prompts.hpp"
#include "drift/base/ids.hpp"

namespace drift::cli {

// Instructions get the target's chat template, prefixes none. Fails naming the prompt: as LlamaText::chat and tokenize, kInvalid where
// it gives no tokens, and as check_fits().
Result<std::vector<Token>> prompt_tokens(const Prompt& prompt, const Pair& pair, std::int64_t generate);

}  // namespace drift::cli
