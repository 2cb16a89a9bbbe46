#include "train/draft.hpp"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "cli/console.hpp"
#include "cli/models.hpp"
#include "drift/base/check.hpp"
#include "engines/llama/engine.hpp"
#include "engines/llama/text.hpp"
#include "engines/torch/gguf_read.hpp"
#include "text/printable.hpp"
#include "train/corpus.hpp"
#include "train/memory.hpp"
#include "train/narrow_embedding.hpp"
#include "train/out_file.hpp"
#include "train/sampling.hpp"
#include "train/shortlist.hpp"
#include "train/stage.hpp"
#include "train/workers.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Of the time; distillation gets what is left. Samples are dear and the draft soon knows them by heart, so they get most.
constexpr double kShareSamples = 0.6, kShareText = 0.15;
constexpr std::int64_t kSampleRows = 16;  // texts of a round, decoded together
constexpr std::int64_t kHeldOutRounds = 2;
constexpr std::int64_t kRoundsMax = 4'096;
constexpr std::int64_t kTop = 20;  // tokens in a label
// How long the openings of a round are and how hot each text is drawn; both in turn. Drafts are used from temperature 0 to 1.
constexpr std::int64_t kOpeningTokens[] = {16, 32, 48};
constexpr double kTemperatures[] = {0.3, 0.7, 0.7, 1.0};
constexpr double kShareLabels = 0.7, kShareBest = 0.3;  // of the loss
constexpr int kTextEvaluations = 4, kDistilEvaluations = 12;
constexpr std::uint64_t kSeedWeights = 0, kSeedOpenings = 1, kSeedSamples = 2, kSeedText = 3, kSeedTextLists = 4, kSeedOrder = 5,
                        kSeedLists = 6, kSeedNoise = 7;
constexpr std::uint64_t kSeedStride = 1'000'000;  // between the uses above: rounds and steps take several seeds in a row

// What write_gguf would refuse once all is done.
Status check_blocks(const engine::ModelShape& shape, engine::GgufType type) {
  const bool blocks = type == engine::GgufType::kQ8_0 || type == engine::GgufType::kQ4_0;
  if (!blocks || engine::fits_blocks(shape)) return Status::ok();
  return {Code::kInvalid, fmt::format("--width {} and --ffn {} must be multiples of 32 for q8_0 and q4_0; or take --type f16",
                                      shape.width, shape.ffn)};
}

class DraftRun {
 public:
  explicit DraftRun(DraftOptions options) : options_(std::move(options)), checkpoint_path_(options_.out + ".checkpoint") {}

  Status prepare();
  Status resume();
  Status write_samples();
  void begin_with_targets_embedding();
  Status learn_text();
  Status distil();
  Status write();

 private:
  bool by_time() const { return options_.minutes > 0; }
  std::uint64_t seed(std::uint64_t use) const { return (options_.seed * 100 + use) * kSeedStride; }
  double total_seconds() const { return options_.minutes * 60; }
  std::int64_t vocab() const { return options_.shape.vocab; }
  std::int64_t learnt_steps() const { return text_state_.step + distil_state_.step; }
  std::int64_t label_top() const { return std::min(kTop, vocab()); }

  Status keep(const NamedTensors& best) const;
  torch::Tensor openings(std::int64_t round);
  Writing writing(std::int64_t round);
  void choose_shortlist(const torch::Tensor& labelled, std::uint64_t use, std::int64_t step);
  torch::Tensor log_q(const torch::Tensor& inputs, const torch::Tensor& tokens);
  static torch::Tensor loss(const torch::Tensor& log_q, const Labels& labels);
  Status run(Stage stage, StageState& state);
  Evaluation evaluate(int workers);

  DraftOptions options_;
  std::string checkpoint_path_;
  std::optional<FileLock> lock_;
  json recipe_;
  std::shared_ptr<engine::LlamaModel> target_;      // until the samples are written
  std::optional<engine::GgufEmbedding> embedding_;  // until training begins
  std::optional<engine::GgufMeta> meta_;
  Stream stream_;
  std::optional<Token> begin_;          // what the target wants before a text
  std::vector<Token> ends_;             // what ends one
  std::vector<LabelledRows> sampled_;   // rounds; the first kHeldOutRounds continue text held out
  LabelledRows all_;                    // of all rounds, once they are written
  torch::Tensor by_count_;              // int64 [vocab]: all tokens, the most frequent first
  std::optional<Shortlist> shortlist_;  // of the step under way
  engine::LlamaNet draft_{nullptr};
  std::optional<Optimiser> optimiser_;
  StageState samples_state_, text_state_, distil_state_;
  NamedTensors best_;
};

Status DraftRun::prepare() {
  DRIFT_ASSIGN(FileLock lock, take_out_file(options_.out, {options_.target, options_.text}));
  lock_.emplace(std::move(lock));
  DRIFT_ASSIGN(const Domain domain, read_text(options_.text));
  DRIFT_ASSIGN(const std::string target_sha256, cli::file_sha256(options_.target));
  DRIFT_ASSIGN(target_, engine::LlamaModel::load({.path = options_.target}));
  DRIFT_ASSIGN(embedding_, engine::read_gguf_embedding(options_.target));
  meta_ = engine::GgufMeta::from(embedding_->meta.fields(), "draft of " + embedding_->meta.name());
  const auto context = static_cast<std::int64_t>(target_->trained_context());
  if (options_.length > context)
    return {Code::kLimit, fmt::format("--window {} is longer than the target's context of {} tokens", options_.length, context)};
  engine::ModelShape& shape = options_.shape;
  shape.vocab = embedding_->weight.size(0);
  shape.kv_heads = shape.heads;
  shape.context = context;
  DRIFT_TRY(engine::check_shape(shape));
  DRIFT_TRY(check_blocks(shape, options_.type));
  DRIFT_TRY(check_memory(engine::parameter_count(shape)));

  const engine::LlamaText text(target_);
  DRIFT_ASSIGN(const std::vector<Token> begin, text.tokenize("", /*add_special=*/true, /*parse_special=*/false));
  if (!begin.empty()) begin_ = begin.front();
  for (Token token = 0; token < static_cast<Token>(vocab()); ++token)
    if (text.is_end(token)) ends_.push_back(token);
  DRIFT_ASSIGN(stream_, tokenized(domain, target_, options_.length, 1));
  cli::write_out(fmt::format("{}: {} tokens to cut openings from, {} held out; {} tokens in the target's vocabulary\n",
                             text::printable(options_.text), stream_.train.size(), stream_.held_out.size(), vocab()));
  recipe_ = {{"target", target_sha256},
             {"text", domain.sha256},
             {"shape", {{"width", shape.width}, {"layers", shape.layers}, {"heads", shape.heads}, {"ffn", shape.ffn}}},
             {"window", options_.length},
             {"rows", options_.rows},
             {"shortlist", options_.shortlist},
             {"rates", {{"muon", options_.rates.muon}, {"adam", options_.rates.adam}}},
             {"seed", options_.seed},
             {"steps",
              by_time() ? json("by the clock")
                        : json{{"samples", options_.rounds}, {"text", options_.text_steps}, {"distil", options_.distil_steps}}}};
  draft_ = engine::LlamaNet(shape);
  draft_->init_weights(seed(kSeedWeights));
  optimiser_.emplace(draft_, options_.rates);
  cli::write_out(fmt::format("draft: {:.2f} M parameters\n", static_cast<double>(engine::parameter_count(shape)) / 1e6));
  return Status::ok();
}

Status DraftRun::resume() {
  std::error_code error;
  if (options_.fresh || !fs::exists(checkpoint_path_, error)) return Status::ok();
  DRIFT_ASSIGN(const Checkpoint checkpoint, read_checkpoint(checkpoint_path_));
  DRIFT_TRY(check_recipe(checkpoint_path_, checkpoint, recipe_));
  DRIFT_ASSIGN(samples_state_, StageState::from(checkpoint.facts.value("samples", json())));
  DRIFT_ASSIGN(text_state_, StageState::from(checkpoint.facts.value("text", json())));
  DRIFT_ASSIGN(distil_state_, StageState::from(checkpoint.facts.value("distil", json())));
  const std::int64_t length = options_.length, top = label_top();
  for (std::int64_t round = 0; round < samples_state_.step; ++round) {
    LabelledRows rows{torch::empty({kSampleRows, length + 1}, torch::kInt),
                      {torch::empty({kSampleRows, length, top}, torch::kInt), torch::empty({kSampleRows, length, top})}};
    DRIFT_TRY(checkpoint.restore(fmt::format("samples.{}.rows", round), rows.rows));
    DRIFT_TRY(checkpoint.restore(fmt::format("samples.{}.tokens", round), rows.labels.tokens));
    DRIFT_TRY(checkpoint.restore(fmt::format("samples.{}.log_p", round), rows.labels.log_p));
    sampled_.push_back(std::move(rows));
  }
  if (learnt_steps() > 0) DRIFT_TRY(restore_training(checkpoint, draft_, *optimiser_, learnt_steps(), best_));
  cli::write_out(fmt::format("going on: {} rounds of samples, {} steps on text, distillation {}\n", samples_state_.step,
                             text_state_.step, distil_state_.step));
  return Status::ok();
}

Status DraftRun::keep(const NamedTensors& best) const {
  // Before the first step the weights follow from the samples.
  NamedTensors all;
  if (learnt_steps() > 0) all = training_tensors(draft_, *optimiser_, best);
  for (std::size_t round = 0; round < sampled_.size(); ++round) {
    all.emplace_back(fmt::format("samples.{}.rows", round), sampled_[round].rows);
    all.emplace_back(fmt::format("samples.{}.tokens", round), sampled_[round].labels.tokens);
    all.emplace_back(fmt::format("samples.{}.log_p", round), sampled_[round].labels.log_p);
  }
  const json facts = {
      {"recipe", recipe_}, {"samples", samples_state_.json()}, {"text", text_state_.json()}, {"distil", distil_state_.json()}};
  return write_checkpoint(checkpoint_path_, facts, all);
}

// int64 [kSampleRows, tokens]: the beginnings of windows, of text held out for the first rounds.
torch::Tensor DraftRun::openings(std::int64_t round) {
  const std::int64_t given = std::min(kOpeningTokens[round % std::ssize(kOpeningTokens)], options_.length / 2);
  torch::Tensor cut;
  if (round < kHeldOutRounds) {
    cut = held_out_windows(stream_, given, kHeldOutRounds * kSampleRows);
    const torch::Tensor at = torch::arange(round * kSampleRows, (round + 1) * kSampleRows).remainder(cut.size(0));
    cut = cut.index_select(0, at).narrow(1, 0, cut.size(1) - 1);
  } else {
    Windows windows({&stream_}, options_.length, seed(kSeedOpenings));
    cut = windows.take(static_cast<std::uint64_t>((round - kHeldOutRounds) * kSampleRows), kSampleRows).narrow(1, 0, given);
  }
  if (!begin_) return cut;
  return torch::cat({torch::full({kSampleRows, 1}, *begin_, torch::kLong), cut}, 1).narrow(1, 0, cut.size(1));
}

// A round is a pure function of its number, the target and the options, whichever thread writes it.
Writing DraftRun::writing(std::int64_t round) {
  Writing writing;
  writing.prompts = openings(round);
  writing.length = options_.length;
  for (std::int64_t row = 0; row < kSampleRows; ++row)
    writing.temperatures.push_back(kTemperatures[row % std::ssize(kTemperatures)]);
  writing.top = label_top();
  writing.never = ends_;
  writing.seed = seed(kSeedSamples) + static_cast<std::uint64_t>(round);
  return writing;
}

Status DraftRun::write_samples() {
  if (!samples_state_.done) {
    std::vector<std::unique_ptr<engine::LlamaEngine>> writers;
    for (int worker = 0; worker < options_.threads; ++worker) {
      engine::LlamaConfig config;
      config.context = static_cast<int>(options_.length);
      config.max_sequences = static_cast<int>(kSampleRows);
      config.threads = 1;  // a round each: threads of one batch would wait for each other at every layer
      config.n_batch = config.n_ubatch = static_cast<int>(kWriteNodesMax);
      config.shared_cells = false;
      DRIFT_ASSIGN(std::unique_ptr<engine::LlamaEngine> writer, engine::LlamaEngine::make(target_, config));
      writers.push_back(std::move(writer));
    }
    Rounds rounds;
    rounds.write = [&](std::int64_t first, int count) {
      std::vector<std::optional<Result<LabelledRows>>> fresh(static_cast<std::size_t>(count));
      run_workers(count, [&](int worker) {
        const auto w = static_cast<std::size_t>(worker);
        fresh[w] = write_rows(*writers[w], writing(first + worker), [](std::int64_t) { return !cli::interrupted(); });
      });
      for (const auto& round : fresh) DRIFT_TRY(round->status());
      for (auto& round : fresh) sampled_.push_back(std::move(*round).value());
      return Status::ok();
    };
    rounds.budget = by_time() ? Budget{.seconds = kShareSamples * total_seconds()} : Budget{.steps = options_.rounds};
    rounds.least = kHeldOutRounds + 1;  // one to learn from
    rounds.most = kRoundsMax;
    rounds.texts = kSampleRows, rounds.tokens = kSampleRows * options_.length;
    rounds.workers = options_.threads;
    DRIFT_TRY(run_rounds(rounds, samples_state_, options_.keep_seconds, [this](const NamedTensors& best) { return keep(best); }));
  }
  target_.reset();
  std::vector<torch::Tensor> rows, tokens, log_p;
  for (const LabelledRows& round : sampled_) {
    rows.push_back(round.rows.to(torch::kLong));
    tokens.push_back(round.labels.tokens);
    log_p.push_back(round.labels.log_p);
  }
  all_ = {torch::cat(rows), {torch::cat(tokens), torch::cat(log_p)}};
  return Status::ok();
}

// How often the target expects each token in what it wrote decides which of its embedding's dimensions matter; and which tokens
// are frequent.
void DraftRun::begin_with_targets_embedding() {
  torch::Tensor counts = torch::zeros({vocab()}, torch::kDouble);
  counts.index_add_(0, all_.labels.tokens.flatten().to(torch::kLong), all_.labels.log_p.flatten().to(torch::kDouble).exp());
  by_count_ = std::get<1>(counts.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  const engine::GgufEmbedding embedding = *std::exchange(embedding_, std::nullopt);
  if (learnt_steps() > 0) return;
  const torch::NoGradGuard no_grad;
  const NarrowEmbedding narrow =
      narrow_embedding(embedding.weight, counts.to(torch::kFloat), options_.shape.width, seed(kSeedNoise));
  draft_->token_embd->weight.copy_(narrow.weight);
  draft_->output_norm->weight.fill_(narrow.gain);
  cli::write_out(fmt::format("embedding: {} of the target's {} dimensions hold {:.0f} % of its variance\n",
                             std::min(options_.shape.width - 1, embedding.weight.size(1)), embedding.weight.size(1),
                             100 * narrow.kept));
}

// From log-probabilities of the labelled tokens; the first of them is the target's best.
torch::Tensor DraftRun::loss(const torch::Tensor& log_q, const Labels& labels) {
  return kShareLabels * labelled_kl(log_q, labels) - kShareBest * log_q.select(-1, 0).mean();
}

// Over the whole vocabulary. `overlap`: of the labelled tokens, what speculative sampling accepts at temperature 1 at the least.
Evaluation DraftRun::evaluate(int workers) {
  const std::int64_t held_out = kHeldOutRounds * kSampleRows;
  torch::Tensor scores = torch::zeros({held_out, 4}, torch::kDouble);
  run_workers(workers, [&](int worker) {
    const torch::NoGradGuard no_grad;
    for (std::int64_t row = worker; row < held_out; row += workers) {
      const Labels labels = all_.labels.of(torch::full({1}, row, torch::kLong));
      const torch::Tensor logits = draft_->forward(all_.rows.narrow(0, row, 1).narrow(1, 0, options_.length)).logits;
      const torch::Tensor log_q = torch::log_softmax(logits, -1).gather(-1, labels.tokens.to(torch::kLong));
      scores[row][0] = loss(log_q, labels);
      scores[row][1] = labelled_kl(log_q, labels);
      scores[row][2] = (logits.argmax(-1) == labels.tokens.select(-1, 0)).to(torch::kDouble).mean();
      scores[row][3] = torch::minimum(log_q, labels.log_p).exp().sum(-1).mean();
    }
  });
  const torch::Tensor mean = scores.mean(0);
  const auto at = [&](std::int64_t i) { return mean[i].item<double>(); };
  return {at(0), {{"loss", at(0)}, {"kl", at(1)}, {"match", at(2)}, {"overlap", at(3)}}};
}

void DraftRun::choose_shortlist(const torch::Tensor& labelled, std::uint64_t use, std::int64_t step) {
  if (options_.shortlist >= vocab()) return;
  shortlist_ = make_shortlist(labelled, by_count_, options_.shortlist, seed(use) + static_cast<std::uint64_t>(step));
}

// The draft's log-probabilities of `tokens` [rows, length, n], int64, after each input; over the step's shortlist if there is one.
torch::Tensor DraftRun::log_q(const torch::Tensor& inputs, const torch::Tensor& tokens) {
  const torch::Tensor hidden = draft_->hidden_states(inputs);
  return shortlist_ ? log_probabilities(draft_, hidden, tokens, *shortlist_) : log_probabilities(draft_, hidden, tokens);
}

Status DraftRun::run(Stage stage, StageState& state) {
  stage.net = draft_;
  stage.optimiser = &*optimiser_;
  stage.workers = static_cast<int>(std::min<std::int64_t>(options_.threads, options_.rows));
  return run_stage(stage, state, std::exchange(best_, {}), options_.keep_seconds,
                   [this](const NamedTensors& best) { return keep(best); });
}

// Next tokens of the text: far more of them than of samples, and they cost the target nothing.
Status DraftRun::learn_text() {
  if (!by_time() && options_.text_steps == 0) return Status::ok();
  Windows windows({&stream_}, options_.length, seed(kSeedText));
  const torch::Tensor held_out = held_out_windows(stream_, options_.length, kHeldOutRounds * kSampleRows);
  Stage stage;
  stage.name = "text";
  stage.rows = [&](std::int64_t step) {
    const torch::Tensor rows = windows.take(static_cast<std::uint64_t>(step * options_.rows), options_.rows);
    choose_shortlist(rows.narrow(1, 1, options_.length), kSeedTextLists, step);
    return rows;
  };
  stage.loss = [this](const torch::Tensor& rows) {
    return -log_q(rows.narrow(1, 0, options_.length), rows.narrow(1, 1, options_.length).unsqueeze(-1)).mean();
  };
  stage.evaluations = kTextEvaluations;
  stage.evaluate = [&] {
    const double loss = held_out_loss(draft_, held_out, options_.threads);
    return Evaluation{loss, {{"loss", loss}}};
  };
  stage.budget = by_time() ? Budget{.seconds = kShareText * total_seconds()} : Budget{.steps = options_.text_steps};
  return run(std::move(stage), text_state_);
}

Status DraftRun::distil() {
  const std::int64_t held_out = kHeldOutRounds * kSampleRows;
  Shuffled order(seed(kSeedOrder), static_cast<std::size_t>(all_.rows.size(0) - held_out));
  Stage stage;
  stage.name = "distil";
  stage.rows = [&](std::int64_t step) {
    std::vector<std::int64_t> chosen;
    for (std::int64_t i = 0; i < options_.rows; ++i) {
      const std::size_t at = order.at(static_cast<std::uint64_t>(step * options_.rows + i)).index;
      chosen.push_back(held_out + static_cast<std::int64_t>(at));
    }
    const torch::Tensor at = torch::tensor(chosen, torch::kLong);
    choose_shortlist(all_.labels.tokens.index_select(0, at), kSeedLists, step);
    return torch::cat({at.unsqueeze(1), all_.rows.index_select(0, at)}, 1);  // numbered
  };
  stage.loss = [this](const torch::Tensor& share) {
    const Labels labels = all_.labels.of(share.select(1, 0));
    return loss(log_q(share.narrow(1, 1, options_.length), labels.tokens.to(torch::kLong)), labels);
  };
  stage.evaluations = kDistilEvaluations;
  stage.evaluate = [this] { return evaluate(options_.threads); };
  stage.budget = by_time() ? Budget{.seconds = std::max(1.0, total_seconds() - samples_state_.seconds - text_state_.seconds)}
                           : Budget{.steps = options_.distil_steps};
  return run(std::move(stage), distil_state_);
}

Status DraftRun::write() {
  DRIFT_TRY(engine::write_gguf(options_.out, draft_, *meta_, options_.type));
  const Evaluation last = evaluate(options_.threads);
  std::error_code error;
  fs::remove(checkpoint_path_, error);  // it stays where it cannot go: only room is lost
  cli::write_out(fmt::format("{}: {:.2f} MB; on text held out it agrees with the target's best token at {:.1f} % of positions\n",
                             text::printable(options_.out), static_cast<double>(fs::file_size(options_.out)) / 1e6,
                             100 * last.detail["match"].get<double>()));
  return Status::ok();
}

}  // namespace

DraftOptions default_draft_options() {
  DraftOptions options;
  options.shape.width = 192, options.shape.layers = 2, options.shape.heads = 3, options.shape.ffn = 512;
  options.rates.adam = 0.002;
  return options;
}

Status make_draft(DraftOptions options) {
  engine::use_threads(1);  // each worker has a matrix library to itself
  DraftRun run(std::move(options));
  DRIFT_TRY(run.prepare());
  DRIFT_TRY(run.resume());
  DRIFT_TRY(run.write_samples());
  run.begin_with_targets_embedding();
  DRIFT_TRY(run.learn_text());
  DRIFT_TRY(run.distil());
  return run.write();
}

}  // namespace drift::train
