#include "train/checkpoint.hpp"

#include <torch/utils.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/input.hpp"
#include "cli/output_file.hpp"
#include "drift/base/check.hpp"

namespace drift::train {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "drift-train-1";
constexpr std::size_t kLengthBytes = 8;

// Over the header without the checksum itself, then the data.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState(), &XXH3_freeState) {
    DRIFT_CHECK(state_ != nullptr, "memory for a hash");
    XXH3_64bits_reset(state_.get());
  }
  void add(std::string_view bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  std::string hex() const { return fmt::format("{:016x}", XXH3_64bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

std::string_view bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

Status damaged(const std::string& path, const std::string& what) {
  return {Code::kCorrupt, fmt::format("{} is damaged: {}; start anew with --fresh", path, what)};
}

Result<torch::Tensor> read_tensor(const std::string& path, const std::string& name, const json& entry, std::string_view data) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    return damaged(path, "an entry of its header");
  const bool is_int = entry["dtype"] == "I32";
  if (!is_int && entry["dtype"] != "F32") return damaged(path, "the type of " + name);
  std::vector<std::int64_t> shape;
  std::uint64_t count = 1;
  for (const json& extent : entry["shape"]) {
    if (!extent.is_number_unsigned()) return damaged(path, "the shape of " + name);
    const std::uint64_t value = extent.get<std::uint64_t>();
    if (value > kCheckpointBytesMax || (value != 0 && count > kCheckpointBytesMax / value))
      return damaged(path, "the shape of " + name);
    count *= value;
    shape.push_back(static_cast<std::int64_t>(value));
  }
  const json& offsets = entry["data_offsets"];
  if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
    return damaged(path, "the place of " + name);
  const std::uint64_t begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > data.size() || end - begin != count * sizeof(float)) return damaged(path, "the place of " + name);
  torch::Tensor tensor = torch::empty(shape, is_int ? torch::kInt : torch::kFloat);
  if (end > begin) std::memcpy(tensor.data_ptr(), data.data() + begin, end - begin);
  return tensor;
}

// The first key in which two recipes differ.
std::string first_difference(const json& ours, const json& theirs) {
  for (const auto& [key, value] : ours.items())
    if (!theirs.contains(key) || theirs[key] != value) return key;
  return "an option this program does not know";
}

}  // namespace

Status Checkpoint::restore(const std::string& name, torch::Tensor out) const {
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.sizes() != out.sizes() || found->second.scalar_type() != out.scalar_type())
    return {Code::kCorrupt, fmt::format("the checkpoint lacks {}, or has it in another shape; start anew with --fresh", name)};
  const torch::NoGradGuard no_grad;
  out.detach().copy_(found->second);
  return Status::ok();
}

Status write_checkpoint(const std::string& path, const json& facts, const NamedTensors& tensors) {
  json header;
  std::vector<torch::Tensor> dense;
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    dense.push_back(tensor.detach().contiguous());
    const std::string_view bytes = bytes_of(dense.back());
    const bool is_int = tensor.scalar_type() == torch::kInt;
    DRIFT_CHECK(is_int || tensor.scalar_type() == torch::kFloat, "checkpoints hold float32 and int32");
    header[name] = {
        {"dtype", is_int ? "I32" : "F32"}, {"shape", tensor.sizes().vec()}, {"data_offsets", {at, at + bytes.size()}}};
    at += bytes.size();
  }
  // safetensors' metadata are strings.
  header["__metadata__"] = {{"format", kFormat}, {"facts", facts.dump()}};
  Checksum checksum;
  checksum.add(header.dump());
  for (const torch::Tensor& tensor : dense) checksum.add(bytes_of(tensor));
  header["__metadata__"]["xxh3"] = checksum.hex();

  const std::string text = header.dump();
  char length[kLengthBytes];
  for (std::size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  DRIFT_ASSIGN(cli::OutputFile file, cli::OutputFile::open(path, {}));
  DRIFT_TRY(file.write({length, kLengthBytes}));
  DRIFT_TRY(file.write(text));
  for (const torch::Tensor& tensor : dense) DRIFT_TRY(file.write(bytes_of(tensor)));
  return file.finish();
}

Result<Checkpoint> read_checkpoint(const std::string& path) {
  DRIFT_ASSIGN(const std::string file, cli::read_text_file(path, kCheckpointBytesMax));
  std::uint64_t length = 0;
  if (file.size() < kLengthBytes) return damaged(path, "it is cut off");
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
  if (length > kHeaderBytesMax || length > file.size() - kLengthBytes) return damaged(path, "its header does not fit");
  json header = json::parse(file.begin() + kLengthBytes, file.begin() + static_cast<std::ptrdiff_t>(kLengthBytes + length),
                            nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || !header.contains("__metadata__") || !header["__metadata__"].is_object())
    return damaged(path, "its header is no JSON of ours");
  const json metadata = header["__metadata__"];
  const auto text_of = [&](const char* key) {
    return metadata.contains(key) && metadata[key].is_string() ? metadata[key].get<std::string>() : "";
  };
  if (text_of("format") != kFormat)
    return Status(Code::kForeign,
                  fmt::format("{} was not written by this version of drift-train; start anew with --fresh", path));
  const std::string_view data = std::string_view(file).substr(kLengthBytes + length);
  header["__metadata__"].erase("xxh3");
  Checksum checksum;
  checksum.add(header.dump());
  checksum.add(data);
  if (text_of("xxh3") != checksum.hex()) return damaged(path, "its checksum disagrees");
  Checkpoint out;
  out.facts = json::parse(text_of("facts"), nullptr, /*allow_exceptions=*/false);
  if (!out.facts.is_object()) return damaged(path, "its facts are no JSON");
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    DRIFT_ASSIGN(torch::Tensor tensor, read_tensor(path, name, entry, data));
    out.tensors.emplace(name, std::move(tensor));
  }
  return out;
}

Status check_recipe(const std::string& path, const Checkpoint& checkpoint, const json& recipe) {
  const json theirs = checkpoint.facts.value("recipe", json::object());
  if (theirs == recipe) return Status::ok();
  return {Code::kForeign,
          fmt::format("{} was made with another recipe (they differ in: {}); give the same options, models and texts, another "
                      "--out, or --fresh to start anew",
                      path, first_difference(recipe, theirs))};
}

}  // namespace drift::train
