// options.hpp - the flags that commands share, each read strictly.
//
// Threads: one. A value that cannot be used becomes a CLI::ValidationError, which main() turns into exit code 2.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/pair.hpp"
#include "cli/prompts.hpp"
#include "cli/settings.hpp"
#include "drift/spec/distribution.hpp"

namespace drift::cli {

// -m -md -c -t -ngl -ngld --lora --lora-draft --draft-engine --torch-threads --verbose
void add_pair_options(CLI::App& app, PairOptions& out);
// --prompts --split --limit
void add_prompt_options(CLI::App& app, PromptOptions& out);
// --temp --top-k --top-p --min-p
void add_sampler_options(CLI::App& app, spec::SamplerConfig& sampler);
// ... and --seed
void add_sampler_options(CLI::App& app, spec::SamplerConfig& sampler, std::uint64_t& seed);
// Every row of setting_table() as a flag; those of drafts that learn only where a command has such modes.
void add_setting_options(CLI::App& app, Settings& settings, bool learning = false);

// A flag whose text may not be empty: '--bank ""' is a slip, such as a variable that is not set, and no way to say "none".
// `type` is what --help calls the value; `name` is how errors call the flag, if not by the first of `flags`. `out` is left alone
// until the flag is given.
CLI::Option* add_text(CLI::App& app, const std::string& flags, const std::string& type, const std::string& help, std::string& out,
                      const std::string& name = "");
void add_real(CLI::App& app, const std::string& flag, double low, double high, bool open_low, const std::string& help,
              float& out);
CLI::Option* add_int(CLI::App& app, const std::string& flags, std::int64_t low, std::int64_t high, const std::string& help,
                     std::function<void(std::int64_t)> use);

// CLI11 knows one-letter flags with one dash only: "-md", "-ngl" and "-ngld" become their long names. Arguments after a lone
// "--" and the values of -p, -f, --system and --stop stay as they are.
std::vector<std::string> expand_short_flags(const std::vector<std::string>& arguments);

// What CLI11 would misread: a first word that is no command ("a subcommand is required"), and a long flag with "=" and nothing
// after it (it would take the next argument as its value). Fails with kInvalid naming it. Call with expanded flags.
Status check_arguments(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace drift::cli
