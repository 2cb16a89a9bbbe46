// job.hpp - one HTTP request on its way through the decode thread: what is to be generated, and the pipe the answers come back by.
//
// A request asks for one or more choices (n, or several prompts); each is scheduled on its own, and all answer into one pipe.
// The decode thread never waits for a reader: what is not fetched is kept up to kUnreadBytesMax, beyond that the job is cancelled.
// Threads: one reader (an HTTP thread) and one writer (the decode thread); cancel() from anywhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "drift/base/status.hpp"
#include "server/schedule/generation.hpp"

namespace drift::server {

// Text and tokens a reader may leave unread; an answer of a full context of 131,072 tokens is below 4 MiB.
inline constexpr std::size_t kUnreadBytesMax = std::size_t{4} << 20;

class Job {
 public:
  struct Event {
    std::size_t choice = 0;
    std::variant<Delta, Ended> what;
  };

  explicit Job(std::vector<GenerationConfig> choices, std::size_t unread_bytes_max = kUnreadBytesMax);

  std::size_t choices() const { return configs_.size(); }
  const GenerationConfig& config(std::size_t choice) const { return configs_[choice]; }
  std::chrono::steady_clock::time_point arrived() const { return arrived_; }

  // ---- the reader ----
  enum class Got {
    kEvent,
    kNothing,  // nothing came within the wait
    kDone,     // every choice has ended and every event was fetched
    kFailed,   // see failure(); events before it were fetched
  };
  Got next(std::chrono::milliseconds wait, Event& out);
  // Requires: next() gave kFailed.
  Status failure() const;
  // Nobody waits for the answer any more: the decode thread drops what is left of it before its next step.
  void cancel();
  // The reader has all it wants of this choice: the decode thread ends it, as a stop string would, before its next step. Text and tokens
  // decided until then still come. Without effect on one that has ended or not begun.
  void finish(std::size_t choice);

  // ---- the writer ----
  bool cancelled() const;
  bool finished(std::size_t choice) const;
  void push(std::size_t choice, Delta delta);
  void end(std::size_t choice, Ended ended);
  // The first failure is the job's; every choice is cancelled with it.
  void fail(Status status);

 private:
  const std::vector<GenerationConfig> configs_;
  const std::size_t unread_bytes_max_;
  const std::chrono::steady_clock::time_point arrived_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  std::size_t unread_bytes_ = 0;
  std::size_t ended_ = 0;
  bool cancelled_ = false;
  std::vector<bool> finished_;  // choices that the reader has enough of
  std::optional<Status> failure_;
};

}  // namespace drift::server
