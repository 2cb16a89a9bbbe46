#include "cli/text_stats.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>

namespace drift::cli {
namespace {

constexpr std::size_t kRepeatWindow = 32;  // tokens

double share(std::uint64_t part, std::uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// How many different runs of `Length` tokens the text holds.
template <std::size_t Length>
std::uint64_t distinct(std::span<const Token> text) {
  std::set<std::array<Token, Length>> found;
  for (std::size_t i = 0; i + Length <= text.size(); ++i) {
    std::array<Token, Length> gram{};
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(i), Length, gram.begin());
    found.insert(gram);
  }
  return found.size();
}

}  // namespace

TextStats& TextStats::operator+=(const TextStats& other) {
  fourgrams += other.fourgrams;
  distinct_fourgrams += other.distinct_fourgrams;
  trigrams += other.trigrams;
  seen_trigrams += other.seen_trigrams;
  tokens += other.tokens;
  repeated += other.repeated;
  return *this;
}

double TextStats::distinct_4() const { return share(distinct_fourgrams, fourgrams); }
double TextStats::trigram_seen() const { return share(seen_trigrams, trigrams); }
double TextStats::repeat_32() const { return share(repeated, tokens); }

TextStats text_stats(std::span<const Token> text) {
  TextStats stats;
  stats.tokens = text.size();
  stats.trigrams = text.size() > 2 ? text.size() - 2 : 0;
  stats.fourgrams = text.size() > 3 ? text.size() - 3 : 0;
  stats.distinct_fourgrams = distinct<4>(text);
  stats.seen_trigrams = stats.trigrams - distinct<3>(text);  // every one but the first of its kind
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::span<const Token> before = text.subspan(i - std::min(i, kRepeatWindow), std::min(i, kRepeatWindow));
    stats.repeated += std::find(before.begin(), before.end(), text[i]) != before.end() ? 1 : 0;
  }
  return stats;
}

}  // namespace drift::cli
