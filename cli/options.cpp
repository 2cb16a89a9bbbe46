#include "cli/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "cli/numbers.hpp"

namespace drift::cli {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result.is_ok()) throw CLI::ValidationError(result.status().message());
  return std::move(result).value();
}

void must(const Status& status) {
  if (!status.is_ok()) throw CLI::ValidationError(status.message());
}

// The flag as people type it: the last of "-n,--predict" that is long, else the first.
std::string shown(const std::string& flags) {
  const std::size_t comma = flags.find(',');
  return comma == std::string::npos ? flags : flags.substr(0, comma);
}

// Flags whose value is free text, which may look like a flag.
bool takes_any_text(const std::string& flag) {
  static constexpr const char* kFlags[] = {"-p", "--prompt", "-f", "--file", "--system", "--stop"};
  return std::find(std::begin(kFlags), std::end(kFlags), flag) != std::end(kFlags);
}

}  // namespace

void add_real(CLI::App& app, const std::string& flag, double low, double high, bool open_low, const std::string& help,
              float& out) {
  app.add_option_function<std::string>(
         flag, [=, &out](const std::string& text) { out = must(parse_float(flag, text, low, high, open_low)); },
         fmt::format("{} [{}]", help, out))
      ->type_name("X")
      ->group("Sampling");
}

CLI::Option* add_text(CLI::App& app, const std::string& flags, const std::string& type, const std::string& help, std::string& out,
                      const std::string& name) {
  const std::string flag = name.empty() ? shown(flags) : name;
  return app
      .add_option_function<std::string>(
          flags,
          [flag, type, &out](const std::string& text) {
            if (text.empty()) throw CLI::ValidationError(fmt::format("{} is empty; it needs a {}, or leave it out", flag, type));
            out = text;
          },
          help)
      ->type_name(type);
}

CLI::Option* add_int(CLI::App& app, const std::string& flags, std::int64_t low, std::int64_t high, const std::string& help,
                     std::function<void(std::int64_t)> use) {
  const std::string name = shown(flags);
  return app
      .add_option_function<std::string>(
          flags, [=](const std::string& text) { use(must(parse_int(name, text, low, high))); }, help)
      ->type_name("N");
}

void add_pair_options(CLI::App& app, PairOptions& out) {
  const char* group = "Models";
  add_text(app, "-m,--model", "FILE", "the target: a .gguf file", out.target)->required()->group(group);
  add_text(app, "--model-draft", "FILE", "(-md) the draft: a .gguf file with the same vocabulary", out.draft, "-md")
      ->group(group);
  add_int(app, "-c,--ctx-size", 0, 1 << 20, "tokens a sequence may hold; 0: what the models were trained for [4096 or that]",
          [&out](std::int64_t v) { out.context = static_cast<int>(v); })
      ->group(group);
  add_int(app, "-t,--threads", 0, 512, "threads; 0: one per hardware thread [0]", [&out](std::int64_t v) {
    out.threads = static_cast<int>(v);
  })->group(group);
  add_int(app, "--gpu-layers", -1, 100'000, "(-ngl) layers of the target on a GPU, if this build has one; -1: all [0]",
          [&out](std::int64_t v) { out.gpu_layers = static_cast<int>(v); })
      ->group(group);
  add_int(app, "--gpu-layers-draft", -1, 100'000, "(-ngld) the same for the draft [0]", [&out](std::int64_t v) {
    out.gpu_layers_draft = static_cast<int>(v);
  })->group(group);
  const auto lora = [&](const char* flag, const char* help, std::vector<engine::LoraAdapter>& list) {
    app.add_option_function<std::vector<std::string>>(
           flag,
           [flag, &list](const std::vector<std::string>& texts) {
             for (const std::string& text : texts) list.push_back(must(parse_lora(flag, text)));
           },
           help)
        ->type_name("FILE[=SCALE]")
        ->expected(1)
        ->allow_extra_args(false)  // else "[x]" is taken for a list
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(group);
  };
  lora("--lora", "a LoRA adapter for the target; may be repeated", out.loras);
  lora("--lora-draft", "a LoRA adapter for the draft; may be repeated", out.loras_draft);
  app.add_option_function<std::string>(
         "--draft-engine", [&out](const std::string& text) { out.draft_engine = must(parse_draft_engine(text)); },
         "what runs the draft: llama (llama.cpp) or torch (LibTorch, float32) [llama]")
      ->type_name("NAME")
      ->group(group);
  add_int(app, "--torch-threads", 1, 2, "threads of drafts in LibTorch [1]", [&out](std::int64_t v) {
    out.torch_threads = static_cast<int>(v);
  })->group(group);
  app.add_flag("--verbose", out.verbose, "llama.cpp's own log on stderr")->group(group);
}

void add_prompt_options(CLI::App& app, PromptOptions& out) {
  app.add_option("--prompts", out.files, "a file of prompts; may be repeated")
      ->type_name("FILE")
      ->required()
      ->expected(1)
      ->allow_extra_args(false)  // else "[x]" is taken for a list
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_text(app, "--split", "NAME", "only rows with this \"split\", e.g. tune or eval", out.split);
  add_int(app, "--limit", 1, 1'000'000, "at most so many prompts, chosen by a fixed hash of id, balanced over kinds [all]",
          [&out](std::int64_t v) { out.limit = static_cast<std::size_t>(v); });
}

void add_sampler_options(CLI::App& app, spec::SamplerConfig& sampler) {
  add_real(app, "--temp", 0, 100, false, "temperature, 0 to 100; 0 takes the best token", sampler.temperature);
  add_int(app, "--top-k", 0, 1 << 24, fmt::format("only the k best tokens; 0: off [{}]", sampler.top_k),
          [&sampler](std::int64_t v) { sampler.top_k = static_cast<int>(v); })
      ->group("Sampling");
  add_real(app, "--top-p", 0, 1, true, "the fewest tokens with this probability together, above 0, to 1; 1: off", sampler.top_p);
  add_real(app, "--min-p", 0, 1, false, "only tokens at least this likely beside the best, 0 to 1; 0: off", sampler.min_p);
}

void add_sampler_options(CLI::App& app, spec::SamplerConfig& sampler, std::uint64_t& seed) {
  add_sampler_options(app, sampler);
  add_int(app, "--seed", 0, std::numeric_limits<std::int64_t>::max(), fmt::format("seed of all draws [{}]", seed),
          [&seed](std::int64_t v) { seed = static_cast<std::uint64_t>(v); })
      ->group("Sampling");
}

namespace {

const char* group_of(SettingScope scope) {
  if (scope == SettingScope::kLearning) return "Online distillation";
  if (scope == SettingScope::kRecal) return "Bank and recalibration";
  return scope == SettingScope::kDrafting ? "Drafting" : "Copying";
}

}  // namespace

void add_setting_options(CLI::App& app, Settings& settings, bool learning) {
  for (const SettingInfo& info : setting_table()) {
    if (info.scope == SettingScope::kDraftFile || (info.scope == SettingScope::kLearning && !learning)) continue;
    const std::string key = info.key, flag = "--" + key;
    const std::string current = key == "preset" ? "default" : setting_value(settings, key);
    app.add_option_function<std::string>(
           flag, [key, flag, &settings](const std::string& text) { must(set_setting(settings, key, text, flag)); },
           fmt::format("{} ({}) [{}]", info.help, info.values, current))
        ->type_name("")
        ->group(group_of(info.scope));
  }
}

std::vector<std::string> expand_short_flags(const std::vector<std::string>& arguments) {
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"-md", "--model-draft"}, {"-ngld", "--gpu-layers-draft"}, {"-ngl", "--gpu-layers"}};
  std::vector<std::string> out;
  bool literal = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string text = arguments[i];
    const bool is_value = i > 0 && takes_any_text(arguments[i - 1]);
    literal = literal || (text == "--" && !is_value);
    if (!literal && !is_value) {
      for (const auto& [name, full] : kNames) {
        const std::string with_value = std::string(name) + "=";
        if (text == name) {
          text = full;
        } else if (text.rfind(with_value, 0) == 0) {
          text = std::string(full) + text.substr(with_value.size() - 1);
        } else {
          continue;
        }
        break;
      }
    }
    out.push_back(std::move(text));
  }
  return out;
}

Status check_arguments(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string& word = arguments[i];
    const bool empty = word.size() > 3 && word.rfind("--", 0) == 0 && word.find('=') == word.size() - 1;
    if (empty && !(i > 0 && takes_any_text(arguments[i - 1])))
      return {Code::kInvalid, fmt::format("{} is empty; give it a value, or leave it out", word.substr(0, word.size() - 1))};
  }
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    const std::vector<const CLI::App*> commands = at->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty() || word.rfind('-', 0) == 0) break;
    std::string names;
    const CLI::App* found = nullptr;
    for (const CLI::App* command : commands) {
      if (command->get_name() == word) found = command;
      names += (names.empty() ? "" : ", ") + command->get_name();
    }
    if (found == nullptr) return {Code::kInvalid, fmt::format("unknown command '{}'; there are: {}", word, names)};
    at = found;
  }
  return Status::ok();
}

}  // namespace drift::cli
