#include "server/schedule/fair_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace drift::server {
namespace {

std::shared_ptr<Job> job(std::size_t choices = 1) { return std::make_shared<Job>(std::vector<GenerationConfig>(choices)); }

TEST(FairQueue, TenantsTakeTurnsAndTheOldestOfEachGoesFirst) {
  FairQueue queue;
  const auto flood = job(100), small = job(2);
  for (std::size_t i = 0; i < 100; ++i) queue.push("flood", {flood, i});
  for (std::size_t i = 0; i < 2; ++i) queue.push("small", {small, i});
  EXPECT_EQ(queue.size(), 102u);
  EXPECT_EQ(queue.size("flood"), 100u);
  std::string order;
  std::size_t of_flood = 0, of_small = 0;
  for (int i = 0; i < 6; ++i) {
    const auto next = queue.pop();
    ASSERT_TRUE(next);
    const bool is_flood = next->job == flood;
    order += is_flood ? 'f' : 's';
    EXPECT_EQ(next->choice, is_flood ? of_flood++ : of_small++);
  }
  EXPECT_EQ(order, "fsfsff");
  EXPECT_EQ(queue.size(), 96u);
}

TEST(FairQueue, TheTenantWithTheFewestAnswersInWorkGoesFirst) {
  // Three tenants wait, eight slots: whoever comes first, each ends up with its share, ceil(8 / 3) at most.
  FairQueue queue;
  const auto a = job(20), b = job(20), c = job(20);
  std::map<std::string, std::size_t> in_work{{"a", 6}};  // it was alone and had borrowed
  const auto count = [&](const std::string& tenant) { return in_work[tenant]; };
  for (std::size_t i = 0; i < 20; ++i) queue.push("a", {a, i});
  for (std::size_t i = 0; i < 20; ++i) queue.push("b", {b, i});
  for (std::size_t i = 0; i < 20; ++i) queue.push("c", {c, i});
  for (int free = 0; free < 2; ++free) {
    const auto next = queue.pop(count);
    ++in_work[next->job == a ? "a" : next->job == b ? "b" : "c"];
  }
  EXPECT_EQ(in_work, (std::map<std::string, std::size_t>{{"a", 6}, {"b", 1}, {"c", 1}}));
  for (int ended = 0; ended < 40; ++ended) {  // answers of the one that has most end
    const auto most =
        std::max_element(in_work.begin(), in_work.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
    --most->second;
    const auto next = queue.pop(count);
    ++in_work[next->job == a ? "a" : next->job == b ? "b" : "c"];
    if (ended < 6) continue;
    for (const auto& [tenant, n] : in_work) EXPECT_LE(n, 3u) << tenant;
  }
}

TEST(FairQueue, WhatIsRemovedLeavesNoTurnBehind) {
  FairQueue queue;
  const auto a = job(3), b = job(1);
  for (std::size_t i = 0; i < 3; ++i) queue.push("a", {a, i});
  queue.push("b", {b, 0});
  queue.remove_if([&](const Waiting& w) { return w.job == a && w.choice != 1; });
  EXPECT_EQ(queue.size(), 2u);
  queue.remove_if([&](const Waiting& w) { return w.job == a; });
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.size("a"), 0u);
  EXPECT_EQ(queue.pop()->job, b);
  EXPECT_FALSE(queue.pop());
}

}  // namespace
}  // namespace drift::server
