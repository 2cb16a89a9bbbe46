#include "cli/bank_export.hpp"

#include <cmath>
#include <cstring>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>

namespace drift::cli {
namespace {

using bank::BankConfig;
using bank::BankImage;
using bank::KeyType;
using bank::RateRule;
using bank::StoredBank;
using Json = nlohmann::ordered_json;  // written: fields in their order
using Parsed = nlohmann::json;        // read: an ordered object with many keys would take their square

constexpr const char* kFormat = "drift bank export";
constexpr const char* kRates[] = {"fixed", "count", "error"};

std::string hex(const std::byte* bytes, std::size_t size) {
  std::string text(2 * size, '0');
  for (std::size_t i = 0; i < size; ++i) {
    text[2 * i] = "0123456789abcdef"[std::to_integer<unsigned>(bytes[i]) >> 4];
    text[2 * i + 1] = "0123456789abcdef"[std::to_integer<unsigned>(bytes[i]) & 15];
  }
  return text;
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool unhex(const std::string& text, std::vector<std::byte>& out) {
  if (text.size() % 2 != 0) return false;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return false;
    out.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return true;
}

Json header_of(const StoredBank& stored) {
  const BankConfig& config = stored.image.config;
  return {
      {"format", kFormat},
      {"version", 1},
      {"fingerprint",
       {{"target_hash", stored.fingerprint.target_hash},
        {"draft_hash", stored.fingerprint.draft_hash},
        {"vocab", stored.fingerprint.vocab},
        {"hidden_width", stored.fingerprint.hidden_width}}},
      {"target_name", stored.target_name},
      {"draft_name", stored.draft_name},
      {"config",
       {{"capacity", config.capacity},
        {"key_dim", config.key_dim},
        {"support", config.support},
        {"vocab", config.vocab},
        {"key_type", config.key_type == KeyType::kF16 ? "f16" : "f32"},
        {"int8_scan", config.int8_scan},
        {"standardise", config.standardise},
        {"tau", config.tau},
        {"eta", config.eta},
        {"rate", kRates[static_cast<int>(config.rate)]}}},
      {"size", stored.image.size},
      {"use_counter", stored.image.use_counter},
      {"extras", stored.extras.size()},
  };
}

Json entry_of(const BankImage& image, std::size_t id) {
  const std::size_t support = image.config.support, length = image.lengths[id];
  const std::size_t record = image.keys.size() / image.size;
  Json tokens = Json::array(), residuals = Json::array();
  for (std::size_t i = 0; i < length; ++i) {
    tokens.push_back(image.tokens[id * support + i]);
    residuals.push_back(image.values[id * support + i]);
  }
  return {{"id", id},
          {"count", image.counts[id]},
          {"last_used", image.last_used[id]},
          {"error", image.errors[id]},
          {"tokens", std::move(tokens)},
          {"residuals", std::move(residuals)},
          {"key", hex(image.keys.data() + id * record, record)}};
}

// Takes fields out of one object and remembers the first that is missing, of another kind, or out of range.
class Fields {
 public:
  Fields(const Parsed& object, std::size_t line) : object_(object), line_(line) {}

  template <class T>
  T number(const char* name) {
    const Parsed* value = get(name);
    if (value == nullptr) return T{};
    const bool ok = value->is_number_unsigned() && value->get<std::uint64_t>() <= std::numeric_limits<T>::max();
    if (!ok) fail(name, "must be a whole number from 0 to " + std::to_string(std::numeric_limits<T>::max()));
    return ok ? value->get<T>() : T{};
  }
  float real(const char* name) {
    const Parsed* value = get(name);
    if (value == nullptr) return 0;
    float out = 0;
    if (!to_float(*value, out)) fail(name, "must be a number that fits a 32-bit float");
    return out;
  }
  std::string text(const char* name) {
    const Parsed* value = get(name);
    if (value != nullptr && !value->is_string()) fail(name, "must be a string");
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
  }
  bool flag(const char* name) {
    const Parsed* value = get(name);
    if (value != nullptr && !value->is_boolean()) fail(name, "must be true or false");
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }
  const Parsed& object(const char* name) {
    static const Parsed none = Parsed::object();
    const Parsed* value = get(name);
    if (value != nullptr && !value->is_object()) fail(name, "must be an object");
    return value != nullptr && value->is_object() ? *value : none;
  }
  // At most `limit` numbers; `one` takes each and says whether it is good.
  template <class F>
  std::size_t array(const char* name, std::size_t limit, F one) {
    const Parsed* value = get(name);
    if (value == nullptr) return 0;
    if (!value->is_array() || value->size() > limit) return fail(name, "must be a list of at most " + std::to_string(limit)), 0;
    std::size_t i = 0;
    for (const Parsed& item : *value) {
      if (!one(i, item)) return fail(name, "holds an unusable value at place " + std::to_string(i)), 0;
      ++i;
    }
    return i;
  }
  static bool to_float(const Parsed& value, float& out) {
    if (!value.is_number()) return false;
    const double number = value.get<double>();
    if (!(std::fabs(number) <= std::numeric_limits<float>::max())) return false;
    out = static_cast<float>(number);
    return true;
  }
  void fail(const std::string& name, const std::string& why) {
    if (status_.is_ok()) status_ = {Code::kInvalid, "bank export, line " + std::to_string(line_) + ": '" + name + "' " + why};
  }
  Status status() const { return status_; }

 private:
  const Parsed* get(const char* name) {
    const auto it = object_.find(name);
    if (it == object_.end()) return fail(name, "is missing"), nullptr;
    return &*it;
  }
  const Parsed& object_;
  std::size_t line_;
  Status status_;
};

// Lines of bounded length, as JSON objects.
class Lines {
 public:
  explicit Lines(std::istream& in) : in_(in) {}
  std::size_t number() const { return number_; }

  Result<Parsed> next() {
    ++number_;
    std::string line;
    std::streambuf& buffer = *in_.rdbuf();
    for (int c = buffer.sbumpc(); c != '\n'; c = buffer.sbumpc()) {
      if (c == std::char_traits<char>::eof()) {
        if (line.empty()) return error("is missing: the export was cut");
        break;
      }
      if (line.size() >= kMaxLineBytes) return error("is longer than 40 MiB");
      line += static_cast<char>(c);
    }
    Parsed json = Parsed::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded() || !json.is_object()) return error("is not a JSON object");
    return json;
  }
  Status end() {
    for (int c = in_.rdbuf()->sbumpc(); c != std::char_traits<char>::eof(); c = in_.rdbuf()->sbumpc()) {
      if (c != '\n' && c != '\r' && c != ' ') return {Code::kInvalid, "bank export: there is more after the last entry"};
    }
    return Status::ok();
  }

 private:
  Status error(const std::string& why) const {
    return {Code::kInvalid, "bank export, line " + std::to_string(number_) + " " + why};
  }
  std::istream& in_;
  std::size_t number_ = 0;
};

Status read_config(Fields fields, BankConfig& config) {
  config.capacity = fields.number<std::uint32_t>("capacity");
  config.key_dim = fields.number<std::uint32_t>("key_dim");
  config.support = fields.number<std::uint32_t>("support");
  config.vocab = fields.number<std::uint32_t>("vocab");
  const std::string key_type = fields.text("key_type"), rate = fields.text("rate");
  if (key_type != "f32" && key_type != "f16") fields.fail("key_type", "must be f32 or f16");
  config.key_type = key_type == "f16" ? KeyType::kF16 : KeyType::kF32;
  config.int8_scan = fields.flag("int8_scan");
  config.standardise = fields.flag("standardise");
  config.tau = fields.real("tau");
  config.eta = fields.real("eta");
  int rule = 0;
  while (rule < 3 && rate != kRates[rule]) ++rule;
  if (rule == 3) fields.fail("rate", "must be fixed, count or error");
  config.rate = static_cast<RateRule>(rule % 3);
  DRIFT_TRY(fields.status());
  return config.validate();
}

Status read_header(const Parsed& json, StoredBank& stored, std::size_t& extras) {
  Fields fields(json, 1);
  if (fields.text("format") != kFormat)
    return {Code::kInvalid, "bank export, line 1: this is no bank export (its 'format' is not '" + std::string(kFormat) + "')"};
  if (fields.number<std::uint32_t>("version") != 1) fields.fail("version", "must be 1; a newer drift may read it");
  Fields print(fields.object("fingerprint"), 1);
  stored.fingerprint = {print.text("target_hash"), print.text("draft_hash"), print.number<std::uint32_t>("vocab"),
                        print.number<std::uint32_t>("hidden_width")};
  stored.target_name = fields.text("target_name");
  stored.draft_name = fields.text("draft_name");
  stored.image.size = fields.number<std::uint32_t>("size");
  stored.image.use_counter = fields.number<std::uint64_t>("use_counter");
  extras = fields.number<std::uint8_t>("extras");
  const Parsed& config = fields.object("config");
  DRIFT_TRY(fields.status());
  DRIFT_TRY(print.status());
  DRIFT_TRY(read_config(Fields(config, 1), stored.image.config));
  if (stored.image.size > stored.image.config.capacity)
    return {Code::kInvalid, "bank export, line 1: 'size' exceeds the capacity"};
  return Status::ok();
}

// Arrays grow entry by entry, so a header that promises much costs nothing.
Status read_entry(const Parsed& json, std::size_t line, std::size_t id, BankImage& image) {
  Fields fields(json, line);
  const std::size_t support = image.config.support;
  if (fields.number<std::uint32_t>("id") != id) fields.fail("id", "must be " + std::to_string(id) + ": entries stand in order");
  image.counts.push_back(fields.number<std::uint32_t>("count"));
  image.last_used.push_back(fields.number<std::uint64_t>("last_used"));
  image.errors.push_back(fields.real("error"));
  image.tokens.resize(image.tokens.size() + support, kNoToken);
  image.values.resize(image.values.size() + support, 0.0f);
  const std::size_t tokens = fields.array("tokens", support, [&](std::size_t i, const Parsed& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= image.config.vocab) return false;
    image.tokens[id * support + i] = value.get<Token>();
    return true;
  });
  const std::size_t residuals = fields.array("residuals", support, [&](std::size_t i, const Parsed& value) {
    return Fields::to_float(value, image.values[id * support + i]);
  });
  if (tokens != residuals) fields.fail("residuals", "must be as many as the tokens");
  image.lengths.push_back(static_cast<std::uint32_t>(tokens));
  const std::size_t record = std::size_t{image.config.key_dim} * (image.config.key_type == KeyType::kF16 ? 2 : 4);
  const std::string key = fields.text("key");
  if (key.size() != 2 * record || !unhex(key, image.keys))
    fields.fail("key", "must be " + std::to_string(2 * record) + " hex digits");
  return fields.status();
}

}  // namespace

bool export_bank(const StoredBank& stored, const std::function<bool(const std::string&)>& write) {
  // Names may hold bytes that are no UTF-8; they are for people, so replacing such bytes loses nothing that counts.
  const auto line = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; };
  if (!write(line(header_of(stored)))) return false;
  for (const auto& [name, content] : stored.extras) {
    if (!write(line({{"extra", name}, {"content", hex(content.data(), content.size())}}))) return false;
  }
  for (std::size_t id = 0; id < stored.image.size; ++id) {
    if (!write(line(entry_of(stored.image, id)))) return false;
  }
  return true;
}

Result<StoredBank> import_bank(std::istream& in) {
  Lines lines(in);
  StoredBank stored;
  std::size_t extras = 0;
  DRIFT_ASSIGN(const Parsed header, lines.next());
  DRIFT_TRY(read_header(header, stored, extras));
  for (std::size_t i = 0; i < extras; ++i) {
    DRIFT_ASSIGN(const Parsed json, lines.next());
    Fields fields(json, lines.number());
    const std::string name = fields.text("extra"), content = fields.text("content");
    if (fields.status().is_ok() && stored.extras.count(name) != 0) fields.fail("extra", "is there twice");
    if (!unhex(content, stored.extras[name])) fields.fail("content", "must be hex digits");
    DRIFT_TRY(fields.status());
  }
  for (std::size_t id = 0; id < stored.image.size; ++id) {
    DRIFT_ASSIGN(const Parsed json, lines.next());
    DRIFT_TRY(read_entry(json, lines.number(), id, stored.image));
  }
  DRIFT_TRY(lines.end());
  return stored;
}

}  // namespace drift::cli
