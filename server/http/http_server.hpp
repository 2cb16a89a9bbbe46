// http_server.hpp - the transport: routes, keys, limits, streams. It decodes nothing and waits for no model.
//
// It listens before the models are loaded (503 with Retry-After until open()), answers each connection on a thread of its own from a
// bounded pool, and hands work to the scheduler. A client that goes away cancels its request wherever that stands; one that
// reads slowly holds its thread and nothing else.
// Threads: start(), open() and stop() on one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "drift/base/status.hpp"
#include "server/http/api_keys.hpp"
#include "server/http/log.hpp"
#include "server/http/metrics.hpp"
#include "server/http/service.hpp"

namespace drift::server {

struct HttpConfig {
  std::string host = "127.0.0.1";
  int port = 8080;                        // 0: any free one
  std::vector<std::string> cors_origins;  // empty: no CORS headers at all; "*": any
  std::size_t body_bytes_max = std::size_t{8} << 20;
  std::size_t bank_bytes_max = std::size_t{256} << 20;  // of a bank that is sent
  std::size_t threads_max = 288;                        // connections served at once
  std::size_t connections_waiting_max = 512;            // beyond: closed at once
  std::chrono::seconds read_timeout{10};                // between two pieces of a request
  std::chrono::seconds head_timeout{10};                // for a request's line and headers
  std::chrono::seconds body_timeout{60};                // for a whole body
  std::chrono::seconds write_timeout{30};               // a client that takes nothing for so long is gone
  std::chrono::milliseconds status_patience{
      10'000};  // a stream's 200 waits so long for the first result: a failure has its own status
  std::chrono::milliseconds ping_every{15'000};  // ": keep-alive" while a stream is silent
  bool strict_model = false;                     // another "model" than the served one: 404 instead of ignored
  bool show_slots = true;
};

class HttpServer {
 public:
  HttpServer(HttpConfig config, ApiKeys keys, ServerMetrics& metrics, Log& log);
  ~HttpServer();

  // Binds, and listens on a thread of its own. Fails with kIo (the address cannot be had).
  Status start();
  int port() const;
  // From now on requests are served. Requires: the service lives until stop() has returned.
  void open(Service& service);
  // Other keys, for the requests that come from now on. From any thread.
  void use(ApiKeys keys);
  // No new connections; those there are finish their request. Returns when the last has.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace drift::server
