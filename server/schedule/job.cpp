#include "server/schedule/job.hpp"

#include <utility>

namespace drift::server {
namespace {

// What an event costs while nobody fetches it; the constant stands for the containers around the bytes.
std::size_t bytes_of(const Job::Event& event) {
  constexpr std::size_t kOverhead = 96;
  const Delta* delta = std::get_if<Delta>(&event.what);
  if (delta == nullptr) return kOverhead;
  std::size_t bytes = kOverhead + delta->text.size();
  for (const TokenInfo& token : delta->tokens)
    bytes += sizeof(TokenInfo) + token.bytes.size() + (token.top.size() + token.rejected.size()) * sizeof(TokenInfo::Candidate);
  return bytes;
}

}  // namespace

Job::Job(std::vector<GenerationConfig> choices, std::size_t unread_bytes_max)
    : configs_(std::move(choices)),
      unread_bytes_max_(unread_bytes_max),
      arrived_(std::chrono::steady_clock::now()),
      finished_(configs_.size()) {
  DRIFT_CHECK(!configs_.empty(), "a job has something to do");
}

Job::Got Job::next(std::chrono::milliseconds wait, Event& out) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return !events_.empty() || failure_ || ended_ == configs_.size(); };
  if (!changed_.wait_for(lock, wait, ready)) return Got::kNothing;
  if (!events_.empty()) {
    out = std::move(events_.front());
    events_.pop_front();
    unread_bytes_ -= bytes_of(out);
    return Got::kEvent;
  }
  return failure_ ? Got::kFailed : Got::kDone;
}

Status Job::failure() const {
  const std::lock_guard lock(mutex_);
  return *failure_;
}

void Job::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

bool Job::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

void Job::finish(std::size_t choice) {
  const std::lock_guard lock(mutex_);
  finished_[choice] = true;
}

bool Job::finished(std::size_t choice) const {
  const std::lock_guard lock(mutex_);
  return finished_[choice];
}

void Job::push(std::size_t choice, Delta delta) {
  Event event{choice, std::move(delta)};
  const std::size_t bytes = bytes_of(event);
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  if (unread_bytes_ + bytes > unread_bytes_max_) {
    failure_ = Status(Code::kCancelled, "the reader is too slow: " + std::to_string(unread_bytes_ + bytes) +
                                            " bytes of the answer are unread; at most " + std::to_string(unread_bytes_max_) +
                                            " are kept");
    cancelled_ = true;
  } else {
    unread_bytes_ += bytes;
    events_.push_back(std::move(event));
  }
  changed_.notify_one();
}

void Job::end(std::size_t choice, Ended ended) {
  Event event{choice, std::move(ended)};
  const std::lock_guard lock(mutex_);
  ++ended_;
  if (failure_) return;
  unread_bytes_ += bytes_of(event);
  events_.push_back(std::move(event));
  changed_.notify_one();
}

void Job::fail(Status status) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(status);
  cancelled_ = true;
  changed_.notify_one();
}

}  // namespace drift::server
