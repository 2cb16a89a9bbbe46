// utf8.hpp - only whole characters leave: a token may end in the middle of one.
//
// Threads: plain values. Limits: none; at most 3 bytes are ever held back. Cost: linear in the bytes given.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace drift::text {

// The offset of the first byte that is not part of well-formed UTF-8 (overlong forms, surrogates and values above U+10FFFF are
// not), or text.size(). A character cut off by the end counts as not well-formed.
std::size_t valid_prefix(std::string_view text);

// Passes bytes on as whole characters. Bytes that can never become a character come out as U+FFFD, one for each maximal
// piece of a broken character, so what comes out is always well-formed.
class Utf8Hold {
 public:
  // What may be shown now that `bytes` arrived.
  std::string push(std::string_view bytes);
  // The end: a character still incomplete comes out as U+FFFD.
  std::string finish();
  std::size_t held() const { return held_.size(); }

 private:
  std::string held_;  // the beginning of one character, at most 3 bytes
};

}  // namespace drift::text
