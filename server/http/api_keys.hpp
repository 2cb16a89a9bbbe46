// api_keys.hpp - who may use the server. Only hashes are kept, and comparing takes the same time whatever was presented.
//
// Threads: immutable, share freely. Limits: kApiKeysMax keys of kApiKeyBytesMin to kApiKeyBytesMax bytes. Cost: a SHA-256 and one
// pass over all keys.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::server {

inline constexpr std::size_t kApiKeysMax = 10'000;
inline constexpr std::size_t kApiKeyBytesMin = 1;
inline constexpr std::size_t kApiKeyBytesMax = 512;

class ApiKeys {
 public:
  ApiKeys() = default;  // none: everybody may
  // Fails with kInvalid (a key that is too short, too long, or has characters that no header can carry), kLimit. Keys are never
  // part of a message.
  static Result<ApiKeys> make(const std::vector<std::string>& keys);

  bool empty() const { return digests_.empty(); }
  bool holds(std::string_view presented) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;
};

// The keys of a file's text: one a line, empty lines and lines that begin with # left out.
std::vector<std::string> keys_of_text(std::string_view text);

}  // namespace drift::server
