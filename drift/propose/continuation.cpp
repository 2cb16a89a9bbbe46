#include "drift/propose/continuation.hpp"

#include <algorithm>
#include <string>

#include "drift/base/check.hpp"
#include "drift/propose/suffix_memory.hpp"

namespace drift::propose {

Status CopyConfig::validate() const {
  if (min_match < kLeastMatch || min_match > kMostMatch) {
    return {Code::kInvalid, "the shortest match is " + std::to_string(min_match) + " tokens; it must be " +
                                std::to_string(kLeastMatch) + " to " + std::to_string(kMostMatch)};
  }
  return Status::ok();
}

void Continuations::begin(int min_match, std::size_t vocab) {
  longest_ = 0;
  min_match_ = min_match;
  vocab_ = vocab;
  counts_.clear();
}

void Continuations::offer(int match, Token next) {
  if (match < std::max(min_match_, longest_) || next < 0 || static_cast<std::size_t>(next) >= vocab_) return;
  if (match > longest_) {
    counts_.clear();
    longest_ = match;
  }
  const auto seen = std::find_if(counts_.begin(), counts_.end(), [&](const auto& c) { return c.first == next; });
  if (seen != counts_.end())
    ++seen->second;
  else
    counts_.emplace_back(next, 1);
}

void Continuations::distribution(QRule rule, spec::Distribution& out) const {
  DRIFT_CHECK(!counts_.empty(), "a proposal needs a continuation");
  if (rule == QRule::kTop) {
    // The first of the largest counts.
    const auto top =
        std::max_element(counts_.begin(), counts_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    out.ids.assign(1, top->first);
    out.probs.assign(1, 1.0f);
    return;
  }
  out.ids.clear();
  std::uint64_t total = 0;
  for (const auto& [token, count] : counts_) {
    out.ids.push_back(token);
    total += count;
  }
  std::sort(out.ids.begin(), out.ids.end());
  out.probs.resize(out.ids.size());
  for (const auto& [token, count] : counts_) {
    const auto at = std::lower_bound(out.ids.begin(), out.ids.end(), token) - out.ids.begin();
    out.probs[static_cast<std::size_t>(at)] = static_cast<float>(static_cast<double>(count) / static_cast<double>(total));
  }
}

int common_suffix(std::span<const Token> text, std::size_t end, int most) {
  const std::size_t limit = std::min(end, static_cast<std::size_t>(most));
  std::size_t n = 0;
  while (n < limit && text[end - 1 - n] == text[text.size() - 1 - n]) ++n;
  return static_cast<int>(n);
}

void search_text(std::span<const Token> text, Continuations& found) {
  if (text.size() < 2) return;
  const Token last = text.back();
  for (std::size_t end = text.size() - 1; end > 0; --end) {
    if (text[end - 1] == last) found.offer(common_suffix(text, end, kMostMatch), text[end]);
  }
}

bool continue_text(std::span<const Token> text, const CopyConfig& config, const SuffixMemory* memory, std::size_t vocab,
                   Continuations& found) {
  found.begin(config.min_match, vocab);
  search_text(text, found);
  if (memory != nullptr) memory->search(text, found);
  return !found.empty();
}

}  // namespace drift::propose
