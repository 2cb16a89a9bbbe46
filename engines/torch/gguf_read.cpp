#include "engines/torch/gguf_read.hpp"

#include <ggml.h>
#include <gguf.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "engines/llama/model.hpp"

namespace drift::engine {
namespace {

constexpr const char* kEmbedding = "token_embd.weight";

using Header = std::unique_ptr<gguf_context, void (*)(gguf_context*)>;
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Status damaged(const std::string& path, const std::string& why) {
  return {Code::kCorrupt, path + " is damaged: " + why + "; fetch or convert the file again"};
}

// Typed reads of the header's fields; gguf's own abort on a wrong type.
class Fields {
 public:
  Fields(const gguf_context* header, const std::string& path) : header_(header), path_(path) {}

  bool has(const std::string& key) const { return gguf_find_key(header_, key.c_str()) >= 0; }

  std::string text(const std::string& key) const {
    const std::int64_t id = gguf_find_key(header_, key.c_str());
    return id >= 0 && gguf_get_kv_type(header_, id) == GGUF_TYPE_STRING ? gguf_get_val_str(header_, id) : std::string();
  }

  Result<std::int64_t> whole(const std::string& key) const {
    const std::int64_t id = gguf_find_key(header_, key.c_str());
    if (id < 0) return damaged(path_, "it has no " + key);
    switch (gguf_get_kv_type(header_, id)) {
      case GGUF_TYPE_UINT32: return static_cast<std::int64_t>(gguf_get_val_u32(header_, id));
      case GGUF_TYPE_INT32: return static_cast<std::int64_t>(gguf_get_val_i32(header_, id));
      case GGUF_TYPE_ARRAY: return Status(Code::kUnsupported, path_ + ": " + key + " differs by layer, which is not supported");
      default: return damaged(path_, key + " is not a 32-bit number");
    }
  }
  Result<std::int64_t> whole(const std::string& key, std::int64_t otherwise) const {
    if (!has(key)) return otherwise;
    return whole(key);
  }

  Result<double> real(const std::string& key, double otherwise) const {
    const std::int64_t id = gguf_find_key(header_, key.c_str());
    if (id < 0) return otherwise;
    if (gguf_get_kv_type(header_, id) != GGUF_TYPE_FLOAT32) return damaged(path_, key + " is not a 32-bit float");
    return static_cast<double>(gguf_get_val_f32(header_, id));
  }

 private:
  const gguf_context* header_;
  const std::string& path_;
};

// [rows, columns] of a tensor of at most two dimensions; {0, 0} if it is not there.
struct Extent {
  std::int64_t rows = 0, columns = 0;
};

Extent extent_of(const gguf_context* header, const std::string& name) {
  const std::int64_t id = gguf_find_tensor(header, name.c_str());
  if (id < 0) return {};
  const std::int64_t* extent = gguf_get_tensor_ne(header, id);
  return extent[2] == 1 && extent[3] == 1 ? Extent{extent[1], extent[0]} : Extent{-1, -1};
}

// What this network does not have, and would silently compute wrongly.
Status check_features(const Fields& fields, const std::string& path, const std::string& arch, const ModelShape& shape) {
  const auto refuse = [&](const std::string& what) {
    return Status(Code::kUnsupported, path + ": " + what + " is not supported by the trainable engine");
  };
  for (const char* key : {"key_length", "value_length"}) {
    DRIFT_ASSIGN(const std::int64_t length, fields.whole(arch + ".attention." + key, shape.head_width()));
    if (length != shape.head_width()) return refuse("a head of " + std::to_string(length) + " (" + key + ")");
  }
  DRIFT_ASSIGN(const std::int64_t turned, fields.whole(arch + ".rope.dimension_count", shape.head_width()));
  if (turned != shape.head_width()) return refuse("turning " + std::to_string(turned) + " dimensions of a head");
  const std::string scaling = fields.text(arch + ".rope.scaling.type");
  if (!scaling.empty() && scaling != "none") return refuse("rope scaling '" + scaling + "'");
  for (const char* key : {".rope.scale_linear", ".rope.scaling.factor"}) {
    DRIFT_ASSIGN(const double factor, fields.real(arch + key, 1.0));
    if (factor != 1.0 && factor != 0.0) return refuse("rope scaling");
  }
  DRIFT_ASSIGN(const std::int64_t experts, fields.whole(arch + ".expert_count", 0));
  if (experts != 0) return refuse("a mixture of experts");
  return Status::ok();
}

Result<ModelShape> read_shape(const gguf_context* header, const std::string& path) {
  const Fields fields(header, path);
  if (fields.text("general.type") == "adapter") return Status(Code::kInvalid, path + " is a LoRA adapter, not a model");
  const std::string arch = fields.text("general.architecture");
  if (arch != "llama" && arch != "qwen2") {
    return Status(Code::kUnsupported,
                  path + " is of architecture '" + arch + "'; the trainable engine runs llama and qwen2 models only");
  }
  ModelShape shape;
  DRIFT_ASSIGN(shape.width, fields.whole(arch + ".embedding_length"));
  DRIFT_ASSIGN(shape.layers, fields.whole(arch + ".block_count"));
  DRIFT_ASSIGN(shape.heads, fields.whole(arch + ".attention.head_count"));
  DRIFT_ASSIGN(shape.kv_heads, fields.whole(arch + ".attention.head_count_kv", shape.heads));
  DRIFT_ASSIGN(shape.ffn, fields.whole(arch + ".feed_forward_length"));
  DRIFT_ASSIGN(shape.context, fields.whole(arch + ".context_length"));
  DRIFT_ASSIGN(shape.rope_base, fields.real(arch + ".rope.freq_base", 10000.0));
  DRIFT_ASSIGN(shape.norm_eps, fields.real(arch + ".attention.layer_norm_rms_epsilon", 0.0));
  shape.vocab = extent_of(header, kEmbedding).rows;
  shape.tied = extent_of(header, "output.weight").rows == 0;
  shape.qkv_bias = extent_of(header, "blk.0.attn_q.bias").rows != 0;
  shape.rope = arch == "qwen2" ? Rope::kHalves : Rope::kInterleaved;
  const Status status = check_shape(shape);
  if (!status.is_ok()) return Status(status.code(), path + ": " + status.message());
  DRIFT_TRY(check_features(fields, path, arch, shape));
  return shape;
}

// [rows, columns] of every tensor of a shape, by its name in GGUF.
std::map<std::string, Extent> expected_tensors(const ModelShape& shape) {
  const std::int64_t width = shape.width, kv = shape.kv_width();
  std::map<std::string, Extent> all = {{kEmbedding, {shape.vocab, width}}, {"output_norm.weight", {1, width}}};
  if (!shape.tied) all["output.weight"] = {shape.vocab, width};
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    for (const char* norm : {"attn_norm.weight", "ffn_norm.weight"}) all[block + norm] = {1, width};
    all[block + "attn_q.weight"] = {width, width};
    all[block + "attn_k.weight"] = {kv, width};
    all[block + "attn_v.weight"] = {kv, width};
    all[block + "attn_output.weight"] = {width, width};
    all[block + "ffn_gate.weight"] = {shape.ffn, width};
    all[block + "ffn_up.weight"] = {shape.ffn, width};
    all[block + "ffn_down.weight"] = {width, shape.ffn};
    if (!shape.qkv_bias) continue;
    all[block + "attn_q.bias"] = {1, width};
    all[block + "attn_k.bias"] = {1, kv};
    all[block + "attn_v.bias"] = {1, kv};
  }
  return all;
}

// Whether a tensor can be turned into floats.
Status check_type(const gguf_context* header, const std::string& name, const std::string& path) {
  const ggml_type type = gguf_get_tensor_type(header, gguf_find_tensor(header, name.c_str()));
  if (type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr) return Status::ok();
  return {Code::kUnsupported,
          path + ": the tensor " + name + " is stored as " + ggml_type_name(type) + ", which cannot be turned into floats"};
}

// Whether the file's tensors are exactly the shape's, before memory is taken for them.
Status check_tensors(const gguf_context* header, const ModelShape& shape, const std::string& path) {
  const std::map<std::string, Extent> expected = expected_tensors(shape);
  for (const auto& [name, extent] : expected) {
    const Extent found = extent_of(header, name);
    if (found.rows == 0) return damaged(path, "the tensor " + name + " is missing");
    if (found.rows != extent.rows || found.columns != extent.columns) {
      return damaged(path, "the tensor " + name + " is " + std::to_string(found.rows) + " x " + std::to_string(found.columns) +
                               ", its header says " + std::to_string(extent.rows) + " x " + std::to_string(extent.columns));
    }
    DRIFT_TRY(check_type(header, name, path));
  }
  for (std::int64_t i = 0; i < gguf_get_n_tensors(header); ++i) {
    const std::string name = gguf_get_tensor_name(header, i);
    if (!expected.contains(name)) return Status(Code::kUnsupported, path + " has a tensor this network does not know: " + name);
  }
  return Status::ok();
}

Status read_tensor(std::FILE* file, const gguf_context* header, const std::string& name, torch::Tensor& into,
                   std::vector<char>& bytes, const std::string& path) {
  const std::int64_t id = gguf_find_tensor(header, name.c_str());
  const std::uint64_t offset = gguf_get_data_offset(header) + gguf_get_tensor_offset(header, id);
  bytes.resize(gguf_get_tensor_size(header, id));
  if (::fseeko(file, static_cast<off_t>(offset), SEEK_SET) != 0 ||
      std::fread(bytes.data(), 1, bytes.size(), file) != bytes.size()) {
    return {Code::kIo, "cannot read the tensor " + name + " of " + path + ": " +
                           (std::ferror(file) != 0 ? std::strerror(errno) : "the file ends before it does")};
  }
  float* out = into.data_ptr<float>();
  const ggml_type type = gguf_get_tensor_type(header, id);
  if (type == GGML_TYPE_F32) {
    std::memcpy(out, bytes.data(), bytes.size());
  } else {
    ggml_get_type_traits(type)->to_float(bytes.data(), out, into.numel());
  }
  if (!torch::isfinite(into).all().item<bool>()) return damaged(path, "the tensor " + name + " holds a value that is not finite");
  return Status::ok();
}

Status read_weights(const gguf_context* header, LlamaNet& net, const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return {Code::kIo, "cannot open " + path + ": " + std::strerror(errno)};
  std::vector<char> bytes;
  const torch::NoGradGuard no_grad;
  // Straight into the parameters' memory: nobody has used this network yet, so its version may stay.
  for (auto& item : net->named_parameters()) DRIFT_TRY(read_tensor(file.get(), header, item.key(), item.value(), bytes, path));
  return Status::ok();
}

Result<Header> open_header(const std::string& path) {
  Header header(gguf_init_from_file(path.c_str(), gguf_init_params{/*no_alloc=*/true, /*ctx=*/nullptr}), &gguf_free);
  if (!header) return damaged(path, "its header cannot be read");
  return header;
}

std::string name_of(const gguf_context* header, const std::string& path) {
  const std::string name = Fields(header, path).text("general.name");
  return name.empty() ? std::filesystem::path(path).filename().string() : name;
}

Status other_vocabulary(const std::string& path, std::int64_t tokenizer, std::int64_t embedding) {
  return damaged(path, "its tokenizer has " + std::to_string(tokenizer) + " tokens, its embedding " + std::to_string(embedding));
}

Result<GgufModel> read_model(const std::string& path) {
  DRIFT_ASSIGN(const Header header, open_header(path));
  DRIFT_ASSIGN(const ModelShape shape, read_shape(header.get(), path));
  DRIFT_TRY(check_tensors(header.get(), shape, path));
  GgufModel model;
  model.meta = GgufMeta::from(header.get(), name_of(header.get(), path));
  if (model.meta.vocab() != 0 && model.meta.vocab() != shape.vocab)
    return other_vocabulary(path, model.meta.vocab(), shape.vocab);
  model.net = LlamaNet(shape);
  DRIFT_TRY(read_weights(header.get(), model.net, path));
  return model;
}

Result<GgufEmbedding> read_embedding(const std::string& path) {
  DRIFT_ASSIGN(const Header header, open_header(path));
  const Extent extent = extent_of(header.get(), kEmbedding);
  GgufEmbedding embedding;
  embedding.meta = GgufMeta::from(header.get(), name_of(header.get(), path));
  if (extent.rows < 1 || extent.columns < 1 || embedding.meta.vocab() == 0)
    return Status(Code::kInvalid, path + " holds no model with a tokenizer and a token embedding");
  if (embedding.meta.vocab() != extent.rows) return other_vocabulary(path, embedding.meta.vocab(), extent.rows);
  DRIFT_TRY(check_type(header.get(), kEmbedding, path));
  embedding.weight = torch::empty({extent.rows, extent.columns}, torch::kFloat);
  const File file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return Status(Code::kIo, "cannot open " + path + ": " + std::strerror(errno));
  std::vector<char> bytes;
  DRIFT_TRY(read_tensor(file.get(), header.get(), kEmbedding, embedding.weight, bytes, path));
  return embedding;
}

// LibTorch and ggml say by an exception that memory is short.
template <class T, class F>
Result<T> read_checked(const std::string& path, F read) {
  DRIFT_TRY(check_gguf(path));
  try {
    return read(path);
  } catch (const std::exception& error) {
    return Status(Code::kIo, "no memory to read " + path + ": " + error.what());
  }
}

}  // namespace

Result<GgufModel> read_gguf(const std::string& path) { return read_checked<GgufModel>(path, read_model); }

Result<GgufEmbedding> read_gguf_embedding(const std::string& path) { return read_checked<GgufEmbedding>(path, read_embedding); }

}  // namespace drift::engine
