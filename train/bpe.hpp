// bpe.hpp - makes a byte-level BPE vocabulary from text: the kind that llama.cpp reads as tokenizer "gpt2", pre-tokeniser "gpt-2".
//
// Only making is done here. Tokens come from llama.cpp itself, through the file the vocabulary is written to, so that text is cut
// at training exactly as it will be later.
// Threads: plain values. Limits: kVocabMin to kVocabMax tokens. Cost: about a second per megabyte of varied text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"

namespace drift::train {

inline constexpr std::size_t kVocabMin = 320;    // 256 bytes, one control token, and a few merges
inline constexpr std::size_t kVocabMax = 8'192;  // small models spend their parameters elsewhere

struct Vocabulary {
  std::vector<std::string> tokens;  // by id, written in GPT-2's letters for bytes; the last one is the control token
  std::vector<std::string> merges;  // "left right" in the same letters, the first to be merged first
  std::int32_t end() const { return static_cast<std::int32_t>(tokens.size()) - 1; }  // "<|endoftext|>": never in any text
};

// GPT-2's letter for a byte: printable ones stand for themselves, the rest for U+0100 and up. UTF-8.
std::string byte_letter(unsigned char byte);

// Cuts text into the pieces that no token may cross: GPT-2's regular expression, word for word.
class Splitter {
 public:
  Splitter();
  ~Splitter();
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  // Pieces in order; together they are `text`. Requires: valid UTF-8. Cost: linear.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

using PieceCounts = std::map<std::string, std::uint64_t, std::less<>>;  // how often each piece occurs
void count_pieces(const Splitter& splitter, std::string_view text, PieceCounts& counts);

// Merges the most frequent pair of neighbours until there are `size` tokens; ties go to the pair of lowest ids, so the result
// depends on the counts alone.
// Fails with kLimit (size out of bounds), kInvalid (the text has too few different pairs for so many tokens).
Result<Vocabulary> make_vocabulary(const PieceCounts& counts, std::size_t size);

}  // namespace drift::train
