// out_file.hpp - what a run writes belongs to that run alone: to no second one, and to nothing that is read.
//
// Threads: one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::train {

// A lock on a file that is there while the lock is held; a run that is killed leaves the file, and no lock.
class FileLock {
 public:
  // `place`: what must not be written twice, as errors name it.
  // Fails with kBusy (another run has it), kIo.
  static Result<FileLock> take(const std::string& path, const std::string& place);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  FileLock(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

// Takes OUT for a run that writes OUT, and OUT.checkpoint until it is done; OUT.lock is held meanwhile. What killed runs left half
// written beside them goes. `inputs`: files the run reads.
// Fails with kInvalid (one of the three is an input, a folder, a device or a pipe), kNotFound (no such folder), kBusy, kIo.
Result<FileLock> take_out_file(const std::string& out, const std::vector<std::string>& inputs);

// Removes what runs that were killed while they wrote `path` left beside it. Requires: nobody writes there now.
void remove_halves(const std::string& path);

}  // namespace drift::train
