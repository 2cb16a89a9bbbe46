// model.hpp - a GGUF model in memory, checked before llama.cpp sees it. Shared by engines and texts over the same weights.
//
// Threads: immutable after load; share it freely. Limits: single-file GGUF, decoder-only attention models.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "drift/base/status.hpp"

struct llama_model;
struct llama_vocab;

namespace drift::engine {

struct LlamaModelConfig {
  std::string path;      // a single .gguf file
  int gpu_layers = 0;    // layers given to a GPU backend if this llama.cpp has one; -1 = all
  bool verbose = false;  // llama.cpp's log to stderr, for the whole process
};

// Whether `path` is a complete GGUF file: header, metadata and the tensors' bytes are all inside it. Reads only the header.
// Fails with kNotFound, kIo, kInvalid (no GGUF file), kCorrupt (cut or damaged), kUnsupported (one part of a split model).
Status check_gguf(const std::string& path);

class LlamaModel {
 public:
  // Reads a model. Fails as check_gguf, and with kUnsupported when the model cannot serve as target or draft (recurrent, hybrid,
  // encoder or diffusion models: they cannot drop rejected tokens one by one), kInternal if llama.cpp refuses it otherwise.
  // Cost: about the time to read the file.
  static Result<std::shared_ptr<LlamaModel>> load(const LlamaModelConfig& config);
  ~LlamaModel();
  LlamaModel(const LlamaModel&) = delete;
  LlamaModel& operator=(const LlamaModel&) = delete;

  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }  // general.name, or the file's name
  const std::string& arch() const { return arch_; }
  std::size_t vocab() const { return vocab_; }
  std::size_t hidden_width() const { return hidden_width_; }
  std::size_t trained_context() const { return trained_context_; }
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  // Of keys and values at half precision, all layers; an upper bound where layers share them or keep only a window.
  std::uint64_t kv_bytes_per_token() const { return kv_bytes_per_token_; }
  llama_model* handle() const { return model_; }
  const llama_vocab* vocab_handle() const;

 private:
  LlamaModel() = default;
  llama_model* model_ = nullptr;
  std::string path_, name_, arch_;
  std::size_t vocab_ = 0, hidden_width_ = 0, trained_context_ = 0;
  std::uint64_t weight_bytes_ = 0, kv_bytes_per_token_ = 0;
};

}  // namespace drift::engine
