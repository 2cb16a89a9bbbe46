#include "drift/trace/row.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "drift/base/check.hpp"
#include "drift/simd/simd.hpp"

namespace drift::trace {
namespace {

bool is_finite_half(std::uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }

Status bad(const std::string& what) { return {Code::kCorrupt, what}; }

}  // namespace

void reduce_logits(std::span<const float> logits, std::size_t most, Row& row) {
  DRIFT_CHECK(!logits.empty() && most >= 1 && most <= kRowTokens, "a row is reduced to 1 to kRowTokens logits");
  row.tokens.resize(std::min(most, logits.size()));
  row.tokens.resize(simd::top_k(logits, row.tokens.size(), row.tokens));
  row.logits.clear();
  for (const Token t : row.tokens) row.logits.push_back(logits[static_cast<std::size_t>(t)]);
  row.rest = -std::numeric_limits<double>::infinity();
  if (row.tokens.size() == logits.size()) return;
  std::vector<float> left(logits.begin(), logits.end());
  for (const Token t : row.tokens) left[static_cast<std::size_t>(t)] = -std::numeric_limits<float>::infinity();
  row.rest = simd::log_sum_exp(left);
}

Status reduce_hidden(std::span<const float> hidden, Row& row) {
  row.hidden.resize(hidden.size());
  simd::to_f16(hidden, row.hidden.data());
  if (std::all_of(row.hidden.begin(), row.hidden.end(), is_finite_half)) return Status::ok();
  return {Code::kUnsupported, "a hidden state holds a number beyond what half precision can hold (65504); traces keep these"};
}

void expand_logits(const Row& row, std::span<float> logits) {
  if (row.tokens.size() < logits.size()) {
    const auto left = static_cast<double>(logits.size() - row.tokens.size());
    // The mean cannot be above the smallest logit that was kept; rounding must not put it there.
    const float each = std::min(static_cast<float>(row.rest - std::log(left)), row.logits.back());
    std::fill(logits.begin(), logits.end(), each);
  }
  for (std::size_t i = 0; i < row.tokens.size(); ++i) logits[static_cast<std::size_t>(row.tokens[i])] = row.logits[i];
}

void expand_hidden(const Row& row, std::span<float> hidden) {
  DRIFT_CHECK(row.hidden.size() == hidden.size(), "a hidden state keeps its width");
  simd::from_f16(row.hidden.data(), hidden);
}

Status check_row(const Row& row, std::size_t vocab, std::size_t most, std::size_t hidden_width) {
  const std::size_t n = std::min(most, vocab);
  if (row.tokens.size() != n || row.logits.size() != n) {
    return bad("it has " + std::to_string(row.tokens.size()) + " tokens and " + std::to_string(row.logits.size()) +
               " logits, not " + std::to_string(n) + " of each");
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (row.tokens[i] < 0 || static_cast<std::size_t>(row.tokens[i]) >= vocab)
      return bad("token " + std::to_string(row.tokens[i]) + " is outside the vocabulary");
    if (!std::isfinite(row.logits[i])) return bad("a logit is not finite");
    const bool in_order =
        i == 0 || row.logits[i - 1] > row.logits[i] || (row.logits[i - 1] == row.logits[i] && row.tokens[i - 1] < row.tokens[i]);
    if (!in_order) return bad("its logits are not in order");
  }
  std::vector<Token> sorted = row.tokens;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return bad("a token is there twice");
  // Beyond 1e30 a float could not hold it.
  if (n < vocab && !(std::fabs(row.rest) <= 1e30)) return bad("the sum of what was left out is no number");
  if (n == vocab && !(std::isinf(row.rest) && row.rest < 0)) return bad("nothing was left out, yet it has a sum of that");
  if (row.hidden.size() != hidden_width) {
    return bad("its hidden state has " + std::to_string(row.hidden.size()) + " numbers, not " + std::to_string(hidden_width));
  }
  if (!std::all_of(row.hidden.begin(), row.hidden.end(), is_finite_half)) return bad("a hidden state is not finite");
  return Status::ok();
}

}  // namespace drift::trace
