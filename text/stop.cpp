#include "text/stop.hpp"

#include <algorithm>

namespace drift::text {

Result<StopStrings> StopStrings::make(std::vector<std::string> stops) {
  if (stops.size() > kStopStringsMax) {
    return Status(Code::kLimit, "there are " + std::to_string(stops.size()) + " stop strings; at most " +
                                    std::to_string(kStopStringsMax) + " are allowed");
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) return Status(Code::kInvalid, "a stop string is empty; it would stop everything at once");
    if (stop.size() > kStopBytesMax) {
      return Status(Code::kLimit, "a stop string has " + std::to_string(stop.size()) + " bytes; at most " +
                                      std::to_string(kStopBytesMax) + " are allowed");
    }
  }
  StopStrings out;
  out.stops_ = std::move(stops);
  return out;
}

std::string StopStrings::push(std::string_view piece) {
  if (stopped()) return {};
  held_ += piece;
  // The earliest complete stop string wins; of two at one place the longer one.
  std::size_t at = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t here = held_.find(stop);
    if (here == std::string::npos) continue;
    if (at == std::string::npos || here < at || (here == at && stop.size() > found_.size())) {
      at = here;
      found_ = stop;
    }
  }
  std::string shown;
  if (at != std::string::npos) {
    shown = held_.substr(0, at);
    held_.clear();
    return shown;
  }
  // Hold back the longest end of the text that begins a stop string.
  std::size_t hold = 0;
  for (const std::string& stop : stops_) {
    const std::size_t most = std::min(stop.size() - 1, held_.size());
    for (std::size_t length = most; length > hold; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) {
        hold = length;
        break;
      }
    }
  }
  shown = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return shown;
}

std::string StopStrings::finish() {
  std::string rest;
  if (!stopped()) rest.swap(held_);
  return rest;
}

}  // namespace drift::text
