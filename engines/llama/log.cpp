#include "engines/llama/log.hpp"

#include <llama.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <mutex>

namespace drift::engine {
namespace {

constexpr std::size_t kKeptLines = 8;
constexpr std::size_t kLineBytes = 400;

std::mutex log_mutex;
std::deque<std::string>& lines() {
  static std::deque<std::string> kept;
  return kept;
}
bool last_was_kept = false;  // whether a continuation belongs to a kept line
std::atomic<bool> verbose_log{false};

void on_log(ggml_log_level level, const char* text, void*) {
  if (text == nullptr) return;
  if (verbose_log.load(std::memory_order_relaxed)) std::fputs(text, stderr);
  const std::lock_guard lock(log_mutex);
  if (level == GGML_LOG_LEVEL_CONT) {
    if (last_was_kept && !lines().empty() && lines().back().size() < kLineBytes) lines().back() += text;
    return;
  }
  last_was_kept = level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR;
  if (!last_was_kept) return;
  lines().emplace_back(std::string(text).substr(0, kLineBytes));
  if (lines().size() > kKeptLines) lines().pop_front();
}

}  // namespace

void start_llama() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(on_log, nullptr);
    llama_backend_init();
  });
}

void set_llama_verbose(bool verbose) { verbose_log.store(verbose, std::memory_order_relaxed); }

void clear_llama_errors() {
  const std::lock_guard lock(log_mutex);
  lines().clear();
  last_was_kept = false;
}

std::string llama_errors(const std::string& otherwise) {
  const std::lock_guard lock(log_mutex);
  std::string joined;
  for (std::string line : lines()) {
    while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
    if (line.empty()) continue;
    if (!joined.empty()) joined += "; ";
    joined += line;
  }
  return joined.empty() ? otherwise : joined;
}

std::string llama_build() { return std::string(DRIFT_LLAMA_VERSION) + " (" + DRIFT_LLAMA_COMMIT + ")"; }

}  // namespace drift::engine
