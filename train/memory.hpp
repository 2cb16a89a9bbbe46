// memory.hpp - whether a machine can hold what it is asked to train: without an answer here the kernel ends the program unasked.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>

#include "drift/base/status.hpp"

namespace drift::train {

// Weights, the best ones, gradients and an optimiser's two means, each 4 bytes a parameter. Activations come on top.
inline constexpr std::uint64_t kBytesPerTrainedParameter = 5 * sizeof(float);

// Of the machine; what others use of it is not asked.
inline std::uint64_t physical_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : UINT64_MAX;
}

// Fails with kLimit.
inline Status check_memory(std::int64_t parameters, std::uint64_t memory = physical_memory()) {
  const std::uint64_t needed = static_cast<std::uint64_t>(parameters) * kBytesPerTrainedParameter;
  if (needed <= memory) return Status::ok();
  return {Code::kLimit, fmt::format("training {:.0f} M parameters takes at least {:.1f} GB; this machine has {:.1f} GB: choose a "
                                    "smaller model, or an adapter (tune --lora)",
                                    static_cast<double>(parameters) / 1e6, static_cast<double>(needed) / 1e9,
                                    static_cast<double>(memory) / 1e9)};
}

}  // namespace drift::train
