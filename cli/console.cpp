#include "cli/console.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/exit_codes.hpp"

namespace drift::cli {
namespace {

std::atomic<int> g_interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");
bool g_out_broken = false;

extern "C" void on_signal(int) {
  if (g_interrupts.fetch_add(1, std::memory_order_relaxed) > 0) _exit(kExitInterrupted);
}

Status parent_exists(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code error;
  if (!std::filesystem::is_directory(parent, error)) {
    return {Code::kNotFound,
            fmt::format("the folder {} for {} does not exist; make it first", parent.string(), path.filename().string())};
  }
  return Status::ok();
}

std::string temporary_name(const std::string& path) { return fmt::format("{}.part-{}", path, ::getpid()); }

Status write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t wrote = ::write(file, content.data(), content.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return {Code::kIo, std::strerror(errno)};
    content.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return ::fsync(file) == 0 ? Status::ok() : Status(Code::kIo, std::strerror(errno));
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // a blocked read() returns with EINTR, so an interactive chat sees the signal
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

bool interrupted() { return g_interrupts.load(std::memory_order_relaxed) > 0; }

bool write_out(std::string_view text) {
  if (g_out_broken) return false;
  const bool ok = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!ok) g_out_broken = true;
  return ok;
}

bool out_is_broken() { return g_out_broken; }

void note(const std::string& message) {
  const std::string line = fmt::format("drift: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

int fail(const Status& status) {
  note(status.message());
  return exit_code_of(status.code());
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

Status check_writable(const std::string& path) {
  DRIFT_TRY(parent_exists(path));
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return {Code::kInvalid, path + " is a folder; name a file"};
  const std::string temporary = temporary_name(path);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return {Code::kIo, fmt::format("cannot write beside {}: {}", path, std::strerror(errno))};
  ::close(file);
  ::unlink(temporary.c_str());
  return Status::ok();
}

Status write_file_atomically(const std::string& path, std::string_view content) {
  DRIFT_TRY(parent_exists(path));
  const std::string temporary = temporary_name(path);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return {Code::kIo, fmt::format("cannot write {}: {}", temporary, std::strerror(errno))};
  Status status = write_all(file, content);
  if (::close(file) != 0 && status.is_ok()) status = Status(Code::kIo, std::strerror(errno));
  if (status.is_ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = Status(Code::kIo, std::strerror(errno));
  if (status.is_ok()) return status;
  ::unlink(temporary.c_str());
  return {Code::kIo, fmt::format("cannot write {}: {}; the old file, if any, still stands", path, status.message())};
}

}  // namespace drift::cli
