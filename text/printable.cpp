#include "text/printable.hpp"

#include "text/utf8.hpp"

namespace drift::text {
namespace {

// Bytes of a character by its first byte; 1 for a byte that begins none.
std::size_t length_of(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte >= 0xF0) return 4;
  if (byte >= 0xE0) return 3;
  return byte >= 0xC0 ? 2 : 1;
}

bool is_control(std::string_view character) {
  const auto byte = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return byte < 0x20 || byte == 0x7F;
  return character.size() == 2 && byte == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;  // U+0080 .. U+009F
}

std::string escaped(char c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  const auto byte = static_cast<unsigned char>(c);
  return std::string("\\x") + "0123456789abcdef"[byte >> 4] + "0123456789abcdef"[byte & 15];
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  std::size_t shown = 0;
  while (!text.empty()) {
    std::string_view piece = text.substr(0, length_of(text.front()));
    const bool whole = valid_prefix(piece) == piece.size();
    if (!whole) piece = piece.substr(0, 1);
    std::string in_words;  // empty: the character stands for itself
    if (!whole || is_control(piece)) {
      for (const char c : piece) in_words += escaped(c);
    }
    const std::size_t width = in_words.empty() ? 1 : in_words.size();
    if (most - shown < width) return out + "...";
    out += in_words.empty() ? piece : std::string_view(in_words);
    shown += width;
    text.remove_prefix(piece.size());
  }
  return out;
}

}  // namespace drift::text
