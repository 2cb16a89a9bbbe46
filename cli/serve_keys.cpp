#include "cli/serve_keys.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

#include "cli/input.hpp"

namespace drift::cli {

KeyFile::Seen KeyFile::look() const {
  struct stat now{};
  if (::stat(path_.c_str(), &now) != 0) return {};
  return {now.st_mtim.tv_sec, now.st_mtim.tv_nsec, now.st_size, now.st_ino};
}

Result<server::ApiKeys> KeyFile::read() {
  std::vector<server::ApiKey> keys;
  for (const std::string& key : keys_) keys.push_back({key, {}});
  if (has_file()) {
    read_ = before_ = look();  // before it is read: what is written meanwhile is another one
    DRIFT_ASSIGN(const std::string text, read_text_file(path_, std::size_t{8} << 20));
    auto of_file = server::keys_of_text(text);
    if (!of_file.is_ok()) return Status(of_file.status().code(), fmt::format("{}: {}", path_, of_file.status().message()));
    if (of_file->empty()) return Status(Code::kInvalid, fmt::format("--api-key-file {} holds no key", path_));
    keys.insert(keys.end(), of_file->begin(), of_file->end());
  }
  return server::ApiKeys::make(keys);
}

bool KeyFile::changed() {
  const Seen now = look(), before = std::exchange(before_, now);
  return has_file() && now == before && !(now == read_);
}

}  // namespace drift::cli
