#include "train/pair_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cli/console.hpp"
#include "train/bpe.hpp"
#include "train/flags.hpp"
#include "train/pair.hpp"

namespace drift::train {
namespace {

std::vector<std::string> names_of(const std::string& flag, std::string_view text) {
  std::vector<std::string> names;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string name(text.substr(0, comma));
    if (name.empty() || name.find('/') != std::string::npos)
      throw CLI::ValidationError(fmt::format("{} holds the name '{}'; give names of domains with commas between", flag, name));
    names.push_back(name);
    if (comma == std::string_view::npos) return names;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

void add_pair_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("pair", "make a target and a draft from plain text");
  const auto options = std::make_shared<PairOptions>(default_pair_options());
  cli::add_text(*command, "--data", "FOLDER", "the texts: one DOMAIN.txt for each domain, UTF-8", options->data)->required();
  cli::add_text(*command, "--out", "FOLDER", "where checkpoint, models and recipe go; an unfinished run there goes on",
                options->out)
      ->required();
  command
      ->add_option_function<std::string>(
          "--domains", [options](const std::string& text) { options->domains = names_of("--domains", text); },
          "the domains the target learns, with commas between [all in the folder]")
      ->type_name("NAMES");
  cli::add_text(*command, "--general", "NAME", "the domain the draft learns, and the only one [general]", options->general);
  command
      ->add_option_function<std::vector<std::string>>(
          "--weight",
          [options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const std::size_t equals = text.find('=');
              if (equals == std::string::npos || equals == 0)
                throw CLI::ValidationError(fmt::format("--weight is '{}'; it must be like law=0.5", text));
              options->weights[text.substr(0, equals)] = must(cli::parse_real("--weight", text.substr(equals + 1), 0, 100, true));
            }
          },
          "how often the target's epochs pass over a domain's text; may be repeated [1]")
      ->type_name("DOMAIN=X")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_real(*command, "--time-budget", 0, 10'000, true, "minutes of training in all, shared out over the stages",
           options->minutes);
  add_whole(*command, "--steps-target", 1, 10'000'000, "or: steps of the target", options->steps.target);
  add_whole(*command, "--steps-draft", 1, 10'000'000, "steps of the draft on text", options->steps.draft);
  add_whole(*command, "--steps-samples", 2, 256, "rounds of 32 texts that the target writes", options->steps.samples);
  add_whole(*command, "--steps-distil", 1, 10'000'000, "steps of the draft on the target's answers", options->steps.distil);
  add_whole(*command, "--vocab", kVocabMin, kVocabMax, "tokens of the vocabulary", options->vocab);
  add_shape_options(*command, "target-", "target: ", options->target);
  add_shape_options(*command, "draft-", "draft: ", options->draft);
  add_whole(*command, "--window", 16, 4'096, "tokens of a training window", options->length);
  add_whole(*command, "--rows", 2, 1'024, "windows a step", options->rows);
  add_whole(*command, "--context", 32, 1 << 17, "tokens the models say they can hold", options->context);
  add_rate_options(*command, options->rates);
  add_run_options(*command, options->seed, options->threads, options->keep_seconds, options->fresh);
  command->add_flag("--f32", options->f32, "write the models in float32 as well");
  command->callback([options, &exit_code] {
    const StageSteps& steps = options->steps;
    Status status = check_budget(options->minutes, {{"--steps-target", steps.target},
                                                    {"--steps-draft", steps.draft},
                                                    {"--steps-samples", steps.samples},
                                                    {"--steps-distil", steps.distil}});
    if (status.is_ok() && options->context < options->length + 1)
      status = {Code::kInvalid,
                fmt::format("--context {} is too short for --window {}; it must be larger", options->context, options->length)};
    if (status.is_ok()) status = make_pair(*options);
    if (!status.is_ok()) exit_code = cli::fail(status);
  });
}

}  // namespace drift::train
