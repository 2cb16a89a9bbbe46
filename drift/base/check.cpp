#include "drift/base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace drift {

void check_failed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "drift: internal error (please report it): %s:%d: %s: %s\n", file, line, condition, why);
  std::abort();
}

}  // namespace drift
