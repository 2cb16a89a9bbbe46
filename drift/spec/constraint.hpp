// constraint.hpp - what an answer may be at all: a grammar, a schema. Of every text it says which tokens may come next.
//
// The state after a text is a value: it is kept for every proposal of a block and forgotten with it, so nothing has to be undone when
// proposals fall. Draft and target are masked alike, each after the text that leads to the position: p and q are both laws under the
// constraint, q is what the proposal was drawn from, and the output law is that of the target under the constraint.
// Threads: a constraint has scratch memory; it belongs to one sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "drift/spec/logit_edit.hpp"

namespace drift::spec {

// Below what a banned token gets (server/schedule/logit_rules.cpp): where nothing but banned tokens may come, one of them does.
inline constexpr float kForbidden = -2e30f;

class Constraint {
 public:
  using State = std::uint32_t;
  virtual ~Constraint() = default;
  // Of the empty answer.
  virtual State start() = 0;
  // After one more token, whether it was allowed or not.
  virtual State after(State state, Token token) = 0;
  // Gives kForbidden to every token that may not come next. At least one is left as it is.
  virtual void mask(State state, std::span<float> logits) = 0;
  // The text stands at `state`, and no other state is asked about any more. Returns what this one is called from now on.
  virtual State settle(State state) { return state; }
};

// A constraint as an edit. Requires: it outlives the edit; apply() is called with texts that begin with `prompt` tokens.
class ConstraintEdit final : public LogitEdit {
 public:
  ConstraintEdit(Constraint& constraint, std::size_t prompt)
      : constraint_(constraint), read_(prompt), decided_(constraint.start()) {}
  void apply(std::span<const Token> decided, std::span<const Token> path, std::span<float> logits) override;

 private:
  Constraint& constraint_;
  std::size_t read_;  // tokens of the decided text that `decided_` is after
  Constraint::State decided_;
  std::vector<Token> path_;               // of the last call,
  std::vector<Constraint::State> after_;  // and the state after each token of it
};

}  // namespace drift::spec
