#include "engines/llama/log.hpp"

#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <vector>

namespace drift::engine {
namespace {

constexpr std::size_t kKeptLines = 8;
constexpr std::size_t kLineBytes = 400;
constexpr std::size_t kReasonBytes = 300;

std::mutex log_mutex;
struct Line {
  bool error;
  std::string text;
};
std::deque<Line>& lines() {
  static std::deque<Line> kept;
  return kept;
}
bool last_was_kept = false;  // whether a continuation belongs to a kept line
std::atomic<bool> verbose_log{false};

void on_log(ggml_log_level level, const char* text, void*) {
  if (text == nullptr) return;
  if (verbose_log.load(std::memory_order_relaxed)) std::fputs(text, stderr);
  const std::lock_guard lock(log_mutex);
  if (level == GGML_LOG_LEVEL_CONT) {
    if (last_was_kept && !lines().empty() && lines().back().text.size() < kLineBytes) lines().back().text += text;
    return;
  }
  last_was_kept = level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR;
  if (!last_was_kept) return;
  lines().push_back({level == GGML_LOG_LEVEL_ERROR, std::string(text).substr(0, kLineBytes)});
  if (lines().size() > kKeptLines) lines().pop_front();
}

// A log line without "function_name: ", white space at its ends, and what a terminal would act on.
std::string plain_reason(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  const std::size_t name = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_");
  if (name != std::string::npos && name > 0 && text.compare(name, 2, ": ") == 0 && text.find('_') < name) text.erase(0, name + 2);
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

}  // namespace

void on_llama_abort(void (*handler)(const char* message)) {
  ::setenv("GGML_NO_BACKTRACE", "1", /*overwrite=*/0);
  ggml_set_abort_callback(handler);
}

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
  const bool any_error = std::any_of(lines().begin(), lines().end(), [](const Line& line) { return line.error; });
  std::vector<std::string> reasons;
  for (const Line& line : lines()) {
    if (any_error && !line.error) continue;
    const std::string reason = plain_reason(line.text);
    if (!reason.empty()) reasons.push_back(reason);
  }
  // Each level of llama.cpp reports that the level below failed; only the first says why.
  if (reasons.size() > 1) std::erase_if(reasons, [](const std::string& r) { return r.starts_with("failed to load model"); });
  std::string joined;
  for (const std::string& reason : reasons) joined += (joined.empty() ? "" : "; ") + reason;
  if (joined.size() > kReasonBytes) joined = joined.substr(0, kReasonBytes) + "...";
  return joined.empty() ? otherwise : joined;
}

std::string llama_build() { return std::string(DRIFT_LLAMA_VERSION) + " (" + DRIFT_LLAMA_COMMIT + ")"; }

}  // namespace drift::engine
