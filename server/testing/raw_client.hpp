// raw_client.hpp - a TCP client that sends and sees bytes as they are: half requests, sudden ends, the very framing of a stream.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace drift::server::testing {

class RawClient {
 public:
  explicit RawClient(int port, int receive_bytes = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False when the other side has closed the connection.
  bool try_send(const std::string& bytes) {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  void send(const std::string& bytes) { EXPECT_TRUE(try_send(bytes)); }
  void post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  // Everything until `part` has come, the connection ends, or the time is over.
  std::string read_until(const std::string& part, std::chrono::milliseconds most = std::chrono::milliseconds(20'000)) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    while (part.empty() || seen_.find(part) == std::string::npos) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      pollfd wait{fd_, POLLIN, 0};
      if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left)) <= 0) break;
      char buffer[4'096];
      const ssize_t got = ::recv(fd_, buffer, sizeof(buffer), 0);
      if (got <= 0) {
        ended_ = true;
        break;
      }
      seen_.append(buffer, static_cast<std::size_t>(got));
    }
    return seen_;
  }
  std::string read_all(std::chrono::milliseconds most = std::chrono::milliseconds(20'000)) { return read_until("", most); }
  bool ended() const { return ended_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
  std::string seen_;
  bool ended_ = false;
};

// The body of a chunked answer, joined.
inline std::string unchunk(const std::string& answer) {
  std::string rest = answer.substr(answer.find("\r\n\r\n") + 4), out;
  while (!rest.empty()) {
    const std::size_t line = rest.find("\r\n");
    if (line == std::string::npos) break;
    const std::size_t size = std::stoul(rest.substr(0, line), nullptr, 16);
    if (size == 0) break;
    out += rest.substr(line + 2, size);
    rest.erase(0, line + 2 + size + 2);
  }
  return out;
}

}  // namespace drift::server::testing
