// shared_weights.hpp - which weights are in memory once although two models are named.
//
// Threads: pure.
#pragma once

#include <string>

#include "cli/pair.hpp"

namespace drift::cli {

// Whether a draft's weights are the target's: load_pair() holds a model that is its own draft in llama.cpp once.
inline bool shares_weights(const PairOptions& options, const std::string& draft) {
  return !draft.empty() && draft == options.target && options.gpu_layers == options.gpu_layers_draft &&
         options.draft_engine == DraftEngine::kLlama;
}

}  // namespace drift::cli
