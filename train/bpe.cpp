#include "train/bpe.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "drift/base/check.hpp"

namespace drift::train {
namespace {

constexpr const char* kControl = "<|endoftext|>";
constexpr std::size_t kBytes = 256;

// OpenAI's GPT-2, encoder.py; llama.cpp's LLAMA_VOCAB_PRE_TYPE_GPT2 is the same one.
constexpr const char* kGpt2Pieces = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string utf8(unsigned code) {  // of a code point below U+0800
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

bool is_printable(unsigned byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

using Pair = std::uint64_t;  // two ids: left in the upper half, so that pairs order by (left, right)
Pair pair_of(std::uint32_t left, std::uint32_t right) { return (Pair{left} << 32) | right; }

// One distinct piece as ids.
struct Word {
  std::vector<std::uint32_t> ids;
  std::uint64_t count = 0;
};

struct Occurrences {
  std::uint64_t count = 0;
  std::vector<std::uint32_t> words;  // where the pair was seen; may name a word twice, or one that has it no more
};

class Merger {
 public:
  explicit Merger(const PieceCounts& counts) {
    for (const auto& [piece, count] : counts) {
      Word word;
      word.count = count;
      for (const char c : piece) word.ids.push_back(static_cast<unsigned char>(c));
      words_.push_back(std::move(word));
    }
    for (std::uint32_t w = 0; w < words_.size(); ++w) add_pairs(w);
  }

  // The most frequent pair, or false when no pair occurs twice.
  bool best(Pair& out) const {
    std::uint64_t most = 1;
    for (const auto& [pair, seen] : pairs_) {
      if (seen.count < most || seen.count < 2 || (seen.count == most && pair > out)) continue;
      most = seen.count;
      out = pair;
    }
    return most > 1;
  }

  void merge(Pair pair, std::uint32_t id) {
    std::vector<std::uint32_t> touched = std::move(pairs_[pair].words);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const std::uint32_t w : touched) {
      remove_pairs(w);
      replace(words_[w].ids, pair, id);
      add_pairs(w);
    }
    pairs_.erase(pair);
  }

 private:
  static void replace(std::vector<std::uint32_t>& ids, Pair pair, std::uint32_t id) {
    std::size_t to = 0;
    for (std::size_t from = 0; from < ids.size(); ++to) {
      const bool match = from + 1 < ids.size() && pair_of(ids[from], ids[from + 1]) == pair;
      ids[to] = match ? id : ids[from];
      from += match ? 2 : 1;
    }
    ids.resize(to);
  }

  void add_pairs(std::uint32_t w) {
    const Word& word = words_[w];
    for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) {
      Occurrences& seen = pairs_[pair_of(word.ids[i], word.ids[i + 1])];
      seen.count += word.count;
      if (seen.words.empty() || seen.words.back() != w) seen.words.push_back(w);
    }
  }

  void remove_pairs(std::uint32_t w) {
    const Word& word = words_[w];
    for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) pairs_[pair_of(word.ids[i], word.ids[i + 1])].count -= word.count;
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences> pairs_;
};

}  // namespace

std::string byte_letter(unsigned char byte) {
  if (is_printable(byte)) return utf8(byte);
  unsigned code = 256;
  for (unsigned b = 0; b < byte; ++b) code += is_printable(b) ? 0 : 1;
  return utf8(code);
}

struct Splitter::Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  ~Pattern() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

Splitter::Splitter() : pattern_(std::make_unique<Pattern>()) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pattern_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kGpt2Pieces), PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &at, nullptr);
  DRIFT_CHECK(pattern_->code != nullptr, "the pattern above compiles");
  pcre2_jit_compile(pattern_->code, PCRE2_JIT_COMPLETE);  // where it cannot, matching is only slower
  pattern_->match = pcre2_match_data_create_from_pattern(pattern_->code, nullptr);
  DRIFT_CHECK(pattern_->match != nullptr, "memory for one match");
}
Splitter::~Splitter() = default;

std::vector<std::string_view> Splitter::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  std::size_t at = 0;
  while (at < text.size()) {
    const int found = pcre2_match(pattern_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK,
                                  pattern_->match, nullptr);
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(pattern_->match);
    // Every character matches one of the alternatives; a piece too long for the matcher's memory is taken as the rest.
    const std::size_t begin = found > 0 ? span[0] : at, end = found > 0 ? span[1] : text.size();
    DRIFT_CHECK(begin == at && end > at, "pieces follow each other without a gap");
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

void count_pieces(const Splitter& splitter, std::string_view text, PieceCounts& counts) {
  for (const std::string_view piece : splitter.split(text)) {
    const auto found = counts.find(piece);
    if (found != counts.end()) {
      ++found->second;
    } else {
      counts.emplace(std::string(piece), 1);
    }
  }
}

Result<Vocabulary> make_vocabulary(const PieceCounts& counts, std::size_t size) {
  if (size < kVocabMin || size > kVocabMax)
    return Status(Code::kLimit, fmt::format("a vocabulary of {} tokens; it may have {} to {}", size, kVocabMin, kVocabMax));
  Vocabulary out;
  for (unsigned byte = 0; byte < kBytes; ++byte) out.tokens.push_back(byte_letter(static_cast<unsigned char>(byte)));
  Merger merger(counts);
  while (out.tokens.size() + 1 < size) {
    Pair pair = 0;
    if (!merger.best(pair))
      return Status(Code::kInvalid,
                    fmt::format("the text repeats too little for {} tokens: only {} could be made; give more text "
                                "or ask for a smaller vocabulary",
                                size, out.tokens.size() + 1));
    const std::string left = out.tokens[pair >> 32], right = out.tokens[pair & 0xFFFFFFFFU];
    merger.merge(pair, static_cast<std::uint32_t>(out.tokens.size()));
    out.tokens.push_back(left + right);
    out.merges.push_back(left + " " + right);
  }
  out.tokens.push_back(kControl);
  return out;
}

}  // namespace drift::train
