// input.hpp - bytes from files, pipes and the terminal: bounded, and Ctrl-C ends a wait.
//
// (std::ifstream goes on waiting after a signal, std::getline keeps a line of any length.)
// Threads: one.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::cli {

class Input {
 public:
  // Fails with kInvalid (a folder), kNotFound, kIo, kCancelled (interrupted while a pipe without a writer was opened).
  static Result<Input> open(const std::string& path);
  static Input standard();
  ~Input();
  Input(Input&& other) noexcept;
  Input& operator=(Input&&) = delete;

  // What is there, up to out.size() bytes; 0 at the end. Requires: out not empty. Fails with kIo, kCancelled (interrupted).
  Result<std::size_t> read(std::span<char> out);

 private:
  Input(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  int fd_;  // closed at the end, except the standard input's
  std::string name_;
};

// A whole file as text. Fails as Input::open and read, and with kLimit.
Result<std::string> read_text_file(const std::string& path, std::size_t bytes_max);

inline constexpr std::size_t kLineSkipMax = std::size_t{256} << 20;

// Lines without their ends, in bounded memory.
class LineReader {
 public:
  struct Line {
    std::string text;
    bool too_long = false;  // longer than bytes_max: skipped, text is empty
  };
  LineReader(Input input, std::size_t bytes_max);
  // The next line, or none at the end. Fails as Input::read, and with kLimit where a line does not end within kLineSkipMax bytes.
  Result<std::optional<Line>> next();

 private:
  Input input_;
  std::size_t bytes_max_;
  std::vector<char> buffer_;
  std::size_t at_ = 0, end_ = 0;  // of what is in the buffer
};

// For code that reads a std::istream. A failure ends the stream; status() then tells which.
class InputBuffer : public std::streambuf {
 public:
  explicit InputBuffer(Input input);
  const Status& status() const { return status_; }

 protected:
  int_type underflow() override;

 private:
  Input input_;
  std::vector<char> buffer_;
  Status status_;
};

}  // namespace drift::cli
