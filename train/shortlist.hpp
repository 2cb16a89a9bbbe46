// shortlist.hpp - a few thousand tokens that stand for a wide vocabulary in one training step.
//
// Logits of 49,000 tokens cost ten times what the rest of a small draft does. A step needs those of the tokens its labels name; of
// all others only the sum of their exponentials, which a random part estimates: each token drawn counts for (others / drawn) of
// them (Jean et al. 2015, with the frequent tokens always in, which hold most of the sum).
// Threads: immutable, share it. Cost: a pass over the labels and over the vocabulary.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "engines/torch/model.hpp"

namespace drift::train {

struct Shortlist {
  torch::Tensor tokens;      // int64 [size], each once, ascending
  torch::Tensor log_weight;  // float32 [size]: the logarithm of how many tokens each stands for; 0 for labelled and frequent ones
  torch::Tensor place;       // int64 [vocab]: where a token is in `tokens`; -1: it is not
};

// `labelled`: int32, any shape. `by_count`: int64 [vocab], all tokens, the most frequent first. A quarter of `size` are frequent
// tokens; as many as are missing then, but a quarter at least, are drawn from the rest: a pure function of the seed.
// Requires: 4 <= size < vocab. May give more than `size`, at most all tokens.
Shortlist make_shortlist(const torch::Tensor& labelled, const torch::Tensor& by_count, std::int64_t size, std::uint64_t seed);

// A network's log-probabilities of `tokens` [rows, length, n], int64, at hidden states [rows, length, width]; with a gradient.
// With a shortlist their norm is estimated from it. Requires: `tokens` are on the list with weight 1, as labelled ones are.
torch::Tensor log_probabilities(engine::LlamaNet& net, const torch::Tensor& hidden, const torch::Tensor& tokens);
torch::Tensor log_probabilities(engine::LlamaNet& net, const torch::Tensor& hidden, const torch::Tensor& tokens,
                                const Shortlist& list);

}  // namespace drift::train
