// llama_flags.hpp - a llama-server command line, as `drift serve` understands it.
//
// Threads: pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::cli {

enum class FlagRule {
  kSame,    // it means the same here
  kWarn,    // taken, without effect
  kRefuse,  // it would change answers, or promises what is not there
};

struct LlamaFlag {
  const char* names;  // separated by blanks, as llama-server spells them
  int values;         // how many arguments follow it
  FlagRule rule;
  const char* text;  // kSame: the name here; kWarn: why it has no effect; kRefuse: what to do instead
};

std::span<const LlamaFlag> llama_flags();

struct Translated {
  std::vector<std::string> arguments;
  std::vector<std::string> warnings;
};

// Arguments after "serve": llama-server's names become ours, what has no effect is taken out with its values and a warning, values
// that are written another way there (-ngl all, --lora A,B, --lora-scaled A:0.5) are rewritten. What llama-server does not know stays.
// Fails with kInvalid, naming the flag and what to do instead.
Result<Translated> translate_llama_flags(const std::vector<std::string>& arguments);

}  // namespace drift::cli
