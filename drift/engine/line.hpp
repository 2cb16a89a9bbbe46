// line.hpp - what Engine::forward() checks of its nodes where pending nodes form a line and not a tree.
//
// Threads: none of its own. Cost: one pass over the nodes, no allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "drift/engine/engine.hpp"

namespace drift::engine {

// A sequence as forward() finds it.
struct Line {
  bool open = false;
  Pos kept = 0;
  Pos pending = 0;  // nodes since the last keep
};

// Whether all nodes are well-formed; counts them per sequence in `added` [max_sequences]. `line_of(SeqId)` must answer for any id.
// Fails as Engine::forward, and with kUnsupported on a second child.
template <class LineOf>
Status check_line_nodes(std::span<const Node> nodes, std::size_t vocab, Pos context, LineOf line_of, std::vector<Pos>& added) {
  std::fill(added.begin(), added.end(), 0);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    const auto refuse = [i](Code code, const std::string& why) {
      return Status(code, "forward: node " + std::to_string(i) + ": " + why);
    };
    const Line line = line_of(node.seq);
    if (!line.open) return refuse(Code::kInvalid, "sequence " + std::to_string(node.seq) + " is not open");
    if (node.token < 0 || static_cast<std::size_t>(node.token) >= vocab) {
      return refuse(Code::kInvalid,
                    "token " + std::to_string(node.token) + " is outside the vocabulary of " + std::to_string(vocab));
    }
    Pos& new_nodes = added[static_cast<std::size_t>(node.seq)];
    const Pos in_line = line.pending + new_nodes;
    const NodeIndex last = in_line > 0 ? in_line - 1 : kPrefix;
    if (node.parent < kPrefix || node.parent > last) {
      return refuse(Code::kInvalid, "parent " + std::to_string(node.parent) + " is not a node of sequence " +
                                        std::to_string(node.seq) + " (last is " + std::to_string(last) + ")");
    }
    if (node.parent != last) {
      return refuse(Code::kUnsupported,
                    "parent " + std::to_string(node.parent) + " has a child already; this engine takes lines, not trees");
    }
    const Pos pos = line.kept + in_line;
    if (node.pos != pos)
      return refuse(Code::kInvalid, "position " + std::to_string(node.pos) + " must be " + std::to_string(pos));
    if (pos >= context) {
      return refuse(Code::kLimit, "sequence " + std::to_string(node.seq) + " is full: its context holds " +
                                      std::to_string(context) +
                                      " tokens; shorten the text or make the engine with a larger context");
    }
    ++new_nodes;
  }
  return Status::ok();
}

}  // namespace drift::engine
