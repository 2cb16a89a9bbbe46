#include "cli/console.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "cli/exit_codes.hpp"
#include "cli/program_name.hpp"
#include "text/printable.hpp"
#include "text/utf8.hpp"

namespace drift::cli {
namespace {

std::atomic<int> g_interrupts{0};
std::atomic<bool> g_hangups{false};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");
int g_out_error = 0;  // errno of the first write to stdout that failed
std::string g_program = "drift";

std::atomic<std::int64_t> g_first_ms{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ms() {
  struct timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // may be called in a signal handler
  return static_cast<std::int64_t>(now.tv_sec) * 1'000 + now.tv_nsec / 1'000'000;
}

extern "C" void on_signal(int signal) {
  // One wish to stop may come twice: timeout(1) signals the process and then its group. Only a later one means "now".
  constexpr std::int64_t kSameWishMs = 500;
  const int saved = errno;
  if (g_interrupts.fetch_add(1, std::memory_order_relaxed) == 0) {
    g_first_ms.store(now_ms(), std::memory_order_relaxed);
  } else if (signal != SIGHUP && now_ms() - g_first_ms.load(std::memory_order_relaxed) > kSameWishMs) {
    _exit(kExitInterrupted);
  }
  errno = saved;
}

bool is_ignored(int signal) {
  struct sigaction now{};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

void hold_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is fd. Reading only for stdout: a write there must fail, not vanish.
    const int mode = fd == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", mode) != fd) _exit(kExitFailure);  // nowhere to say it
  }
}

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // a blocked read() returns with EINTR, so an interactive chat sees the signal
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

void hangup_is_a_wish() {
  if (is_ignored(SIGHUP)) return;
  struct sigaction action{};
  action.sa_handler = [](int) { g_hangups.store(true, std::memory_order_relaxed); };
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGHUP, &action, nullptr);
}

bool take_hangup() { return g_hangups.exchange(false, std::memory_order_relaxed); }

bool interrupted() { return g_interrupts.load(std::memory_order_relaxed) > 0; }

int write_bytes(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? errno : EIO;
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return 0;
}

bool write_out(std::string_view text) {
  if (g_out_error == 0) g_out_error = write_bytes(STDOUT_FILENO, text);
  return g_out_error == 0;
}

bool out_is_broken() { return g_out_error != 0; }

int finish_output(int exit_code) {
  if (g_out_error == 0) {  // a network file system may tell of a full disk only when a descriptor is closed
    const int copy = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (copy >= 0 && ::close(copy) != 0 && errno != EINTR) g_out_error = errno;
  }
  if (g_out_error == 0) return exit_code;
  if (g_out_error != EPIPE) note(fmt::format("cannot write the output: {}", std::strerror(g_out_error)));
  if (exit_code != kExitOk) return exit_code;
  return g_out_error == EPIPE ? kExitBrokenPipe : kExitFailure;
}

void write_err(std::string_view text) { static_cast<void>(write_bytes(STDERR_FILENO, text)); }

void set_program_name(std::string_view name) { g_program = name; }

void note(std::string_view message) { write_err(fmt::format("{}: {}\n", g_program, text::printable(message))); }

int fail(const Status& status) {
  note(status.message());
  return exit_code_of(status.code());
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

std::string fit_terminal(std::string_view line) {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  line = line.substr(0, known ? size.ws_col - 1u : 79u);  // in the last column some terminals wrap already
  return std::string(line.substr(0, text::valid_prefix(line)));
}

}  // namespace drift::cli
