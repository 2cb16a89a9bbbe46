#include "cli/draft_engine.hpp"

#include <fmt/format.h>

#include <utility>

#ifdef DRIFT_WITH_TORCH
#include "engines/torch/blas.hpp"
#include "engines/torch/engine.hpp"
#include "engines/torch/online_kd.hpp"
#endif

namespace drift::cli {

const char* draft_engine_name(DraftEngine engine) { return engine == DraftEngine::kLlama ? "llama" : "torch"; }

Result<DraftEngine> parse_draft_engine(const std::string& text) {
  for (const DraftEngine engine : {DraftEngine::kLlama, DraftEngine::kTorch}) {
    if (text == draft_engine_name(engine)) return engine;
  }
  return Status(Code::kInvalid, fmt::format("--draft-engine is '{}'; it must be llama or torch", text));
}

#ifdef DRIFT_WITH_TORCH

namespace {

Result<std::unique_ptr<engine::TorchEngine>> load(const TorchDraftOptions& options, bool hidden) {
  engine::TorchConfig config;
  config.model = options.model;
  config.context = options.context;
  config.threads = options.threads;
  config.hidden = hidden;
  return engine::TorchEngine::load(config);
}

}  // namespace

void prepare_torch(char** argv) { engine::use_fitting_blas_kernels(argv); }

Status check_torch(const std::string&) { return Status::ok(); }

Result<Draft> load_torch_draft(const TorchDraftOptions& options) {
  DRIFT_ASSIGN(std::unique_ptr<engine::TorchEngine> loaded, load(options, /*hidden=*/true));
  engine::ModelInfo info = loaded->describe();
  return Draft{std::move(loaded), std::move(info)};
}

Result<LearningDraft> load_learning_draft(const TorchDraftOptions& options, std::size_t vocab, const engine::KdConfig& config) {
  DRIFT_ASSIGN(std::unique_ptr<engine::TorchEngine> loaded, load(options, /*hidden=*/false));
  DRIFT_ASSIGN(std::unique_ptr<engine::Learner> learner, engine::OnlineKd::create(*loaded, vocab, config));
  return LearningDraft{std::move(loaded), std::move(learner)};
}

#else

void prepare_torch(char**) {}

Status check_torch(const std::string& what) {
  return {Code::kUnsupported,
          fmt::format("{} needs LibTorch, which this build of drift does not have; build it with -DDRIFT_WITH_TORCH=ON "
                      "(Debian: apt-get install libtorch-dev; docs/torch.md)",
                      what)};
}

Result<Draft> load_torch_draft(const TorchDraftOptions&) { return check_torch("--draft-engine torch"); }

Result<LearningDraft> load_learning_draft(const TorchDraftOptions&, std::size_t, const engine::KdConfig&) {
  return check_torch("mode online-kd");
}

#endif

}  // namespace drift::cli
