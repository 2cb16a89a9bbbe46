// The one program `drift`: finds the subcommand, runs it, turns whatever happened into an exit code.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/bank_command.hpp"
#include "cli/compare.hpp"
#include "cli/console.hpp"
#include "cli/doctor.hpp"
#include "cli/draft_engine.hpp"
#include "cli/exit_codes.hpp"
#include "cli/machine.hpp"
#include "cli/models.hpp"
#include "cli/program.hpp"
#include "cli/run.hpp"
#include "cli/trace_command.hpp"
#include "engines/llama/log.hpp"
#ifdef DRIFT_HAS_SERVER
#include "cli/serve.hpp"
#endif

namespace {

constexpr const char* kFooter =
    "drift COMMAND --help tells more about a command.\n"
    "Exit codes: 0 done; 1 the machine or a dependency failed; 2 the command line or an input cannot be used;\n"
    "3 (compare) a text diverged beyond the margin; 130 interrupted; 141 the reader of the output has gone.";

// llama.cpp asserts what it cannot go on from, mostly memory that it did not get. It would print a stack trace and abort.
void llama_gave_up(const char* message) {
  const std::string_view text(message);
  const std::size_t name = text.find_last_of('/');  // "/folders/file.c:line: reason"
  const std::string_view reason = name == std::string_view::npos ? text : text.substr(name + 1);
  const bool memory = reason.find("buffer") != std::string_view::npos || reason.find("alloc") != std::string_view::npos ||
                      reason.find("memory") != std::string_view::npos;
  drift::cli::note(fmt::format("llama.cpp cannot go on: {}; {}", reason,
                               memory ? "free some memory, or use a smaller context or model"
                                      : "a model or adapter file may be damaged: fetch it again, or leave the adapter out"));
  ::_exit(drift::cli::kExitFailure);
}

int run(std::vector<std::string> arguments) {
  int exit_code = drift::cli::kExitOk;
  CLI::App app("DRIFT: speculative decoding whose frozen draft learns from every verification.", "drift");
  app.set_version_flag("--version", "drift " + drift::cli::program_version());
  app.require_subcommand(1);
  drift::cli::add_models_command(app, exit_code);
  drift::cli::add_bank_command(app, exit_code);
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  drift::cli::add_run_command(app, exit_code);
  drift::cli::add_compare_command(app, exit_code);
  drift::cli::add_trace_command(app, exit_code);
  drift::cli::add_doctor_command(app, exit_code);
#ifdef DRIFT_HAS_SERVER
  drift::cli::add_serve_command(app, exit_code);
  if (!arguments.empty() && arguments.front() == "serve") {
    auto all = drift::cli::serve_arguments(app, arguments);
    if (!all.is_ok()) return drift::cli::refuse_line(app, all.status().message());
    arguments = std::move(all).value();
  }
#endif
  return drift::cli::run_program(app, std::move(arguments), exit_code);
}

}  // namespace

int main(int argc, char** argv) {
  drift::cli::prepare_torch(argv);
  drift::cli::hold_standard_files();
  drift::cli::install_signal_handlers();
  drift::engine::on_llama_abort(llama_gave_up);
  int exit_code = drift::cli::kExitFailure;
  try {
    exit_code = run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::bad_alloc&) {
    drift::cli::note("out of memory; use smaller models, a smaller context (-c) or a smaller bank (--capacity)");
  } catch (const std::exception& error) {
    drift::cli::note(fmt::format("unexpected failure: {}", error.what()));
  }
  return drift::cli::finish_output(exit_code);
}
