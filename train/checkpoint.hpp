// checkpoint.hpp - everything a stopped training run needs to go on, in one file: a header in JSON, then tensors.
//
// The format is safetensors' (8 bytes of header length, JSON, raw little-endian data; the run's own facts under "__metadata__"),
// with an XXH3 of it all, so that a damaged file is refused. Written under another name, synced and renamed: a run that is
// killed while it writes finds the one before.
// Limits: kHeaderBytesMax, kCheckpointBytesMax. Cost: that of writing and syncing the bytes.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "train/optimiser.hpp"

namespace drift::train {

inline constexpr std::size_t kHeaderBytesMax = std::size_t{16} << 20;
inline constexpr std::size_t kCheckpointBytesMax = std::size_t{8} << 30;

struct Checkpoint {
  nlohmann::json facts;                          // an object
  std::map<std::string, torch::Tensor> tensors;  // float32 or int32

  // Copies the tensor of that name into `out`. Fails with kCorrupt (it is not there, or of another shape or type).
  Status restore(const std::string& name, torch::Tensor out) const;
};

// Fails with kIo (nothing is changed then: the old file stands).
Status write_checkpoint(const std::string& path, const nlohmann::json& facts, const NamedTensors& tensors);
// Fails with kNotFound, kIo, kCorrupt, kForeign (another version of this format), kCancelled.
Result<Checkpoint> read_checkpoint(const std::string& path);

// Whether what a run depends on, `recipe`, is what the checkpoint's facts hold under "recipe".
// Fails with kForeign, naming the first difference.
Status check_recipe(const std::string& path, const Checkpoint& checkpoint, const nlohmann::json& recipe);

}  // namespace drift::train
