#include "server/http/timed_server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace drift::server {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{50};             // so often a silent connection looks whether the server ends
constexpr std::size_t kDrainBytes = 1u << 20;  // what is still read of a connection that is closed, and
constexpr milliseconds kDrainTime{100};        // for how long: unread bytes would take the answer with them

bool wait_for(int fd, short what, milliseconds most) {
  const Clock::time_point end = Clock::now() + most;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    pollfd one{fd, what, 0};
    const int got = ::poll(&one, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (got > 0) return true;  // also when it has broken: the call that follows tells
    if (got == 0 || errno != EINTR) return false;
  }
}

bool peer_is_there(int fd) {
  if (!wait_for(fd, POLLIN, milliseconds(0))) return true;
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

// A connection's bytes, read no later than a deadline. It buffers over the end of a request: clients may send several at once.
class TimedStream final : public httplib::Stream {
 public:
  TimedStream(int fd, milliseconds gap, milliseconds write) : fd_(fd), gap_(gap), write_(write), buffer_(16'384) {}

  void read_until(Clock::time_point deadline) { deadline_ = deadline; }

  bool is_readable() const override { return begin_ < end_; }
  bool wait_readable() const override {
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
    return left.count() > 0 && wait_for(fd_, POLLIN, std::min(gap_, left));
  }
  bool wait_writable() const override { return wait_for(fd_, POLLOUT, write_); }
  bool is_peer_alive() const override { return peer_is_there(fd_); }

  ssize_t read(char* to, std::size_t size) override {
    if (begin_ == end_) {
      if (!wait_readable()) return failed(httplib::Error::Timeout);
      const ssize_t got = receive(buffer_.data(), buffer_.size());
      if (got == 0) error_ = httplib::Error::ConnectionClosed;
      if (got < 0) return failed(httplib::Error::Read);
      begin_ = 0;
      end_ = static_cast<std::size_t>(got);
    }
    const std::size_t part = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, part);
    begin_ += part;
    return static_cast<ssize_t>(part);
  }
  const char* buffered_data(std::size_t& size) const override {
    size = end_ - begin_;
    return size > 0 ? buffer_.data() + begin_ : nullptr;
  }
  void consume_buffered(std::size_t size) override { begin_ += size; }

  ssize_t write(const char* from, std::size_t size) override {
    if (!wait_writable()) return failed(httplib::Error::Write);
    while (true) {
      const ssize_t sent = ::send(fd_, from, size, MSG_NOSIGNAL);
      if (sent >= 0 || errno != EINTR) return sent;
    }
  }

  // Nobody here asks who is at the other end.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  socket_t socket() const override { return fd_; }
  time_t duration() const override { return std::chrono::duration_cast<milliseconds>(Clock::now() - since_).count(); }

 private:
  ssize_t failed(httplib::Error why) {
    error_ = why;
    return -1;
  }
  ssize_t receive(char* to, std::size_t size) const {
    while (true) {
      const ssize_t got = ::recv(fd_, to, size, 0);
      if (got >= 0 || errno != EINTR) return got;
    }
  }

  int fd_;
  milliseconds gap_, write_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  Clock::time_point since_ = Clock::now(), deadline_ = since_;
};

void drain_and_close(int fd) {
  ::shutdown(fd, SHUT_WR);
  char rest[16'384];
  const Clock::time_point end = Clock::now() + kDrainTime;
  for (std::size_t seen = 0; seen < kDrainBytes;) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (left.count() <= 0 || !wait_for(fd, POLLIN, left)) break;
    const ssize_t got = ::recv(fd, rest, sizeof(rest), MSG_DONTWAIT);
    if (got <= 0) break;
    seen += static_cast<std::size_t>(got);
  }
  ::close(fd);
}

}  // namespace

bool ConnectionThreads::enqueue(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (ends_ || jobs_.size() >= waiting_max_ + idle_) return false;
    if (jobs_.size() >= idle_ && threads_.size() < threads_max_) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {  // no more threads to be had: those there are will do it
        if (threads_.empty()) return false;
      }
    }
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void ConnectionThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this] { return !jobs_.empty() || ends_; });
    --idle_;
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

void ConnectionThreads::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();  // nobody else makes any now
  threads_.clear();
}

void TimedServer::serve_requests(socket_t fd) {
  const milliseconds gap = std::chrono::seconds(read_timeout_sec_), write = std::chrono::seconds(write_timeout_sec_);
  TimedStream stream(fd, gap, write);
  for (std::size_t left = keep_alive_max_count_; left > 0; --left) {
    const Clock::time_point from = Clock::now();
    while (!stream.is_readable() && !wait_for(fd, POLLIN, kPause)) {
      const auto patience = served_.load() >= times_.crowd ? times_.idle_in_crowd : times_.idle;
      if (svr_sock_ == INVALID_SOCKET || Clock::now() - from > patience) return;
    }
    stream.read_until(Clock::now() + times_.head);
    bool closed = false;
    const bool sound = process_request(stream, "", 0, "", 0, /*close_connection=*/left == 1, closed,
                                       [&](httplib::Request&) { stream.read_until(Clock::now() + times_.body); });
    if (!sound || closed) return;
  }
}

bool TimedServer::process_and_close_socket(socket_t fd) {
  ++served_;
  const bool sound = serve_guarded([&] {
    serve_requests(fd);
    return true;
  });
  --served_;
  drain_and_close(fd);
  return sound;
}

}  // namespace drift::server
