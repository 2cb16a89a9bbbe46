// grammar_matcher.hpp - which tokens may come next under a grammar: spec::Constraint over text::Grammar.
//
// A state is the set of all ways to read the text so far, each a stack of what is still to come. Sets are made once and known by number:
// what a byte leads to and which tokens a state allows is computed the first time it is asked for, then looked up. So inside a JSON
// string, say, a mask costs one pass over the logits. All is exact: every token of the vocabulary is tried, those that begin alike together.
// Where nothing of the vocabulary may follow, the end tokens may: also when a whole text has been read.
// Lazy: until the text holds one of the triggers everything may come; the grammar then begins with the trigger's own first byte.
// Threads: one. Limits: a grammar that can be read in very many ways fails (failure()), and lets nothing but end tokens through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "drift/spec/constraint.hpp"
#include "text/grammar.hpp"
#include "text/pieces.hpp"

namespace drift::text {

class GrammarMatcher final : public spec::Constraint {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Pieces> pieces);

  State start() override { return start_; }
  State after(State state, Token token) override;
  void mask(State state, std::span<float> logits) override;
  State settle(State state) override;

  // Whether a token may come next; as mask() says.
  bool allows(State state, Token token) { return (allowed(state)[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0; }
  // Whether the text may end here.
  bool complete(State state) const { return !sets_[state].stacks.empty() && sets_[state].stacks.front() == 0; }
  // Why the answer cannot go on; empty: all is well.
  const std::string& failure() const { return failure_; }
  std::size_t states() const { return sets_.size(); }

 private:
  using Bits = std::vector<std::uint64_t>;
  // What is to be read next, and below it what comes after that. Number 0 is the empty stack: all is read.
  struct Stack {
    std::uint32_t element = 0, node = 0, below = 0;
    friend bool operator==(const Stack&, const Stack&) = default;
  };
  struct Set {
    std::vector<std::uint32_t> stacks;  // sorted; each begins with a character or a token to read
    std::unique_ptr<Bits> allowed;
  };
  static constexpr State kDead = 0;

  std::uint32_t add_stack(const Stack& stack);
  std::uint32_t push(std::uint32_t element, std::uint32_t below);
  State add_set(std::vector<std::uint32_t> stacks);
  State read_from(std::vector<std::uint32_t> open);
  State after_byte(State state, std::uint8_t byte);
  State after_bytes(State state, std::string_view bytes);
  const Bits& allowed(State state);
  void try_pieces(State state, Bits& out);
  void clear();
  bool is_large(std::size_t of_limits) const;
  void fail();

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const Pieces> pieces_;
  State start_ = kDead;

  std::vector<Stack> stacks_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> stack_of_;  // by hash
  std::vector<Set> sets_;
  std::unordered_multimap<std::uint64_t, State> set_of_;
  std::vector<State> next_;  // [set][byte class]; kUnknown: not computed
  std::size_t held_ = 0;     // numbers in all sets together
  std::size_t masks_ = 0;    // sets that have `allowed`

  // Scratch.
  std::vector<std::uint32_t> seen_;  // [stack] the last reading that met it
  std::uint32_t reading_ = 0;
  std::vector<State> along_;
  std::size_t work_ = 0;
  std::string failure_;
};

}  // namespace drift::text
