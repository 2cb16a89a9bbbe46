// gguf_read.hpp - a llama or qwen2 model out of a GGUF file, dequantised to float32.
//
// Threads: any. Limits: single-file models of at most 2^31 parameters, without rope scaling and experts, heads as wide as
// width / heads. Cost: reads the file once; memory is 4 bytes a parameter plus one tensor.
#pragma once

#include <string>

#include "drift/base/status.hpp"
#include "engines/torch/gguf_meta.hpp"
#include "engines/torch/model.hpp"

namespace drift::engine {

struct GgufModel {
  LlamaNet net{nullptr};
  GgufMeta meta;
};

// Fails with kNotFound, kIo, kInvalid (no GGUF file, an adapter, a shape that contradicts itself), kCorrupt (cut or damaged: a
// tensor missing or of another size, a weight that is not finite), kUnsupported (another architecture, a feature this network
// does not have), kLimit.
Result<GgufModel> read_gguf(const std::string& path);

struct GgufEmbedding {
  torch::Tensor weight;  // float32 [vocab, width]
  GgufMeta meta;
};

// The token embedding alone, of a model of any architecture. Memory: 4 bytes an element of it.
// Fails with kNotFound, kIo, kInvalid (no GGUF file, no model with a tokenizer and a token embedding), kCorrupt, kUnsupported (a
// type that cannot be turned into floats).
Result<GgufEmbedding> read_gguf_embedding(const std::string& path);

}  // namespace drift::engine
