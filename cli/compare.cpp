#include "cli/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/options.hpp"
#include "cli/output_file.hpp"

namespace drift::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  drift compare -m target.gguf -md draft.gguf --prompts law.jsonl --split eval --limit 20\n"
    "  drift compare -m T -md D --prompts law.jsonl --modes off,static,seed=drift:preset=seed,earned=drift:gain=earned --json "
    "out.json\n"
    "  drift compare -m T -md D --prompts notes.txt --verify-rows-one-by-one\n"
    "  drift compare -m T -md D --prompts shifting.jsonl --stream --json out.json   (then tools/picture.py out.json out)\n"
    "Prompts: .jsonl with {\"id\", \"domain\", \"kind\": \"instruction\"|\"prefix\", \"prompt\", \"split\"} a line (only "
    "\"prompt\" is needed);\n"
    "any other file is one prompt. Instructions get the chat template, prefixes none.\n"
    "Modes: [label=]MODE[:key=value,key=value...], separated by commas; MODE is off, static, drift, online-kd (a draft trained\n"
    "while it serves), or one that copies what followed earlier occurrences of the text's end: lookup (in the text itself),\n"
    "suffix (and in earlier answers), draft+suffix, drift+suffix (and the draft elsewhere). Keys are the long flags of "
    "Drafting,\n"
    "Copying, Bank and recalibration, and Online distillation without their dashes; model-draft=FILE gives a mode another draft\n"
    "than -md's.\n"
    "Exit codes: 0 done; 1 failure; 2 bad input; 3 a text left plain decoding's by more than float noise; 130 interrupted.";

// Files that must not be overwritten.
std::vector<std::string> inputs_of(const CompareOptions& options, const CompareResult& result) {
  std::vector<std::string> files = options.prompts.files;
  files.insert(files.end(), {options.pair.target, options.pair.draft, options.bank});
  for (const OtherDraft& draft : result.more_drafts) files.push_back(draft.path);
  for (const auto* adapters : {&options.pair.loras, &options.pair.loras_draft}) {
    for (const engine::LoraAdapter& adapter : *adapters) files.push_back(adapter.path);
  }
  return files;
}

// An older report is not replaced by one without a single figure.
Status write_json(const CompareOptions& options, const CompareResult& result) {
  if (options.json.empty()) return Status::ok();
  if (result.done_runs > 0) return write_file_atomically(options.json, report_json(options, result), inputs_of(options, result));
  note(fmt::format("no run was done; {} was not written", options.json));
  return Status::ok();
}

// What a mode that trains its draft cannot have, as far as it can be told before a model is read.
Status check_learning(const CompareOptions& options, const Variant& variant) {
  DRIFT_TRY(check_torch(fmt::format("mode '{}'", variant.label)));
  if (!options.pair.loras_draft.empty())
    return {Code::kInvalid,
            fmt::format("mode '{}' trains the draft's own weights; --lora-draft cannot be given with it", variant.label)};
  const Status valid = variant.settings.kd.validate(/*vocab=*/1);
  if (!valid.is_ok()) return {valid.code(), fmt::format("mode '{}': {}", variant.label, valid.message())};
  return Status::ok();
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

// The place of a mode's draft among the result's drafts. A file is loaded once, however many modes name it.
std::size_t draft_of(const Variant& variant, const PairOptions& pair, std::vector<OtherDraft>& more) {
  const std::string& path = variant.settings.model_draft;
  if (path.empty() || same_file(path, pair.draft)) return 0;
  const auto it = std::find_if(more.begin(), more.end(), [&](const OtherDraft& draft) { return same_file(path, draft.path); });
  if (it == more.end()) {
    more.push_back({path, fmt::format("model-draft in mode '{}'", variant.label)});
    return more.size();
  }
  return static_cast<std::size_t>(it - more.begin()) + 1;
}

Status prepare(const CompareOptions& options, CompareResult& result) {
  DRIFT_TRY(options.sampler.validate());
  DRIFT_ASSIGN(std::vector<Variant> variants, parse_modes(options.modes, options.settings));
  for (Variant& variant : variants) {
    if (decode::drafts(variant.mode) && options.pair.draft.empty()) {
      return {Code::kInvalid,
              fmt::format("mode '{}' needs a draft: give one with -md, or use --modes off,lookup,suffix", variant.label)};
    }
    if (decode::learns(variant.mode)) DRIFT_TRY(check_learning(options, variant));
    if (variant.mode == decode::Mode::kOff && !result.reference) result.reference = result.variants.size();
    VariantResult v;
    if (decode::drafts(variant.mode)) v.draft = draft_of(variant, options.pair, result.more_drafts);
    if (v.draft > 0 && decode::recalibrates(variant.mode) && !options.bank.empty())
      return {Code::kInvalid, fmt::format("--bank is a bank of -md's draft, and mode '{}' has another", variant.label)};
    v.variant = std::move(variant);
    result.variants.push_back(std::move(v));
  }
  DRIFT_ASSIGN(result.prompts, chosen_prompts(options.prompts));
  if (options.stream) result.segments = segments_of(result.prompts);
  if (!options.json.empty()) DRIFT_TRY(check_writable(options.json, inputs_of(options, result)));
  return Status::ok();
}

void describe(const Pair& pair, const CompareOptions& options, CompareResult& result) {
  result.target = pair.target->info();
  if (pair.draft) result.drafts.push_back(pair.draft->info());
  for (const Draft& draft : pair.more_drafts) result.drafts.push_back(draft.engine->info());
  result.vocab = pair.vocab;
  result.context = pair.context;
  result.load_s = pair.load_s;
  result.machine = this_machine(options.pair.threads);
}

// A bank's keys are hidden states, and the stepper takes keys of one width.
Status check_keys(const CompareResult& result) {
  for (const VariantResult& v : result.variants) {
    if (!decode::recalibrates(v.variant.mode)) continue;
    const std::size_t pairs = result.drafts[0].hidden_width, own = result.drafts[v.draft].hidden_width;
    if (own != pairs) {
      return {Code::kUnsupported, fmt::format("mode '{}': its draft has hidden states of {} numbers, -md's of {}; modes that "
                                              "recalibrate need drafts of one width",
                                              v.variant.label, own, pairs)};
    }
  }
  return Status::ok();
}

Result<int> compare(const CompareOptions& options) {
  CompareResult result;
  DRIFT_TRY(prepare(options, result));
  PairOptions models = options.pair;
  models.more_drafts = result.more_drafts;
  DRIFT_ASSIGN(Pair pair, load_pair(models));
  describe(pair, options, result);
  DRIFT_TRY(check_keys(result));
  pair.target->set_one_row_at_a_time(options.one_by_one);
  if (!write_out(report_settings(options, result))) return kExitOk;  // main() tells of a closed or full output
  const Status status = run_modes(options, pair, result);
  if (!status.is_ok()) {
    if (result.done_runs == 0) return status;
    note(status.message());  // what was done is still told
    result.partial = true;
  }
  summarise(options, result);
  write_out(report_text(options, result));
  DRIFT_TRY(write_json(options, result));
  if (!status.is_ok()) return exit_code_of(status.code());
  if (result.partial) return kExitInterrupted;
  const bool beyond =
      std::any_of(result.variants.begin(), result.variants.end(), [](const VariantResult& v) { return v.beyond; });
  if (beyond) note("a mode's text left plain decoding's by more than float noise explains; see the report above");
  return beyond ? kExitDivergence : kExitOk;
}

}  // namespace

void add_compare_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command =
      app.add_subcommand("compare", "The same prompts under several modes: acceptance, speed, and whether the texts are equal");
  command->footer(kExamples);
  add_pair_options(*command, options->pair);
  add_prompt_options(*command, options->prompts);
  add_int(*command, "-n,--predict", 1, 1 << 20, "tokens to generate per prompt [128]",
          [options](std::int64_t v) { options->generate = v; });
  command->add_flag("--stream", options->stream,
                    "the prompts are one stream whose domain shifts: tell it by segment (prompts of one domain in a row), and "
                    "write the curve to --json");
  command->add_option("--modes", options->modes, "the modes, see below [off,static,drift]")->type_name("LIST");
  add_int(*command, "--repeat", 1, 100, "run everything so many times, banks as at the start each time [1]",
          [options](std::int64_t v) { options->repeats = static_cast<int>(v); });
  add_text(*command, "--json", "FILE", "also write the figures to this file (docs/compare-format.md)", options->json);
  add_text(*command, "--bank", "FILE", "begin drift modes with this bank instead of an empty one; it is only read",
           options->bank);
  command->add_flag("--verify-rows-one-by-one", options->one_by_one,
                    "decode every row of the target alone: slow, and then all texts must be identical");
  add_sampler_options(*command, options->sampler, options->seed);
  add_setting_options(*command, options->settings, /*learning=*/true);
  command->callback([options, &exit_code] {
    const Result<int> code = compare(*options);
    exit_code = code.is_ok() ? code.value() : fail(code.status());
  });
}

}  // namespace drift::cli
