#include "cli/input.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/console.hpp"

namespace drift::cli {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;
constexpr int kPollMs = 200;

Status stopped(const std::string& name) { return {Code::kCancelled, "interrupted while reading " + name}; }

}  // namespace

Result<Input> Input::open(const std::string& path) {
  // Without O_NONBLOCK a pipe nobody writes to would be waited for in here, and a signal that comes just before is not seen.
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR && !interrupted());
  if (fd < 0 && errno == EINTR) return stopped(path);
  if (fd < 0) {
    return Status(errno == ENOENT ? Code::kNotFound : Code::kIo, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  Input input(fd, path);
  struct stat info{};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) return Status(Code::kInvalid, path + " is a folder; name a file");
  return input;
}

Input Input::standard() { return {STDIN_FILENO, "the standard input"}; }

Input::Input(Input&& other) noexcept : fd_(std::exchange(other.fd_, -1)), name_(std::move(other.name_)) {}

Input::~Input() {
  if (fd_ > STDERR_FILENO) ::close(fd_);
}

Result<std::size_t> Input::read(std::span<char> out) {
  for (;;) {
    if (interrupted()) return stopped(name_);
    // Asks again now and then: a signal between the line above and the wait would not end it.
    pollfd ready{fd_, POLLIN, 0};
    if (const int count = ::poll(&ready, 1, kPollMs); count == 0 || (count < 0 && errno == EINTR)) continue;
    const ssize_t got = ::read(fd_, out.data(), out.size());
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR && errno != EAGAIN)
      return Status(Code::kIo, fmt::format("cannot read {}: {}", name_, std::strerror(errno)));
  }
}

Result<std::string> read_text_file(const std::string& path, std::size_t bytes_max) {
  DRIFT_ASSIGN(Input input, Input::open(path));
  std::string text;
  std::vector<char> chunk(kBufferBytes);
  for (;;) {
    DRIFT_ASSIGN(const std::size_t got, input.read(chunk));
    if (got == 0) return text;
    text.append(chunk.data(), got);
    if (text.size() > bytes_max)
      return Status(Code::kLimit, fmt::format("{} is larger than {} bytes; split it", path, bytes_max));
  }
}

LineReader::LineReader(Input input, std::size_t bytes_max)
    : input_(std::move(input)), bytes_max_(bytes_max), buffer_(kBufferBytes) {}

Result<std::optional<LineReader::Line>> LineReader::next() {
  Line line;
  for (std::size_t length = 0;;) {
    if (at_ == end_) {
      at_ = end_ = 0;
      DRIFT_ASSIGN(end_, input_.read(buffer_));
      if (end_ == 0) return length == 0 ? std::optional<Line>() : std::optional<Line>(std::move(line));
    }
    const auto begin = buffer_.begin() + static_cast<std::ptrdiff_t>(at_),
               end = buffer_.begin() + static_cast<std::ptrdiff_t>(end_);
    const auto stop = std::find(begin, end, '\n');
    length += static_cast<std::size_t>(stop - begin);
    line.too_long = length > bytes_max_;
    if (line.too_long) {
      line.text.clear();
    } else {
      line.text.append(begin, stop);
    }
    at_ = static_cast<std::size_t>(stop - buffer_.begin());
    if (stop != end) {
      ++at_;
      return std::optional<Line>(std::move(line));
    }
    if (length > kLineSkipMax)
      return Status(Code::kLimit,
                    fmt::format("a line of more than {} bytes; this is no text to read line by line", kLineSkipMax));
  }
}

InputBuffer::InputBuffer(Input input) : input_(std::move(input)), buffer_(kBufferBytes) {}

InputBuffer::int_type InputBuffer::underflow() {
  if (!status_.is_ok()) return traits_type::eof();
  auto got = input_.read(buffer_);
  if (!got.is_ok()) status_ = got.status();
  if (!got.is_ok() || got.value() == 0) return traits_type::eof();
  setg(buffer_.data(), buffer_.data(), buffer_.data() + got.value());
  return traits_type::to_int_type(buffer_.front());
}

}  // namespace drift::cli
