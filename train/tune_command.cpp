#include "train/tune_command.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/console.hpp"
#include "train/flags.hpp"
#include "train/tune.hpp"

namespace drift::train {

void add_tune_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("tune", "tune a draft on a text with what its target says there; or a target on a text");
  const auto options = std::make_shared<TuneOptions>();
  cli::add_text(*command, "-m,--model", "FILE", "the target: a .gguf file", options->target)->required();
  cli::add_text(*command, "--model-draft", "FILE", "(-md) the draft to tune; without one the target itself is tuned on the text",
                options->draft, "-md");
  cli::add_text(*command, "--text", "FILE", "UTF-8 text of the domain", options->text)->required();
  cli::add_text(*command, "--out", "FILE", "the tuned model or adapter: a .gguf file; FILE.checkpoint beside it until it is done",
                options->out)
      ->required();
  add_whole(*command, "--lora", 0, 256, "rank of a LoRA adapter to write instead of a whole model; 0: tune all weights",
            options->rank);
  add_real(*command, "--time-budget", 0, 10'000, true, "minutes in all, the target's labels included", options->minutes);
  add_whole(*command, "--steps", 0, 10'000'000, "or: training steps", options->steps);
  add_whole(*command, "--tokens", 64, 100'000'000, "most tokens of the text that are used", options->tokens);
  add_whole(*command, "--window", 16, 4'096, "tokens of a training window", options->length);
  add_whole(*command, "--rows", 1, 1'024, "windows a step", options->rows);
  add_real(*command, "--rate", 0, 1, true, "AdamW's learning rate [0.001; adapters 0.0005]", options->rate);
  add_run_options(*command, options->seed, options->threads, options->keep_seconds, options->fresh);
  command->add_flag("--f32", options->f32, "write a whole model in float32 instead of q8_0");
  command->callback([options, &exit_code] {
    Status status;
    if ((options->minutes > 0) == (options->steps > 0))
      status = {Code::kInvalid, "say how long to train: either --time-budget MINUTES or --steps N"};
    if (status.is_ok() && options->rank > 0 && options->f32)
      status = {Code::kInvalid, "--f32 is for whole models; adapters are written in half precision"};
    if (status.is_ok()) status = tune(*options);
    if (!status.is_ok()) exit_code = cli::fail(status);
  });
}

}  // namespace drift::train
