#include "cli/program.hpp"

#include <fmt/format.h>

#include <sstream>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/options.hpp"

namespace drift::cli {

int refuse_line(const CLI::App& app, const std::string& why) {
  note(why);
  note(fmt::format("see {0} --help or {0} COMMAND --help", app.get_name()));
  return kExitUsage;
}

int run_program(CLI::App& app, std::vector<std::string> arguments, const int& exit_code) {
  arguments = expand_short_flags(arguments);
  if (const Status sound = check_arguments(app, arguments); !sound.is_ok()) return refuse_line(app, sound.message());
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them from the back
  try {
    app.parse(reversed);
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    const int code = app.exit(success, text, text);
    write_out(text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    return refuse_line(app, error.what());
  }
  return exit_code;
}

}  // namespace drift::cli
