// show.hpp - the command `drift-train show`: what a folder of `drift-train pair` holds, finished or under way.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "drift/base/status.hpp"

namespace CLI {
class App;
}

namespace drift::train {

// A finished pair's recipe.json as lines for people. Fails with kCorrupt (not what `pair` writes).
Result<std::string> describe_recipe(const nlohmann::json& recipe);
// A checkpoint's facts, likewise.
Result<std::string> describe_checkpoint(const nlohmann::json& facts);

void add_show_command(CLI::App& app, int& exit_code);

}  // namespace drift::train
