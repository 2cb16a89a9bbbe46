#include "cli/console.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <initializer_list>
#include <string>
#include <thread>

#include "cli/exit_codes.hpp"

// Signals, standard descriptors and the fate of stdout belong to a whole process: each case has one of its own.
namespace drift::cli {
namespace {

using ::testing::ExitedWithCode;

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  ::sigaction(signal, &action, nullptr);
}

// `pause_ms` after each signal.
[[noreturn]] void signals(void (*hangup)(int), std::initializer_list<int> sent, int pause_ms = 0) {
  set_handler(SIGHUP, hangup);
  install_signal_handlers();
  for (const int signal : sent) {
    ::raise(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  ::_exit(interrupted() ? 7 : 8);
}

TEST(ConsoleDeathTest, EverySignalThatEndsIsCountedAndTheSecondEndsAtOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(signals(SIG_DFL, {signal}), ExitedWithCode(7), "");
    EXPECT_EXIT(signals(SIG_DFL, {signal, SIGINT}, 700), ExitedWithCode(kExitInterrupted), "");
    EXPECT_EXIT(signals(SIG_DFL, {signal, signal}), ExitedWithCode(7), "")
        << "timeout(1) sends the process and its group one each";
  }
  EXPECT_EXIT(signals(SIG_DFL, {SIGHUP, SIGHUP}, 700), ExitedWithCode(7), "") << "a closing terminal sends two";
  EXPECT_EXIT(signals(SIG_IGN, {SIGHUP}), ExitedWithCode(8), "") << "nohup";
}

[[noreturn]] void write_past_a_limit() {
  install_signal_handlers();
  char name[] = "drift-console-XXXXXX";
  const int file = ::mkstemp(name);
  ::unlink(name);
  const rlimit limit{4, 4};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::_exit(write_bytes(file, "more than four") == EFBIG ? 7 : 8);
}

TEST(ConsoleDeathTest, AFileThatMayNotGrowIsAnErrorOfTheWrite) { EXPECT_EXIT(write_past_a_limit(), ExitedWithCode(7), ""); }

[[noreturn]] void close_and_hold() {
  ::close(STDIN_FILENO);
  ::close(STDOUT_FILENO);
  hold_standard_files();
  char byte = 0;
  const bool held = ::read(STDIN_FILENO, &byte, 1) == 0 && ::open("/dev/null", O_RDONLY) > STDERR_FILENO;
  ::_exit(held && !write_out("x") ? finish_output(kExitOk) : 8);
}

TEST(ConsoleDeathTest, ClosedDescriptorsAreTakenAndWritingToThemIsSaid) {
  EXPECT_EXIT(close_and_hold(), ExitedWithCode(kExitFailure), "drift: cannot write the output: Bad file descriptor");
}

// With stdout at `path`, or at a pipe whose reader has gone.
[[noreturn]] void lose_output(const char* path, int exit_code) {
  install_signal_handlers();
  int ends[2] = {-1, -1};
  if (path == nullptr) {
    if (::pipe(ends) != 0) ::_exit(8);
    ::close(ends[0]);
  } else {
    ends[1] = ::open(path, O_WRONLY);
  }
  ::dup2(ends[1], STDOUT_FILENO);
  const bool first = write_out("a"), second = write_out("b");
  ::_exit(first || second || !out_is_broken() ? 8 : finish_output(exit_code));
}

TEST(ConsoleDeathTest, LostOutputIsSaidUnlessTheReaderHasGone) {
  EXPECT_EXIT(lose_output("/dev/full", kExitOk), ExitedWithCode(kExitFailure), "^drift: cannot write the output: No space left");
  EXPECT_EXIT(lose_output("/dev/full", kExitInterrupted), ExitedWithCode(kExitInterrupted), "No space left");
  EXPECT_EXIT(lose_output(nullptr, kExitOk), ExitedWithCode(kExitBrokenPipe), "^$");
  EXPECT_EXIT(lose_output(nullptr, kExitUsage), ExitedWithCode(kExitUsage), "^$");
}

TEST(ConsoleDeathTest, NotesCannotSteerTheTerminal) {
  EXPECT_EXIT((note("a\x1b[2J\nb"), ::_exit(0)), ExitedWithCode(0), "^drift: a.x1b.2J.nb\n$");
}

// Exits with 0 if `line` is cut to `expected` on a terminal of so many columns; 0: on none.
[[noreturn]] void cut_on_terminal(unsigned short columns, const std::string& line, const std::string& expected) {
  int ends[2] = {-1, -1};
  winsize size{};
  size.ws_col = columns;
  const int opened = columns > 0 ? ::openpty(&ends[0], &ends[1], nullptr, nullptr, &size) : ::pipe(ends);
  if (opened != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) ::_exit(8);
  ::_exit(fit_terminal(line) == expected ? 0 : 1);
}

TEST(ConsoleDeathTest, ALineFitsTheTerminalAndEndsInAWholeCharacter) {
  const std::string line(300, 'x');
  EXPECT_EXIT(cut_on_terminal(0, line, std::string(79, 'x')), ExitedWithCode(0), "");
  EXPECT_EXIT(cut_on_terminal(20, line, std::string(19, 'x')), ExitedWithCode(0), "");
  EXPECT_EXIT(cut_on_terminal(120, "short", "short"), ExitedWithCode(0), "");
  EXPECT_EXIT(cut_on_terminal(4, "ab\xe2\x82\xac", "ab"), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace drift::cli
