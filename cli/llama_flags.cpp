#include "cli/llama_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "cli/llama_flags_table.hpp"

namespace drift::cli {
namespace {

bool has_name(const LlamaFlag& flag, std::string_view name) {
  std::string_view names = flag.names;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

// llama-server reads underscores in long names as dashes.
std::string with_dashes(std::string name) {
  if (name.rfind("--", 0) == 0) std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_negation(std::string_view name) { return name.rfind("--no-", 0) == 0; }

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(separator, from), text.size());
    out.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return out;
}

// The value of a flag that means the same, as it is written here.
void add_same(const LlamaFlag& flag, const std::string& given, const std::vector<std::string>& values,
              std::vector<std::string>& out) {
  const std::string ours = is_negation(given) ? given : flag.text;
  if (values.empty()) {
    out.push_back(ours);
  } else if (ours == "--gpu-layers" || ours == "--gpu-layers-draft") {
    if (values[0] == "auto") return;  // our default
    out.insert(out.end(), {ours, values[0] == "all" ? "-1" : values[0]});
  } else if (has_name(flag, "--lora-scaled")) {
    for (std::string one : split(values[0], ',')) {
      const std::size_t colon = one.rfind(':');
      if (colon != std::string::npos) one[colon] = '=';
      out.insert(out.end(), {ours, one});
    }
  } else if (ours == "--lora") {
    for (const std::string& one : split(values[0], ',')) out.insert(out.end(), {ours, one});
  } else {
    out.insert(out.end(), {ours, values[0]});
  }
}

}  // namespace

std::span<const LlamaFlag> llama_flags() { return kLlamaFlags; }

Result<Translated> translate_llama_flags(const std::vector<std::string>& arguments) {
  Translated out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    std::vector<std::string> values;
    const std::size_t equals = name.find('=');
    const bool joined = name.rfind("--", 0) == 0 && equals != std::string::npos;
    if (joined) {
      values.push_back(name.substr(equals + 1));
      name.resize(equals);
    }
    name = with_dashes(name);
    const auto flag =
        std::find_if(std::begin(kLlamaFlags), std::end(kLlamaFlags), [&](const LlamaFlag& f) { return has_name(f, name); });
    if (flag == std::end(kLlamaFlags)) {
      out.arguments.push_back(arguments[i]);
      continue;
    }
    if (flag->rule == FlagRule::kRefuse)
      return Status(Code::kInvalid, fmt::format("{} is a flag of llama-server that cannot be used here: {}", name, flag->text));
    while (static_cast<int>(values.size()) < flag->values) {
      if (++i == arguments.size()) return Status(Code::kInvalid, fmt::format("{} needs a value", name));
      values.push_back(arguments[i]);
    }
    if (flag->rule == FlagRule::kWarn) {
      out.warnings.push_back(fmt::format("{} has no effect: {}", name, flag->text));
    } else {
      add_same(*flag, name, values, out.arguments);
    }
  }
  return out;
}

}  // namespace drift::cli
