// huge_pages.hpp - asks the system to back a large block with huge pages.
//
// A hint, never needed for correctness: fewer page faults when a block is first written, fewer address translations when it is
// scanned. Linux only (transparent huge pages, "madvise" or "always"); elsewhere it does nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace drift {

inline constexpr std::size_t kHugePagesFrom = std::size_t{4} << 20;  // smaller blocks hold too few whole huge pages

inline void advise_huge_pages([[maybe_unused]] void* block, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  if (bytes < kHugePagesFrom) return;
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(block) + kHugePage - 1) & ~(kHugePage - 1);
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(block) + bytes) & ~(kHugePage - 1);
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
#endif
}

}  // namespace drift
