// numbers.hpp - numbers from the command line, read strictly: the whole text, finite, within bounds.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "drift/base/status.hpp"

namespace drift::cli {

// All fail with kInvalid naming the flag, the value given and the bounds: "--lambda is 'nan'; it must be a number from 0 to 10".
Result<std::int64_t> parse_int(const std::string& flag, std::string_view text, std::int64_t low, std::int64_t high);
// `open_low`: the lower bound itself is not allowed.
Result<double> parse_real(const std::string& flag, std::string_view text, double low, double high, bool open_low = false);
// The same as a float. Also fails where an open lower bound and the value are one float.
Result<float> parse_float(const std::string& flag, std::string_view text, double low, double high, bool open_low = false);

}  // namespace drift::cli
