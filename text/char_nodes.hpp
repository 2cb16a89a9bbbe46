// char_nodes.hpp - sets of characters as little automata over the bytes of their UTF-8. Internal to text/grammar.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "text/grammar.hpp"

namespace drift::text {

using CharRange = std::pair<std::uint32_t, std::uint32_t>;  // first and last code point

// Sorted, without overlap, code points only (no surrogates); of a negated set the others.
std::vector<CharRange> plain_ranges(std::vector<CharRange> ranges, bool negated);

// Makes nodes; equal ones are made once.
class CharNodes {
 public:
  // The node where the first byte of a character of `ranges` (as of plain_ranges) is looked up.
  std::uint32_t of(const std::vector<CharRange>& ranges);
  std::vector<std::vector<Grammar::Arc>> take() { return std::move(nodes_); }
  bool is_empty(std::uint32_t node) const { return nodes_[node].empty(); }

 private:
  std::uint32_t add(std::vector<Grammar::Arc> arcs);
  std::uint32_t tail(int bytes, const std::vector<CharRange>& ranges);

  std::vector<std::vector<Grammar::Arc>> nodes_;
  std::map<std::vector<Grammar::Arc>, std::uint32_t> known_;
  std::map<std::vector<CharRange>, std::uint32_t> of_ranges_;
};

}  // namespace drift::text
