// console.hpp - signals, output that may be closed or full under us, and how errors are said.
//
// Threads: one, besides the signal handler.
#pragma once

#include <string>
#include <string_view>

#include "drift/base/status.hpp"

namespace drift::cli {

// A descriptor 0, 1 or 2 that the caller closed would be given to the next file opened, e.g. a bank, and then be printed
// into. This puts /dev/null there: reading finds the end, writing to stdout fails as on a closed one. Call first of all.
void hold_standard_files();

// Ctrl-C, SIGTERM and SIGHUP are counted; the second one, unless it is a SIGHUP (a closing terminal sends two), ends the process
// at once with kExitInterrupted. SIGPIPE and SIGXFSZ are ignored, so that a closed output or a file that may not grow is
// an error of the write. A SIGHUP that was ignored at the start (nohup) stays ignored. Call once.
void install_signal_handlers();
bool interrupted();
// From now on a SIGHUP is a wish to read settings again and no end, unless it is ignored.
void hangup_is_a_wish();
bool take_hangup();  // whether there was such a wish since the last call

// Writes to stdout, unbuffered. False once stdout is closed or full: stop producing then.
bool write_out(std::string_view text);
bool out_is_broken();
// The program's exit code, given what the command ended with: 0 becomes kExitBrokenPipe when the reader of stdout has gone
// and, with a sentence, kExitFailure when output was lost otherwise. Call last of all.
int finish_output(int exit_code);

// To stderr as it is; that it cannot be written is nobody's to know.
void write_err(std::string_view text);
// "drift: <message>" on stderr, control characters escaped; returns the exit code that goes with the status.
int fail(const Status& status);
void note(std::string_view message);  // "drift: <message>" on stderr, control characters escaped

bool stdout_is_terminal();
bool stderr_is_terminal();
// As much of a line's beginning as a row of the terminal at stderr holds (80 columns where its width is unknown), so that it can
// be rewritten. Bytes count as columns: never too long.
std::string fit_terminal(std::string_view line);

// All of `bytes` into the descriptor. Returns 0 or errno.
int write_bytes(int fd, std::string_view bytes);

}  // namespace drift::cli
