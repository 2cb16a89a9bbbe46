// machine.hpp - the machine a figure was measured on: printed and stored beside every figure.
#pragma once

#include <array>
#include <string>

namespace drift::cli {

struct Machine {
  std::string cpu;  // model name as the system gives it
  unsigned hardware_threads = 0;
  int threads = 0;             // used
  std::string ggml_flags;      // CPU kernels compiled into llama.cpp
  std::string llama_build;     // version and commit
  std::string highway_target;  // instruction set of DRIFT's own kernels
};

Machine this_machine(int threads);
// The system's load averages over 1, 5 and 15 minutes; -1 where unknown.
std::array<double, 3> load_average();
std::string program_version();  // "0.1.0 (commit)"

}  // namespace drift::cli
