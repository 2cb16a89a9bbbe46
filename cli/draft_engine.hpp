// draft_engine.hpp - drafts that run in LibTorch: frozen ones, and ones that learn. The one place of the program that knows whether
// this build has it.
//
// Threads: one. LibTorch computes in as many threads as it is told, one by default: its threads and llama.cpp's would spin against
// each other while one waits for the other.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "drift/base/status.hpp"
#include "drift/engine/engine.hpp"
#include "drift/engine/learner.hpp"
#include "engines/torch/kd_config.hpp"

namespace drift::cli {

enum class DraftEngine { kLlama, kTorch };

const char* draft_engine_name(DraftEngine engine);
// "llama" or "torch". Fails with kInvalid.
Result<DraftEngine> parse_draft_engine(const std::string& text);

// Fails with kUnsupported, saying how to get it, in a build without LibTorch. `what` is what needs it.
Status check_torch(const std::string& what);

// First thing in main(): may start the program anew, once (engines/torch/blas.hpp). Does nothing in a build without LibTorch.
void prepare_torch(char** argv);

// A draft that only drafts.
struct Draft {
  std::unique_ptr<engine::Engine> engine;
  engine::ModelInfo info;  // without its content hash
};

struct TorchDraftOptions {
  std::string model;  // a .gguf file
  int context = 0;
  int threads = 1;
};

// The draft as it is, with hidden states. Fails as check_torch, and as the reader of GGUF files.
Result<Draft> load_torch_draft(const TorchDraftOptions& options);

// A draft with weights of its own and what trains them. Requires: the learner goes before the engine.
struct LearningDraft {
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<engine::Learner> learner;
};
// `vocab`: tokens both models know. Fails as load_torch_draft and KdConfig::validate.
Result<LearningDraft> load_learning_draft(const TorchDraftOptions& options, std::size_t vocab, const engine::KdConfig& config);

}  // namespace drift::cli
