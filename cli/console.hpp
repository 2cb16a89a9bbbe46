// console.hpp - signals, output that may be closed under us, and how errors are said.
//
// Threads: one, besides the signal handler.
#pragma once

#include <string>
#include <string_view>

#include "drift/base/status.hpp"

namespace drift::cli {

// Ctrl-C and SIGTERM are counted, the second one ends the process at once with kExitInterrupted; SIGPIPE is ignored, so that
// a closed output is an error of write_out(). Call once.
void install_signal_handlers();
bool interrupted();

// Writes to stdout and flushes. False once stdout is closed or full: stop producing then.
bool write_out(std::string_view text);
bool out_is_broken();

// "drift: <message>" on stderr; returns the exit code that goes with the status.
int fail(const Status& status);
void note(const std::string& message);  // "drift: <message>" on stderr

bool stdout_is_terminal();
bool stderr_is_terminal();

// Writes a file so that a reader sees the old content or the new one: a temporary file beside it, synced, renamed.
// Fails with kNotFound (missing parent folder), kIo; the old file then still stands.
Status write_file_atomically(const std::string& path, std::string_view content);
// Whether write_file_atomically could begin: to be asked before long work.
Status check_writable(const std::string& path);

}  // namespace drift::cli
