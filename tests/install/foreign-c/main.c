/* A program that knows DRIFT only as an installed package: the C API. */
#include <stdio.h>

#if defined(__has_include) && __has_include(<drift/drift.h>)
#include <drift/drift.h>
int main(void) {
  printf("drift %s\n", drift_version());
  return 0;
}
#endif
