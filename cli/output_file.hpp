// output_file.hpp - files the program is told to write: never half of one, never in place of something the command reads.
//
// A regular file (symbolic links are followed) is written under another name beside it, synced and renamed, so that a reader sees
// the old content or the new one. A device, a pipe and the standard output or error itself are written straight into.
// Threads: one.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::cli {

class OutputFile {
 public:
  // `inputs`: files this command reads; those that are not there are passed over.
  // `mode`: of a file that was not there, less the umask; one that is replaced gives its own.
  // Fails with kInvalid (a folder, or the same file as an input), kNotFound (missing parent folder), kIo, kCancelled.
  static Result<OutputFile> open(const std::string& path, const std::vector<std::string>& inputs, mode_t mode = 0666);
  ~OutputFile();  // without finish(): what stood at the path still stands
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  // For a library that opens what it writes by name: where the bytes go until finish(). Empty for a device or pipe.
  const std::string& temporary() const { return temporary_; }
  Status write(std::string_view bytes);  // fails with kIo
  Status finish();                       // fails with kIo

 private:
  OutputFile() = default;
  Status failed(int error) const;
  int fd_ = -1;
  std::string path_;       // links resolved
  std::string temporary_;  // empty: written straight into path_
};

// The three calls above in one.
Status write_file_atomically(const std::string& path, std::string_view content, const std::vector<std::string>& inputs);
// Whether OutputFile::open would succeed: to be asked before long work. A pipe is not opened, which would wait for its reader.
Status check_writable(const std::string& path, const std::vector<std::string>& inputs);

}  // namespace drift::cli
