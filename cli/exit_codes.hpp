// exit_codes.hpp - what the program `drift` ends with. docs/cli.md lists them.
#pragma once

#include "drift/base/status.hpp"

namespace drift::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // the machine or a dependency failed: disk, memory, backend, a busy bank
inline constexpr int kExitUsage = 2;          // the command line or an input cannot be used
inline constexpr int kExitDivergence = 3;     // compare: a mode's text left plain decoding's by more than the margin
inline constexpr int kExitInterrupted = 130;  // Ctrl-C, SIGTERM or SIGHUP; what was done so far is printed and kept
inline constexpr int kExitBrokenPipe = 141;   // whoever read the output has gone

constexpr int exit_code_of(Code code) {
  switch (code) {
    case Code::kOk: return kExitOk;
    case Code::kInvalid:
    case Code::kNotFound:
    case Code::kCorrupt:
    case Code::kForeign:
    case Code::kLimit:
    case Code::kUnsupported: return kExitUsage;
    case Code::kCancelled: return kExitInterrupted;
    case Code::kBusy:
    case Code::kIo:
    case Code::kInternal: return kExitFailure;
  }
  return kExitFailure;
}

}  // namespace drift::cli
