// clock.hpp - time passed, for budgets, progress and checkpoints.
#pragma once

#include <chrono>

namespace drift::train {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace drift::train
