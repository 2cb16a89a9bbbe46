// sparse.hpp - a few (token, value) pairs over a vocabulary: a bias to add to logits, or a residual.
#pragma once

#include <vector>

#include "drift/base/ids.hpp"

namespace drift::spec {

struct SparseVector {
  std::vector<Token> tokens;  // ascending, unique
  std::vector<float> values;  // same length
  bool empty() const { return tokens.empty(); }
  std::size_t size() const { return tokens.size(); }
  void clear() {
    tokens.clear();
    values.clear();
  }
};

// Additive logit adjustment: processed logits = logits + gain * bias.
using SparseBias = SparseVector;
// log p - log q on a support.
using SparseResidual = SparseVector;

}  // namespace drift::spec
