// program.hpp - the command line of a program: parsed, refused in one manner, its subcommand run.
//
// Threads: one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace drift::cli {

// Tells why a command line cannot be used, and where to read on; kExitUsage.
int refuse_line(const CLI::App& app, const std::string& why);

// Runs the subcommand that `arguments` (without the program's name) ask for; its callback sets `exit_code`, which is returned.
// --help and --version are answered; a line that cannot be read is told and gives kExitUsage. Throws what a callback throws.
int run_program(CLI::App& app, std::vector<std::string> arguments, const int& exit_code);

}  // namespace drift::cli
