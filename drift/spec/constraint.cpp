#include "drift/spec/constraint.hpp"

#include "drift/base/mutant.hpp"

namespace drift::spec {

void ConstraintEdit::apply(std::span<const Token> decided, std::span<const Token> path, std::span<float> logits) {
  if (read_ < decided.size()) {
    for (; read_ < decided.size(); ++read_) decided_ = constraint_.after(decided_, decided[read_]);
    decided_ = constraint_.settle(decided_);
    path_.clear();
    after_.clear();
  }
  // Draft and target ask about the same proposals, one after the other: what two calls have in common is read once.
  std::size_t same = 0;
  while (same < path.size() && same < path_.size() && path[same] == path_[same]) ++same;
  path_.resize(same);
  after_.resize(same);
  for (const Token token : path.subspan(same)) {
    after_.push_back(constraint_.after(after_.empty() ? decided_ : after_.back(), token));
    path_.push_back(token);
  }
  constraint_.mask(after_.empty() ? decided_ : after_.back(), logits);
  if (is_mutant(Mutant::kConstraintKeepsPath) && !after_.empty()) decided_ = after_.back();
}

}  // namespace drift::spec
