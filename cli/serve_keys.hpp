// serve_keys.hpp - the API keys of a server, from its flags and a file that may change while it serves.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/http/api_keys.hpp"

namespace drift::cli {

class KeyFile {
 public:
  // `keys`: those of --api-key. `path` may be empty: there is no file.
  KeyFile(std::vector<std::string> keys, std::string path) : keys_(std::move(keys)), path_(std::move(path)) {}

  bool has_file() const { return !path_.empty(); }
  // All keys, as they are now. Fails as read_text_file, keys_of_text and ApiKeys::make, and with kInvalid where a file holds none.
  Result<server::ApiKeys> read();
  // Whether the file is another one than read() saw, and the same as at the call before this: nobody is writing it. Call about once a second.
  bool changed();

 private:
  struct Seen {  // all 0: it cannot be looked at
    std::int64_t s = 0, ns = 0, size = 0;
    ino_t inode = 0;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  Seen look() const;

  std::vector<std::string> keys_;
  std::string path_;
  Seen read_, before_;
};

}  // namespace drift::cli
