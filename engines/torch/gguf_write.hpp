// gguf_write.hpp - networks and adapters into GGUF files that llama.cpp loads.
//
// A file is written under another name beside it (FILE.part-PROCESS-0), synced and renamed: a reader sees the old content or the
// new one, whole. Links are followed. The
// same weights give the same bytes. Threads: any. Cost: one pass over the weights.
#pragma once

#include <string>

#include "drift/base/status.hpp"
#include "engines/torch/gguf_meta.hpp"
#include "engines/torch/model.hpp"

namespace drift::engine {

// How matrices are stored; norms and biases are always float32.
enum class GgufType { kF32, kF16, kQ8_0, kQ4_0 };

// Whether a network's matrices divide into q8_0's and q4_0's blocks of 32.
bool fits_blocks(const ModelShape& shape);

// The whole model, under the architecture "llama" (interleaved rope) or "qwen2" (halves).
// Fails with kInvalid (adapters that were not merged, a tokenizer of another size than the vocabulary, a weight that is not finite
// or too large for half precision, rows that do not divide into q8_0's and q4_0's blocks of 32, a folder, device or pipe at `path`), kIo.
Status write_gguf(const std::string& path, const LlamaNet& net, const GgufMeta& meta, GgufType type);

// The adapters only, in half precision: a LoRA for the model they were trained on. `name`: for people.
// Fails with kInvalid (no adapters, values not finite or too large, a folder, device or pipe at `path`), kIo.
Status write_adapter(const std::string& path, const LlamaNet& net, const std::string& name);

}  // namespace drift::engine
