#include "cli/machine.hpp"

#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "drift/base/version.hpp"
#include "drift/simd/simd.hpp"
#include "engines/llama/log.hpp"

namespace drift::cli {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

Machine this_machine(int threads) {
  Machine machine;
  machine.cpu = cpu_name();
  machine.hardware_threads = std::thread::hardware_concurrency();
  machine.threads = threads > 0 ? threads : static_cast<int>(std::max(1u, machine.hardware_threads));
  machine.ggml_flags = DRIFT_LLAMA_CPU_FLAGS;
  machine.llama_build = engine::llama_build();
  machine.highway_target = simd::target_name();
  return machine;
}

std::array<double, 3> load_average() {
  std::array<double, 3> load{-1, -1, -1};
  if (getloadavg(load.data(), 3) != 3) load = {-1, -1, -1};
  return load;
}

std::string program_version() {
  const std::string commit = drift::commit();
  return commit.empty() ? std::string(drift::version()) : std::string(drift::version()) + " (" + commit + ")";
}

}  // namespace drift::cli
