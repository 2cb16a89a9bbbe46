#include "server/schedule/logit_rules.hpp"

#include <algorithm>

namespace drift::server {
namespace {

constexpr float kNever = -1e30f;  // finite, and nothing comes of it: exp(kNever - max) is 0

void ban(Token token, std::span<float> logits) {
  if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) logits[static_cast<std::size_t>(token)] = kNever;
}

}  // namespace

RuleEdit::RuleEdit(LogitRules rules, std::size_t prompt, std::vector<Token> ends)
    : rules_(std::move(rules)), prompt_(prompt), ends_(std::move(ends)) {}

// Adds or takes away one occurrence.
void RuleEdit::count(std::unordered_map<Token, int>& counts, Token token, int by) {
  int& n = counts[token];
  n += by;
  if (n == 0) counts.erase(token);
}

// Moves the beginning of the window to where it is for a text of `size` tokens; back, too, for a path is dropped again.
void RuleEdit::slide(std::size_t size, std::span<const Token> decided, std::span<const Token> path) {
  if (rules_.repeat_last_n < 0) return;
  const std::size_t begin = size - std::min(size, static_cast<std::size_t>(rules_.repeat_last_n));
  const auto at = [&](std::size_t i) { return i < decided.size() ? decided[i] : path[i - decided.size()]; };
  for (; window_begin_ < begin; ++window_begin_) count(in_window_, at(window_begin_), -1);
  for (; window_begin_ > begin; --window_begin_) count(in_window_, at(window_begin_ - 1), +1);
}

void RuleEdit::apply(std::span<const Token> decided, std::span<const Token> path, std::span<float> logits) {
  const bool counting = rules_.presence != 0.0f || rules_.frequency != 0.0f || rules_.repetition != 1.0f;
  if (counting) {
    // The window begins within the text that was decided before, so what is new lies in it until it slides.
    for (; counted_ < decided.size(); ++counted_) {
      count(in_window_, decided[counted_], +1);
      if (counted_ >= prompt_) count(in_answer_, decided[counted_], +1);
    }
    for (const Token token : path) {
      count(in_window_, token, +1);
      count(in_answer_, token, +1);
    }
    slide(decided.size() + path.size(), decided, path);
    if (rules_.repetition != 1.0f) {
      for (const auto& [token, n] : in_window_) {
        if (static_cast<std::size_t>(token) >= logits.size()) continue;
        float& logit = logits[static_cast<std::size_t>(token)];
        logit = logit > 0.0f ? logit / rules_.repetition : logit * rules_.repetition;
      }
    }
    for (const auto& [token, n] : in_answer_) {
      if (static_cast<std::size_t>(token) >= logits.size()) continue;
      logits[static_cast<std::size_t>(token)] -= rules_.presence + static_cast<float>(n) * rules_.frequency;
    }
  }
  for (const auto& [token, value] : rules_.bias) {
    if (token >= 0 && static_cast<std::size_t>(token) < logits.size()) logits[static_cast<std::size_t>(token)] += value;
  }
  for (const Token token : rules_.banned) ban(token, logits);
  const std::size_t answered = decided.size() + path.size() - prompt_;
  if (rules_.ignore_end || answered < static_cast<std::size_t>(rules_.min_tokens)) {
    for (const Token token : ends_) ban(token, logits);
  }
  if (counting) {
    slide(decided.size(), decided, path);
    for (const Token token : path) {
      count(in_window_, token, -1);
      count(in_answer_, token, -1);
    }
  }
}

}  // namespace drift::server
