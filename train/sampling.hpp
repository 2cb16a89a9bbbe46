// sampling.hpp - text that the target itself writes, for the draft to learn from: the states it will be asked about.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "engines/torch/model.hpp"

namespace drift::train {

// Continues each prompt, int64 [count, prompt tokens], to `length` tokens, row i at temperatures[i] > 0: int32 [count, length].
// A pure function of the weights, the prompts and the seed. Requires: length <= context.
torch::Tensor sample_rows(engine::LlamaNet& target, const torch::Tensor& prompts, std::int64_t length,
                          const std::vector<double>& temperatures, std::uint64_t seed);

}  // namespace drift::train
