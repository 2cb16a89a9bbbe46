#include "server/schedule/job.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace drift::server {
namespace {

using std::chrono::milliseconds;

Delta words(const std::string& text) { return {text, {}}; }

TEST(Job, EventsComeInOrderThenTheEnd) {
  Job job(std::vector<GenerationConfig>(2));
  job.push(1, words("a"));
  job.push(0, words("b"));
  job.end(1, {});
  job.end(0, {});
  Job::Event event;
  ASSERT_EQ(job.next(milliseconds(0), event), Job::Got::kEvent);
  EXPECT_EQ(event.choice, 1u);
  EXPECT_EQ(std::get<Delta>(event.what).text, "a");
  ASSERT_EQ(job.next(milliseconds(0), event), Job::Got::kEvent);
  EXPECT_EQ(event.choice, 0u);
  ASSERT_EQ(job.next(milliseconds(0), event), Job::Got::kEvent);
  EXPECT_TRUE(std::holds_alternative<Ended>(event.what));
  ASSERT_EQ(job.next(milliseconds(0), event), Job::Got::kEvent);
  EXPECT_EQ(job.next(milliseconds(0), event), Job::Got::kDone);
}

TEST(Job, NothingYetIsSaidAfterTheWait) {
  Job job(std::vector<GenerationConfig>(1));
  Job::Event event;
  EXPECT_EQ(job.next(milliseconds(1), event), Job::Got::kNothing);
}

TEST(Job, WhatCameBeforeAFailureIsFetchedFirst) {
  Job job(std::vector<GenerationConfig>(1));
  job.push(0, words("a"));
  job.fail({Code::kInternal, "broken"});
  job.fail({Code::kInternal, "broken again"});
  Job::Event event;
  EXPECT_EQ(job.next(milliseconds(0), event), Job::Got::kEvent);
  EXPECT_EQ(job.next(milliseconds(0), event), Job::Got::kFailed);
  EXPECT_EQ(job.failure().message(), "broken");
  EXPECT_TRUE(job.cancelled());
}

TEST(Job, AReaderThatDoesNotReadIsCancelledAtTheLimit) {
  Job job(std::vector<GenerationConfig>(1), /*unread_bytes_max=*/1'000);
  for (int i = 0; i < 4; ++i) job.push(0, words(std::string(100, 'x')));
  EXPECT_FALSE(job.cancelled());
  Job::Event event;
  ASSERT_EQ(job.next(milliseconds(0), event), Job::Got::kEvent);  // one who reads makes room
  job.push(0, words(std::string(100, 'x')));
  EXPECT_FALSE(job.cancelled());
  job.push(0, words(std::string(1'000, 'x')));
  EXPECT_TRUE(job.cancelled());
  for (int i = 0; i < 4; ++i) ASSERT_EQ(job.next(milliseconds(0), event), Job::Got::kEvent);
  EXPECT_EQ(job.next(milliseconds(0), event), Job::Got::kFailed);
  EXPECT_NE(job.failure().message().find("at most 1000"), std::string::npos) << job.failure().message();
}

TEST(Job, AWaitingReaderIsWoken) {
  Job job(std::vector<GenerationConfig>(1));
  std::thread writer([&] {
    for (int i = 0; i < 100; ++i) job.push(0, words("x"));
    job.end(0, {});
  });
  Job::Event event;
  int texts = 0;
  while (job.next(milliseconds(10'000), event) == Job::Got::kEvent) texts += std::holds_alternative<Delta>(event.what) ? 1 : 0;
  writer.join();
  EXPECT_EQ(texts, 100);
}

}  // namespace
}  // namespace drift::server
