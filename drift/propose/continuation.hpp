// continuation.hpp - proposals without the draft: what followed the longest earlier occurrence of a text's end.
//
// Prompt lookup searches the text itself, suffix memory (suffix_memory.hpp) the answers given before; both offer what they find
// to one Continuations, where the longest match wins and, among matches as long, the token that followed most often.
// Threads: plain values, no allocation once warm. Limits: matches count up to kMostMatch tokens; longer ones are as good.
// Order: deterministic; ties go to what was offered first, which is the latest occurrence, the text itself before the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"
#include "drift/spec/distribution.hpp"

namespace drift::propose {

inline constexpr int kLeastMatch = 2;  // tokens
inline constexpr int kMostMatch = 32;  // tokens

// What a token is proposed from. Either is recorded as its q, exactly.
enum class QRule : std::uint8_t {
  kTop = 0,     // one point: the token that followed most often
  kCounts = 1,  // the tokens that followed, in proportion to how often
};

struct CopyConfig {
  int min_match = 2;  // shortest match that proposes, tokens; kLeastMatch .. kMostMatch
  QRule q = QRule::kTop;
  // Fails with kInvalid naming the field, its value and its bounds.
  Status validate() const;
};

class SuffixMemory;

class Continuations {
 public:
  // Forgets what was offered. Matches below `min_match` and tokens outside 0 .. vocab-1 will not count.
  void begin(int min_match, std::size_t vocab);
  // `next` once followed the last `match` tokens of the text.
  void offer(int match, Token next);
  bool empty() const { return counts_.empty(); }
  int match() const { return longest_; }  // tokens; meaningless while empty()
  // Requires: !empty().
  void distribution(QRule rule, spec::Distribution& out) const;

 private:
  int longest_ = 0;
  int min_match_ = kLeastMatch;
  std::size_t vocab_ = 0;
  std::vector<std::pair<Token, std::uint32_t>> counts_;  // followers of the longest match, in the order first offered
};

// How many tokens before `end` equal the last ones of `text`, at most `most`. Requires: end <= text.size().
int common_suffix(std::span<const Token> text, std::size_t end, int most);

// Prompt lookup: offers what followed earlier occurrences of the text's end within the text, the latest first.
// Cost: one pass over the text.
void search_text(std::span<const Token> text, Continuations& found);

// Prompt lookup, and the memory after it unless that is null. False if nothing matches long enough.
bool continue_text(std::span<const Token> text, const CopyConfig& config, const SuffixMemory* memory, std::size_t vocab,
                   Continuations& found);

}  // namespace drift::propose
