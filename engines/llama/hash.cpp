#include "engines/llama/hash.hpp"

#include <xxhash.h>

#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

namespace drift::engine {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

std::string to_hex(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

Result<std::string> file_hash(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) {
    const int error = errno;
    return Status(error == ENOENT ? Code::kNotFound : Code::kIo, "cannot read " + path + " to hash it: " + std::strerror(error));
  }
  std::setvbuf(file.get(), nullptr, _IONBF, 0);  // we read in large blocks ourselves
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), &XXH3_freeState);
  if (!state || XXH3_128bits_reset(state.get()) != XXH_OK) return Status(Code::kInternal, "cannot start hashing " + path);
  const std::unique_ptr<char[]> block(new char[kBlockBytes]);
  for (;;) {
    const std::size_t got = std::fread(block.get(), 1, kBlockBytes, file.get());
    if (got > 0) XXH3_128bits_update(state.get(), block.get(), got);
    if (got < kBlockBytes) break;
  }
  if (std::ferror(file.get()) != 0) return Status(Code::kIo, "error while reading " + path + " to hash it");
  return to_hex(XXH3_128bits_digest(state.get()));
}

Result<std::string> content_hash(const std::string& model_path, const std::vector<LoraAdapter>& adapters) {
  DRIFT_ASSIGN(std::string combined, file_hash(model_path));
  bool any = false;
  for (const LoraAdapter& adapter : adapters) {
    if (adapter.scale == 0.0F) continue;  // not applied, so it must not change the identity
    DRIFT_ASSIGN(const std::string hash, file_hash(adapter.path));
    combined += "+" + hash + "*" + std::to_string(std::bit_cast<std::uint32_t>(adapter.scale));
    any = true;
  }
  if (!any) return combined;
  return to_hex(XXH3_128bits(combined.data(), combined.size()));
}

}  // namespace drift::engine
