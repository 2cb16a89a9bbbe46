// stage.hpp - one stage of a run: training steps until a budget of steps or seconds is used or the loss on text held out rises; or
// rounds of text that a model writes.
//
// With a budget of steps everything is a pure function of the step, so a run that was stopped ends with the same weights. With a
// budget of seconds the learning rate follows the clock: a machine busy with other things makes fewer steps, not a later end.
// Threads: one; it uses `workers` more inside a step.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "train/checkpoint.hpp"
#include "train/learn.hpp"
#include "train/optimiser.hpp"

namespace drift::train {

struct Budget {
  std::int64_t steps = 0;  // exactly one of the two is positive
  double seconds = 0;
};

// What a stage must remember to go on.
struct StageState {
  std::int64_t step = 0;
  double seconds = 0;  // spent, over all sittings
  double score = 0;    // the best so far; of no meaning before the first evaluation
  int worse = 0;       // evaluations since
  nlohmann::json evaluations = nlohmann::json::array();
  bool done = false;

  nlohmann::json json() const;
  // Fails with kCorrupt.
  static Result<StageState> from(const nlohmann::json& facts);
};

struct Evaluation {
  double score = 0;       // the lower the better
  nlohmann::json detail;  // an object of numbers, for people
};

struct Stage {
  std::string name;
  engine::LlamaNet net{nullptr};
  Optimiser* optimiser = nullptr;
  std::function<torch::Tensor(std::int64_t step)> rows;           // int64 [rows, length + 1]
  std::function<torch::Tensor(const torch::Tensor& share)> loss;  // called on several threads at once
  std::function<Evaluation()> evaluate;
  Budget budget;
  int evaluations = 20;  // evenly over the budget
  int workers = 1;
};

// How a run keeps what it has: called between two steps. `best` are the weights with the best score.
using Keep = std::function<Status(const NamedTensors& best)>;

inline constexpr int kPatience = 3;  // evaluations without a better score before a stage is ended

// The weights of a network that want gradients, as named tensors that share their memory.
NamedTensors weights_of(const engine::LlamaNet& net, const std::string& prefix);

// A stage's network, its optimiser's state and `best`, as a checkpoint holds them ...
NamedTensors training_tensors(const engine::LlamaNet& net, const Optimiser& optimiser, const NamedTensors& best);
// ... and back again, `steps` being the optimiser's. Fails with kCorrupt.
Status restore_training(const Checkpoint& checkpoint, const engine::LlamaNet& net, Optimiser& optimiser, std::int64_t steps,
                        NamedTensors& best);
// The best weights alone; `best` stays empty if there are none. Fails with kCorrupt.
Status restore_best(const Checkpoint& checkpoint, const engine::LlamaNet& net, NamedTensors& best);

// Runs a stage to its end and leaves the best weights in its network. `best` comes from an earlier sitting, or is empty.
// Calls `keep` every `keep_seconds`, and once stopped. Prints a line now and then.
// Fails with kCancelled (interrupted; kept), kInternal (the loss is not finite any more), and as `keep`.
Status run_stage(const Stage& stage, StageState& state, NamedTensors best, double keep_seconds, const Keep& keep);

// Text that a model writes for another to learn from. A round is a pure function of its number.
struct Rounds {
  // Writes `count` rounds from `first` on, each on a thread of its own. Cancelled, it leaves none of them.
  std::function<Status(std::int64_t first, int count)> write;
  Budget budget;                       // steps are rounds
  std::int64_t least = 1, most = 1;    // rounds, whatever the budget says
  std::int64_t texts = 0, tokens = 0;  // of a round, for people
  int workers = 1;
};

// Runs rounds to their end, which may pass a budget of seconds by one round. Keeps and fails as run_stage, and as `write`.
Status run_rounds(const Rounds& rounds, StageState& state, double keep_seconds, const Keep& keep);

}  // namespace drift::train
