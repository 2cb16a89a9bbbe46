// residual.hpp - where the target disagreed with the draft at one verified position: log p - log q on a support.
//
// The dense work (two top-m selections, two normalisers) is done once per position in begin(); take() then gives the residual of
// the draft as it is, or of the draft as lower levels corrected it, at the cost of the support.
// Threads: holds scratch memory. Limits: RecalConfig. Formulas: docs/method.md, "Residual and commit".
#pragma once

#include <span>
#include <vector>

#include "drift/recal/config.hpp"
#include "drift/recal/reduced.hpp"
#include "drift/spec/sparse.hpp"

namespace drift::recal {

// The m most likely tokens with their probabilities at temperature 1, tokens ascending. Requires: log_z of these logits.
void top_probabilities(std::span<const float> logits, double log_z, std::size_t m, spec::SparseVector& out);

class ResidualTaker {
 public:
  explicit ResidualTaker(const RecalConfig& config) : config_(config) {}

  // Requires: finite rows of one length that outlive the calls of take().
  void begin(std::span<const float> draft_logits, std::span<const float> target_logits);
  // The residual of the raw draft.
  void take(spec::SparseResidual& out);
  // The residual of the draft after a correction of its reduced row; what was corrected belongs to the support too.
  void take(const ReducedRow& row, std::span<const double> correction, spec::SparseResidual& out);
  double log_z_target() const { return log_zp_; }  // log of the sum of exp over the target's row

 private:
  void choose_support();
  void subtract(double log_zq, spec::SparseResidual& out);

  const RecalConfig& config_;
  std::span<const float> draft_, target_;
  double log_zp_ = 0;
  std::vector<Token> top_p_, top_q_, support_;  // ascending
  std::vector<Token> merged_;
  std::vector<float> draft_on_, target_on_;  // logits on the support in use
};

}  // namespace drift::recal
