#include "engines/torch/kv_cache.hpp"

#include <algorithm>

#include "drift/base/check.hpp"

namespace drift::engine {
namespace {

constexpr std::int64_t kRoomMin = 64;  // positions

}  // namespace

KvCache::KvCache(const ModelShape& shape, std::int64_t batch, std::int64_t capacity)
    : batch_(batch), kv_heads_(shape.kv_heads), head_width_(shape.head_width()), capacity_(capacity) {
  DRIFT_CHECK(batch >= 1 && capacity >= 1 && capacity <= shape.context, "a cache's batch or capacity is out of bounds");
  keys_.resize(static_cast<std::size_t>(shape.layers));
  values_.resize(static_cast<std::size_t>(shape.layers));
}

std::uint64_t KvCache::bytes() const {
  std::uint64_t total = 0;
  for (const auto* tensors : {&keys_, &values_}) {
    for (const torch::Tensor& tensor : *tensors) total += tensor.defined() ? tensor.nbytes() : 0;
  }
  return total;
}

void KvCache::truncate(std::int64_t length) {
  DRIFT_CHECK(length >= 0 && length <= length_, "a cache cannot be truncated to more than it holds");
  length_ = length;
}

KvCache KvCache::copy() const {
  KvCache other = *this;  // shares the tensors; replaced next
  for (auto* tensors : {&other.keys_, &other.values_}) {
    for (torch::Tensor& tensor : *tensors) {
      if (tensor.defined()) tensor = tensor.clone();
    }
  }
  return other;
}

void KvCache::reserve(std::size_t layer, std::int64_t positions) {
  const std::int64_t room = keys_[layer].defined() ? keys_[layer].size(2) : 0;
  if (positions <= room) return;
  const std::int64_t wanted = std::min(capacity_, std::max({positions, 2 * room, kRoomMin}));
  for (torch::Tensor* tensor : {&keys_[layer], &values_[layer]}) {
    torch::Tensor larger = torch::zeros({batch_, kv_heads_, wanted, head_width_});
    if (length_ > 0) larger.narrow(2, 0, length_).copy_(tensor->narrow(2, 0, length_));
    *tensor = larger;
  }
}

std::pair<torch::Tensor, torch::Tensor> KvCache::put(std::size_t layer, const torch::Tensor& key, const torch::Tensor& value) {
  const std::int64_t time = key.size(2);
  DRIFT_CHECK(key.size(0) == batch_ && length_ + time <= capacity_, "more was put into a cache than fits");
  reserve(layer, length_ + time);
  keys_[layer].narrow(2, length_, time).copy_(key);
  values_[layer].narrow(2, length_, time).copy_(value);
  return {keys_[layer].narrow(2, 0, length_ + time), values_[layer].narrow(2, 0, length_ + time)};
}

void KvCache::advance(std::int64_t time) { length_ += time; }

}  // namespace drift::engine
