#include "server/http/api_keys.hpp"

#include <openssl/crypto.h>

#include <algorithm>
#include <map>

namespace drift::server {

namespace {

// None if these are not 64 digits.
std::optional<Sha256> hash_of_text(std::string_view digits) {
  const auto value = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  Sha256 out{};
  bool good = digits.size() == 2 * out.size();
  for (std::size_t i = 0; good && i < out.size(); ++i) {
    const int high = value(digits[2 * i]), low = value(digits[2 * i + 1]);
    good = high >= 0 && low >= 0;
    out[i] = static_cast<unsigned char>(16 * high + low);
  }
  return good ? std::optional(out) : std::nullopt;
}

}  // namespace

Result<ApiKeys> ApiKeys::make(const std::vector<ApiKey>& keys) {
  if (keys.size() > kApiKeysMax) {
    return Status(Code::kLimit, "there are " + std::to_string(keys.size()) + " API keys; at most " + std::to_string(kApiKeysMax) +
                                    " are taken");
  }
  ApiKeys out;
  std::map<std::string_view, bool> shares;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string number = "API key number " + std::to_string(i + 1);
    const std::string& key = keys[i].key;
    const bool printable = std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7F; });
    if (!printable || key.size() < kApiKeyBytesMin || key.size() > kApiKeyBytesMax) {
      return Status(Code::kInvalid, number + " cannot be used: a key is " + std::to_string(kApiKeyBytesMin) + " to " +
                                        std::to_string(kApiKeyBytesMax) + " printable ASCII characters without spaces");
    }
    DRIFT_TRY(check_plain_name("the tenant of " + number, keys[i].identity.tenant));
    const auto [first, is_first] = shares.try_emplace(keys[i].identity.tenant, keys[i].identity.shares);
    if (first->second != keys[i].identity.shares) {
      return Status(Code::kInvalid, "tenant '" + keys[i].identity.tenant + "' shares its banks by one key and not by " + number +
                                        ": 'share' stands behind all its keys or none");
    }
    Sha256 one = sha256(key);
    if (key.starts_with(kHashedKey)) {
      const auto given = hash_of_text(std::string_view(key).substr(kHashedKey.size()));
      if (!given) {
        return Status(Code::kInvalid, number + " cannot be used: behind " + std::string(kHashedKey) + " stand 64 of 0-9 a-f");
      }
      one = *given;
    }
    for (const Entry& other : out.entries_) {
      if (other.digest == one && !(other.identity == keys[i].identity))
        return Status(Code::kInvalid, number + " is there before with another tenant or role");
    }
    out.entries_.push_back({one, keys[i].identity});
  }
  return out;
}

std::set<std::string> ApiKeys::sharing() const {
  std::set<std::string> out;
  for (const Entry& one : entries_) {
    if (one.identity.shares) out.insert(one.identity.tenant);
  }
  return out;
}

std::optional<Identity> ApiKeys::find(std::string_view presented) const {
  if (entries_.empty()) return Identity{};
  const Sha256 wanted = sha256(presented.substr(0, kApiKeyBytesMax + 1));
  const Entry* found = nullptr;
  for (const Entry& one : entries_) {
    const bool same = CRYPTO_memcmp(one.digest.data(), wanted.data(), wanted.size()) == 0;
    found = same ? &one : found;
  }
  return found != nullptr ? std::optional(found->identity) : std::nullopt;
}

Result<std::vector<ApiKey>> keys_of_text(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  std::vector<ApiKey> out;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    std::vector<std::string> words;
    while (true) {
      const std::size_t from = line.find_first_not_of(kBlank);
      if (from == std::string_view::npos) break;
      line.remove_prefix(from);
      const std::size_t length = std::min(line.find_first_of(kBlank), line.size());
      words.emplace_back(line.substr(0, length));
      line.remove_prefix(length);
    }
    if (words.empty() || words[0].front() == '#') continue;
    ApiKey one;
    one.key = words[0];
    if (words.size() > 1) one.identity = {words[1], false, false};
    for (std::size_t i = 2; i < words.size(); ++i) {
      bool* const role = words[i] == "operator" ? &one.identity.is_operator
                         : words[i] == "share"  ? &one.identity.shares
                                                : nullptr;
      if (role == nullptr || *role) {
        return Status(Code::kInvalid,
                      "line " + std::to_string(number) +
                          " of the key file cannot be read: it must be KEY, or KEY TENANT and behind it operator, share or both");
      }
      *role = true;
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace drift::server
