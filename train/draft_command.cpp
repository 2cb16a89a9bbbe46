#include "train/draft_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "cli/console.hpp"
#include "train/draft.hpp"
#include "train/flags.hpp"

namespace drift::train {
void add_draft_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("draft", "make a small draft for a target that is there, from what it writes itself");
  const auto options = std::make_shared<DraftOptions>(default_draft_options());
  cli::add_text(*command, "-m,--model", "FILE", "the target: a .gguf file; the draft gets its tokenizer", options->target)
      ->required();
  cli::add_text(*command, "--text", "FILE", "UTF-8 text whose openings the target continues; domains left out are never seen",
                options->text)
      ->required();
  cli::add_text(*command, "--out", "FILE", "the draft: a .gguf file; FILE.checkpoint beside it until it is done", options->out)
      ->required();
  add_real(*command, "--time-budget", 0, 10'000, true, "minutes in all, shared out over the stages", options->minutes);
  add_whole(*command, "--steps-samples", 0, 4'096, "or: rounds of 16 texts that the target writes", options->rounds);
  add_whole(*command, "--steps-text", 0, 10'000'000, "steps of the draft on the text itself", options->text_steps);
  add_whole(*command, "--steps-distil", 0, 10'000'000, "steps of the draft on what the target said in its texts",
            options->distil_steps);
  add_shape_options(*command, "", "", options->shape);
  add_whole(*command, "--window", 16, 4'096, "tokens of a text that the target writes", options->length);
  add_whole(*command, "--rows", 1, 1'024, "texts a step", options->rows);
  add_whole(*command, "--shortlist", 64, 1 << 20, "tokens a step computes the logits of, if the vocabulary is larger",
            options->shortlist);
  add_rate_options(*command, options->rates);
  command
      ->add_option_function<std::string>(
          "--type",
          [options](const std::string& text) {
            const std::map<std::string, engine::GgufType> types = {{"f32", engine::GgufType::kF32},
                                                                   {"f16", engine::GgufType::kF16},
                                                                   {"q8_0", engine::GgufType::kQ8_0},
                                                                   {"q4_0", engine::GgufType::kQ4_0}};
            const auto found = types.find(text);
            if (found == types.end())
              throw CLI::ValidationError(fmt::format("--type is '{}'; it must be f32, f16, q8_0 or q4_0", text));
            options->type = found->second;
          },
          "how the file holds its matrices: f32, f16, q8_0 or q4_0 [q8_0]")
      ->type_name("TYPE");
  add_run_options(*command, options->seed, options->threads, options->keep_seconds, options->fresh);
  command->callback([options, &exit_code] {
    Status status =
        check_budget(options->minutes, {{"--steps-samples", options->rounds}, {"--steps-distil", options->distil_steps}},
                     {{"--steps-text", options->text_steps}});
    if (status.is_ok()) status = make_draft(*options);
    if (!status.is_ok()) exit_code = cli::fail(status);
  });
}

}  // namespace drift::train
