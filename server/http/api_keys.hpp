// api_keys.hpp - who may use the server, and whose traffic it is. Only hashes are kept, and comparing takes the same time whatever was
// presented.
//
// A key belongs to a tenant: its requests use that tenant's banks and no other's. An operator's key may also look at and change the
// banks of all tenants. Without any key everybody is the operator, of the default tenant. A tenant whose keys say so shares its banks:
// others look them up (Banks::share).
// Threads: immutable, share freely; a server is given others as a whole (HttpServer::use). Limits: kApiKeysMax keys of kApiKeyBytesMin to kApiKeyBytesMax bytes. Cost: a SHA-256 and one
// pass over all keys.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"
#include "server/http/sha256.hpp"
#include "server/schedule/names.hpp"

namespace drift::server {

inline constexpr std::size_t kApiKeysMax = 10'000;
inline constexpr std::size_t kApiKeyBytesMin = 1;
inline constexpr std::size_t kApiKeyBytesMax = 512;
inline constexpr std::string_view kHashedKey = "sha256:";  // what follows is the key's SHA-256 in hexadecimal, not the key

struct Identity {
  std::string tenant = kDefaultTenant;
  bool is_operator = true;
  bool shares = false;
  friend bool operator==(const Identity&, const Identity&) = default;
};

struct ApiKey {
  std::string key;  // or kHashedKey and its hash
  Identity identity;
};

class ApiKeys {
 public:
  ApiKeys() = default;  // none
  // Fails with kInvalid (a key that is too short, too long, there twice, or has characters that no header can carry; a tenant's name; a
  // tenant of which one key shares and another does not), kLimit. Keys are never part of a message.
  static Result<ApiKeys> make(const std::vector<ApiKey>& keys);

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  // The tenants who share their banks.
  std::set<std::string> sharing() const;
  // Whose a presented key is; none if it is nobody's. Without keys: the operator's.
  std::optional<Identity> find(std::string_view presented) const;

 private:
  struct Entry {
    Sha256 digest;
    Identity identity;
  };
  std::vector<Entry> entries_;
};

// The keys of a file's text, one a line: `KEY [TENANT [operator] [share]]`, KEY as in ApiKey. A key alone is the operator's; empty lines
// and lines that begin with # are left out. Fails with kInvalid naming the line, never its content.
Result<std::vector<ApiKey>> keys_of_text(std::string_view text);

}  // namespace drift::server
