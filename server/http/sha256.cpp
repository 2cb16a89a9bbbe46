#include "server/http/sha256.hpp"

#include <openssl/evp.h>

#include "drift/base/check.hpp"

namespace drift::server {

Sha256 sha256(std::string_view bytes) {
  Sha256 out{};
  unsigned int size = 0;
  const int done = EVP_Digest(bytes.data(), bytes.size(), out.data(), &size, EVP_sha256(), nullptr);
  DRIFT_CHECK(done == 1 && size == out.size(), "SHA-256 is always there");
  return out;
}

std::string hex_of(const Sha256& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : hash) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace drift::server
