#include "server/http/api_keys.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>

namespace drift::server {

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest out{};
  unsigned int size = 0;
  const int done = EVP_Digest(key.data(), key.size(), out.data(), &size, EVP_sha256(), nullptr);
  DRIFT_CHECK(done == 1 && size == out.size(), "SHA-256 is always there");
  return out;
}

Result<ApiKeys> ApiKeys::make(const std::vector<std::string>& keys) {
  if (keys.size() > kApiKeysMax) {
    return Status(Code::kLimit, "there are " + std::to_string(keys.size()) + " API keys; at most " + std::to_string(kApiKeysMax) +
                                    " are taken");
  }
  ApiKeys out;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string& key = keys[i];
    const bool printable = std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7F; });
    if (!printable || key.size() < kApiKeyBytesMin || key.size() > kApiKeyBytesMax) {
      return Status(Code::kInvalid, "API key number " + std::to_string(i + 1) + " cannot be used: a key is " +
                                        std::to_string(kApiKeyBytesMin) + " to " + std::to_string(kApiKeyBytesMax) +
                                        " printable ASCII characters without spaces");
    }
    out.digests_.push_back(digest(key));
  }
  return out;
}

bool ApiKeys::holds(std::string_view presented) const {
  const Digest wanted = digest(presented.substr(0, kApiKeyBytesMax + 1));
  bool found = false;
  for (const Digest& one : digests_) found |= CRYPTO_memcmp(one.data(), wanted.data(), wanted.size()) == 0;
  return found;
}

std::vector<std::string> keys_of_text(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    constexpr std::string_view kBlank = " \t\r";
    const std::size_t from = line.find_first_not_of(kBlank);
    if (from == std::string_view::npos || line[from] == '#') continue;
    out.emplace_back(line.substr(from, line.find_last_not_of(kBlank) + 1 - from));
  }
  return out;
}

}  // namespace drift::server
