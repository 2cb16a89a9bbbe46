// check.hpp - DRIFT_CHECK: an invariant only a bug in this program can break. Stays on in release builds.
//
// Never reachable by user input: what the world can cause is a Status. On failure it prints file, line and reason and
// aborts, because going on with a broken invariant could change the output distribution silently.
#pragma once

namespace drift {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* why);
}  // namespace drift

#define DRIFT_CHECK(condition, why) \
  ((condition) ? static_cast<void>(0) : ::drift::check_failed(__FILE__, __LINE__, #condition, why))
