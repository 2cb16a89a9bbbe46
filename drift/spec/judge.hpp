// judge.hpp - which proposed tokens stand, and what follows them. Both rules are exact: the output law is the target's.
//
// match:     the target draws its own token at every position; a proposed token stands if it is that token. The output is the
//            very text plain decoding gives for the same seed, at any temperature.
// rejection: a proposed token x stands with probability min(1, p(x) / q(x)); otherwise the next token comes from
//            norm(max(p - q, 0)) (Leviathan et al. 2023; Chen et al. 2023; several children of one node one after the other,
//            p replaced by that remainder each time, as in SpecInfer). Exact for any q that is the distribution the token was
//            really drawn from and that depends on the past only.
// Threads: pure functions of their arguments and the Choices.
#pragma once

#include <functional>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/rng.hpp"
#include "drift/spec/draft_tree.hpp"

namespace drift::spec {

enum class JudgeRule { kMatch, kRejection };

struct Outcome {
  std::vector<NodeIndex> accepted;  // root first, each the parent of the next
  Token next = kNoToken;            // the token decided after them by the target
  bool rejected = false;            // some proposal was tested at the last position and did not stand
};

// The target's processed distribution after a node (kPrefix: after the decided text). Asked for on-path nodes only, once each
// and root first, so it may be computed lazily into one buffer. The reference must live until the next call.
using TargetAt = std::function<const Distribution&(NodeIndex)>;

// `first` is the position of the first proposed token, `sequence` the name used in random keys.
// Cost: what TargetAt costs for accepted + 1 nodes, plus passes over the supports.
void judge(JudgeRule rule, const DraftTree& tree, const TargetAt& target, Choices& choices, std::uint64_t sequence, Pos first,
           Outcome& out);

}  // namespace drift::spec
