// top_neighbors.hpp - keeps the best of a stream of neighbours in a fixed span.
//
// Best first means the higher score, then the lower entry id. Internal to drift/bank. Never allocates.
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "drift/bank/key_index.hpp"

namespace drift::bank {

inline bool better(const Neighbor& a, const Neighbor& b) {
  return a.score > b.score || (a.score == b.score && a.entry < b.entry);
}

class TopNeighbors {
 public:
  explicit TopNeighbors(std::span<Neighbor> out) : out_(out) {}

  // Cost: one comparison for what does not enter, O(log out.size()) otherwise.
  void offer(const Neighbor& candidate) {
    if (size_ == out_.size()) {
      if (size_ == 0 || !better(candidate, out_[0])) return;
      std::pop_heap(out_.begin(), out_.end(), better);
      out_[size_ - 1] = candidate;
    } else {
      out_[size_++] = candidate;
    }
    std::push_heap(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(size_), better);  // the worst is in front
  }

  // Sorts, best first; returns how many there are.
  std::size_t finish() {
    std::sort(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(size_), better);
    return size_;
  }

 private:
  std::span<Neighbor> out_;
  std::size_t size_ = 0;
};

}  // namespace drift::bank
