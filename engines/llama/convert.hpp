// convert.hpp - a model's tensors in another type: the same model, smaller, or cheaper to verify on this machine.
//
// Threads: as many as given; one call at a time. Cost: reads and writes the whole file; about a second per 100 MB and core.
#pragma once

#include <string>

#include "drift/base/status.hpp"

namespace drift::engine {

// "f32, f16, bf16, q8_0, ...": what convert_gguf knows.
std::string conversion_types();

// Fails with kInvalid naming the types there are.
Status check_conversion_type(const std::string& type);

// Reads the GGUF model `in` and writes it to `out` with its matrices in `type`; llama.cpp decides which small or sensitive tensors
// keep more bits. Tensors that are quantised already are dequantised first: what they lost stays lost. `out` is written in place.
// Fails as check_gguf and check_conversion_type, and with kIo or kUnsupported when llama.cpp cannot do it.
Status convert_gguf(const std::string& in, const std::string& out, const std::string& type, int threads);

}  // namespace drift::engine
