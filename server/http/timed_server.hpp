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

namespace drift::server {

struct ReadTimes {
  std::chrono::seconds head{10};          // from a head's first byte to its end
  std::chrono::seconds body{60};          // from there to the last byte that is read of the request
  std::chrono::seconds idle{5};           // a connection without a request is kept for so long
  std::chrono::seconds idle_in_crowd{1};  // ... while `crowd` connections are being served, so that nobody can be
  std::size_t crowd = 288;
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
