// draft_tree.hpp - the tokens proposed for one step, each with the very distribution q it was drawn from.
//
// A line of tokens is a tree with one child per node; several drafts are several chains from the root. q travels with the
// token: judge reads it here and never recomputes it, so whatever the bank does, the output law is the target's.
// Memory: reused between steps; clear() frees nothing.
#pragma once

#include <span>
#include <vector>

#include "drift/base/check.hpp"
#include "drift/base/ids.hpp"
#include "drift/spec/distribution.hpp"

namespace drift::spec {

struct DraftNode {
  Token token = kNoToken;
  NodeIndex parent = kPrefix;  // kPrefix: follows the decided text
  int depth = 0;               // 0 for the first proposed token
  bool from_bank = false;      // the raw draft, with the same random number, would have proposed another token
};

class DraftTree {
 public:
  void clear() { size_ = 0; }
  // Appends a node; q is copied. Requires: parent is kPrefix or an earlier node.
  NodeIndex add(NodeIndex parent, Token token, const Distribution& q, bool from_bank) {
    DRIFT_CHECK(parent >= kPrefix && parent < static_cast<NodeIndex>(size_), "a node's parent comes before it");
    if (size_ == nodes_.size()) {
      nodes_.emplace_back();
      q_.emplace_back();
    }
    const int depth = parent == kPrefix ? 0 : nodes_[static_cast<std::size_t>(parent)].depth + 1;
    nodes_[size_] = {token, parent, depth, from_bank};
    q_[size_] = q;
    return static_cast<NodeIndex>(size_++);
  }
  std::size_t size() const { return size_; }
  std::span<const DraftNode> nodes() const { return {nodes_.data(), size_}; }
  const DraftNode& node(NodeIndex i) const { return nodes_[static_cast<std::size_t>(i)]; }
  const Distribution& q(NodeIndex i) const { return q_[static_cast<std::size_t>(i)]; }
  Distribution& mutable_q(NodeIndex i) { return q_[static_cast<std::size_t>(i)]; }

 private:
  std::size_t size_ = 0;
  std::vector<DraftNode> nodes_;
  std::vector<Distribution> q_;
};

}  // namespace drift::spec
