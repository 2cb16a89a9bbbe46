#include "engines/torch/gguf_write.hpp"

#include <fcntl.h>
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "drift/base/check.hpp"

namespace drift::engine {
namespace {

constexpr std::int64_t kBlock = 32;   // of q8_0 and q4_0
constexpr double kHalfMax = 65504.0;  // the largest finite half-precision float
// How matrices are stored, and what llama.cpp calls such a file in general.file_type.
struct Storage {
  ggml_type type;
  std::uint32_t file_type;
};

Storage storage_of(GgufType type) {
  switch (type) {
    case GgufType::kF32: return {GGML_TYPE_F32, 0};
    case GgufType::kF16: return {GGML_TYPE_F16, 1};
    case GgufType::kQ4_0: return {GGML_TYPE_Q4_0, 2};
    case GgufType::kQ8_0: break;
  }
  return {GGML_TYPE_Q8_0, 7};
}

using Header = std::unique_ptr<gguf_context, void (*)(gguf_context*)>;
using TensorInfos = std::unique_ptr<ggml_context, void (*)(ggml_context*)>;

struct Item {
  std::string name;      // in the file
  torch::Tensor values;  // float32, one or two dimensions, contiguous
  ggml_type type;
};

ggml_type stored_as(GgufType type, const torch::Tensor& values) {
  return values.dim() < 2 ? GGML_TYPE_F32 : storage_of(type).type;
}

Status check_item(const Item& item) {
  const double largest = item.values.abs().max().item<double>();  // NaN if any is
  if (!std::isfinite(largest))
    return {Code::kInvalid, "the weights of " + item.name + " are not all finite; nothing was written"};
  if (item.type == GGML_TYPE_F32) return Status::ok();
  if (largest > kHalfMax) {
    return {Code::kInvalid,
            "a weight of " + item.name + " is too large for half precision (" + std::to_string(largest) + "); write f32"};
  }
  const std::int64_t row = item.values.size(-1), block = ggml_blck_size(item.type);
  if (row % block != 0) {
    return {Code::kInvalid, "the rows of " + item.name + " have " + std::to_string(row) + " elements, which do not divide into " +
                                ggml_type_name(item.type) + "'s blocks of " + std::to_string(block) + "; write f16"};
  }
  return Status::ok();
}

// Where a file is renamed to: links are followed, and a device or a pipe would be replaced.
Result<std::string> place_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (fs::exists(there) && !fs::is_regular_file(there))
    return Status(Code::kInvalid, path + " is no regular file; a model is written to a file");
  if (!fs::is_symlink(path, error)) return path;
  fs::path place = fs::weakly_canonical(path, error);
  if (error) return Status(Code::kIo, "cannot write " + path + ": " + error.message());
  return place.string();
}

// A file under a temporary name that becomes `path` by commit(), or goes.
class AtomicFile {
 public:
  // Requires: `path` is no link.
  explicit AtomicFile(std::string path)
      : path_(std::move(path)), temporary_(path_ + ".part-" + std::to_string(::getpid()) + "-0") {
    file_ = std::fopen(temporary_.c_str(), "wb");
  }
  ~AtomicFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (!committed_) std::remove(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status opened() const { return file_ != nullptr ? Status::ok() : failed(); }
  Status write(const void* bytes, std::size_t count) {
    return std::fwrite(bytes, 1, count, file_) == count ? Status::ok() : failed();
  }
  Status commit() {
    const bool flushed = std::fflush(file_) == 0 && ::fsync(::fileno(file_)) == 0;
    if (!flushed) return failed();
    if (std::fclose(std::exchange(file_, nullptr)) != 0) return failed();
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return failed();
    committed_ = true;
    return Status::ok();
  }

 private:
  Status failed() const { return {Code::kIo, "cannot write " + path_ + ": " + std::strerror(errno)}; }
  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
  bool committed_ = false;
};

// The bytes of an item as stored.
std::vector<char> encode(const Item& item) {
  const std::int64_t columns = item.values.size(-1), rows = item.values.numel() / columns;
  std::vector<char> bytes(ggml_row_size(item.type, columns) * static_cast<std::size_t>(rows));
  const float* values = item.values.data_ptr<float>();
  if (item.type == GGML_TYPE_F32) {
    std::memcpy(bytes.data(), values, bytes.size());
  } else {
    ggml_quantize_chunk(item.type, values, bytes.data(), /*start=*/0, rows, columns, /*imatrix=*/nullptr);
  }
  return bytes;
}

Status write_items(const std::string& path, gguf_context* header, const std::vector<Item>& items) {
  DRIFT_ASSIGN(const std::string place, place_of(path));
  for (const Item& item : items) DRIFT_TRY(check_item(item));
  const TensorInfos infos(ggml_init({(items.size() + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}), &ggml_free);
  if (!infos) return {Code::kIo, "no memory to write " + path};
  for (const Item& item : items) {
    const std::int64_t columns = item.values.size(-1);
    ggml_tensor* info = item.values.dim() == 1 ? ggml_new_tensor_1d(infos.get(), item.type, columns)
                                               : ggml_new_tensor_2d(infos.get(), item.type, columns, item.values.size(0));
    ggml_set_name(info, item.name.c_str());
    gguf_add_tensor(header, info);
  }

  AtomicFile file(place);
  DRIFT_TRY(file.opened());
  std::vector<char> meta(gguf_get_meta_size(header));
  gguf_get_meta_data(header, meta.data());
  DRIFT_TRY(file.write(meta.data(), meta.size()));
  const std::size_t alignment = gguf_get_alignment(header);
  const std::vector<char> zeros(alignment, 0);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    DRIFT_CHECK(gguf_get_tensor_offset(header, static_cast<std::int64_t>(i)) == offset, "a tensor is not where its header says");
    const std::vector<char> bytes = encode(items[i]);
    const std::size_t padding = (alignment - bytes.size() % alignment) % alignment;
    DRIFT_TRY(file.write(bytes.data(), bytes.size()));
    DRIFT_TRY(file.write(zeros.data(), padding));
    offset += bytes.size() + padding;
  }
  return file.commit();
}

const char* arch_of(const ModelShape& shape) { return shape.rope == Rope::kHalves ? "qwen2" : "llama"; }

void set_shape(gguf_context* header, const ModelShape& shape) {
  const std::string arch = arch_of(shape);
  const auto whole = [&](const std::string& key, std::int64_t value) {
    gguf_set_val_u32(header, (arch + key).c_str(), static_cast<std::uint32_t>(value));
  };
  whole(".vocab_size", shape.vocab);
  whole(".context_length", shape.context);
  whole(".embedding_length", shape.width);
  whole(".block_count", shape.layers);
  whole(".feed_forward_length", shape.ffn);
  whole(".attention.head_count", shape.heads);
  whole(".attention.head_count_kv", shape.kv_heads);
  whole(".rope.dimension_count", shape.head_width());
  gguf_set_val_f32(header, (arch + ".rope.freq_base").c_str(), static_cast<float>(shape.rope_base));
  gguf_set_val_f32(header, (arch + ".attention.layer_norm_rms_epsilon").c_str(), static_cast<float>(shape.norm_eps));
}

Item item_of(const std::string& name, const torch::Tensor& values, GgufType type) {
  const torch::Tensor plain = values.detach().contiguous();
  return {name, plain, stored_as(type, plain)};
}

}  // namespace

bool fits_blocks(const ModelShape& shape) { return shape.width % kBlock == 0 && shape.ffn % kBlock == 0; }

Status write_gguf(const std::string& path, const LlamaNet& net, const GgufMeta& meta, GgufType type) {
  const ModelShape& shape = net->shape();
  if (net->has_adapters()) return {Code::kInvalid, "the network has adapters; merge them, or write them alone"};
  if (meta.vocab() != shape.vocab) {
    return {Code::kInvalid, "the tokenizer has " + std::to_string(meta.vocab()) + " tokens, the network's vocabulary " +
                                std::to_string(shape.vocab)};
  }
  const torch::NoGradGuard no_grad;
  const Header header(gguf_init_empty(), &gguf_free);
  gguf_set_val_str(header.get(), "general.architecture", arch_of(shape));
  gguf_set_val_str(header.get(), "general.type", "model");
  if (!meta.name().empty()) gguf_set_val_str(header.get(), "general.name", meta.name().c_str());
  gguf_set_val_u32(header.get(), "general.file_type", storage_of(type).file_type);
  gguf_set_val_u32(header.get(), "general.quantization_version", GGML_QNT_VERSION);
  set_shape(header.get(), shape);
  gguf_set_kv(header.get(), meta.fields());
  std::vector<Item> items;
  for (const auto& item : net->named_parameters()) items.push_back(item_of(item.key(), item.value(), type));
  return write_items(path, header.get(), items);
}

Status write_adapter(const std::string& path, const LlamaNet& net, const std::string& name) {
  if (!net->has_adapters()) return {Code::kInvalid, "the network has no adapters to write"};
  const torch::NoGradGuard no_grad;
  const Header header(gguf_init_empty(), &gguf_free);
  gguf_set_val_str(header.get(), "general.architecture", arch_of(net->shape()));
  gguf_set_val_str(header.get(), "general.type", "adapter");
  gguf_set_val_str(header.get(), "adapter.type", "lora");
  if (!name.empty()) gguf_set_val_str(header.get(), "general.name", name.c_str());
  std::vector<Item> items;
  double alpha = 0;
  for (const NamedMatrix& named : net->matrices()) {
    const Linear& matrix = named.matrix;
    alpha = matrix->lora_scale * static_cast<double>(matrix->lora_a.size(0));  // llama.cpp divides by the rank again
    items.push_back(item_of(named.name + ".weight.lora_a", matrix->lora_a, GgufType::kF16));
    items.push_back(item_of(named.name + ".weight.lora_b", matrix->lora_b, GgufType::kF16));
  }
  gguf_set_val_f32(header.get(), "adapter.lora.alpha", static_cast<float>(alpha));
  return write_items(path, header.get(), items);
}

}  // namespace drift::engine
