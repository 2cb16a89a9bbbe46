// The program `drift-train`: finds the subcommand, runs it, turns whatever happened into an exit code (cli/exit_codes.hpp).
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/machine.hpp"
#include "cli/program.hpp"
#include "cli/program_name.hpp"
#include "engines/torch/blas.hpp"
#include "train/draft_command.hpp"
#include "train/pair_command.hpp"
#include "train/show.hpp"
#include "train/tune_command.hpp"

namespace {

constexpr const char* kFooter =
    "drift-train COMMAND --help tells more about a command.\n"
    "Exit codes: 0 done; 1 the machine or a dependency failed; 2 the command line or an input cannot be used; 130 interrupted.";

// A step allocates and frees the same large tensors over and over. Left to itself the allocator gives them back to the kernel each
// time, which then clears their pages anew: a tenth of the time of a step (measured).
void keep_memory() {
  constexpr int kLargest = 1 << 30;  // bytes; what is larger still comes and goes
  ::mallopt(M_MMAP_THRESHOLD, kLargest);
  ::mallopt(M_TRIM_THRESHOLD, kLargest);
}

int run(std::vector<std::string> arguments) {
  int exit_code = drift::cli::kExitOk;
  CLI::App app("Trains and tunes small models for DRIFT.", "drift-train");
  app.set_version_flag("--version", "drift-train " + drift::cli::program_version());
  app.require_subcommand(1);
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  drift::train::add_pair_command(app, exit_code);
  drift::train::add_draft_command(app, exit_code);
  drift::train::add_tune_command(app, exit_code);
  drift::train::add_show_command(app, exit_code);
  return drift::cli::run_program(app, std::move(arguments), exit_code);
}

}  // namespace

int main(int argc, char** argv) {
  drift::cli::set_program_name("drift-train");
  drift::engine::use_fitting_blas_kernels(argv);
  drift::cli::hold_standard_files();
  drift::cli::install_signal_handlers();
  keep_memory();
  int exit_code = drift::cli::kExitFailure;
  try {
    exit_code = run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::bad_alloc&) {
    drift::cli::note("out of memory; use a smaller model or fewer rows");
  } catch (const c10::Error& error) {
    drift::cli::note(fmt::format("LibTorch cannot go on: {}", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    drift::cli::note(fmt::format("unexpected failure: {}", error.what()));
  }
  return drift::cli::finish_output(exit_code);
}
