#include "engines/llama/model.hpp"

#include <gguf.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

#include "engines/llama/log.hpp"

namespace drift::engine {
namespace {

constexpr std::size_t kArchBytesMax = 64;
constexpr std::uint32_t kLayersMax = 512;  // what llama.cpp has room for

// A file that is there, regular, readable and begins as a GGUF file; gives its size.
Result<std::uint64_t> check_file(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return Status(Code::kInvalid, "the model path is empty");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return Status(Code::kNotFound, "no such file: " + path);
  if (error) return Status(Code::kIo, "cannot look at " + path + ": " + error.message());
  if (fs::is_directory(status)) return Status(Code::kInvalid, path + " is a folder; name a .gguf file in it");
  if (!fs::is_regular_file(status)) return Status(Code::kInvalid, path + " is not a regular file");

  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return Status(Code::kIo, "cannot open " + path + ": " + std::strerror(errno));
  std::array<char, 4> magic{};
  const std::size_t got = std::fread(magic.data(), 1, magic.size(), file.get());
  if (got == 0) return Status(Code::kInvalid, path + " is empty; a GGUF model file is needed");
  if (got < magic.size() || std::memcmp(magic.data(), "GGUF", 4) != 0) {
    return Status(Code::kInvalid,
                  path + " is not a GGUF file (it does not begin with \"GGUF\"); convert the model, or name another file");
  }
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) return Status(Code::kIo, "cannot look at " + path + ": " + error.message());
  return static_cast<std::uint64_t>(size);
}

std::string meta(const llama_model* model, const char* key) {
  std::array<char, 256> text{};
  const int length = llama_model_meta_val_str(model, key, text.data(), text.size());
  return length > 0 ? std::string(text.data()) : std::string();
}

std::uint64_t kv_bytes(const llama_model* model, const std::string& arch) {
  const auto width = [&](const char* which) {
    const std::string given = meta(model, (arch + ".attention." + which + "_length").c_str());
    const int heads = std::max(1, llama_model_n_head(model));
    return given.empty() ? llama_model_n_embd(model) / heads : std::max(0, std::atoi(given.c_str()));
  };
  return static_cast<std::uint64_t>(llama_model_n_layer(model)) * static_cast<std::uint64_t>(llama_model_n_head_kv(model)) *
         static_cast<std::uint64_t>(width("key") + width("value")) * sizeof(ggml_fp16_t);
}

// Memory is the machine's fault, anything else the file's.
Status cannot_load(const std::string& path, const std::string& why) {
  for (const char* word : {"alloc", "memory"}) {
    if (why.find(word) != std::string::npos)
      return {Code::kIo, "no memory to load " + path + ": " + why + "; free some, or take a smaller model"};
  }
  return {Code::kCorrupt, "cannot load " + path + ": " + why + "; fetch or convert the file again"};
}

// Why the model cannot be target or draft, or ok.
Status check_kind(const llama_model* model, const std::string& arch) {
  const auto refuse = [&](const std::string& kind, const std::string& why) {
    return Status(Code::kUnsupported,
                  "models of architecture " + arch + " are " + kind + ": " + why + "; choose a decoder-only attention model");
  };
  if (llama_model_is_recurrent(model)) return refuse("recurrent", "their state cannot drop single rejected tokens");
  if (llama_model_is_hybrid(model)) return refuse("partly recurrent", "their state cannot drop single rejected tokens");
  if (llama_model_has_encoder(model) || !llama_model_has_decoder(model))
    return refuse("encoder models", "they do not continue a text token by token");
  if (llama_model_is_diffusion(model)) return refuse("diffusion models", "they do not continue a text token by token");
  return Status::ok();
}

// llama.cpp reads these with asserts that end the process: their types and bounds are checked first.
Status check_keys(const gguf_context* header, const std::string& path) {
  const auto damaged = [&](const std::string& why) { return Status(Code::kCorrupt, path + " is damaged: " + why); };
  const auto text = [&](const std::string& key, std::string& out) -> Status {
    const std::int64_t id = gguf_find_key(header, key.c_str());
    if (id < 0) return Status::ok();
    if (gguf_get_kv_type(header, id) != GGUF_TYPE_STRING) return damaged(key + " is not a text");
    out = gguf_get_val_str(header, id);
    return Status::ok();
  };
  std::string arch, type, adapter;
  DRIFT_TRY(text("general.architecture", arch));
  DRIFT_TRY(text("general.type", type));
  DRIFT_TRY(text("adapter.type", adapter));
  if (arch.empty()) return damaged("it names no architecture (general.architecture)");
  if (arch.size() > kArchBytesMax) return damaged("its architecture's name has " + std::to_string(arch.size()) + " bytes");
  const std::int64_t alpha = gguf_find_key(header, "adapter.lora.alpha");
  if (alpha >= 0 && gguf_get_kv_type(header, alpha) != GGUF_TYPE_FLOAT32)
    return damaged("adapter.lora.alpha is not a 32-bit float");
  const std::string layers = arch + ".block_count";
  const std::int64_t id = gguf_find_key(header, layers.c_str());
  if (id < 0) return Status::ok();  // an adapter, or llama.cpp refuses it by itself
  if (gguf_get_kv_type(header, id) != GGUF_TYPE_UINT32) return damaged(layers + " is not a 32-bit number");
  const std::uint32_t count = gguf_get_val_u32(header, id);
  if (count < 1 || count > kLayersMax)
    return damaged(layers + " is " + std::to_string(count) + "; it must lie between 1 and " + std::to_string(kLayersMax));
  return Status::ok();
}

}  // namespace

Status check_gguf(const std::string& path) {
  start_llama();
  DRIFT_ASSIGN(const std::uint64_t file_bytes, check_file(path));
  clear_llama_errors();
  gguf_context* raw = nullptr;
  try {
    raw = gguf_init_from_file(path.c_str(), gguf_init_params{/*no_alloc=*/true, /*ctx=*/nullptr});
  } catch (const std::exception& error) {
    return Status(Code::kCorrupt, path + " is damaged: " + error.what());
  }
  const std::unique_ptr<gguf_context, void (*)(gguf_context*)> header(raw, &gguf_free);
  if (!header) {
    return Status(Code::kCorrupt, path + " (" + std::to_string(file_bytes) +
                                      " bytes) is cut or damaged: " + llama_errors("its header cannot be read"));
  }
  const std::int64_t split = gguf_find_key(header.get(), "split.count");
  if (split >= 0 && gguf_get_kv_type(header.get(), split) == GGUF_TYPE_UINT16 && gguf_get_val_u16(header.get(), split) > 1) {
    return Status(Code::kUnsupported, path + " is one part of a split model; join the parts first (llama-gguf-split --merge)");
  }
  DRIFT_TRY(check_keys(header.get(), path));
  std::uint64_t end = gguf_get_data_offset(header.get());
  const std::int64_t tensors = gguf_get_n_tensors(header.get());
  const bool adapter = gguf_find_key(header.get(), "adapter.type") >= 0;
  if (tensors == 0 && adapter)  // llama.cpp takes an adapter that adapts nothing
    return Status(Code::kCorrupt, path + " holds no tensors: it is only the header of an adapter");
  for (std::int64_t i = 0; i < tensors; ++i) {
    // The multiplication of an adapter's matrices ends the process on whole numbers and doubles.
    const ggml_type type = gguf_get_tensor_type(header.get(), i);
    if (adapter && type != GGML_TYPE_F32 && type != GGML_TYPE_F16 && type != GGML_TYPE_BF16 && !ggml_is_quantized(type)) {
      return Status(Code::kUnsupported, path + ": its tensor " + gguf_get_tensor_name(header.get(), i) + " is of type " +
                                            ggml_type_name(type) + "; an adapter's must be f32, f16, bf16 or quantised");
    }
    const std::uint64_t tensor_end =
        gguf_get_data_offset(header.get()) + gguf_get_tensor_offset(header.get(), i) + gguf_get_tensor_size(header.get(), i);
    if (tensor_end > end) end = tensor_end;
  }
  if (end > file_bytes) {
    return Status(Code::kCorrupt, path + " is cut: it has " + std::to_string(file_bytes) + " bytes, its tensors end at " +
                                      std::to_string(end) + "; fetch it again");
  }
  return Status::ok();
}

Result<std::shared_ptr<LlamaModel>> LlamaModel::load(const LlamaModelConfig& config) {
  start_llama();
  if (config.verbose) set_llama_verbose(true);
  DRIFT_TRY(check_gguf(config.path));

  clear_llama_errors();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = config.gpu_layers;
  std::shared_ptr<LlamaModel> model(new LlamaModel);
  try {
    model->model_ = llama_model_load_from_file(config.path.c_str(), params);
  } catch (const std::exception& error) {
    return cannot_load(config.path, error.what());
  }
  if (model->model_ == nullptr) return cannot_load(config.path, llama_errors("llama.cpp gives no reason"));

  const llama_model* handle = model->model_;
  model->path_ = config.path;
  model->arch_ = meta(handle, "general.architecture");
  model->name_ = meta(handle, "general.name");
  if (model->name_.empty()) model->name_ = std::filesystem::path(config.path).filename().string();
  DRIFT_TRY(check_kind(handle, model->arch_));
  model->vocab_ = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(handle)));
  model->hidden_width_ = static_cast<std::size_t>(llama_model_n_embd_out(handle));
  model->trained_context_ = static_cast<std::size_t>(llama_model_n_ctx_train(handle));
  model->weight_bytes_ = llama_model_size(handle);
  model->kv_bytes_per_token_ = kv_bytes(handle, model->arch_);
  if (model->vocab_ == 0) return Status(Code::kUnsupported, config.path + " has no vocabulary; it cannot be used for text");
  return model;
}

LlamaModel::~LlamaModel() {
  if (model_ != nullptr) llama_model_free(model_);
}

const llama_vocab* LlamaModel::vocab_handle() const { return llama_model_get_vocab(model_); }

}  // namespace drift::engine
