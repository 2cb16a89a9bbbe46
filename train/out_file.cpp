#include "train/out_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "cli/output_file.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;

// A model is renamed into its place, which would put a file where a device was.
Status check_file(const std::string& path, const std::vector<std::string>& inputs) {
  struct stat there{};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode))
    return {Code::kInvalid, path + " is no regular file (a device or a pipe?); name a file"};
  return cli::check_writable(path, inputs);
}

// PID-N, as temporary names end.
bool is_number_pair(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return false;
  const auto digits = [](std::string_view part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  return digits(text.substr(0, dash)) && digits(text.substr(dash + 1));
}

}  // namespace

Result<FileLock> FileLock::take(const std::string& path, const std::string& place) {
  for (;;) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (fd < 0) return Status(Code::kIo, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
    FileLock lock(fd, path);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      ::close(std::exchange(lock.fd_, -1));  // the file is the other's
      return Status(Code::kBusy, fmt::format("another drift-train writes {}; wait for it, or name another --out", place));
    }
    // The run before may have removed the file between the two calls above: then this is a lock on nothing.
    struct stat ours{}, there{};
    if (::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_dev == there.st_dev &&
        ours.st_ino == there.st_ino)
      return lock;
    ::close(std::exchange(lock.fd_, -1));
  }
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  struct stat ours{};
  if (::fstat(fd_, &ours) == 0 && S_ISREG(ours.st_mode) && ours.st_size == 0) ::unlink(path_.c_str());  // else it is somebody's
  ::close(fd_);
}

Result<FileLock> take_out_file(const std::string& out, const std::vector<std::string>& inputs) {
  const std::string checkpoint = out + ".checkpoint", lock_path = out + ".lock";
  for (const std::string& path : {out, checkpoint, lock_path}) DRIFT_TRY(check_file(path, inputs));
  DRIFT_ASSIGN(FileLock lock, FileLock::take(lock_path, out));
  for (const std::string& path : {out, checkpoint}) remove_halves(path);
  return lock;
}

void remove_halves(const std::string& path) {
  const fs::path whole(path);
  const std::string prefix = whole.filename().string() + ".part-";
  std::vector<fs::path> halves;
  std::error_code error;
  for (fs::directory_iterator at(whole.has_parent_path() ? whole.parent_path() : ".", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(prefix) && is_number_pair(std::string_view(name).substr(prefix.size()))) halves.push_back(at->path());
  }
  for (const fs::path& half : halves) fs::remove(half, error);  // what cannot go only takes room
}

}  // namespace drift::train
