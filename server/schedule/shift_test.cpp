#include "server/schedule/shift.hpp"

#include <gtest/gtest.h>

#include <random>

namespace drift::server {
namespace {

// Blocks of three proposals that each stand with probability p, until one falls.
bool add_block(ShiftDetector& detector, std::mt19937_64& random, double p) {
  std::bernoulli_distribution stands(p);
  std::uint64_t accepted = 0;
  while (accepted < 3 && stands(random)) ++accepted;
  return detector.add(accepted, std::min<std::uint64_t>(accepted + 1, 3));
}

TEST(Shift, FalseAlarmsAreAsRareAsStated) {
  for (const double p : {0.3, 0.6, 0.9}) {
    std::mt19937_64 random(17);
    ShiftDetector detector;
    int alarms = 0;
    for (int block = 0; block < 2'000'000; ++block) alarms += add_block(detector, random, p) ? 1 : 0;
    EXPECT_LE(alarms, 6) << p;  // three to five million proposals
  }
}

TEST(Shift, EasyAndHardPassagesAreNoShift) {
  std::mt19937_64 random(3);
  ShiftDetector detector;
  int alarms = 0;
  for (int block = 0; block < 300'000; ++block) alarms += add_block(detector, random, (block / 40) % 2 == 0 ? 0.9 : 0.5) ? 1 : 0;
  EXPECT_LE(alarms, 2);
}

TEST(Shift, ARealShiftIsNoticedOnceAndSoon) {
  std::mt19937_64 random(5);
  ShiftDetector detector;
  for (int block = 0; block < 20'000; ++block) ASSERT_FALSE(add_block(detector, random, 0.8));
  int alarms = 0, first = 0;
  for (int block = 0; block < 2'000; ++block) {
    if (!add_block(detector, random, 0.5)) continue;
    if (alarms++ == 0) first = block;
  }
  EXPECT_EQ(alarms, 1);
  EXPECT_LT(first, 300);
  EXPECT_LT(detector.short_rate(), detector.long_rate());
}

TEST(Shift, NothingIsSaidBeforeThereIsAnythingToCompareWith) {
  ShiftDetector detector;
  EXPECT_EQ(detector.score(), 0.0);
  for (int i = 0; i < 500; ++i) EXPECT_FALSE(detector.add(3, 3));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(detector.add(0, 1));
}

}  // namespace
}  // namespace drift::server
