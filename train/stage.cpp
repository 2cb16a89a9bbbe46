#include "train/stage.hpp"

#include <torch/utils.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/console.hpp"
#include "drift/base/check.hpp"
#include "train/clock.hpp"

namespace drift::train {
namespace {

constexpr double kWarmUpSteps = 30;
constexpr double kLineSeconds = 20;  // between two lines of progress
constexpr double kBetter = 1e-4;     // nats by which a score must fall to count

double progress_of(const Budget& budget, const StageState& state) {
  const double part =
      budget.steps > 0 ? static_cast<double>(state.step) / static_cast<double>(budget.steps) : state.seconds / budget.seconds;
  return std::min(part, 1.0);
}

// Both rates fall in a line to zero; the first steps are smaller, while the moments are still filling.
double rate_scale(double progress, std::int64_t step) {
  return (1 - progress) * std::min(1.0, static_cast<double>(step + 1) / kWarmUpSteps);
}

std::string detail_line(const nlohmann::json& detail) {
  std::string line;
  for (const auto& [key, value] : detail.items()) line += fmt::format(" {} {:.3f}", key, value.get<double>());
  return line;
}

std::string duration(double seconds) {
  return seconds < 90 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

// Prints a line every kLineSeconds.
class Progress {
 public:
  Progress(const Stage& stage, const StageState& state) : stage_(stage), state_(state) {}

  void step(double loss, std::int64_t tokens) {
    losses_ += loss;
    tokens_ += tokens;
    ++steps_;
    const double passed = seconds_since(since_);
    if (passed < kLineSeconds) return;
    const double progress = progress_of(stage_.budget, state_);
    const double left = progress > 0 ? state_.seconds / progress * (1 - progress) : 0;
    cli::write_out(fmt::format("{}: step {}, {:.1f} %, loss {:.3f}, {:.0f} tokens/s, {} left\n", stage_.name, state_.step,
                               100 * progress, losses_ / steps_, static_cast<double>(tokens_) / passed, duration(left)));
    losses_ = 0, tokens_ = 0, steps_ = 0;
    since_ = Clock::now();
  }

 private:
  const Stage& stage_;
  const StageState& state_;
  Clock::time_point since_ = Clock::now();
  double losses_ = 0;
  std::int64_t tokens_ = 0;
  int steps_ = 0;
};

NamedTensors copies(const NamedTensors& weights) {
  NamedTensors out;
  for (const auto& [name, tensor] : weights) out.emplace_back(name, tensor.clone());
  return out;
}

void copy_into(const NamedTensors& from, const NamedTensors& to) {
  DRIFT_CHECK(from.size() == to.size(), "the best weights are of this network");
  for (std::size_t i = 0; i < to.size(); ++i) torch::Tensor(to[i].second).copy_(from[i].second);
}

// Scores the weights there are. True when the stage should end early.
bool evaluate(const Stage& stage, StageState& state, NamedTensors& best) {
  const Evaluation evaluation = stage.evaluate();
  nlohmann::json entry = evaluation.detail;
  cli::write_out(fmt::format("{}: step {}, held out:{}\n", stage.name, state.step, detail_line(entry)));
  entry["step"] = state.step;
  state.evaluations.push_back(std::move(entry));
  if (best.empty() || evaluation.score < state.score - kBetter) {
    best = copies(weights_of(stage.net, "best."));
    state.score = evaluation.score;
    state.worse = 0;
    return false;
  }
  return ++state.worse >= kPatience;
}

}  // namespace

nlohmann::json StageState::json() const {
  return {{"step", step}, {"seconds", seconds}, {"score", score}, {"worse", worse}, {"evaluations", evaluations}, {"done", done}};
}

Result<StageState> StageState::from(const nlohmann::json& facts) {
  try {
    StageState state;
    facts.at("step").get_to(state.step);
    facts.at("seconds").get_to(state.seconds);
    facts.at("score").get_to(state.score);
    facts.at("worse").get_to(state.worse);
    state.evaluations = facts.at("evaluations");
    facts.at("done").get_to(state.done);
    return state;
  } catch (const nlohmann::json::exception& error) {
    return Status(Code::kCorrupt, std::string("the checkpoint's facts about a stage: ") + error.what());
  }
}

NamedTensors weights_of(const engine::LlamaNet& net, const std::string& prefix) {
  NamedTensors all;
  for (const auto& item : net->named_parameters())
    if (item.value().requires_grad()) all.emplace_back(prefix + item.key(), item.value().detach());
  return all;
}

NamedTensors training_tensors(const engine::LlamaNet& net, const Optimiser& optimiser, const NamedTensors& best) {
  NamedTensors all = weights_of(net, "student.");
  for (const auto& [name, tensor] : optimiser.state()) all.emplace_back("optimiser." + name, tensor);
  all.insert(all.end(), best.begin(), best.end());
  return all;
}

Status restore_training(const Checkpoint& checkpoint, const engine::LlamaNet& net, Optimiser& optimiser, std::int64_t steps,
                        NamedTensors& best) {
  for (const auto& [name, tensor] : weights_of(net, "student.")) DRIFT_TRY(checkpoint.restore(name, tensor));
  for (const auto& [name, tensor] : optimiser.state()) DRIFT_TRY(checkpoint.restore("optimiser." + name, tensor));
  optimiser.set_steps(steps);
  return restore_best(checkpoint, net, best);
}

Status restore_best(const Checkpoint& checkpoint, const engine::LlamaNet& net, NamedTensors& best) {
  best.clear();
  for (const auto& [name, tensor] : weights_of(net, "best.")) {
    if (!checkpoint.tensors.contains(name)) break;
    best.emplace_back(name, torch::empty_like(tensor));
    DRIFT_TRY(checkpoint.restore(name, best.back().second));
  }
  return Status::ok();
}

Status run_stage(const Stage& stage, StageState& state, NamedTensors best, double keep_seconds, const Keep& keep) {
  if (state.done) return Status::ok();
  Progress progress(stage, state);
  Clock::time_point kept = Clock::now();
  bool ended = false;
  while (!ended && progress_of(stage.budget, state) < 1) {
    const Clock::time_point start = Clock::now();
    const double before = progress_of(stage.budget, state);
    const torch::Tensor rows = stage.rows(state.step);
    Gradient gradient = gradient_of(*stage.optimiser, rows, stage.workers, stage.loss);
    if (!std::isfinite(gradient.loss))
      return {Code::kInternal,
              fmt::format("{}: the loss is not finite after {} steps; use smaller rates", stage.name, state.step)};
    stage.optimiser->step(gradient.of, rate_scale(before, state.step), stage.workers);
    ++state.step;
    state.seconds += seconds_since(start);
    progress.step(gradient.loss, rows.size(0) * (rows.size(1) - 1));

    const Clock::time_point evaluating = Clock::now();
    const double after = progress_of(stage.budget, state);
    if (after >= 1 || std::floor(after * stage.evaluations) > std::floor(before * stage.evaluations))
      ended = evaluate(stage, state, best);
    state.seconds += seconds_since(evaluating);
    if (cli::interrupted()) {
      DRIFT_TRY(keep(best));
      return {Code::kCancelled,
              fmt::format("interrupted in stage {} after {} steps; the same command goes on", stage.name, state.step)};
    }
    if (seconds_since(kept) < keep_seconds) continue;
    DRIFT_TRY(keep(best));
    kept = Clock::now();
  }
  if (ended)
    cli::write_out(fmt::format("{}: ended early, text held out was predicted best at {:.4f}\n", stage.name, state.score));
  if (!best.empty()) copy_into(best, weights_of(stage.net, "best."));
  state.done = true;
  return keep({});
}

Status run_rounds(const Rounds& rounds, StageState& state, double keep_seconds, const Keep& keep) {
  if (state.done) return Status::ok();
  const std::int64_t most = rounds.budget.steps > 0 ? std::clamp(rounds.budget.steps, rounds.least, rounds.most) : rounds.most;
  const auto interrupted = [&]() -> Status {
    DRIFT_TRY(keep({}));
    return {Code::kCancelled, fmt::format("interrupted after {} rounds of samples; the same command goes on", state.step)};
  };
  Clock::time_point kept = Clock::now();
  while (state.step < rounds.least || (state.step < most && progress_of(rounds.budget, state) < 1)) {
    const Clock::time_point start = Clock::now();
    const int count = static_cast<int>(std::min<std::int64_t>(rounds.workers, most - state.step));
    const Status status = rounds.write(state.step, count);
    if (status.code() == Code::kCancelled) return interrupted();
    DRIFT_TRY(status);
    state.step += count;
    state.seconds += seconds_since(start);
    cli::write_out(fmt::format("samples: {} rounds of {} texts, {:.0f} tokens/s\n", state.step, rounds.texts,
                               static_cast<double>(count * rounds.tokens) / seconds_since(start)));
    if (cli::interrupted()) return interrupted();
    if (seconds_since(kept) < keep_seconds) continue;
    DRIFT_TRY(keep({}));
    kept = Clock::now();
  }
  state.done = true;
  return keep({});
}

}  // namespace drift::train
