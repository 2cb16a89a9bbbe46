#include "cli/numbers.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "text/printable.hpp"

namespace drift::cli {

Result<std::int64_t> parse_int(const std::string& flag, std::string_view text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return Status(Code::kInvalid, fmt::format("{} is '{}'; it must be a whole number from {} to {}", flag,
                                              text::printable(text, text::kQuoteMax), low, high));
  }
  return value;
}

Result<double> parse_real(const std::string& flag, std::string_view text, double low, double high, bool open_low) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  if (!read || value < low || value > high || (open_low && value == low)) {
    return Status(Code::kInvalid, fmt::format("{} is '{}'; it must be a number {} {} to {}", flag,
                                              text::printable(text, text::kQuoteMax), open_low ? "above" : "from", low, high));
  }
  return value;
}

Result<float> parse_float(const std::string& flag, std::string_view text, double low, double high, bool open_low) {
  DRIFT_ASSIGN(const double value, parse_real(flag, text, low, high, open_low));
  const auto narrow = static_cast<float>(value);
  if (open_low && !(narrow > static_cast<float>(low)))
    return Status(Code::kInvalid,
                  fmt::format("{} is '{}', too small to be told from {}", flag, text::printable(text, text::kQuoteMax), low));
  return narrow;
}

}  // namespace drift::cli
