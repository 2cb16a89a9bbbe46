// Where the settings of `drift serve` come from: flags before environment before file.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "cli/console.hpp"
#include "cli/input.hpp"
#include "cli/llama_flags.hpp"
#include "cli/options.hpp"
#include "cli/serve.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

constexpr std::size_t kConfigBytesMax = std::size_t{1} << 20;

bool is_flag(const CLI::Option& option) { return option.get_expected_max() == 0; }

// The name a setting has in files: the first long one, without dashes.
std::string key_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? std::string() : option.get_lnames().front();
}

std::string variable_of(const std::string& key) {
  std::string out = "DRIFT_" + key;
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// One setting as arguments. `where` names its source in errors.
Result<std::vector<std::string>> as_arguments(const CLI::Option& option, const std::vector<std::string>& values,
                                              const std::string& where) {
  const std::string flag = "--" + key_of(option);
  std::vector<std::string> out;
  if (is_flag(option)) {
    if (values.size() != 1 || (values[0] != "true" && values[0] != "false"))
      return Status(Code::kInvalid, fmt::format("{} must be true or false", where));
    const std::vector<std::string>& names = option.get_lnames();
    const std::string negation = "no-" + key_of(option);
    const bool has_negation = std::find(names.begin(), names.end(), negation) != names.end();
    if (values[0] == "true") out.push_back(flag);
    if (values[0] == "false" && has_negation) out.push_back("--" + negation);
    return out;
  }
  if (values.size() > 1 && option.get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll)
    return Status(Code::kInvalid, fmt::format("{} takes one value", where));
  for (const std::string& value : values) {
    if (value.empty()) return Status(Code::kInvalid, fmt::format("{} is empty; leave it out", where));
    out.insert(out.end(), {flag, value});
  }
  return out;
}

std::optional<std::string> value_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return std::nullopt;
}

class Merger {
 public:
  Merger(CLI::App& command, const std::vector<std::string>& arguments) : command_(command), given_(arguments) {
    for (const std::string& argument : arguments) {
      const std::string name = argument.substr(0, argument.find('='));
      const CLI::Option* option = name.rfind('-', 0) == 0 ? command.get_option_no_throw(name) : nullptr;
      if (option != nullptr) set_.insert(option);
    }
  }

  Status add_environment() {
    for (const CLI::Option* option : command_.get_options()) {
      const std::string key = key_of(*option);
      if (key.empty() || key == "help" || key == "config" || set_.contains(option)) continue;
      const std::string variable = variable_of(key);
      const char* value = std::getenv(variable.c_str());
      if (value == nullptr) continue;
      DRIFT_ASSIGN(const auto arguments, as_arguments(*option, {value}, fmt::format("the environment's {}", variable)));
      added_.insert(added_.end(), arguments.begin(), arguments.end());
      set_.insert(option);
    }
    return Status::ok();
  }

  Status add_file(const std::string& path) {
    DRIFT_ASSIGN(const std::string text, read_text_file(path, kConfigBytesMax));
    toml::table table;
    try {
      table = toml::parse(text, path);
    } catch (const toml::parse_error& error) {
      return {Code::kInvalid, fmt::format("{}:{}: {}", path, error.source().begin.line, error.description())};
    }
    for (const auto& [name, node] : table) {
      const std::string key(name.str());
      const std::string where = fmt::format("{}:{}: {}", path, node.source().begin.line, text::printable(key, text::kQuoteMax));
      const CLI::Option* option = command_.get_option_no_throw("--" + key);
      if (option == nullptr || key == "help" || key == "config")
        return {Code::kInvalid,
                fmt::format("{}: there is no such setting; keys are the flags of drift serve without dashes", where)};
      std::vector<std::string> values;
      if (const auto* list = node.as_array()) {
        for (const auto& element : *list) {
          const auto value = value_of(element);
          if (!value) return {Code::kInvalid, fmt::format("{} holds something that is no text, number or truth", where)};
          values.push_back(*value);
        }
      } else if (const auto value = value_of(node)) {
        values.push_back(*value);
      } else {
        return {Code::kInvalid, fmt::format("{} must be a text, a number, true, false, or a list of texts", where)};
      }
      DRIFT_ASSIGN(const auto arguments, as_arguments(*option, values, where));
      if (set_.contains(option)) continue;
      added_.insert(added_.end(), arguments.begin(), arguments.end());
    }
    return Status::ok();
  }

  std::vector<std::string> all() const {
    std::vector<std::string> out = added_;
    out.insert(out.end(), given_.begin(), given_.end());
    return out;
  }

 private:
  CLI::App& command_;
  std::vector<std::string> given_, added_;
  std::set<const CLI::Option*> set_;  // by something that goes first
};

// --config FILE, from the flags or the environment; empty: none.
std::string config_of(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].rfind("--config=", 0) == 0) return arguments[i].substr(9);
    if (arguments[i] == "--config" && i + 1 < arguments.size()) return arguments[i + 1];
  }
  const char* variable = std::getenv("DRIFT_CONFIG");
  return variable != nullptr ? variable : "";
}

}  // namespace

Result<std::vector<std::string>> serve_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  DRIFT_ASSIGN(const Translated translated, translate_llama_flags(expand_short_flags({arguments.begin() + 1, arguments.end()})));
  for (const std::string& warning : translated.warnings) note(warning);
  Merger merger(*app.get_subcommand("serve"), translated.arguments);
  DRIFT_TRY(merger.add_environment());
  if (const std::string config = config_of(translated.arguments); !config.empty()) DRIFT_TRY(merger.add_file(config));
  std::vector<std::string> out = merger.all();
  out.insert(out.begin(), "serve");
  return out;
}

}  // namespace drift::cli
