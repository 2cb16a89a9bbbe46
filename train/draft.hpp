// draft.hpp - makes a small draft for a target that is there already, whatever its vocabulary.
//
// Stages: samples (the target, in llama.cpp and quantised as it will judge, continues openings of a general text and says at each
// token what may follow), text (the draft learns the text itself), distil (it learns what the target said). The draft's tokenizer is the target's; its embedding begins as the
// target's in fewer dimensions; where the vocabulary is wide, a step computes the logits of a shortlist.
// Threads: one call at a time per OUT. Memory: the target; 16 bytes a parameter of the draft; 160 bytes a token of samples.
#pragma once

#include <cstdint>
#include <string>

#include "drift/base/status.hpp"
#include "engines/torch/gguf_write.hpp"
#include "engines/torch/shape.hpp"
#include "train/optimiser.hpp"

namespace drift::train {

struct DraftOptions {
  std::string target;              // .gguf, any architecture that llama.cpp runs here
  std::string text;                // UTF-8: what the draft shall be good at
  std::string out;                 // .gguf
  engine::ModelShape shape;        // width, layers, heads, ffn; the rest is set by make_draft()
  std::int64_t length = 160;       // tokens of a sample
  std::int64_t rows = 8;           // samples a step
  std::int64_t shortlist = 8'192;  // tokens a step computes the logits of, if the vocabulary is larger
  double minutes = 0;              // in all; 0: by steps
  std::int64_t rounds = 0;         // of samples
  std::int64_t text_steps = 0, distil_steps = 0;
  std::uint64_t seed = 1;
  int threads = 2;
  double keep_seconds = 60;
  Rates rates;
  engine::GgufType type = engine::GgufType::kQ8_0;
  bool fresh = false;  // do not go on with a checkpoint
};

// The options make_draft() starts from.
DraftOptions default_draft_options();

// Writes OUT; until then OUT.checkpoint holds what was done, and the same call goes on.
// Fails as read_text, LlamaModel::load, read_gguf_embedding and check_shape, and with kForeign (a checkpoint of other options),
// kCorrupt, kLimit (samples longer than the target's context, too little text), kIo, kCancelled (interrupted; what was done is
// kept), kInternal.
Status make_draft(DraftOptions options);

}  // namespace drift::train
