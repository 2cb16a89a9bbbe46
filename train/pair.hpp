// pair.hpp - makes a target and a draft from plain text: the built-in pair.
//
// One vocabulary and one target from all domains; a draft from the general domain alone: its text, then the target's answers on that
// text and on what the target itself writes after it. The other domains reach the draft through the shared vocabulary only.
// Stages: target, draft, samples, distil. Everything is kept in OUT/checkpoint.safetensors; the same command goes on.
// Threads: one call at a time per OUT, guarded by a lock. Memory: about 1 GB for a target of 6 million parameters.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "drift/base/status.hpp"
#include "engines/torch/shape.hpp"
#include "train/optimiser.hpp"

namespace drift::train {

// How long each stage may train, in steps (rounds of samples); all positive or all zero.
struct StageSteps {
  std::int64_t target = 0, draft = 0, samples = 0, distil = 0;
};

struct PairOptions {
  std::string data;                       // folder of DOMAIN.txt
  std::string out;                        // folder, made if missing
  std::string general = "general";        // the domain the draft learns
  std::vector<std::string> domains;       // empty: all in the folder
  std::map<std::string, double> weights;  // of a domain's text in the target's epochs; 1 if not named
  std::int64_t vocab = 2'048;
  engine::ModelShape target, draft;  // width, layers, heads, ffn; the rest is set by make_pair()
  std::int64_t length = 384;         // tokens of a training window
  std::int64_t rows = 8;             // windows a step
  std::int64_t context = 1'024;      // what the files say they can hold
  std::uint64_t seed = 1;
  double minutes = 0;  // of training in all; 0: by steps
  StageSteps steps;
  int threads = 2;
  double keep_seconds = 60;
  Rates rates;
  bool f32 = false;    // write float32 files too
  bool fresh = false;  // do not go on with a checkpoint
};

// The options make_pair() starts from: shapes of the built-in pair.
PairOptions default_pair_options();

// Trains, then writes OUT/target-q8_0.gguf, OUT/draft-q8_0.gguf and OUT/recipe.json.
// Fails with kInvalid, kNotFound, kLimit (options or texts that cannot be used), kForeign (the checkpoint is of another recipe),
// kCorrupt (a damaged one), kBusy (another run holds OUT), kIo, kCancelled (interrupted; what was done is kept), kInternal.
Status make_pair(PairOptions options);

}  // namespace drift::train
