// grammar_matcher.hpp - which tokens may come next under a grammar: spec::Constraint over text::Grammar.
//
// A state is the set of all ways to read the text so far, each a stack of what is still to come. Sets are made once and known by number:
// what a byte leads to and which tokens a state allows is computed the first time it is asked for, then looked up. So inside a JSON
// string, say, a mask costs one pass over the logits. All is exact: every token of the vocabulary is tried, those that begin alike together.
// Where nothing of the vocabulary may follow, the end tokens may: also when a whole text has been read.
// Lazy: until the text holds one of the triggers everything may come; the grammar then begins with the trigger's own first byte. Or
// (required) the text must begin with one.
// Threads: one. Limits: a grammar that can be read in very many ways fails (failure()), and lets nothing but end tokens through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drift/spec/constraint.hpp"
#include "text/grammar.hpp"
#include "text/pieces.hpp"

namespace drift::text {

// What a request adds to its grammar.
struct GrammarExtras {
  std::vector<std::string> triggers;                 // words to wait for
  bool required = false;                             // ... one of which the text begins with
  std::string read;                                  // what was read before the answer begins
  std::vector<std::pair<Token, std::string>> shown;  // tokens that have these bytes, and none in `pieces`
};

class GrammarMatcher final : public spec::Constraint {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Pieces> pieces, GrammarExtras extras = {});

  State start() override { return extras_.triggers.empty() ? begin_ : waiting("").state; }
  State after(State state, Token token) override;
  void mask(State state, std::span<float> logits) override;
  State settle(State state) override;

  // Whether a token may come next; as mask() says.
  bool allows(State state, Token token) {
    return (allowed(state)[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0;
  }
  // Whether the text may end here.
  bool complete(State state) const {
    return is_waiting(state) ? !extras_.required : (!sets_[state].stacks.empty() && sets_[state].stacks.front() == 0);
  }
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
  // Before a trigger: the end of the text that may begin one. Such states have numbers of their own.
  struct Waiting {
    State state;
    std::string end;
    std::unique_ptr<Bits> allowed;
  };
  static constexpr State kDead = 0;
  static constexpr State kWaiting = 0x80000000;
  static bool is_waiting(State state) { return (state & kWaiting) != 0; }

  Waiting& waiting(const std::string& end);
  State after_waiting(const std::string& end, std::string_view bytes);
  std::string_view bytes_of(Token token) const;

  std::uint32_t add_stack(const Stack& stack);
  std::uint32_t push(std::uint32_t element, std::uint32_t below);
  State add_set(std::vector<std::uint32_t> stacks);
  State read_from(std::vector<std::uint32_t> open);
  State after_byte(State state, std::uint8_t byte);
  State after_bytes(State state, std::string_view bytes);
  const Bits& allowed(State state);
  const Bits& allowed_waiting(State state);
  void try_pieces(State state, Bits& out);
  void clear();
  bool is_large(std::size_t of_limits) const;
  void fail();

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const Pieces> pieces_;
  const GrammarExtras extras_;
  State begin_ = kDead;  // of the grammar

  std::vector<Stack> stacks_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> stack_of_;  // by hash
  std::vector<Set> sets_;
  std::unordered_multimap<std::uint64_t, State> set_of_;
  std::vector<State> next_;  // [set][byte class]; kUnknown: not computed
  std::size_t held_ = 0;     // numbers in all sets together
  std::size_t masks_ = 0;    // sets that have `allowed`
  std::map<std::string, Waiting> waiting_;
  std::vector<Waiting*> ends_;  // by number

  // Scratch.
  std::vector<std::uint32_t> seen_;  // [stack] the last reading that met it
  std::uint32_t reading_ = 0;
  std::vector<State> along_;
  std::size_t work_ = 0;
  std::string failure_;
};

}  // namespace drift::text
