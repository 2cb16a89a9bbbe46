// shape.hpp - the numbers that say which llama or qwen2 model it is. Knows no library.
//
// Threads: plain values.
#pragma once

#include <cstdint>

#include "drift/base/status.hpp"

namespace drift::engine {

// Which two elements of a head turn together (llama.cpp's names: NORM and NEOX).
enum class Rope {
  kInterleaved,  // 2i and 2i + 1: architecture "llama" in GGUF
  kHalves,       // i and i + head_width / 2: architecture "qwen2"
};

struct ModelShape {
  std::int64_t vocab = 0;
  std::int64_t width = 0;  // of a hidden state
  std::int64_t layers = 0;
  std::int64_t heads = 0;     // divides width
  std::int64_t kv_heads = 0;  // divides heads
  std::int64_t ffn = 0;       // width inside the feed-forward part
  double rope_base = 10000.0;
  double norm_eps = 1e-5;
  bool tied = true;          // the output head is the token embedding
  bool qkv_bias = false;     // qwen2
  std::int64_t context = 0;  // most tokens of one text
  Rope rope = Rope::kInterleaved;

  std::int64_t head_width() const { return width / heads; }
  std::int64_t kv_width() const { return kv_heads * head_width(); }
};

// Whether the shape can be built: every number within its bounds, heads dividing what they must.
// Fails with kInvalid (a contradiction, a number out of bounds), kLimit (more than 2^31 parameters).
Status check_shape(const ModelShape& shape);

// Requires: the shape's numbers are within the bounds of check_shape().
std::int64_t parameter_count(const ModelShape& shape);

}  // namespace drift::engine
