// aligned.hpp - a fixed-size array aligned for SIMD loads (64 bytes), zeroed, sized once.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "drift/base/huge_pages.hpp"

namespace drift {

inline constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 register

template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size) : size_(size) {
    if (size == 0) return;
    const std::size_t bytes = (size * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    void* raw = std::aligned_alloc(kAlignment, bytes);
    if (raw == nullptr) throw std::bad_alloc();
    advise_huge_pages(raw, bytes);
    std::memset(raw, 0, bytes);
    data_.reset(static_cast<T*>(raw));
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  std::span<T> span() { return {data_.get(), size_}; }
  std::span<const T> span() const { return {data_.get(), size_}; }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace drift
