// kv_cache.hpp - keys and values of the positions a network has seen, so that a text is continued without computing it anew.
//
// All sequences of a batch are equally long. Room grows by doubling, up to a capacity fixed at construction.
// Threads: one at a time. Holds no gradients: fill it under torch::NoGradGuard.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engines/torch/shape.hpp"

namespace drift::engine {

class KvCache {
 public:
  // Requires: batch >= 1, 1 <= capacity <= shape.context.
  KvCache(const ModelShape& shape, std::int64_t batch, std::int64_t capacity);

  std::int64_t batch() const { return batch_; }
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  std::uint64_t bytes() const;  // allocated now
  // Forgets all positions from `length` on. Requires: 0 <= length <= length().
  void truncate(std::int64_t length);
  // A cache of its own with the same content. Cost: a copy of all keys and values.
  KvCache copy() const;

  // For the network: keys and values [batch, kv_heads, time, head_width] of one layer go behind length(); gives that layer's old
  // and new ones together [batch, kv_heads, length() + time, head_width]. advance() once all layers have put theirs.
  std::pair<torch::Tensor, torch::Tensor> put(std::size_t layer, const torch::Tensor& key, const torch::Tensor& value);
  void advance(std::int64_t time);

 private:
  void reserve(std::size_t layer, std::int64_t positions);

  std::int64_t batch_, kv_heads_, head_width_, capacity_, length_ = 0;
  std::vector<torch::Tensor> keys_, values_;  // [layers] of [batch, kv_heads, room, head_width]
};

}  // namespace drift::engine
