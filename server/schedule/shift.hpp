// shift.hpp - notices that a draft is accepted less than it used to be: a short against a long moving average.
//
// The score is (long - short) over the standard deviation that `short` has shown against `long` so far, but never less than that of
// independent proposals: real texts have easy and hard passages, and an alarm at each would mean nothing. An alarm is raised when
// the score passes kShiftThreshold, and once only until it has fallen to half of it.
// False alarms: about one in a million proposals where nothing changes (shift_test.cpp simulates it).
// Threads: plain value. Cost: a few operations per block.
#pragma once

#include <cstdint>

namespace drift::server {

inline constexpr double kShiftThreshold = 5.0;
inline constexpr double kShiftShort = 1.0 / 200.0;    // weight of one proposal in the short average
inline constexpr double kShiftLong = 1.0 / 4'000.0;   // ... in the long one
inline constexpr std::uint64_t kShiftWarmUp = 2'000;  // proposals before the first alarm

class ShiftDetector {
 public:
  // `accepted` of `tested` proposals stood (a proposal is tested if all before it in its block stood). True: an alarm, now.
  bool add(std::uint64_t accepted, std::uint64_t tested);
  double score() const;
  double short_rate() const { return short_; }
  double long_rate() const { return long_; }

 private:
  void add_one(bool stood);
  std::uint64_t count_ = 0;
  double short_ = 0.0, long_ = 0.0;
  double variance_ = 0.0;  // of short_ around long_
  bool alarmed_ = false;
};

}  // namespace drift::server
