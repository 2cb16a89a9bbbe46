// stop.hpp - stop strings over text that arrives in pieces.
//
// Text that could still become a stop string is held back, so no part of one is ever shown.
// Threads: plain value. Limits: kStopStringsMax strings of 1 to kStopBytesMax bytes. Cost: linear, times the number of strings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::text {

inline constexpr std::size_t kStopStringsMax = 32;
inline constexpr std::size_t kStopBytesMax = 1'024;

class StopStrings {
 public:
  // Fails with kInvalid (an empty string) or kLimit (too many, too long).
  static Result<StopStrings> make(std::vector<std::string> stops);
  StopStrings() = default;  // nothing stops

  // What may be shown now that `piece` arrived. Once a stop string is complete, the text before it is the last shown.
  std::string push(std::string_view piece);
  // The end without a stop: what was held back.
  std::string finish();
  bool stopped() const { return !found_.empty(); }
  const std::string& found() const { return found_; }  // the string that stopped, or empty

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string found_;
};

}  // namespace drift::text
