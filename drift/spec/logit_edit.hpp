// logit_edit.hpp - what a request changes about the logits before they become a distribution: logit bias, penalties, banned tokens.
//
// The same edit is applied to the draft's logits and to the target's, each after the text that leads to the position, so the output
// law is that of the target with the edit, and the draft goes on agreeing with it. Residuals are taken from raw logits all the same.
// Threads: an edit has scratch memory; it belongs to one sequence.
#pragma once

#include <span>

#include "drift/base/ids.hpp"

namespace drift::spec {

class LogitEdit {
 public:
  virtual ~LogitEdit() = default;
  // Changes the logits of the position after `decided` and `path` in place. `decided` is prompt and answer so far, and only ever grows
  // between two calls; `path` are proposals after it, root first. Must depend on nothing else, and leave every value finite.
  virtual void apply(std::span<const Token> decided, std::span<const Token> path, std::span<float> logits) = 0;
};

}  // namespace drift::spec
