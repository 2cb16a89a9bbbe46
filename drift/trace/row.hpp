// row.hpp - one model's row at one position, as a trace keeps it: its largest logits, the rest as one number, the hidden state in
// half precision.
//
// reduce() and expand() are one another's inverse but for what was left out: of a row of at most kRowTokens tokens nothing is, of a
// longer one the tokens left out all get the same logit, so that their sum stays what it was. Reducing what expand() gave changes
// neither tokens nor logits.
// Threads: pure functions. Cost: a few passes over the row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"

namespace drift::trace {

inline constexpr std::size_t kRowTokens = 1'024;  // most logits kept of a row

enum class Side { kTarget, kDraft };

struct Row {
  std::vector<Token> tokens;                               // [n] largest logit first, equal ones by lowest id
  std::vector<float> logits;                               // [n] raw
  double rest = -std::numeric_limits<double>::infinity();  // log-sum-exp of the logits left out; -infinity: none was
  std::vector<std::uint16_t> hidden;                       // [hidden_width] IEEE half precision, as bits; of drafts only
  bool seen = true;  // the run itself drew from it; false: it was computed afterwards, on the same text
};

// Keeps the min(most, logits.size()) largest. Requires: logits finite and not empty, 1 <= most <= kRowTokens.
void reduce_logits(std::span<const float> logits, std::size_t most, Row& row);
// Fails with kUnsupported where a number is too large for half precision.
Status reduce_hidden(std::span<const float> hidden, Row& row);

// Requires: check_row(row, logits.size(), ...) is ok.
void expand_logits(const Row& row, std::span<float> logits);
// Requires: hidden.size() == row.hidden.size().
void expand_hidden(const Row& row, std::span<float> hidden);

// Everything that expanding and decoding need of a row from a file. Fails with kCorrupt naming what is wrong.
Status check_row(const Row& row, std::size_t vocab, std::size_t most, std::size_t hidden_width);

}  // namespace drift::trace
