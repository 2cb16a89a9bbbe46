// A program that knows DRIFT only as an installed package: C++ headers.
#include <drift/base/rng.hpp>
#include <drift/base/version.hpp>

#include <cstdio>

int main() {
  std::printf("drift %s\n", drift::version());
  return 0;
}
