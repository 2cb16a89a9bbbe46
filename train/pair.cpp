#include "train/pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "cli/console.hpp"
#include "cli/models.hpp"
#include "cli/output_file.hpp"
#include "drift/base/check.hpp"
#include "drift/base/version.hpp"
#include "engines/torch/gguf_write.hpp"
#include "text/printable.hpp"
#include "train/checkpoint.hpp"
#include "train/clock.hpp"
#include "train/corpus.hpp"
#include "train/memory.hpp"
#include "train/out_file.hpp"
#include "train/sampling.hpp"
#include "train/stage.hpp"
#include "train/workers.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kShareTarget = 0.58, kShareDraft = 0.06, kShareSamples = 0.09;  // of the time; distillation gets what is left
constexpr std::int64_t kEvalWindows = 8;                                         // per domain, while training
constexpr std::int64_t kFinalWindows = 64;                                       // per domain, at the end
constexpr const char* kFiles[] = {"checkpoint.safetensors", "tokenizer.gguf", "target-q8_0.gguf", "draft-q8_0.gguf",
                                  "target-f32.gguf",        "draft-f32.gguf", "recipe.json"};
constexpr std::int64_t kSampleRows = 32;        // in a round
constexpr std::int64_t kSampleRowsMax = 8'192;  // in all: more than the draft can pass over
// How long the prompts of a round are and how hot each row is drawn; both in turn. Drafts are used from temperature 0 to 1.
constexpr std::int64_t kPromptTokens[] = {16, 64, 192};
constexpr double kSampleTemperatures[] = {0.3, 0.5, 0.5, 1.0};
constexpr std::uint64_t kSeedTarget = 0, kSeedDraft = 1, kSeedTargetRows = 2, kSeedDraftRows = 3, kSeedPrompts = 4,
                        kSeedSamples = 5, kSeedDistilText = 6, kSeedDistilSamples = 7;
constexpr std::uint64_t kSeedStride = 1'000;  // between the uses above: windows take several seeds in a row

json shape_json(const engine::ModelShape& shape) {
  return {{"width", shape.width}, {"layers", shape.layers}, {"heads", shape.heads},
          {"ffn", shape.ffn},     {"vocab", shape.vocab},   {"parameters", engine::parameter_count(shape)}};
}

// Names of domains are names of files, keys of the recipe and words on a terminal.
Status check_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (text::printable(name) != name)
      return {Code::kInvalid,
              fmt::format("the domain '{}' has a name that is not UTF-8, or with control characters; rename its text",
                          text::printable(name))};
    if (std::count(names.begin(), names.end(), name) > 1)
      return {Code::kInvalid,
              fmt::format("--domains names '{}' twice; give --weight {}=2 to pass over its text twice as often", name, name)};
  }
  return Status::ok();
}

// What write_gguf would refuse once all is trained.
Status check_blocks(const char* whose, const engine::ModelShape& shape) {
  if (engine::fits_blocks(shape)) return Status::ok();
  return {Code::kInvalid, fmt::format("--{0}-width {1} and --{0}-ffn {2} must be multiples of 32, which q8_0 stores", whose,
                                      shape.width, shape.ffn)};
}

class PairRun {
 public:
  explicit PairRun(PairOptions options) : options_(std::move(options)) {}

  Status read_texts();  // and what the options say of them; writes nothing
  Status prepare();
  Status resume();
  Status train();
  Status write();

 private:
  std::uint64_t seed(std::uint64_t use) const { return options_.seed * 100 * kSeedStride + use * kSeedStride; }
  std::string file(const std::string& name) const { return (fs::path(options_.out) / name).string(); }
  bool by_time() const { return options_.minutes > 0; }
  Budget budget(std::int64_t steps, double seconds) const {
    return by_time() ? Budget{.seconds = std::max(1.0, seconds)} : Budget{.steps = steps};
  }
  double total_seconds() const { return options_.minutes * 60; }

  Status keep(const NamedTensors& best) const;
  Status run(Stage stage, StageState& state, NamedTensors best);
  Status train_target();
  Status train_draft();
  Status write_samples();
  Status distil();
  torch::Tensor sample_round(std::int64_t round);
  json held_out(engine::LlamaNet& net);

  PairOptions options_;
  json recipe_;  // what the result depends on: a checkpoint of another one is refused
  std::vector<Domain> domains_;
  std::vector<Stream> streams_;
  std::size_t general_ = 0;  // its place among both
  std::optional<engine::GgufMeta> target_meta_, draft_meta_;
  engine::LlamaNet target_{nullptr}, draft_{nullptr};
  std::optional<Optimiser> target_optimiser_, draft_optimiser_;
  StageState target_state_, draft_state_, samples_state_, distil_state_;
  std::vector<torch::Tensor> sampled_;  // rounds, int32 [kSampleRows, length + 1]; the first one continues text held out
  NamedTensors best_;                   // of the stage under way, from the checkpoint
};

Status PairRun::read_texts() {
  const bool all = options_.domains.empty();
  if (all) {
    DRIFT_ASSIGN(options_.domains, domains_in(options_.data));
  }
  DRIFT_TRY(check_names(options_.domains));
  const auto at = std::find(options_.domains.begin(), options_.domains.end(), options_.general);
  if (at == options_.domains.end())
    return {Code::kInvalid,
            fmt::format("the draft learns the domain '{}', which is not among the texts in {}; name one with --general",
                        options_.general, options_.data)};
  general_ = static_cast<std::size_t>(at - options_.domains.begin());
  for (const auto& [name, weight] : options_.weights)
    if (std::find(options_.domains.begin(), options_.domains.end(), name) == options_.domains.end())
      return {Code::kInvalid, fmt::format("--weight names '{}', which is not among the domains", name)};
  for (const std::string& name : options_.domains) {
    DRIFT_ASSIGN(Domain domain, read_domain(options_.data, name));
    domains_.push_back(std::move(domain));
  }

  json texts = json::object();
  for (const Domain& domain : domains_) {
    const auto weight = options_.weights.find(domain.name);
    texts[domain.name] = {
        {"bytes", domain.bytes}, {"sha256", domain.sha256}, {"weight", weight == options_.weights.end() ? 1.0 : weight->second}};
  }
  for (engine::ModelShape* shape : {&options_.target, &options_.draft}) {
    shape->vocab = options_.vocab;
    shape->kv_heads = shape->heads;
    shape->context = options_.context;
    DRIFT_TRY(engine::check_shape(*shape));
  }
  DRIFT_TRY(check_blocks("target", options_.target));
  DRIFT_TRY(check_blocks("draft", options_.draft));
  DRIFT_TRY(check_memory(engine::parameter_count(options_.target) + engine::parameter_count(options_.draft)));
  const Rates& rates = options_.rates;
  recipe_ = {
      {"texts", texts},
      {"general", options_.general},
      {"target", shape_json(options_.target)},
      {"draft", shape_json(options_.draft)},
      {"window", options_.length},
      {"rows", options_.rows},
      {"context", options_.context},
      {"seed", options_.seed},
      {"rates", {{"muon", rates.muon}, {"adam", rates.adam}, {"momentum", rates.momentum}, {"weight_decay", rates.weight_decay}}},
      {"steps", by_time() ? json("by the clock")
                          : json{{"target", options_.steps.target},
                                 {"draft", options_.steps.draft},
                                 {"samples", options_.steps.samples},
                                 {"distil", options_.steps.distil}}}};
  return Status::ok();
}

Status PairRun::prepare() {
  cli::write_out(fmt::format("vocabulary: {} tokens from {} domains\n", options_.vocab, domains_.size()));
  DRIFT_ASSIGN(const Vocabulary vocabulary, vocabulary_of(domains_, static_cast<std::size_t>(options_.vocab)));
  DRIFT_ASSIGN(target_meta_, meta_of(vocabulary, "drift built-in target"));
  DRIFT_ASSIGN(draft_meta_, meta_of(vocabulary, "drift built-in draft"));
  DRIFT_ASSIGN(const std::shared_ptr<const engine::LlamaModel> tokenizer, load_tokenizer(*target_meta_, file("tokenizer.gguf")));
  for (const Domain& domain : domains_) {
    const double weight = recipe_["texts"][domain.name]["weight"].get<double>();
    DRIFT_ASSIGN(Stream stream, tokenized(domain, tokenizer, options_.length, weight));
    cli::write_out(fmt::format("{}: {:.2f} MB, {} tokens to learn from, {} held out\n", domain.name,
                               static_cast<double>(domain.bytes) / 1e6, stream.train.size(), stream.held_out.size()));
    streams_.push_back(std::move(stream));
  }

  target_ = engine::LlamaNet(options_.target);
  draft_ = engine::LlamaNet(options_.draft);
  target_->init_weights(seed(kSeedTarget));
  draft_->init_weights(seed(kSeedDraft));
  target_optimiser_.emplace(target_, options_.rates);
  draft_optimiser_.emplace(draft_, options_.rates);
  return Status::ok();
}

// Goes on where the checkpoint stands, if there is one.
Status PairRun::resume() {
  const std::string path = file("checkpoint.safetensors");
  std::error_code error;
  if (options_.fresh || !fs::exists(path, error)) return Status::ok();
  DRIFT_ASSIGN(const Checkpoint checkpoint, read_checkpoint(path));
  const auto facts = [&](const char* key) { return checkpoint.facts.value(key, json::object()); };
  DRIFT_TRY(check_recipe(path, checkpoint, recipe_));
  DRIFT_ASSIGN(target_state_, StageState::from(facts("target")));
  DRIFT_ASSIGN(draft_state_, StageState::from(facts("draft")));
  DRIFT_ASSIGN(samples_state_, StageState::from(facts("samples")));
  DRIFT_ASSIGN(distil_state_, StageState::from(facts("distil")));
  for (const auto& [name, tensor] : weights_of(target_, "target.")) DRIFT_TRY(checkpoint.restore(name, tensor));
  for (const auto& [name, tensor] : weights_of(draft_, "draft.")) DRIFT_TRY(checkpoint.restore(name, tensor));
  for (const auto& [name, tensor] : target_optimiser_->state()) DRIFT_TRY(checkpoint.restore("target_optimiser." + name, tensor));
  for (const auto& [name, tensor] : draft_optimiser_->state()) DRIFT_TRY(checkpoint.restore("draft_optimiser." + name, tensor));
  target_optimiser_->set_steps(target_state_.step);
  draft_optimiser_->set_steps(draft_state_.step + distil_state_.step);
  for (std::int64_t round = 0; round < samples_state_.step; ++round) {
    torch::Tensor rows = torch::empty({kSampleRows, options_.length + 1}, torch::kInt);
    DRIFT_TRY(checkpoint.restore(fmt::format("samples.{}", round), rows));
    sampled_.push_back(std::move(rows));
  }
  // The order of the names in the file is not that of the network.
  const engine::LlamaNet& net = target_state_.done ? draft_ : target_;
  DRIFT_TRY(restore_best(checkpoint, net, best_));
  cli::write_out(fmt::format("going on: target {} steps, draft {}, {} rounds of samples, distillation {}\n", target_state_.step,
                             draft_state_.step, samples_state_.step, distil_state_.step));
  return Status::ok();
}

Status PairRun::keep(const NamedTensors& best) const {
  const json facts = {{"recipe", recipe_},
                      {"target", target_state_.json()},
                      {"draft", draft_state_.json()},
                      {"samples", samples_state_.json()},
                      {"distil", distil_state_.json()}};
  NamedTensors all = weights_of(target_, "target.");
  const auto append = [&](const NamedTensors& more, const std::string& prefix) {
    for (const auto& [name, tensor] : more) all.emplace_back(prefix + name, tensor);
  };
  append(weights_of(draft_, "draft."), "");
  append(target_optimiser_->state(), "target_optimiser.");
  append(draft_optimiser_->state(), "draft_optimiser.");
  append(best, "");
  for (std::size_t round = 0; round < sampled_.size(); ++round)
    all.emplace_back(fmt::format("samples.{}", round), sampled_[round]);
  return write_checkpoint(file("checkpoint.safetensors"), facts, all);
}

Status PairRun::run(Stage stage, StageState& state, NamedTensors best) {
  stage.workers = options_.threads;
  return run_stage(stage, state, std::move(best), options_.keep_seconds, [this](const NamedTensors& now) { return keep(now); });
}

Status PairRun::train_target() {
  std::vector<const Stream*> all;
  std::vector<torch::Tensor> held_out;
  for (const Stream& stream : streams_) {
    all.push_back(&stream);
    held_out.push_back(held_out_windows(stream, options_.length, kEvalWindows));
  }
  Windows windows(std::move(all), options_.length, seed(kSeedTargetRows));
  Stage stage;
  stage.name = "target";
  stage.net = target_;
  stage.optimiser = &*target_optimiser_;
  stage.rows = [&](std::int64_t step) { return windows.take(static_cast<std::uint64_t>(step * options_.rows), options_.rows); };
  stage.loss = [this](const torch::Tensor& rows) { return next_token_loss(target_, rows); };
  stage.evaluate = [&] {
    Evaluation evaluation{0, json::object()};
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const double loss = held_out_loss(target_, held_out[i], options_.threads);
      evaluation.detail[streams_[i].domain] = loss;
      evaluation.score += loss / static_cast<double>(streams_.size());
    }
    return evaluation;
  };
  stage.budget = budget(options_.steps.target, kShareTarget * total_seconds());
  return run(std::move(stage), target_state_, std::exchange(best_, {}));
}

Status PairRun::train_draft() {
  Windows windows({&streams_[general_]}, options_.length, seed(kSeedDraftRows));
  const torch::Tensor held_out = held_out_windows(streams_[general_], options_.length, 2 * kEvalWindows);
  Stage stage;
  stage.name = "draft";
  stage.net = draft_;
  stage.optimiser = &*draft_optimiser_;
  stage.rows = [&](std::int64_t step) { return windows.take(static_cast<std::uint64_t>(step * options_.rows), options_.rows); };
  stage.loss = [this](const torch::Tensor& rows) { return next_token_loss(draft_, rows); };
  stage.evaluate = [&] {
    const double loss = held_out_loss(draft_, held_out, options_.threads);
    return Evaluation{loss, {{options_.general, loss}}};
  };
  stage.budget = budget(options_.steps.draft, kShareDraft * total_seconds());
  return run(std::move(stage), draft_state_, std::exchange(best_, {}));
}

// A round is a pure function of its number and the target's weights, whichever thread writes it.
torch::Tensor PairRun::sample_round(std::int64_t round) {
  const std::int64_t given = std::min(kPromptTokens[round % std::ssize(kPromptTokens)], options_.length / 2);
  torch::Tensor prompts;
  if (round == 0) {  // for evaluation; shorter prompts where little is held out
    prompts = held_out_windows(streams_[general_], given, kSampleRows);
    prompts = prompts.narrow(1, 0, prompts.size(1) - 1);
    prompts = prompts.index_select(0, torch::arange(kSampleRows).remainder(prompts.size(0)));
  } else {
    Windows windows({&streams_[general_]}, options_.length, seed(kSeedPrompts));
    prompts = windows.take(static_cast<std::uint64_t>((round - 1) * kSampleRows), kSampleRows).narrow(1, 0, given);
  }
  std::vector<double> temperatures;
  for (std::int64_t row = 0; row < kSampleRows; ++row)
    temperatures.push_back(kSampleTemperatures[row % std::ssize(kSampleTemperatures)]);
  return sample_rows(target_, prompts, options_.length + 1, temperatures, seed(kSeedSamples) + static_cast<std::uint64_t>(round));
}

Status PairRun::write_samples() {
  Rounds rounds;
  rounds.write = [&](std::int64_t first, int count) {
    std::vector<torch::Tensor> fresh(static_cast<std::size_t>(count));
    run_workers(count, [&](int worker) { fresh[static_cast<std::size_t>(worker)] = sample_round(first + worker); });
    sampled_.insert(sampled_.end(), fresh.begin(), fresh.end());
    return Status::ok();
  };
  rounds.budget = budget(options_.steps.samples, kShareSamples * total_seconds());
  rounds.least = 2;  // one to evaluate on, one to learn from
  rounds.most = kSampleRowsMax / kSampleRows;
  rounds.texts = kSampleRows, rounds.tokens = kSampleRows * options_.length;
  rounds.workers = options_.threads;
  return run_rounds(rounds, samples_state_, options_.keep_seconds, [this](const NamedTensors& best) { return keep(best); });
}

Status PairRun::distil() {
  Windows windows({&streams_[general_]}, options_.length, seed(kSeedDistilText));
  const torch::Tensor learn = torch::cat(std::vector<torch::Tensor>(sampled_.begin() + 1, sampled_.end()));
  const torch::Tensor own = sampled_.front().to(torch::kLong);
  const torch::Tensor text = held_out_windows(streams_[general_], options_.length, 2 * kEvalWindows);
  Shuffled order(seed(kSeedDistilSamples), static_cast<std::size_t>(learn.size(0)));
  // Half of the rows of a step are text, half the target's own; each share gets some of both.
  const std::int64_t text_rows = (options_.rows + 1) / 2, own_rows = options_.rows - text_rows;
  Stage stage;
  stage.name = "distil";
  stage.net = draft_;
  stage.optimiser = &*draft_optimiser_;
  stage.rows = [&](std::int64_t step) {
    const torch::Tensor from_text = windows.take(static_cast<std::uint64_t>(step * text_rows), text_rows);
    std::vector<torch::Tensor> rows;
    for (std::int64_t i = 0; i < text_rows; ++i) {
      rows.push_back(from_text[i]);
      if (i >= own_rows) continue;
      const std::size_t at = order.at(static_cast<std::uint64_t>(step * own_rows + i)).index;
      rows.push_back(learn[static_cast<std::int64_t>(at)].to(torch::kLong));
    }
    return torch::stack(rows);
  };
  stage.loss = [this](const torch::Tensor& rows) { return distillation_loss(draft_, rows, teacher_logits(target_, rows)); };
  stage.evaluate = [&] {
    const Agreement on_text = agreement(target_, draft_, text, options_.threads);
    const Agreement on_own = agreement(target_, draft_, own, options_.threads);
    return Evaluation{on_text.kl + on_own.kl,
                      {{"text_kl", on_text.kl},
                       {"text_match", on_text.match},
                       {"text_overlap", on_text.overlap},
                       {"own_kl", on_own.kl},
                       {"own_match", on_own.match},
                       {"own_overlap", on_own.overlap}}};
  };
  const double spent = target_state_.seconds + draft_state_.seconds + samples_state_.seconds;
  stage.budget = budget(options_.steps.distil, total_seconds() - spent);
  return run(std::move(stage), distil_state_, std::exchange(best_, {}));
}

Status PairRun::train() {
  DRIFT_TRY(train_target());
  DRIFT_TRY(train_draft());
  DRIFT_TRY(write_samples());
  return distil();
}

json PairRun::held_out(engine::LlamaNet& net) {
  json all = json::object();
  for (const Stream& stream : streams_) {
    const torch::Tensor rows = held_out_windows(stream, options_.length, kFinalWindows);
    const double loss = held_out_loss(net, rows, options_.threads);
    all[stream.domain] = {{"tokens", rows.size(0) * (rows.size(1) - 1)}, {"loss", loss}, {"perplexity", std::exp(loss)}};
  }
  return all;
}

Status PairRun::write() {
  json files = json::object();
  const auto write_file = [&](const std::string& name, const engine::LlamaNet& net, const engine::GgufMeta& meta,
                              engine::GgufType type) -> Status {
    DRIFT_TRY(engine::write_gguf(file(name), net, meta, type));
    DRIFT_ASSIGN(const std::string sha256, cli::file_sha256(file(name)));
    files[name] = {{"bytes", fs::file_size(file(name))}, {"sha256", sha256}};
    return Status::ok();
  };
  DRIFT_TRY(write_file("target-q8_0.gguf", target_, *target_meta_, engine::GgufType::kQ8_0));
  DRIFT_TRY(write_file("draft-q8_0.gguf", draft_, *draft_meta_, engine::GgufType::kQ8_0));
  if (options_.f32) {
    DRIFT_TRY(write_file("target-f32.gguf", target_, *target_meta_, engine::GgufType::kF32));
    DRIFT_TRY(write_file("draft-f32.gguf", draft_, *draft_meta_, engine::GgufType::kF32));
  }
  const json held = {{"target", held_out(target_)}, {"draft", held_out(draft_)}};
  json tokens = json::object();
  for (const Stream& stream : streams_)
    tokens[stream.domain] = {{"train", stream.train.size()}, {"held_out", stream.held_out.size()}};
  const auto stage = [&](const StageState& state, std::int64_t tokens_a_step) {
    return json{{"steps", state.step},
                {"tokens", state.step * tokens_a_step},
                {"seconds", std::round(state.seconds)},
                {"evaluations", state.evaluations}};
  };
  const std::int64_t step_tokens = options_.rows * options_.length;
  const json out = {
      {"format", "drift-pair-1"},
      {"program", fmt::format("drift-train {} ({})", version(), commit())},
      {"recipe", recipe_},
      {"tokens", tokens},
      {"stages",
       {{"target", stage(target_state_, step_tokens)},
        {"draft", stage(draft_state_, step_tokens)},
        {"samples", stage(samples_state_, kSampleRows * (options_.length + 1))},
        {"distil", stage(distil_state_, step_tokens)}}},
      {"threads", options_.threads},
      {"held_out", held},
      {"files", files},
      {"draft_saw", fmt::format("the text of '{}' and what the target wrote after it; of the other domains nothing but the "
                                "vocabulary, which all domains share",
                                options_.general)}};
  DRIFT_TRY(cli::write_file_atomically(file("recipe.json"), out.dump(1) + "\n", {}));
  for (const auto& [domain, result] : held["target"].items())
    cli::write_out(fmt::format("{}: perplexity of text held out: target {:.1f}, draft {:.1f}\n", domain,
                               result["perplexity"].get<double>(), held["draft"][domain]["perplexity"].get<double>()));
  for (const auto& [name, facts] : files.items())
    cli::write_out(fmt::format("{}: {:.2f} MB\n", text::printable(file(name)), facts["bytes"].get<double>() / 1e6));
  return Status::ok();
}

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (std::error_code gone; !fs::is_directory(path, gone))
    return {Code::kIo, fmt::format("cannot make the folder {}: {}", path, error ? error.message() : "a file is in its place")};
  return Status::ok();
}

}  // namespace

PairOptions default_pair_options() {
  PairOptions options;
  options.target.width = 256, options.target.layers = 5, options.target.heads = 4, options.target.ffn = 768;
  options.draft.width = 256, options.draft.layers = 1, options.draft.heads = 4, options.draft.ffn = 768;
  return options;
}

Status make_pair(PairOptions options) {
  engine::use_threads(1);  // each worker has a matrix library to itself
  const fs::path out = options.out;
  PairRun run(std::move(options));
  DRIFT_TRY(run.read_texts());
  DRIFT_TRY(make_folder(out.string()));
  DRIFT_ASSIGN(const FileLock lock, FileLock::take((out / "lock").string(), "in " + out.string()));
  for (const char* name : kFiles) {
    const std::string path = (out / name).string();
    DRIFT_TRY(cli::check_writable(path, {}));
    remove_halves(path);
  }
  DRIFT_TRY(run.prepare());
  DRIFT_TRY(run.resume());
  DRIFT_TRY(run.train());
  return run.write();
}

}  // namespace drift::train
