// reduced.hpp - a draft's row of logits cut down to the tokens that matter at one position, and the arithmetic of correcting it.
//
// Levels speak of a few hundred tokens; all others keep their logits and matter only by their mass. So a row is reduced once to
// the tokens some level names, the most likely others, and one bucket for the rest; every level then costs what it names.
// A correction is one number per kept token, added to its logit; the bucket's is 0.
// Threads: plain values and pure functions; Reducer holds scratch memory. Cost: reduce() two passes over the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift/base/ids.hpp"

namespace drift::recal {

struct ReducedRow {
  std::vector<Token> tokens;  // ascending
  std::vector<float> logits;  // theirs, raw
  double log_rest = 0;        // log of the sum of exp(logit) over all other tokens; -inf if there are none
  std::size_t size() const { return tokens.size(); }
};

class Reducer {
 public:
  // Requires: finite logits; `named` ascending, unique and below their number; others >= 1.
  void reduce(std::span<const float> logits, std::span<const Token> named, std::size_t others, ReducedRow& out);

 private:
  std::vector<Token> top_;
};

// log of the sum of exp(logit + correction) over the whole row. Requires: correction.size() == row.size().
double log_z(const ReducedRow& row, std::span<const double> correction);

// What a level names: places in a reduced row and a value for each.
struct Named {
  std::vector<std::uint32_t> at;  // ascending
  std::vector<float> values;
};

// deltas[i], added to the correction at named.at[i], turn the corrected law q into (1 - weight) q + weight P. P has the named
// values as probabilities, and what they lack of 1 is spread over all other tokens in proportion to q.
// Bounded to +-kMixBound nats. Requires: values >= 0 with a sum of at most 1 up to rounding, weight in [0, 1).
void mix(const ReducedRow& row, std::span<const double> correction, double log_z, const Named& named, double weight,
         std::vector<double>& deltas);
inline constexpr double kMixBound = 100.0;

}  // namespace drift::recal
