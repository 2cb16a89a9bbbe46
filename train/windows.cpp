#include "train/windows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "drift/base/check.hpp"
#include "drift/base/rng.hpp"

namespace drift::train {
namespace {

constexpr std::uint64_t kNoEpoch = std::numeric_limits<std::uint64_t>::max();

// A whole number in [0, below), from the seed's stream `name` at `position`.
std::uint64_t draw(std::uint64_t seed, std::uint64_t name, std::size_t position, std::uint64_t below) {
  const double u = RngStream(seed).uniform({.sequence = name, .position = static_cast<Pos>(position)});
  return std::min(below - 1, static_cast<std::uint64_t>(u * static_cast<double>(below)));
}

template <class T>
void shuffle(std::vector<T>& items, std::uint64_t seed, std::uint64_t name) {  // Fisher and Yates
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[draw(seed, name, i, i)]);
}

// Windows an epoch can cut from a stream, wherever in [0, length) it begins.
std::int64_t windows_in(const Stream& stream, std::int64_t length) {
  return (static_cast<std::int64_t>(stream.train.size()) - 1) / length - 1;
}

std::int64_t windows_used(const Stream& stream, std::int64_t length) {
  return std::max<std::int64_t>(1, std::llround(stream.weight * static_cast<double>(windows_in(stream, length))));
}

}  // namespace

Shuffled::Shuffled(std::uint64_t seed, std::size_t size) : seed_(seed), epoch_(kNoEpoch), order_(size) {
  DRIFT_CHECK(size >= 1, "there is something to pass over");
}

Shuffled::Place Shuffled::at(std::uint64_t i) {
  const std::uint64_t epoch = i / order_.size();
  if (epoch != epoch_) {
    std::iota(order_.begin(), order_.end(), 0U);
    shuffle(order_, seed_, epoch);
    epoch_ = epoch;
  }
  return {epoch, order_[i % order_.size()]};
}

Status Windows::check(const Stream& stream, std::int64_t length) {
  if (windows_in(stream, length) >= 1) return Status::ok();
  return {Code::kLimit,
          fmt::format("the text of {} has {} tokens to learn from; windows of {} need {}: give more text, or shorter windows",
                      stream.domain, stream.train.size(), length, 2 * length + 1)};
}

Windows::Windows(std::vector<const Stream*> streams, std::int64_t length, std::uint64_t seed)
    : streams_(std::move(streams)), length_(length), seed_(seed), epoch_(kNoEpoch), offsets_(streams_.size()) {
  for (const Stream* stream : streams_) {
    DRIFT_CHECK(check(*stream, length).is_ok(), "streams are checked before");
    epoch_size_ += static_cast<std::uint64_t>(windows_used(*stream, length));
  }
}

void Windows::begin_epoch(std::uint64_t epoch) {
  windows_.clear();
  for (std::uint32_t s = 0; s < streams_.size(); ++s) {
    offsets_[s] = static_cast<std::int64_t>(draw(seed_ + 1, epoch, s, static_cast<std::uint64_t>(length_)));
    std::vector<std::uint32_t> order(static_cast<std::size_t>(windows_in(*streams_[s], length_)));
    std::iota(order.begin(), order.end(), 0U);
    shuffle(order, seed_ + 2 + s, epoch);
    const auto used = static_cast<std::size_t>(windows_used(*streams_[s], length_));
    for (std::size_t i = 0; i < used; ++i) windows_.push_back({s, order[i % order.size()]});
  }
  shuffle(windows_, seed_, epoch);
  epoch_ = epoch;
}

torch::Tensor Windows::take(std::uint64_t first, std::int64_t count) {
  torch::Tensor out = torch::empty({count, length_ + 1}, torch::kLong);
  auto* to = out.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i, to += length_ + 1) {
    const std::uint64_t at = first + static_cast<std::uint64_t>(i);
    if (at / epoch_size_ != epoch_) begin_epoch(at / epoch_size_);
    const Window& window = windows_[at % epoch_size_];
    const auto from = streams_[window.stream]->train.begin() + offsets_[window.stream] + window.index * length_;
    std::copy_n(from, length_ + 1, to);
  }
  return out;
}

torch::Tensor held_out_windows(const Stream& stream, std::int64_t length, std::int64_t most) {
  const auto size = static_cast<std::int64_t>(stream.held_out.size());
  DRIFT_CHECK(size >= 2 && most >= 1, "text held out has a token to predict");
  length = std::min(length, size - 1);
  const std::int64_t count = std::min(most, (size - 1) / length);
  torch::Tensor out = torch::empty({count, length + 1}, torch::kLong);
  for (std::int64_t i = 0; i < count; ++i)
    std::copy_n(stream.held_out.begin() + i * length, length + 1, out.data_ptr<std::int64_t>() + i * (length + 1));
  return out;
}

}  // namespace drift::train
