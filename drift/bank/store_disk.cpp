#include "drift/bank/store_disk.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace drift::bank::disk {
namespace {

constexpr int kLockTries = 16;  // each failed try means that another writer published in between

std::string quoted(const std::filesystem::path& path) { return "'" + path.string() + "'"; }

Status io_error(const std::string& what, const std::filesystem::path& path, int error) {
  std::string message = what + " " + quoted(path) + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) message += "; free some space or name another place";
  if (error == EACCES || error == EPERM || error == EROFS) message += "; check the permissions or name another place";
  return {Code::kIo, message};
}

Status busy(const std::filesystem::path& path) {
  return {Code::kBusy, "bank " + quoted(path) +
                           " is being written by another process; close that one, open this one read-only "
                           "(--bank-ro) or use another file"};
}

bool same_file(int fd, const std::filesystem::path& path) {
  struct stat by_fd{}, by_path{};
  return ::fstat(fd, &by_fd) == 0 && ::lstat(path.c_str(), &by_path) == 0 && by_fd.st_dev == by_path.st_dev &&
         by_fd.st_ino == by_path.st_ino;
}

// open() that never gives 0, 1 or 2: with a standard stream closed, a bank opened there would be read as the program's input,
// or overwritten by its output. Also closed in child processes.
int open_apart(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int apart = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
  return apart;
}

bool take_lock(int fd) {
  int rc;
  do rc = ::flock(fd, LOCK_EX | LOCK_NB);
  while (rc != 0 && errno == EINTR);
  return rc == 0;
}

Status sync_folder(const std::filesystem::path& folder) {
  const int fd = open_apart(folder, O_RDONLY | O_DIRECTORY);
  const bool ok = fd >= 0 && (::fsync(fd) == 0 || errno == EINVAL);  // EINVAL: this file system has no folder sync
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (ok) return Status::ok();
  return io_error("the new content is in place, but its name could not be made durable in folder", folder, error);
}

// rename() that refuses to replace; by link() where the file system does not know the flag.
bool rename_no_replace(const std::filesystem::path& from, const std::filesystem::path& to) {
#ifdef RENAME_NOREPLACE
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
#endif
  if (::link(from.c_str(), to.c_str()) != 0) return false;
  ::unlink(from.c_str());  // killed in between: the leftover is a second name of the bank, removed by the next writer
  return true;
}

}  // namespace

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::filesystem::path> resolve(const std::filesystem::path& path) {
  const std::filesystem::path name = path.filename();
  if (name.empty() || name == "." || name == "..") {
    return {Code::kInvalid, "bank path " + quoted(path) + " names no file; give a file name, e.g. mine.bank"};
  }
  if (path.string().find('\0') != std::string::npos) return {Code::kInvalid, "bank path holds a zero byte"};
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(parent, error);
  if (error == std::errc::permission_denied) return io_error("cannot enter folder", parent, EACCES);
  if (error || !std::filesystem::is_directory(folder, error)) {
    return {Code::kNotFound, "folder " + quoted(parent) + " of bank " + quoted(path) + " does not exist; create it first"};
  }
  return folder / name;
}

Result<std::uint64_t> check_bank_path(const std::filesystem::path& path, std::uint64_t max_bytes) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return {Code::kNotFound, "bank " + quoted(path) + " does not exist"};
    return io_error("cannot look at bank", path, errno);
  }
  if (S_ISLNK(info.st_mode)) {
    return {Code::kForeign, quoted(path) + " is a symbolic link; name the bank file it points to"};
  }
  if (S_ISDIR(info.st_mode)) return {Code::kForeign, quoted(path) + " is a folder, not a bank file"};
  if (!S_ISREG(info.st_mode)) return {Code::kForeign, quoted(path) + " is not a regular file, so it is no bank"};
  if (info.st_size == 0) {
    return {Code::kForeign, quoted(path) + " is an empty file, not a bank; remove it to have a bank made there"};
  }
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (bytes > max_bytes) {
    return {Code::kForeign,
            quoted(path) + " has " + std::to_string(bytes) + " bytes; no bank is larger than " + std::to_string(max_bytes)};
  }
  return bytes;
}

Identity identity(const std::filesystem::path& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) return {};
  return {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino),
          static_cast<std::uint64_t>(info.st_size),
          static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(info.st_mtim.tv_nsec)};
}

Result<FileLock> lock_bank(const std::filesystem::path& path) {
  for (int i = 0; i < kLockTries; ++i) {
    FileLock lock(open_apart(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK));
    if (!lock.held()) {
      if (errno == ENOENT) return {Code::kNotFound, "bank " + quoted(path) + " does not exist"};
      return io_error("cannot open for writing bank", path, errno);
    }
    if (!take_lock(lock.fd())) {
      if (errno == EWOULDBLOCK) return busy(path);
      return io_error("cannot lock bank", path, errno);
    }
    if (same_file(lock.fd(), path)) return lock;
  }
  return busy(path);
}

std::filesystem::path temp_path(const std::filesystem::path& bank) { return bank.string() + ".drift-tmp"; }

Status check_folder_writable(const std::filesystem::path& bank) {
  struct stat info{};
  if (::lstat(temp_path(bank).c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return {Code::kIo, quoted(temp_path(bank)) +
                           " is in the way: new content is built under that name, and it is no file that an "
                           "earlier writer left; move it away"};
  }
  if (::faccessat(AT_FDCWD, bank.parent_path().c_str(), W_OK | X_OK, AT_EACCESS) == 0) return Status::ok();
  const int error = errno;
  return {Code::kIo, "cannot write in the folder of bank " + quoted(bank) + ": " + std::strerror(error) +
                         "; open the bank read-only (--bank-ro) or copy it to another folder"};
}

Result<FileLock> create_temp(const std::filesystem::path& bank) {
  const std::filesystem::path temp = temp_path(bank);
  for (int i = 0; i < kLockTries; ++i) {
    // 0600: residuals and keys tell of the texts they were learnt from.
    FileLock fresh(open_apart(temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
    if (fresh.held()) {
      if (!take_lock(fresh.fd())) {
        if (errno == EWOULDBLOCK) continue;  // another creator is just removing it, taking it for a leftover
        const int error = errno;
        ::unlink(temp.c_str());
        return io_error("cannot lock", temp, error);
      }
      if (same_file(fresh.fd(), temp)) return fresh;
      continue;
    }
    if (errno != EEXIST) return io_error("cannot create", temp, errno);
    FileLock left(open_apart(temp, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    if (!left.held()) {
      if (errno == ENOENT) continue;
      return io_error("cannot remove what an earlier writer left at", temp, errno);
    }
    if (!take_lock(left.fd())) return busy(bank);
    if (same_file(left.fd(), temp) && ::unlink(temp.c_str()) != 0) {
      return io_error("cannot remove what an earlier writer left at", temp, errno);
    }
  }
  return busy(bank);
}

void remove_leftover(const std::filesystem::path& bank) {
  const std::filesystem::path temp = temp_path(bank);
  FileLock left(open_apart(temp, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  struct stat info{};
  if (!left.held() || ::fstat(left.fd(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  // The bank itself under its second name (see rename_no_replace) is locked through the bank: only the name goes.
  if ((same_file(left.fd(), bank) || take_lock(left.fd())) && same_file(left.fd(), temp)) ::unlink(temp.c_str());
}

Status publish(const std::filesystem::path& bank, const FileLock& temp, const FileLock& replaced) {
  const std::filesystem::path from = temp_path(bank);
  if (!same_file(temp.fd(), from)) {
    return {Code::kBusy, quoted(from) + " was taken away by another program while it was written; the bank is unchanged"};
  }
  struct stat info{};
  const bool replaces = replaced.held() && ::lstat(bank.c_str(), &info) == 0;
  if (replaces && !same_file(replaced.fd(), bank)) {
    return {Code::kBusy, "bank " + quoted(bank) + " was replaced by another program since it was opened; nothing was written"};
  }
  if (replaces && ::fchmod(temp.fd(), info.st_mode & 0777) != 0) return io_error("cannot set the mode of", from, errno);
  if (::fsync(temp.fd()) != 0) return io_error("cannot make durable", from, errno);
  const bool renamed = replaces ? ::rename(from.c_str(), bank.c_str()) == 0 : rename_no_replace(from, bank);
  if (!renamed) {
    if (errno == EEXIST) return busy(bank);
    return io_error("cannot rename the new content to", bank, errno);
  }
  return sync_folder(bank.parent_path());
}

void discard_temp(const std::filesystem::path& bank) { ::unlink(temp_path(bank).c_str()); }

}  // namespace drift::bank::disk
