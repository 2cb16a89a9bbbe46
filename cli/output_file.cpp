#include "cli/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/console.hpp"

namespace drift::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kLinksMax = 40;  // as the kernel follows
constexpr int kNamesMax = 16;  // temporary names tried; one is taken only if a process of the same number was killed

// Where the content goes.
struct Place {
  std::string path;       // links resolved, if a file is to be renamed there
  bool straight = false;  // a device or a pipe
  int descriptor = -1;    // straight, and open already: the standard output or error
  bool replaces = false;  // a file is there, with this mode:
  mode_t mode = 0;
};

Status cannot_write(const std::string& path, int error) {
  return {Code::kIo, fmt::format("cannot write {}: {}", path, std::strerror(error))};
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Where a chain of symbolic links ends, also when nothing is there yet.
Result<std::string> follow_links(const std::string& from) {
  fs::path path = from;
  std::error_code error;
  for (int i = 0; i < kLinksMax; ++i) {
    if (!fs::is_symlink(path, error)) return path.string();
    const fs::path next = fs::read_symlink(path, error);
    if (error) return cannot_write(path.string(), error.value());
    path = path.parent_path() / next;
  }
  return cannot_write(from, ELOOP);
}

Status parent_exists(const fs::path& path) {
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  if (fs::is_directory(parent, error)) return Status::ok();
  return {Code::kNotFound,
          fmt::format("the folder {} for {} does not exist; make it first", parent.string(), path.filename().string())};
}

Status check_no_input(const std::string& path, const struct stat& there, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    struct stat info{};
    if (::stat(input.c_str(), &info) != 0 || !same_file(there, info)) continue;
    return {Code::kInvalid, fmt::format("{} is the same file as {}, which is read; name another file to write", path, input)};
  }
  return Status::ok();
}

Result<Place> find_place(const std::string& path, const std::vector<std::string>& inputs) {
  Place place;
  struct stat there{};
  if (::stat(path.c_str(), &there) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return cannot_write(path, errno);
    DRIFT_ASSIGN(place.path, follow_links(path));
    DRIFT_TRY(parent_exists(place.path));
    return place;
  }
  if (S_ISDIR(there.st_mode)) return Status(Code::kInvalid, path + " is a folder; name a file");
  if (::access(path.c_str(), W_OK) != 0) return cannot_write(path, errno);
  if (S_ISREG(there.st_mode)) DRIFT_TRY(check_no_input(path, there, inputs));
  place.path = path;
  place.straight = !S_ISREG(there.st_mode);
  // A pipe or file that we print into already: opened anew it would be cut or could not be opened. Devices can.
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat ours{};
    if (S_ISCHR(there.st_mode) || place.descriptor >= 0 || ::fstat(fd, &ours) != 0 || !same_file(ours, there)) continue;
    place.straight = true, place.descriptor = fd;
  }
  if (place.straight) return place;
  DRIFT_ASSIGN(place.path, follow_links(path));
  place.replaces = true;
  place.mode = there.st_mode & 0777;
  return place;
}

}  // namespace

Result<OutputFile> OutputFile::open(const std::string& path, const std::vector<std::string>& inputs, mode_t mode) {
  DRIFT_ASSIGN(const Place place, find_place(path, inputs));
  OutputFile out;
  out.path_ = place.path;
  if (place.descriptor >= 0) {
    out.fd_ = ::fcntl(place.descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  } else if (place.straight) {
    do {
      out.fd_ = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
    } while (out.fd_ < 0 && errno == EINTR && !interrupted());
    if (out.fd_ < 0 && errno == EINTR) return Status(Code::kCancelled, "interrupted while opening " + path);
  } else {
    for (int i = 0; i < kNamesMax && out.fd_ < 0; ++i) {
      const std::string name = fmt::format("{}.part-{}-{}", place.path, ::getpid(), i);
      out.fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
      if (out.fd_ >= 0) out.temporary_ = name;
      if (out.fd_ < 0 && errno != EEXIST) break;
    }
  }
  if (out.fd_ < 0) return cannot_write(path, errno);
  if (place.replaces && ::fchmod(out.fd_, place.mode) != 0) return cannot_write(path, errno);
  return out;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::failed(int error) const {
  Status status = cannot_write(path_, error);
  if (temporary_.empty()) return status;
  return {status.code(), status.message() + "; the old file, if any, still stands"};
}

Status OutputFile::write(std::string_view bytes) {
  const int error = write_bytes(fd_, bytes);
  return error == 0 ? Status::ok() : failed(error);
}

Status OutputFile::finish() {
  if (!temporary_.empty() && ::fsync(fd_) != 0) return failed(errno);
  if (::close(std::exchange(fd_, -1)) != 0) return failed(errno);
  if (temporary_.empty()) return Status::ok();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed(errno);
  temporary_.clear();
  return Status::ok();
}

Status write_file_atomically(const std::string& path, std::string_view content, const std::vector<std::string>& inputs) {
  DRIFT_ASSIGN(OutputFile file, OutputFile::open(path, inputs));
  DRIFT_TRY(file.write(content));
  return file.finish();
}

Status check_writable(const std::string& path, const std::vector<std::string>& inputs) {
  DRIFT_ASSIGN(const Place place, find_place(path, inputs));
  return place.straight ? Status::ok() : OutputFile::open(path, inputs).status();
}

}  // namespace drift::cli
