#include "train/text.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "cli/input.hpp"
#include "cli/models.hpp"
#include "text/utf8.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;

// The end of the chunk that begins at text[0].
std::size_t chunk_end(std::string_view text) {
  if (text.size() <= kChunkBytes) return text.size();
  std::size_t end = text.find("\n\n", kChunkBytes - 2);
  if (end == std::string_view::npos) end = text.size();
  while (end < text.size() && text[end] == '\n') ++end;  // a chunk begins with text
  if (end <= kChunkBytesMax) return end;
  const std::size_t line = text.rfind('\n', kChunkBytesMax - 1);
  if (line != std::string_view::npos && line >= kChunkBytes) return line + 1;
  end = kChunkBytesMax;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not within a character
  return end;
}

Status no_folder(const std::string& folder) {
  return {Code::kNotFound, folder + " is no folder; --data names the folder of the texts"};
}

}  // namespace

std::vector<std::string_view> cut_into_chunks(std::string_view text) {
  std::vector<std::string_view> chunks;
  while (!text.empty()) {
    const std::size_t end = chunk_end(text);
    chunks.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return chunks;
}

bool is_held_out(std::string_view chunk) { return XXH3_64bits(chunk.data(), chunk.size()) % kHeldOutOneIn == 0; }

Result<Domain> read_text(const std::string& path) {
  DRIFT_ASSIGN(const std::string text, cli::read_text_file(path, kTextBytesMax));
  if (text.empty()) return Status(Code::kInvalid, path + " is empty; it needs text to learn from");
  if (text.size() < kTextBytesMin)
    return Status(Code::kLimit,
                  fmt::format("{} has {} bytes; at least {} are needed to learn anything", path, text.size(), kTextBytesMin));
  if (const std::size_t valid = text::valid_prefix(text); valid < text.size())
    return Status(Code::kInvalid, fmt::format("{} is not UTF-8: byte {} is wrong; convert it first", path, valid));
  Domain domain;
  domain.name = fs::path(path).stem().string();
  domain.bytes = text.size();
  DRIFT_ASSIGN(domain.sha256, cli::file_sha256(path));
  for (const std::string_view chunk : cut_into_chunks(text))
    (is_held_out(chunk) ? domain.held_out : domain.train).emplace_back(chunk);
  // Small files can miss by chance; their last chunk serves.
  if (domain.held_out.empty() && domain.train.size() > 1) {
    domain.held_out.push_back(std::move(domain.train.back()));
    domain.train.pop_back();
  }
  if (domain.held_out.empty() || domain.train.empty())
    return Status(Code::kLimit, fmt::format("{} cannot be split into text to learn from and text held out; give more", path));
  return domain;
}

Result<Domain> read_domain(const std::string& folder, const std::string& name) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return no_folder(folder);
  DRIFT_ASSIGN(Domain domain, read_text((fs::path(folder) / (name + ".txt")).string()));
  domain.name = name;
  return domain;
}

Result<std::vector<std::string>> domains_in(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return no_folder(folder);
  std::vector<std::string> names;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() != ".txt") continue;
    if (names.size() == kDomainsMax)
      return Status(Code::kLimit,
                    fmt::format("{} has more than {} texts; name those to use with --domains", folder, kDomainsMax));
    names.push_back(at->path().stem().string());
  }
  if (error) return Status(Code::kIo, fmt::format("cannot list {}: {}", folder, error.message()));
  if (names.empty()) return Status(Code::kInvalid, folder + " holds no .txt file; each domain is one");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace drift::train
