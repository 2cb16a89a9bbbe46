// tune.hpp - tunes one model on one text: the offline references that recalibration is compared with.
//
// A draft learns what its target says at each token of the text (soft labels by prefill; nothing is generated). Without a draft the
// target itself learns the text: an adapted target under a stock draft.
// Threads: one call at a time per OUT. Memory: 4 bytes a parameter of the tuned model, 8 bytes x 64 a labelled token, the target.
#pragma once

#include <cstdint>
#include <string>

#include "drift/base/status.hpp"

namespace drift::train {

struct TuneOptions {
  std::string target, draft;      // .gguf; an empty draft: the target is tuned
  std::string text;               // UTF-8
  std::string out;                // .gguf: the tuned model, or its adapter
  std::int64_t rank = 0;          // of a LoRA adapter; 0: all weights are tuned and a whole model is written
  std::int64_t length = 256;      // tokens of a window
  std::int64_t rows = 8;          // windows a step
  std::int64_t tokens = 131'072;  // most tokens of the text that are used
  double rate = 0;                // AdamW's; 0: 0.001, with an adapter 0.0005
  double minutes = 0;             // in all, labelling included; 0: by steps
  std::int64_t steps = 0;
  std::uint64_t seed = 1;
  int threads = 2;
  double keep_seconds = 60;
  bool f32 = false;    // a whole model in float32 instead of q8_0
  bool fresh = false;  // do not go on with a checkpoint
};

// Writes OUT; until then OUT.checkpoint holds what was done, and the same call goes on.
// Fails as read_text, LlamaModel::load and read_gguf, and with kForeign (models of different vocabularies, a checkpoint of other
// options), kCorrupt, kLimit (windows longer than a model's context), kIo, kCancelled (interrupted; what was done is kept).
Status tune(TuneOptions options);

}  // namespace drift::train
