// text.hpp - the text that models are trained on: one file a domain, cut into chunks, each for training or held out by its hash.
//
// Threads: plain values. Limits: kTextBytesMin to kTextBytesMax bytes a domain, kDomainsMax domains, valid UTF-8 only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::train {

inline constexpr std::size_t kTextBytesMin = std::size_t{16} << 10;
inline constexpr std::size_t kTextBytesMax = std::size_t{256} << 20;
inline constexpr std::size_t kDomainsMax = 64;
inline constexpr std::size_t kChunkBytes = 2'048;     // a chunk ends at the first blank line after this many bytes,
inline constexpr std::size_t kChunkBytesMax = 8'192;  // or here, at the end of a character
inline constexpr unsigned kHeldOutOneIn = 20;         // chunks

struct Domain {
  std::string name;                          // the file's, without ".txt"
  std::vector<std::string> train, held_out;  // chunks, in the order of the file
  std::size_t bytes = 0;                     // of the file
  std::string sha256;                        // of the file, in hexadecimal
};

// Chunks in order; together they are `text`.
std::vector<std::string_view> cut_into_chunks(std::string_view text);
// Whether a chunk is held out: a pure function of its bytes, so that repeated text is on one side only.
bool is_held_out(std::string_view chunk);

// A file of text. Fails with kNotFound (no such file or folder), kInvalid (empty, not UTF-8: the byte is named), kLimit (too
// small, too large, or nothing held out), kIo, kCancelled.
Result<Domain> read_text(const std::string& path);
// The same of FOLDER/NAME.txt.
Result<Domain> read_domain(const std::string& folder, const std::string& name);
// The names of all .txt files in a folder, sorted. Fails with kNotFound, kInvalid (not one), kLimit (too many), kIo.
Result<std::vector<std::string>> domains_in(const std::string& folder);

}  // namespace drift::train
