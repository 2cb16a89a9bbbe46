// narrow_embedding.hpp - where a small draft's embedding begins: the large one's, seen in fewer dimensions.
//
// A draft of our own for a wide vocabulary is mostly embedding, and a short run meets most of its tokens a few times only. So it
// begins with what the target knows of them: the first principal components of its embedding.
// Threads: one. Memory: two copies of a few thousand rows in float64.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace drift::train {

struct NarrowEmbedding {
  torch::Tensor weight;  // float32 [vocab, width]
  double gain = 1;       // of the output norm, for a head that is this embedding
  double kept = 0;       // share of the weighted variance that the components hold
};

// Of `wide`, float32 [vocab, wide width]. Tokens count by (counts + 1/2)^0.75, counts float32 [vocab]. All dimensions but the last
// are principal components, each divided by the square root of its deviation (halfway to white: the first few would drown the
// others); the last is the standardised log of the count, which a bias would hold. Elements have a root mean square of 0.1, and the
// gain makes a hidden state that knows nothing give logits of a deviation of 1/2.
// Dimensions that `wide` cannot fill are small noise of the seed. Requires: width >= 2.
NarrowEmbedding narrow_embedding(const torch::Tensor& wide, const torch::Tensor& counts, std::int64_t width, std::uint64_t seed);

}  // namespace drift::train
