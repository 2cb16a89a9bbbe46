#include "train/windows.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

namespace drift::train {
namespace {

Stream numbered(const std::string& name, int first, int count, double weight = 1) {
  Stream stream;
  stream.domain = name;
  stream.weight = weight;
  stream.train.resize(static_cast<std::size_t>(count));
  std::iota(stream.train.begin(), stream.train.end(), first);
  return stream;
}

TEST(Windows, AnEpochPassesOverEachWindowOnce) {
  const Stream a = numbered("a", 0, 1'000), b = numbered("b", 10'000, 500);
  Windows windows({&a, &b}, 16, 7);
  const auto epoch = static_cast<std::int64_t>(windows.epoch_windows());
  for (std::uint64_t e = 0; e < 3; ++e) {
    const torch::Tensor rows = windows.take(e * windows.epoch_windows(), epoch);
    std::set<std::int64_t> starts;
    for (std::int64_t i = 0; i < epoch; ++i) {
      const torch::Tensor row = rows[i];
      EXPECT_TRUE(torch::equal(row.slice(0, 1) - row.slice(0, 0, -1), torch::ones({16}, torch::kLong)));
      starts.insert(row[0].item<std::int64_t>());
    }
    EXPECT_EQ(starts.size(), static_cast<std::size_t>(epoch));
    std::int64_t before = -100;
    for (const std::int64_t start : starts) {
      EXPECT_GE(start - before, 16);  // windows do not overlap but for the token to predict
      before = start;
    }
  }
}

TEST(Windows, AreAPureFunctionOfSeedAndPlace) {
  const Stream a = numbered("a", 0, 2'000);
  Windows one({&a}, 16, 7), other({&a}, 16, 7), another_seed({&a}, 16, 8);
  const torch::Tensor rows = one.take(0, 300);  // more than an epoch
  EXPECT_TRUE(torch::equal(other.take(290, 10), rows.narrow(0, 290, 10)));
  EXPECT_TRUE(torch::equal(other.take(3, 5), rows.narrow(0, 3, 5)));
  EXPECT_FALSE(torch::equal(another_seed.take(0, 300), rows));
}

TEST(Windows, WeighDomains) {
  const Stream a = numbered("a", 0, 1'700, 0.5), b = numbered("b", 10'000, 1'700, 2);
  Windows windows({&a, &b}, 16, 7);
  const torch::Tensor first = windows.take(0, static_cast<std::int64_t>(windows.epoch_windows())).select(1, 0);
  const double from_a = (first < 10'000).sum().item<double>(), from_b = (first >= 10'000).sum().item<double>();
  EXPECT_NEAR(from_b / from_a, 4.0, 0.1);
}

TEST(Windows, RefuseAShortText) {
  EXPECT_TRUE(Windows::check(numbered("a", 0, 33), 16).is_ok());
  EXPECT_EQ(Windows::check(numbered("a", 0, 32), 16).code(), Code::kLimit);
}

TEST(Shuffled, PassesOverEverythingInNewOrders) {
  Shuffled order(3, 50);
  std::vector<std::size_t> first, second;
  for (std::uint64_t i = 0; i < 50; ++i) first.push_back(order.at(i).index);
  for (std::uint64_t i = 50; i < 100; ++i) second.push_back(order.at(i).index);
  EXPECT_EQ(std::set<std::size_t>(first.begin(), first.end()).size(), 50u);
  EXPECT_EQ(std::set<std::size_t>(second.begin(), second.end()).size(), 50u);
  EXPECT_NE(first, second);
  EXPECT_EQ(order.at(0).index, first[0]);  // back again
}

TEST(HeldOut, IsCutFromTheBeginning) {
  Stream stream;
  stream.held_out.resize(100);
  std::iota(stream.held_out.begin(), stream.held_out.end(), 0);
  const torch::Tensor rows = held_out_windows(stream, 16, 4);
  EXPECT_EQ(rows.sizes(), (torch::IntArrayRef{4, 17}));
  EXPECT_EQ(rows[3][0].item<int>(), 48);
  EXPECT_EQ(held_out_windows(stream, 16, 1'000).size(0), 6);  // 99 tokens to predict
  EXPECT_EQ(held_out_windows(stream, 500, 1'000).sizes(), (torch::IntArrayRef{1, 100}));
}

}  // namespace
}  // namespace drift::train
