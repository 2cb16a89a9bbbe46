#include "server/schedule/shift.hpp"

#include <algorithm>
#include <cmath>

namespace drift::server {

// Averages begin as plain means, so that the first proposals do not count for ever.
void ShiftDetector::add_one(bool stood) {
  ++count_;
  const double x = stood ? 1.0 : 0.0, first = 1.0 / static_cast<double>(count_);
  short_ += std::max(kShiftShort, first) * (x - short_);
  long_ += std::max(kShiftLong, first) * (x - long_);
  const double away = short_ - long_;
  if (count_ > kShiftWarmUp / 4) variance_ += std::max(kShiftLong, first) * (away * away - variance_);
}

double ShiftDetector::score() const {
  if (count_ < kShiftWarmUp) return 0.0;
  const double p = std::clamp(long_, 0.01, 0.99);
  const double independent = p * (1.0 - p) * kShiftShort / (2.0 - kShiftShort);  // of an exponential average of coin tosses
  return (long_ - short_) / std::sqrt(std::max(variance_, independent));
}

bool ShiftDetector::add(std::uint64_t accepted, std::uint64_t tested) {
  for (std::uint64_t i = 0; i < tested; ++i) add_one(i < accepted);
  const double now = score();
  if (alarmed_ && now < kShiftThreshold / 2) alarmed_ = false;
  if (alarmed_ || now < kShiftThreshold) return false;
  alarmed_ = true;
  return true;
}

}  // namespace drift::server
