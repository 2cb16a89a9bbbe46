// progress.hpp - how far a long command is: one line rewritten on a terminal, a new line now and then elsewhere.
//
// Threads: one.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace drift::cli {

class Progress {
 public:
  // "drift: 12/60 runs ...": `what` is what is counted.
  Progress(std::size_t all, std::string what);
  // `more` follows the time that is left. Cut to the terminal's width, for a wrapped line cannot be rewritten.
  void show(std::size_t done, const std::string& more);
  void finish();  // leaves no line on a terminal

 private:
  std::size_t all_;
  std::string what_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double last_ = -1e9;  // seconds since start_
};

}  // namespace drift::cli
