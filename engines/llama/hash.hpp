// hash.hpp - what a bank is bound to: the bytes of a model file and of its adapters, not their names.
//
// Threads: any. Cost: reads the whole files once (about a second per GB from the page cache).
#pragma once

#include <string>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::engine {

struct LoraAdapter {
  std::string path;
  float scale = 1.0F;  // finite; 0 switches the adapter off
};

// XXH3-128 of a file's bytes, 32 hex digits.
// Fails with kNotFound or kIo.
Result<std::string> file_hash(const std::string& path);

// The model's file_hash if no adapter is active; else a hash over it and the file hashes and scales of the active adapters, in order.
// Fails as file_hash.
Result<std::string> content_hash(const std::string& model_path, const std::vector<LoraAdapter>& adapters);

}  // namespace drift::engine
