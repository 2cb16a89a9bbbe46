// llama_models.hpp - where the model tests find their files: the folder DRIFT_MODELS names, or the project's models/ for the built-in
// pair. Missing files skip a test aloud.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "engines/llama/engine.hpp"

namespace drift::engine {

inline constexpr const char* kBuiltInTarget = "drift-mini-target.gguf";
inline constexpr const char* kBuiltInDraft = "drift-mini-draft.gguf";
inline constexpr const char* kSmol = "smollm2-135m-instruct-q4_1.gguf";
inline constexpr const char* kQwenTarget = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";
inline constexpr const char* kQwenDraft = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

// The path of a model file, or empty if it is not there.
inline std::string model_path(const std::string& file) {
  const bool built_in = file == kBuiltInTarget || file == kBuiltInDraft;
  const char* folder = built_in ? DRIFT_BUILT_IN_MODELS : std::getenv("DRIFT_MODELS");
  if (folder == nullptr || *folder == '\0') return {};
  const std::string path = (std::filesystem::path(folder) / file).string();
  return std::filesystem::exists(path) ? path : std::string();
}

inline std::string missing_model(const std::string& file) {
  if (file == kBuiltInTarget || file == kBuiltInDraft) return "no " + file + " in the project's folder models/";
  return "no " + file + " in the folder that the environment variable DRIFT_MODELS names; fetch it with `drift models get`";
}

// The model, loaded once per test program; null if it is not there or broken (then the test must say so).
inline std::shared_ptr<LlamaModel> shared_model(const std::string& file) {
  static std::string loaded_name;
  static std::shared_ptr<LlamaModel> loaded;  // one at a time: the tests of a model follow each other
  if (loaded_name != file) {
    loaded.reset();
    loaded_name = file;
    const std::string path = model_path(file);
    if (path.empty()) return nullptr;
    Result<std::shared_ptr<LlamaModel>> model = LlamaModel::load({path});
    if (!model.is_ok()) {
      std::fprintf(stderr, "cannot load %s: %s\n", path.c_str(), model.status().message().c_str());
      std::abort();  // present but broken: never a silent skip
    }
    loaded = std::move(model).value();
  }
  return loaded;
}

// An engine of its own on one thread; null, with a failure, if it cannot be loaded. Requires: the file is there.
inline std::unique_ptr<LlamaEngine> load_engine(const std::string& file, bool hidden, int context, int sequences = 1) {
  LlamaConfig config;
  config.model = model_path(file);
  config.context = context;
  config.max_sequences = sequences;
  config.threads = 1;
  config.hidden = hidden;
  auto engine = LlamaEngine::load(config);
  EXPECT_TRUE(engine.is_ok()) << engine.status().message();
  return engine.is_ok() ? std::move(engine).value() : nullptr;
}

}  // namespace drift::engine
