#include "drift/bank/blob.hpp"

#include <array>
#include <cstring>
#include <string>
#include <type_traits>

#include "drift/bank/store_format.hpp"

namespace drift::bank {
namespace {

constexpr std::array<char, 8> kMagic{'D', 'R', 'I', 'F', 'T', 'B', 'L', 'B'};
constexpr std::uint32_t kBlobVersion = 1;

// A new field of BankConfig must find its place here, with a new version. Every byte is named: there is no padding.
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kBlobVersion;
  std::uint32_t size = 0;
  std::uint64_t use_counter = 0;
  std::uint64_t used_tokens = 0;  // of all entries together
  std::uint32_t capacity = 0, key_dim = 0, support = 0, vocab = 0;
  float tau = 0, eta = 0;
  std::uint8_t key_type = 0, int8_scan = 0, standardise = 0, rate = 0;
  std::uint32_t zero = 0;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

Status corrupt(const std::string& what) { return {Code::kCorrupt, "stored level: " + what}; }

std::uint64_t body_bytes(const BankConfig& config, std::uint64_t size, std::uint64_t used_tokens) {
  const std::uint64_t each = 2 * sizeof(std::uint32_t) + sizeof(std::uint64_t) + sizeof(float) + format::record_bytes(config);
  return size * each + used_tokens * (sizeof(Token) + sizeof(float));
}

template <class T>
void put(std::vector<std::byte>& out, const T* data, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

template <class T>
void take(std::span<const std::byte>& in, T* data, std::size_t count) {
  if (count != 0) std::memcpy(data, in.data(), count * sizeof(T));
  in = in.subspan(count * sizeof(T));
}

}  // namespace

std::uint64_t blob_bytes(const BankConfig& config) {
  return sizeof(Header) + body_bytes(config, config.capacity, std::uint64_t{config.capacity} * config.support);
}

std::vector<std::byte> to_blob(const BankImage& image) {
  const BankConfig& c = image.config;
  Header h;
  h.size = image.size;
  h.use_counter = image.use_counter;
  for (const std::uint32_t n : image.lengths) h.used_tokens += n;
  h.capacity = c.capacity;
  h.key_dim = c.key_dim;
  h.support = c.support;
  h.vocab = c.vocab;
  h.tau = c.tau;
  h.eta = c.eta;
  h.key_type = static_cast<std::uint8_t>(c.key_type);
  h.int8_scan = c.int8_scan ? 1 : 0;
  h.standardise = c.standardise ? 1 : 0;
  h.rate = static_cast<std::uint8_t>(c.rate);
  std::vector<std::byte> out;
  out.reserve(sizeof h + body_bytes(c, h.size, h.used_tokens));
  put(out, &h, 1);
  put(out, image.lengths.data(), image.size);
  put(out, image.counts.data(), image.size);
  put(out, image.last_used.data(), image.size);
  put(out, image.errors.data(), image.size);
  put(out, image.keys.data(), image.keys.size());
  for (std::size_t id = 0; id < image.size; ++id) put(out, image.tokens.data() + id * c.support, image.lengths[id]);
  for (std::size_t id = 0; id < image.size; ++id) put(out, image.values.data() + id * c.support, image.lengths[id]);
  return out;
}

Result<BankImage> from_blob(std::span<const std::byte> bytes) {
  Header h;
  if (bytes.size() < sizeof h) return corrupt("it is shorter than its header");
  take(bytes, &h, 1);
  if (h.magic != kMagic) return corrupt("it does not begin as one");
  if (h.version != kBlobVersion) {
    return Status(Code::kForeign, "stored level: it has version " + std::to_string(h.version) + ", this program reads " +
                                      std::to_string(kBlobVersion) + "; update drift");
  }
  BankImage image;
  BankConfig& c = image.config;
  if (h.key_type > 2 || h.int8_scan > 1 || h.standardise > 1 || h.rate > 2 || h.zero != 0)
    return corrupt("a field is out of bounds");
  c.capacity = h.capacity;
  c.key_dim = h.key_dim;
  c.support = h.support;
  c.vocab = h.vocab;
  c.tau = h.tau;
  c.eta = h.eta;
  c.key_type = static_cast<KeyType>(h.key_type);
  c.int8_scan = h.int8_scan == 1;
  c.standardise = h.standardise == 1;
  c.rate = static_cast<RateRule>(h.rate);
  const Status valid = c.validate();
  if (!valid.is_ok()) return corrupt(valid.message());
  if (h.size > c.capacity || h.used_tokens > std::uint64_t{h.size} * c.support) return corrupt("it holds more than fits");
  if (bytes.size() != body_bytes(c, h.size, h.used_tokens)) {
    return corrupt("it has " + std::to_string(bytes.size()) + " bytes behind its header, " +
                   std::to_string(body_bytes(c, h.size, h.used_tokens)) + " expected");
  }
  const std::size_t n = h.size;
  image.size = h.size;
  image.use_counter = h.use_counter;
  image.lengths.resize(n);
  image.counts.resize(n);
  image.last_used.resize(n);
  image.errors.resize(n);
  image.keys.resize(n * format::record_bytes(c));
  image.tokens.assign(n * c.support, kNoToken);
  image.values.assign(n * c.support, 0.0f);
  take(bytes, image.lengths.data(), n);
  std::uint64_t used = 0;
  for (const std::uint32_t length : image.lengths) {
    if (length > c.support) return corrupt("an entry holds more tokens than its support");
    used += length;
  }
  if (used != h.used_tokens) return corrupt("its entries do not add up");
  take(bytes, image.counts.data(), n);
  take(bytes, image.last_used.data(), n);
  take(bytes, image.errors.data(), n);
  take(bytes, image.keys.data(), image.keys.size());
  for (std::size_t id = 0; id < n; ++id) take(bytes, image.tokens.data() + id * c.support, image.lengths[id]);
  for (std::size_t id = 0; id < n; ++id) take(bytes, image.values.data() + id * c.support, image.lengths[id]);
  return image;
}

}  // namespace drift::bank
