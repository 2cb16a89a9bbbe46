// timed_server.hpp - httplib's server, with the time-outs it lacks: of a request's head and of everything that is read of a request.
//
// httplib bounds the wait for the next byte only, so that a client which sends one now and then holds a thread for ever. Here every
// connection ends when a head is not there in time, however it trickles in, or a body. One that has nothing to say is closed
// sooner while all threads are taken.
// Threads: as httplib::Server.
#pragma once

#include <cpp-httplib/httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace drift::server {

struct ReadTimes {
  std::chrono::seconds head{10};          // from a head's first byte to its end
  std::chrono::seconds body{60};          // from there to the last byte that is read of the request
  std::chrono::seconds idle{5};           // a connection without a request is kept for so long
  std::chrono::seconds idle_in_crowd{1};  // ... while `crowd` connections are being served, so that nobody can be
  std::size_t crowd = 288;
};

// A thread for every connection, up to a bound; more wait. httplib's own pool counts threads as idle that have been woken and not yet
// run, so it does not grow in a burst: eight silent connections at once could keep everybody waiting. Threads stay until shutdown().
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  ConnectionThreads(std::size_t threads_max, std::size_t waiting_max) : threads_max_(threads_max), waiting_max_(waiting_max) {}
  ~ConnectionThreads() override { shutdown(); }
  bool enqueue(std::function<void()> job) override;  // false: too many wait
  void shutdown() override;                          // what waits is still done

 private:
  void work();

  const std::size_t threads_max_, waiting_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool ends_ = false;
};

class TimedServer final : public httplib::Server {
 public:
  void set_times(const ReadTimes& times) { times_ = times; }  // before it listens

 private:
  bool process_and_close_socket(socket_t fd) override;
  void serve_requests(socket_t fd);

  ReadTimes times_;
  std::atomic<std::size_t> served_{0};
};

}  // namespace drift::server
