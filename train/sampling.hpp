// sampling.hpp - text that the target itself writes, for the draft to learn from: the states it will be asked about.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "drift/engine/engine.hpp"
#include "engines/torch/model.hpp"
#include "train/labels.hpp"

namespace drift::train {

// Continues each prompt, int64 [count, prompt tokens], to `length` tokens, row i at temperatures[i] > 0: int32 [count, length].
// A pure function of the weights, the prompts and the seed. Requires: length <= context.
torch::Tensor sample_rows(engine::LlamaNet& target, const torch::Tensor& prompts, std::int64_t length,
                          const std::vector<double>& temperatures, std::uint64_t seed);

inline constexpr std::int64_t kWriteNodesMax = 64;  // most nodes of a forward that write_rows asks for, if rows are not more

// Rows that an engine wrote, with what it said at each of their tokens but the last.
struct LabelledRows {
  torch::Tensor rows;  // int32 [count, length + 1]
  Labels labels;       // [count, length, top]
};

struct Writing {
  torch::Tensor prompts;             // int64 [count, prompt tokens]
  std::int64_t length = 0;           // rows get one token more
  std::vector<double> temperatures;  // [count], > 0
  std::int64_t top = 0;              // tokens in a label
  std::vector<Token> never;          // tokens that are not drawn: the ends of a text, so that all rows are equally long
  std::uint64_t seed = 0;
};

// The same in any engine, all rows in one batch; the prompts' own tokens are labelled too. A pure function of engine and `writing`.
// `told` hears the position reached and returns false to stop.
// Requires: 1 <= prompt tokens <= length, `count` sequences free. Fails with kCancelled, kLimit (rows longer than the engine's
// context), and as forward. Memory: kWriteNodesMax rows of logits.
Result<LabelledRows> write_rows(engine::Engine& target, const Writing& writing, const std::function<bool(std::int64_t)>& told);

}  // namespace drift::train
