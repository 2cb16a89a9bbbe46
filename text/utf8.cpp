#include "text/utf8.hpp"

#include <algorithm>

namespace drift::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Lead {
  std::size_t length = 0;                 // bytes of the character; 0: no character begins with this byte
  unsigned char low = 0x80, high = 0xBF;  // bounds of the second byte (Unicode, table 3-7)
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

enum class Kind { kWhole, kCut, kBroken };

// The character that begins at text[0]: how many bytes of it are there, and whether it is whole.
Kind scan(std::string_view text, std::size_t& length) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  length = 1;
  if (lead.length == 0) return Kind::kBroken;
  while (length < lead.length) {
    if (length == text.size()) return Kind::kCut;
    const auto byte = static_cast<unsigned char>(text[length]);
    const unsigned char low = length == 1 ? lead.low : 0x80;
    const unsigned char high = length == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return Kind::kBroken;
    ++length;
  }
  return Kind::kWhole;
}

}  // namespace

std::size_t valid_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t length = 0;
    if (scan(text.substr(at), length) != Kind::kWhole) return at;
    at += length;
  }
  return at;
}

std::string Utf8Hold::push(std::string_view bytes) {
  const std::string joined = held_ + std::string(bytes);
  held_.clear();
  std::string out;
  out.reserve(joined.size());
  std::string_view rest = joined;
  while (!rest.empty()) {
    std::size_t length = 0;
    const Kind kind = scan(rest, length);
    if (kind == Kind::kCut) {
      held_ = std::string(rest);
      break;
    }
    out += kind == Kind::kWhole ? rest.substr(0, length) : kReplacement;
    rest.remove_prefix(length);
  }
  return out;
}

std::string Utf8Hold::finish() {
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

}  // namespace drift::text
