// doctor.hpp - `drift doctor`: do two models fit together, what do they cost here, and does drafting pay?
#pragma once

#include <CLI/CLI.hpp>

namespace drift::cli {

void add_doctor_command(CLI::App& app, int& exit_code);

}  // namespace drift::cli
