// draft_command.hpp - the command `drift-train draft`.
#pragma once

namespace CLI {
class App;
}

namespace drift::train {

void add_draft_command(CLI::App& app, int& exit_code);

}  // namespace drift::train
