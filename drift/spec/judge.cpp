#include "drift/spec/judge.hpp"

#include <algorithm>

#include "drift/base/check.hpp"
#include "drift/base/mutant.hpp"

namespace drift::spec {
namespace {

// The first child of `parent` after node `after` (children stand in the order they were proposed); kPrefix - 1 when none.
constexpr NodeIndex kNoNode = -2;

NodeIndex next_child(const DraftTree& tree, NodeIndex parent, NodeIndex after) {
  for (NodeIndex i = std::max<NodeIndex>(after + 1, 0); i < static_cast<NodeIndex>(tree.size()); ++i) {
    if (tree.node(i).parent == parent) return i;
  }
  return kNoNode;
}

NodeIndex first_child(const DraftTree& tree, NodeIndex parent) { return next_child(tree, parent, parent); }

// Decides one position by the match rule: the child that carries the target's own draw, or kNoNode.
NodeIndex match_child(const DraftTree& tree, NodeIndex at, const Distribution& p, Choices& choices, const DrawKey& key,
                      Outcome& out) {
  const NodeIndex child = first_child(tree, at);
  if (is_mutant(Mutant::kBonusFromDraft) && child == kNoNode && at != kPrefix) {
    const Distribution& q = tree.q(at);
    out.next = q.ids[choices.pick(key, q.probs)];
    return kNoNode;
  }
  const Token drawn = p.ids[choices.pick(key, p.probs)];
  for (NodeIndex i = child; i != kNoNode; i = next_child(tree, at, i)) {
    if (tree.node(i).token == drawn || is_mutant(Mutant::kMatchKeepsMismatch)) return i;
  }
  out.next = drawn;
  out.rejected = child != kNoNode;
  return kNoNode;
}

double accept_probability(float p, float q) {
  if (is_mutant(Mutant::kAcceptAlways)) return 1.0;
  if (is_mutant(Mutant::kAcceptRatioInverted))
    return p > 0.0f ? std::min(1.0, static_cast<double>(q) / static_cast<double>(p)) : 1.0;
  DRIFT_CHECK(q > 0.0f, "a proposed token has positive probability under its q");
  return std::min(1.0, static_cast<double>(p) / static_cast<double>(q));
}

// Decides one position by the rejection rule.
NodeIndex accept_child(const DraftTree& tree, NodeIndex at, const Distribution& p, Choices& choices, DrawKey key, Outcome& out) {
  Distribution left = p;
  key.purpose = is_mutant(Mutant::kAcceptSharesDraw) ? Purpose::kDraw : Purpose::kAccept;
  for (NodeIndex i = first_child(tree, at); i != kNoNode; i = next_child(tree, at, i), ++key.round) {
    const Token token = tree.node(i).token;
    if (choices.accept(key, accept_probability(left.of(token), tree.q(i).of(token)))) return i;
    out.rejected = true;
    // When rounding leaves nothing of p - q, p and q agree to rounding and p itself is as good.
    if (!is_mutant(Mutant::kResampleFromP)) subtract(left, tree.q(i), left);
  }
  key.round = 0;
  key.purpose = out.rejected && !is_mutant(Mutant::kResampleSharesDraw) ? Purpose::kResample : Purpose::kDraw;
  if (is_mutant(Mutant::kBonusFromDraft) && !out.rejected && at != kPrefix) left = tree.q(at);
  out.next = left.ids[choices.pick(key, left.probs)];
  return kNoNode;
}

}  // namespace

void judge(JudgeRule rule, const DraftTree& tree, const TargetAt& target, Choices& choices, std::uint64_t sequence, Pos first,
           Outcome& out) {
  out.accepted.clear();
  out.next = kNoToken;
  out.rejected = false;
  NodeIndex at = kPrefix;
  for (std::size_t depth = 0; depth <= tree.size(); ++depth) {
    const DrawKey key{sequence, first + static_cast<Pos>(depth), Purpose::kDraw, 0};
    const Distribution& p = target(at);
    const NodeIndex child =
        rule == JudgeRule::kMatch ? match_child(tree, at, p, choices, key, out) : accept_child(tree, at, p, choices, key, out);
    if (child == kNoNode) return;
    out.accepted.push_back(child);
    at = child;
  }
  DRIFT_CHECK(false, "a path is never longer than its tree");
}

}  // namespace drift::spec
