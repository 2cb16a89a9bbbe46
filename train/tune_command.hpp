// tune_command.hpp - the command `drift-train tune`.
#pragma once

namespace CLI {
class App;
}

namespace drift::train {

void add_tune_command(CLI::App& app, int& exit_code);

}  // namespace drift::train
