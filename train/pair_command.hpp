// pair_command.hpp - the command `drift-train pair`.
#pragma once

namespace CLI {
class App;
}

namespace drift::train {

void add_pair_command(CLI::App& app, int& exit_code);

}  // namespace drift::train
