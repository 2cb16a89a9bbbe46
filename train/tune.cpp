#include "train/tune.hpp"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <utility>

#include "cli/console.hpp"
#include "cli/models.hpp"
#include "drift/base/check.hpp"
#include "engines/llama/engine.hpp"
#include "engines/llama/text.hpp"
#include "engines/torch/gguf_read.hpp"
#include "engines/torch/gguf_write.hpp"
#include "text/printable.hpp"
#include "train/checkpoint.hpp"
#include "train/clock.hpp"
#include "train/corpus.hpp"
#include "train/labels.hpp"
#include "train/memory.hpp"
#include "train/out_file.hpp"
#include "train/stage.hpp"
#include "train/workers.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kRateWhole = 0.001, kRateAdapter = 0.0005;
constexpr double kAlphaOverRank = 2;   // of adapters: alpha is twice the rank
constexpr double kShareLabels = 0.45;  // of the time
constexpr std::int64_t kHeldOutRows = 8;
constexpr int kEvaluations = 8;                // each passes over the rows held out: dear with a large draft
constexpr std::int64_t kRowsBetweenLooks = 4;  // labelled between two looks at the clock

class Tuning {
 public:
  explicit Tuning(TuneOptions options) : options_(std::move(options)), checkpoint_path_(options_.out + ".checkpoint") {}

  Status prepare();
  Status resume();
  Status label();
  Status train();
  Status write();

 private:
  bool by_time() const { return options_.minutes > 0; }
  bool distils() const { return !options_.draft.empty(); }
  const std::string& student_path() const { return distils() ? options_.draft : options_.target; }
  torch::Tensor loss(const torch::Tensor& numbered_rows);
  Status keep(const NamedTensors& best) const;
  std::int64_t labelled() const { return labels_ ? labels_->tokens.size(0) : 0; }

  TuneOptions options_;
  std::string checkpoint_path_;
  std::optional<FileLock> lock_;
  json recipe_;
  std::optional<engine::GgufModel> student_;
  std::shared_ptr<engine::LlamaModel> target_;  // for labels; null when the target itself is tuned
  torch::Tensor rows_;                          // int64 [rows, length + 1]: text held out first, then text to learn from
  std::int64_t held_out_ = 0;                   // rows held out
  std::optional<Labels> labels_;                // of the first rows
  double label_seconds_ = 0;
  std::optional<Optimiser> optimiser_;
  StageState state_;
  NamedTensors best_;
};

Status Tuning::prepare() {
  DRIFT_ASSIGN(FileLock lock, take_out_file(options_.out, {options_.target, student_path(), options_.text}));
  lock_.emplace(std::move(lock));
  DRIFT_ASSIGN(const Domain domain, read_text(options_.text));
  DRIFT_ASSIGN(const std::string student_sha256, cli::file_sha256(student_path()));
  DRIFT_ASSIGN(const std::string target_sha256, cli::file_sha256(options_.target));
  DRIFT_ASSIGN(std::shared_ptr<engine::LlamaModel> vocabulary, engine::LlamaModel::load({.path = student_path()}));
  if (distils()) {
    DRIFT_ASSIGN(target_, engine::LlamaModel::load({.path = options_.target}));
    if (const auto same = engine::check_same_vocabulary(*target_, *vocabulary); !same.is_ok()) return same.status();
  }
  DRIFT_ASSIGN(student_, engine::read_gguf(student_path()));
  if (options_.rank == 0) {
    const engine::ModelShape& shape = student_->net->shape();
    DRIFT_TRY(check_memory(engine::parameter_count(shape)));
    if (!options_.f32 && !engine::fits_blocks(shape))
      return {Code::kInvalid,
              fmt::format("{} has a width of {} and a feed-forward width of {}; q8_0 stores multiples of 32 only: "
                          "give --f32, or tune an adapter (--lora)",
                          student_path(), shape.width, shape.ffn)};
  }
  for (const std::int64_t context :
       {student_->net->shape().context, target_ ? static_cast<std::int64_t>(target_->trained_context()) : options_.length})
    if (options_.length > context)
      return {Code::kLimit, fmt::format("--window {} is longer than a model's context of {} tokens", options_.length, context)};
  DRIFT_ASSIGN(const Stream stream, tokenized(domain, vocabulary, options_.length, 1));
  vocabulary.reset();

  const torch::Tensor held_out = held_out_windows(stream, options_.length, kHeldOutRows);
  if (held_out.size(1) != options_.length + 1)
    return {Code::kLimit, fmt::format("the text held out of {} has {} tokens, less than one window of {}; give more text",
                                      options_.text, stream.held_out.size(), options_.length)};
  Windows windows({&stream}, options_.length, options_.seed);
  const std::int64_t most = std::max<std::int64_t>(options_.rows, options_.tokens / options_.length);
  const std::int64_t used = std::min(most, static_cast<std::int64_t>(windows.epoch_windows()));
  held_out_ = held_out.size(0);
  rows_ = torch::cat({held_out, windows.take(0, used)});
  if (options_.rate == 0) options_.rate = options_.rank > 0 ? kRateAdapter : kRateWhole;
  recipe_ = {{"student", student_sha256},
             {"target", target_sha256},
             {"text", domain.sha256},
             {"rank", options_.rank},
             {"window", options_.length},
             {"rows", options_.rows},
             {"tokens", options_.tokens},
             {"rate", options_.rate},
             {"seed", options_.seed},
             {"distils", distils()},
             {"steps", by_time() ? json("by the clock") : json(options_.steps)}};
  if (options_.rank > 0)
    student_->net->add_adapters(options_.rank, kAlphaOverRank * static_cast<double>(options_.rank), options_.seed);
  optimiser_.emplace(student_->net, Rates{.adam = options_.rate}, /*all_adam=*/true);
  cli::write_out(fmt::format("{}: {} windows of {} tokens to learn from, {} held out\n", text::printable(options_.text), used,
                             options_.length, held_out_));
  return Status::ok();
}

Status Tuning::resume() {
  std::error_code error;
  if (options_.fresh || !fs::exists(checkpoint_path_, error)) return Status::ok();
  DRIFT_ASSIGN(const Checkpoint checkpoint, read_checkpoint(checkpoint_path_));
  DRIFT_TRY(check_recipe(checkpoint_path_, checkpoint, recipe_));
  DRIFT_ASSIGN(state_, StageState::from(checkpoint.facts.value("training", json())));
  label_seconds_ = checkpoint.facts.value("label_seconds", 0.0);
  if (const std::int64_t count = checkpoint.facts.value("labelled", std::int64_t{0}); count > 0) {
    if (count > rows_.size(0))
      return {Code::kCorrupt, checkpoint_path_ + " labels more windows than there are; start anew with --fresh"};
    Labels labels{torch::empty({count, options_.length, kLabelTop}, torch::kInt),
                  torch::empty({count, options_.length, kLabelTop})};
    DRIFT_TRY(checkpoint.restore("labels.tokens", labels.tokens));
    DRIFT_TRY(checkpoint.restore("labels.log_p", labels.log_p));
    labels_ = std::move(labels);
  }
  DRIFT_TRY(restore_training(checkpoint, student_->net, *optimiser_, state_.step, best_));
  cli::write_out(fmt::format("going on: {} of {} windows labelled, {} steps\n", labelled(), rows_.size(0), state_.step));
  return Status::ok();
}

Status Tuning::keep(const NamedTensors& best) const {
  NamedTensors all = training_tensors(student_->net, *optimiser_, best);
  if (labels_) {
    all.emplace_back("labels.tokens", labels_->tokens);
    all.emplace_back("labels.log_p", labels_->log_p);
  }
  const json facts = {
      {"recipe", recipe_}, {"training", state_.json()}, {"label_seconds", label_seconds_}, {"labelled", labelled()}};
  return write_checkpoint(checkpoint_path_, facts, all);
}

// The target labels all rows, or as many as fit in its share of the time: the text held out comes first.
Status Tuning::label() {
  if (!distils()) return Status::ok();
  const std::int64_t least = held_out_ + std::min(options_.rows, rows_.size(0) - held_out_);
  const auto more = [&] {
    if (labelled() == rows_.size(0)) return false;
    return labelled() < least || !by_time() || label_seconds_ < kShareLabels * options_.minutes * 60;
  };
  if (state_.step > 0 || !more()) return Status::ok();
  engine::LlamaConfig config;
  config.context = static_cast<int>(options_.length);
  config.threads = options_.threads;
  DRIFT_ASSIGN(const std::unique_ptr<engine::LlamaEngine> teacher, engine::LlamaEngine::make(target_, config));
  Clock::time_point kept = Clock::now(), told = Clock::now();
  while (more()) {
    const Clock::time_point start = Clock::now();
    const std::int64_t first = labelled(), count = std::min(kRowsBetweenLooks, rows_.size(0) - first);
    auto fresh = label_rows(*teacher, rows_.narrow(0, first, count), kLabelTop, [](std::int64_t) { return !cli::interrupted(); });
    if (fresh.status().code() == Code::kCancelled) {
      DRIFT_TRY(keep({}));
      return {Code::kCancelled, fmt::format("interrupted after {} of {} windows were labelled; the same command goes on",
                                            labelled(), rows_.size(0))};
    }
    if (!fresh.is_ok()) return fresh.status();
    labels_ = labels_ ? Labels{torch::cat({labels_->tokens, fresh->tokens}), torch::cat({labels_->log_p, fresh->log_p})} : *fresh;
    label_seconds_ += seconds_since(start);
    if (seconds_since(told) > 20 || !more()) {
      told = Clock::now();
      cli::write_out(fmt::format("labels: {} of {} windows, {:.0f} tokens/s\n", labelled(), rows_.size(0),
                                 static_cast<double>(count * options_.length) / seconds_since(start)));
    }
    if (seconds_since(kept) < options_.keep_seconds) continue;
    DRIFT_TRY(keep({}));
    kept = Clock::now();
  }
  return Status::ok();
}

torch::Tensor Tuning::loss(const torch::Tensor& numbered_rows) {
  const torch::Tensor rows = numbered_rows.narrow(1, 1, numbered_rows.size(1) - 1);
  if (!distils()) return next_token_loss(student_->net, rows);
  const torch::Tensor at = numbered_rows.select(1, 0);
  const torch::Tensor logits = student_->net->forward(rows.narrow(1, 0, rows.size(1) - 1)).logits;
  return labelled_loss(logits, labels_->of(at));
}

Status Tuning::train() {
  engine::use_threads(1);  // each worker has a matrix library to itself
  const std::int64_t learnt = (distils() ? labelled() : rows_.size(0)) - held_out_;
  Shuffled order(options_.seed, static_cast<std::size_t>(learnt));
  Stage stage;
  stage.name = "tuning";
  stage.net = student_->net;
  stage.optimiser = &*optimiser_;
  stage.workers = static_cast<int>(std::min<std::int64_t>(options_.threads, options_.rows));
  stage.rows = [&](std::int64_t step) {
    std::vector<torch::Tensor> rows;
    for (std::int64_t i = 0; i < options_.rows; ++i) {
      const auto at = held_out_ + static_cast<std::int64_t>(order.at(static_cast<std::uint64_t>(step * options_.rows + i)).index);
      rows.push_back(numbered(rows_.narrow(0, at, 1), at));
    }
    return torch::cat(rows);
  };
  stage.loss = [this](const torch::Tensor& share) { return loss(share); };
  stage.evaluations = kEvaluations;
  stage.evaluate = [&] {
    std::vector<double> losses(static_cast<std::size_t>(held_out_));
    run_workers(stage.workers, [&](int worker) {
      const torch::NoGradGuard no_grad;
      for (std::int64_t i = worker; i < held_out_; i += stage.workers)
        losses[static_cast<std::size_t>(i)] = loss(numbered(rows_.narrow(0, i, 1), i)).item<double>();
    });
    const double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(held_out_);
    return Evaluation{mean, {{distils() ? "kl" : "loss", mean}}};
  };
  stage.budget =
      by_time() ? Budget{.seconds = std::max(1.0, options_.minutes * 60 - label_seconds_)} : Budget{.steps = options_.steps};
  if (state_.step == 0) {
    const Evaluation before = stage.evaluate();
    cli::write_out(fmt::format("tuning: before, text held out: {:.4f}\n", before.score));
  }
  return run_stage(stage, state_, std::move(best_), options_.keep_seconds,
                   [this](const NamedTensors& best) { return keep(best); });
}

Status Tuning::write() {
  const engine::GgufMeta& meta = student_->meta;
  if (options_.rank > 0) {
    DRIFT_TRY(engine::write_adapter(options_.out, student_->net,
                                    meta.name() + " tuned on " + text::printable(fs::path(options_.text).stem().string())));
  } else {
    DRIFT_TRY(
        engine::write_gguf(options_.out, student_->net, meta, options_.f32 ? engine::GgufType::kF32 : engine::GgufType::kQ8_0));
  }
  std::error_code error;
  fs::remove(checkpoint_path_, error);  // it stays where it cannot go: only room is lost
  cli::write_out(
      fmt::format("{}: {:.2f} MB\n", text::printable(options_.out), static_cast<double>(fs::file_size(options_.out)) / 1e6));
  return Status::ok();
}

}  // namespace

Status tune(TuneOptions options) {
  engine::use_threads(1);
  Tuning tuning(std::move(options));
  DRIFT_TRY(tuning.prepare());
  DRIFT_TRY(tuning.resume());
  DRIFT_TRY(tuning.label());
  DRIFT_TRY(tuning.train());
  return tuning.write();
}

}  // namespace drift::train
