#include "cli/progress.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "cli/console.hpp"

namespace drift::cli {

Progress::Progress(std::size_t all, std::string what) : all_(all), what_(std::move(what)), terminal_(stderr_is_terminal()) {}

void Progress::show(std::size_t done, const std::string& more) {
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (done < all_ && now - last_ < (terminal_ ? 0.2 : 20.0)) return;
  last_ = now;
  const double left = done > 0 ? now / static_cast<double>(done) * static_cast<double>(all_ - done) : 0;
  const auto seconds = static_cast<long>(std::lround(left));
  const std::string eta = done > 0 ? fmt::format(", {}:{:02} left", seconds / 60, seconds % 60) : "";
  const std::string line = fmt::format("drift: {}/{} {}{} {}", done, all_, what_, eta, more);
  write_err(terminal_ ? "\r\033[K" + fit_terminal(line) : line + "\n");
}

void Progress::finish() {
  if (terminal_) write_err("\r\033[K");
}

}  // namespace drift::cli
