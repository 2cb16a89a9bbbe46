// logit_rules.hpp - OpenAI's, vLLM's and llama-server's words for changing logits: logit_bias, presence, frequency and repetition
// penalties, ignore_eos, min_tokens.
//
// Order: repetition, frequency and presence, bias, bans. Presence and frequency count the answer only (OpenAI, vLLM); repetition
// counts prompt and answer, the last repeat_last_n tokens of them (llama-server) or all (vLLM).
// Threads: one. Cost: the tokens that are new since the last call, and those penalised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drift/spec/logit_edit.hpp"

namespace drift::server {

struct LogitRules {
  std::vector<std::pair<Token, float>> bias;  // added
  std::vector<Token> banned;                  // never
  float presence = 0.0f;                      // taken off once from tokens of the answer
  float frequency = 0.0f;                     // ... for each time they occur
  float repetition = 1.0f;                    // > 0; positive logits are divided by it, negative ones multiplied
  std::int64_t repeat_last_n = -1;            // -1: all of the text
  bool ignore_end = false;                    // end tokens are banned
  std::int64_t min_tokens = 0;                // ... until the answer has so many
  bool empty() const {
    return bias.empty() && banned.empty() && presence == 0.0f && frequency == 0.0f && repetition == 1.0f && !ignore_end &&
           min_tokens == 0;
  }
  friend bool operator==(const LogitRules&, const LogitRules&) = default;
};

class RuleEdit final : public spec::LogitEdit {
 public:
  // `prompt` tokens of every text given later are the prompt; `ends` are the model's end tokens.
  RuleEdit(LogitRules rules, std::size_t prompt, std::vector<Token> ends);
  void apply(std::span<const Token> decided, std::span<const Token> path, std::span<float> logits) override;

 private:
  static void count(std::unordered_map<Token, int>& counts, Token token, int by);
  void slide(std::size_t size, std::span<const Token> decided, std::span<const Token> path);

  const LogitRules rules_;
  const std::size_t prompt_;
  const std::vector<Token> ends_;
  std::size_t counted_ = 0;  // of the decided text
  std::unordered_map<Token, int> in_answer_, in_window_;
  std::size_t window_begin_ = 0;  // first position that counts as repeated
};

}  // namespace drift::server
