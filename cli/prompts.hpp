// prompts.hpp - what a comparison is run over: JSON lines, plain texts, and a choice of rows that stays the same everywhere.
//
// Threads: plain values. Limits: files of at most kPromptFileMax bytes, prompts of at most kPromptBytesMax, kPromptsMax rows,
// other fields of at most kFieldBytesMax bytes, which hold no control characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::cli {

inline constexpr std::size_t kPromptFileMax = std::size_t{256} << 20;
inline constexpr std::size_t kPromptBytesMax = std::size_t{16} << 20;
inline constexpr std::size_t kPromptsMax = 1'000'000;
inline constexpr std::size_t kFieldBytesMax = 256;  // of an id, a domain, a split

enum class PromptKind { kPrefix, kInstruction };  // raw text to go on with; a user's turn (chat template)

struct Prompt {
  std::string id;      // the row's "id", else FILE:LINE; printable
  std::string domain;  // the row's "domain", else empty
  std::string split;   // the row's "split", else empty
  PromptKind kind = PromptKind::kPrefix;
  std::string text;
};

// Which prompts a command is to run over.
struct PromptOptions {
  std::vector<std::string> files;
  std::string split;      // empty: all rows
  std::size_t limit = 0;  // 0: no limit
};

const char* kind_name(PromptKind kind);

// FNV-1a, 64 bits: the fixed hash behind --limit and the name of a sequence in random keys.
std::uint64_t fixed_hash(std::string_view text);

// Rows of a .jsonl, .ndjson or .json file (one object a line, blank lines skipped; the ending may be in capitals), or the whole
// of any other file as one prompt.
// Fails with kNotFound, kIo, kInvalid ("FILE:LINE: why": not JSON, no "prompt", an empty one, not UTF-8, ...), kLimit.
Result<std::vector<Prompt>> load_prompts(const std::string& path);
// The same from memory; `name` is how errors call it.
Result<std::vector<Prompt>> parse_prompts(const std::string& name, std::string_view text);

// Rows of a split (all if empty), at most `limit` of them (all if 0), in their given order. Which ones: by rising hash of
// the id, taking turns between kinds, and within a kind between domains.
// Fails with kInvalid if nothing is left.
Result<std::vector<Prompt>> select_prompts(std::vector<Prompt> prompts, const std::string& split, std::size_t limit);
// The files' rows one file after the other, then select_prompts(). Fails as both.
Result<std::vector<Prompt>> chosen_prompts(const PromptOptions& options);

}  // namespace drift::cli
