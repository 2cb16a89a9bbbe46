#include "drift/bank/store_format.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "drift/bank/layout.hpp"

namespace drift::bank::format {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian; a big-endian machine needs byte swaps");
// A new field of the configuration must be stored too: make_meta, parse_meta and docs/bank-format.md.
static_assert(sizeof(BankConfig) == 32, "BankConfig changed: store the new field, then correct this size");

std::string float_text(float value) {  // the shortest text that reads back as the same float
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end.ptr};
}

const char* key_type_text(KeyType type) { return type == KeyType::kF16 ? "f16" : "f32"; }

const char* rate_text(RateRule rule) {
  switch (rule) {
    case RateRule::kFixed: return "fixed";
    case RateRule::kCount: return "count";
    case RateRule::kError: return "error";
  }
  return "fixed";
}

// Reads the fields of a meta one by one and remembers the first that is wrong.
class MetaReader {
 public:
  explicit MetaReader(const Meta& meta) : meta_(meta) {}

  std::string text(const char* key, std::size_t max_bytes) {
    const auto it = meta_.find(key);
    if (it == meta_.end()) return fail(key, "is missing"), std::string();
    ++read_;
    if (it->second.size() > max_bytes) return fail(key, "is longer than " + std::to_string(max_bytes) + " bytes"), std::string();
    return it->second;
  }

  template <class T>
  T number(const char* key, T max = std::numeric_limits<T>::max()) {
    const std::string value = text(key, 32);
    T number{};
    const auto end = std::from_chars(value.data(), value.data() + value.size(), number);
    if (end.ec != std::errc() || end.ptr != value.data() + value.size() || !(number <= max)) {
      fail(key, "is '" + value + "', not a number in its range");
      return T{};
    }
    return number;
  }

  template <std::size_t N>
  std::size_t one_of(const char* key, const std::array<const char*, N>& names) {
    const std::string value = text(key, 32);
    for (std::size_t i = 0; i < N; ++i) {
      if (value == names[i]) return i;
    }
    fail(key, "is '" + value + "', which this version does not know");
    return 0;
  }

  Status finish() {
    if (status_.is_ok() && read_ != meta_.size()) status_ = {Code::kCorrupt, "bank meta holds fields this version does not know"};
    return status_;
  }

 private:
  void fail(const char* key, const std::string& why) {
    if (status_.is_ok()) status_ = {Code::kCorrupt, std::string("bank field ") + key + " " + why};
  }
  const Meta& meta_;
  std::size_t read_ = 0;
  Status status_;
};

// The canonical serialisation: (u64 bytes of name, name, u64 bytes of data, data), little-endian, field after field.
class ContentHasher {
 public:
  ContentHasher() { XXH3_128bits_reset(&state_); }
  void field(std::string_view name, const void* data, std::size_t bytes) {
    number(name.size());
    XXH3_128bits_update(&state_, name.data(), name.size());
    number(bytes);
    if (bytes != 0) XXH3_128bits_update(&state_, data, bytes);
  }
  template <class T>
  void array(std::string_view name, const std::vector<T>& values) {
    field(name, values.data(), values.size() * sizeof(T));
  }
  std::string hex() {
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(&state_));
    std::string text;
    for (const unsigned char byte : bytes.digest) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  }

 private:
  void number(std::uint64_t value) { XXH3_128bits_update(&state_, &value, sizeof value); }
  XXH3_state_t state_;
};

bool all_of(std::string_view text, std::string_view extra) {
  for (const char c : text) {
    const bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alnum && extra.find(c) == std::string_view::npos) return false;
  }
  return true;
}

bool printable(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

Status check_fingerprint(const Fingerprint& fingerprint) {
  const std::pair<const char*, const std::string*> hashes[] = {{"target_hash", &fingerprint.target_hash},
                                                               {"draft_hash", &fingerprint.draft_hash}};
  for (const auto& [name, hash] : hashes) {
    if (hash->empty() || hash->size() > kMaxHashChars || !all_of(*hash, "+-_.:")) {
      return {Code::kInvalid, std::string("bank fingerprint: ") + name + " must be 1 to 256 hex digits (letters, digits, +-_.:)"};
    }
  }
  return Status::ok();
}

Status bad_entry(std::size_t entry, const std::string& what) {
  return {Code::kCorrupt, "bank image: entry " + std::to_string(entry) + " " + what};
}

Status check_entry(const BankImage& image, std::size_t entry) {
  const std::size_t support = image.config.support, length = image.lengths[entry];
  if (length > support) return bad_entry(entry, "holds more tokens than support " + std::to_string(support));
  if (image.last_used[entry] > image.use_counter) return bad_entry(entry, "was used after the use counter");
  if (!(std::isfinite(image.errors[entry]) && image.errors[entry] >= 0))
    return bad_entry(entry, "has an error that is no number >= 0");
  const Token* tokens = image.tokens.data() + entry * support;
  const float* values = image.values.data() + entry * support;
  for (std::size_t i = 0; i < length; ++i) {
    const bool in_range = tokens[i] >= 0 && static_cast<std::uint32_t>(tokens[i]) < image.config.vocab;
    if (!in_range || (i > 0 && tokens[i] <= tokens[i - 1])) return bad_entry(entry, "has tokens out of range or out of order");
    if (!std::isfinite(values[i])) return bad_entry(entry, "has a residual that is not finite");
  }
  for (std::size_t i = length; i < support; ++i) {
    if (tokens[i] != kNoToken || values[i] != 0) return bad_entry(entry, "has content behind its last token");
  }
  return Status::ok();
}

bool keys_finite(const BankImage& image) {
  if (image.config.key_type == KeyType::kHash) return true;
  if (image.config.key_type == KeyType::kF16) {
    for (std::size_t i = 0; i + 1 < image.keys.size(); i += 2) {  // all exponent bits set: infinite or not a number
      if ((std::to_integer<unsigned>(image.keys[i + 1]) & 0x7cu) == 0x7cu) return false;
    }
    return true;
  }
  for (std::size_t i = 0; i + 3 < image.keys.size(); i += 4) {
    float value;
    std::memcpy(&value, image.keys.data() + i, sizeof value);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

Status check_image(const BankImage& image) {
  DRIFT_TRY(image.config.validate());
  const std::size_t size = image.size, cells = size * image.config.support;
  if (size > image.config.capacity) return {Code::kCorrupt, "bank image: more entries than its capacity"};
  const bool sizes = image.lengths.size() == size && image.counts.size() == size && image.last_used.size() == size &&
                     image.errors.size() == size && image.tokens.size() == cells && image.values.size() == cells &&
                     image.keys.size() == size * record_bytes(image.config);
  if (!sizes) return {Code::kCorrupt, "bank image: an array does not have the length its size and configuration give"};
  for (std::size_t i = 0; i < size; ++i) DRIFT_TRY(check_entry(image, i));
  if (!keys_finite(image)) return {Code::kCorrupt, "bank image: a key is not finite"};
  std::vector<std::uint64_t> ages = image.last_used;
  std::sort(ages.begin(), ages.end());
  if (std::adjacent_find(ages.begin(), ages.end()) != ages.end()) {
    return {Code::kCorrupt, "bank image: two entries were last used at the same time"};
  }
  return Status::ok();
}

Meta make_meta(const StoredBank& bank) {
  const BankConfig& config = bank.image.config;
  return {
      {"format", "drift bank"},
      {"state", "saved"},
      {"target_hash", bank.fingerprint.target_hash},
      {"draft_hash", bank.fingerprint.draft_hash},
      {"vocab", std::to_string(bank.fingerprint.vocab)},
      {"hidden_width", std::to_string(bank.fingerprint.hidden_width)},
      {"target_name", bank.target_name},
      {"draft_name", bank.draft_name},
      {"config_capacity", std::to_string(config.capacity)},
      {"config_key_dim", std::to_string(config.key_dim)},
      {"config_support", std::to_string(config.support)},
      {"config_vocab", std::to_string(config.vocab)},
      {"config_key_type", key_type_text(config.key_type)},
      {"config_int8_scan", config.int8_scan ? "yes" : "no"},
      {"config_standardise", config.standardise ? "yes" : "no"},
      {"config_tau", float_text(config.tau)},
      {"config_eta", float_text(config.eta)},
      {"config_rate", rate_text(config.rate)},
      {"size", std::to_string(bank.image.size)},
      {"use_counter", std::to_string(bank.image.use_counter)},
  };
}

Meta make_empty_meta() { return {{"format", "drift bank"}, {"state", "empty"}}; }

bool is_empty(const Meta& meta) { return meta == make_empty_meta(); }

Result<StoredBank> parse_meta(const Meta& meta) {
  MetaReader reader(meta);
  StoredBank bank;
  reader.one_of("format", std::array{"drift bank"});
  reader.one_of("state", std::array{"saved"});
  bank.fingerprint.target_hash = reader.text("target_hash", kMaxHashChars);
  bank.fingerprint.draft_hash = reader.text("draft_hash", kMaxHashChars);
  bank.fingerprint.vocab = reader.number<std::uint32_t>("vocab");
  bank.fingerprint.hidden_width = reader.number<std::uint32_t>("hidden_width");
  bank.target_name = reader.text("target_name", kMaxNameBytes);
  bank.draft_name = reader.text("draft_name", kMaxNameBytes);
  BankConfig& config = bank.image.config;
  config.capacity = reader.number<std::uint32_t>("config_capacity", kMaxCapacity);
  config.key_dim = reader.number<std::uint32_t>("config_key_dim", kMaxKeyDim);
  config.support = reader.number<std::uint32_t>("config_support", kMaxSupport);
  config.vocab = reader.number<std::uint32_t>("config_vocab");
  config.key_type = static_cast<KeyType>(reader.one_of("config_key_type", std::array{"f32", "f16"}));
  config.int8_scan = reader.one_of("config_int8_scan", std::array{"no", "yes"}) == 1;
  config.standardise = reader.one_of("config_standardise", std::array{"no", "yes"}) == 1;
  config.tau = reader.number<float>("config_tau");
  config.eta = reader.number<float>("config_eta");
  config.rate = static_cast<RateRule>(reader.one_of("config_rate", std::array{"fixed", "count", "error"}));
  bank.image.size = reader.number<std::uint32_t>("size", kMaxCapacity);
  bank.image.use_counter = reader.number<std::uint64_t>("use_counter", std::numeric_limits<std::int64_t>::max());
  DRIFT_TRY(reader.finish());
  return bank;
}

std::string content_hash(const Meta& meta, const StoredBank* bank) {
  ContentHasher hasher;
  for (const auto& [key, value] : meta) {
    if (key != "content_hash") hasher.field(key, value.data(), value.size());
  }
  if (bank != nullptr) {
    const BankImage& image = bank->image;
    hasher.array("lengths", image.lengths);
    hasher.array("counts", image.counts);
    hasher.array("last_used", image.last_used);
    hasher.array("errors", image.errors);
    hasher.array("tokens", image.tokens);
    hasher.array("values", image.values);
    hasher.array("keys", image.keys);
    for (const auto& [name, bytes] : bank->extras) hasher.array("extra " + name, bytes);
  }
  return hasher.hex();
}

std::uint64_t record_bytes(const BankConfig& config) { return key_record_bytes(config); }

Status check_bank(const StoredBank& bank) {
  DRIFT_TRY(check_fingerprint(bank.fingerprint));
  for (const std::string* name : {&bank.target_name, &bank.draft_name}) {
    if (name->size() > kMaxNameBytes || !printable(*name)) {
      return {Code::kInvalid, "a model name stored with a bank must be printable and at most 1,024 bytes"};
    }
  }
  if (bank.image.use_counter > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return {Code::kInvalid, "bank use_counter exceeds 2^63 - 1"};
  }
  if (bank.image.config.key_type == KeyType::kHash)
    return {Code::kInvalid, "the main bank of a file has keys that are vectors; hashed ones travel in its extras"};
  DRIFT_TRY(check_image(bank.image));
  if (bank.extras.size() > kMaxExtras) return {Code::kLimit, "a bank file holds at most 32 extras"};
  for (const auto& [name, bytes] : bank.extras) {
    if (name.empty() || name.size() > kMaxExtraName || !all_of(name, "_-.")) {
      return {Code::kInvalid, "the name of a bank extra must be 1 to 64 letters, digits, _ - ."};
    }
    if (bytes.size() > kMaxExtraBytes) {
      return {Code::kLimit, "bank extra '" + name + "' has " + std::to_string(bytes.size()) + " bytes; the limit is 16 MiB"};
    }
  }
  return Status::ok();
}

}  // namespace drift::bank::format
