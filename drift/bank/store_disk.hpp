// store_disk.hpp - what the store asks of the file system: one locked file, replaced atomically.
//
// The lock is flock() on the bank's own inode, so a closed bank is one file and a killed writer leaves no stale lock. New
// content is built in `<bank>.drift-tmp`, which is locked before it is renamed over the bank: at no moment can a second
// writer hold the path. Whoever locks a file checks afterwards that the path still names the inode it locked.
// Threads: plain functions; a FileLock is used by one thread. Not for file systems whose flock() is not honoured.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "drift/base/status.hpp"

namespace drift::bank::disk {

// An open, flock()ed file; closing it gives the lock back.
class FileLock {
 public:
  FileLock() = default;
  explicit FileLock(int fd) : fd_(fd) {}
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();
  int fd() const { return fd_; }
  bool held() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// The path with its folder's symbolic links resolved, so that the file itself can be opened without following any.
// Fails with kInvalid (no file name), kNotFound (no such folder).
Result<std::filesystem::path> resolve(const std::filesystem::path& path);

// Fails with kNotFound, kForeign (a folder, a symbolic link, a device, an empty file, larger than a bank can be), kIo.
// Returns the size in bytes.
Result<std::uint64_t> check_bank_path(const std::filesystem::path& path, std::uint64_t max_bytes);

// Tells two states of a path apart: another file, or the same one changed. All zero if it is not there.
struct Identity {
  std::uint64_t device = 0, inode = 0, bytes = 0, changed_ns = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};
Identity identity(const std::filesystem::path& path);

// Takes the writer's lock of an existing bank. Fails with kBusy, kNotFound (gone meanwhile), kIo (not writable).
Result<FileLock> lock_bank(const std::filesystem::path& path);

// The name new content is built under.
std::filesystem::path temp_path(const std::filesystem::path& bank);

// Fails with kIo if no file can be made beside the bank, so that a writer learns of it before its work and not after.
Status check_folder_writable(const std::filesystem::path& bank);

// Makes the empty, locked temporary file, removing what a killed writer left. Fails with kBusy, kIo.
Result<FileLock> create_temp(const std::filesystem::path& bank);

// Removes a killed writer's temporary file, if any; one in use is left alone. Never fails: leftovers are harmless.
void remove_leftover(const std::filesystem::path& bank);

// Makes the (complete) temporary file durable and renames it to the bank's name. `replaced` is the lock on the bank it
// replaces; without one the bank must not exist. On success `temp` is the lock of the bank.
// Fails with kBusy (the bank was replaced or made by another program meanwhile), kIo; the old content then still stands,
// except when only the folder could not be synced, which the message says.
Status publish(const std::filesystem::path& bank, const FileLock& temp, const FileLock& replaced);

// Removes the temporary file this writer made.
void discard_temp(const std::filesystem::path& bank);

}  // namespace drift::bank::disk
