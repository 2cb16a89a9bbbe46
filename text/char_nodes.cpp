#include "text/char_nodes.hpp"

#include <algorithm>

namespace drift::text {
namespace {

constexpr std::uint32_t kLast = 0x10FFFF;

// What of sorted ranges lies between two code points, less `low`. `at` is where looking begins; later calls ask for higher ones.
std::vector<CharRange> cut(const std::vector<CharRange>& ranges, std::size_t& at, std::uint32_t low, std::uint32_t high) {
  std::vector<CharRange> out;
  while (at < ranges.size() && ranges[at].second < low) ++at;
  for (std::size_t i = at; i < ranges.size() && ranges[i].first <= high; ++i)
    out.emplace_back(std::max(ranges[i].first, low) - low, std::min(ranges[i].second, high) - low);
  return out;
}

void add_arc(std::vector<Grammar::Arc>& arcs, std::uint32_t byte, std::uint32_t to) {
  const auto b = static_cast<std::uint8_t>(byte);
  if (!arcs.empty() && arcs.back().to == to && arcs.back().high + 1 == b) {
    arcs.back().high = b;
  } else {
    arcs.push_back({b, b, to});
  }
}

}  // namespace

std::vector<CharRange> plain_ranges(std::vector<CharRange> ranges, bool negated) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<CharRange> merged;
  for (const CharRange& r : ranges) {
    if (r.first > r.second || r.first > kLast) continue;
    const std::uint32_t high = std::min(r.second, kLast);
    if (!merged.empty() && r.first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, high);
    } else {
      merged.emplace_back(r.first, high);
    }
  }
  if (negated) {
    std::vector<CharRange> others;
    std::uint32_t from = 0;
    for (const CharRange& r : merged) {
      if (from < r.first) others.emplace_back(from, r.first - 1);
      from = r.second + 1;
    }
    if (from <= kLast) others.emplace_back(from, kLast);
    merged = std::move(others);
  }
  std::vector<CharRange> out;
  for (const CharRange& r : merged) {
    // NUL is in no set: llama.cpp's grammars never take it.
    if (r.first < 0xD800 && r.second > 0)
      out.emplace_back(std::max(r.first, std::uint32_t{1}), std::min(r.second, std::uint32_t{0xD7FF}));
    if (r.second > 0xDFFF) out.emplace_back(std::max(r.first, std::uint32_t{0xE000}), r.second);
  }
  return out;
}

std::uint32_t CharNodes::add(std::vector<Grammar::Arc> arcs) {
  const auto [at, is_new] = known_.emplace(arcs, static_cast<std::uint32_t>(nodes_.size()));
  if (is_new) nodes_.push_back(std::move(arcs));
  return at->second;
}

// The node for the last `bytes` bytes of a character, `ranges` being what their 6 bits each may say.
std::uint32_t CharNodes::tail(int bytes, const std::vector<CharRange>& ranges) {
  std::vector<Grammar::Arc> arcs;
  std::size_t at = 0;
  const std::uint32_t span = 1u << (6 * (bytes - 1));
  for (std::uint32_t c = 0; c < 64; ++c) {
    const std::vector<CharRange> part = cut(ranges, at, c * span, (c + 1) * span - 1);
    if (!part.empty()) add_arc(arcs, 0x80 + c, bytes == 1 ? Grammar::kWhole : tail(bytes - 1, part));
  }
  return add(std::move(arcs));
}

std::uint32_t CharNodes::of(const std::vector<CharRange>& ranges) {
  const auto known = of_ranges_.find(ranges);
  if (known != of_ranges_.end()) return known->second;
  std::vector<Grammar::Arc> arcs;
  for (const CharRange& r : ranges) {
    for (std::uint32_t b = r.first; b <= std::min(r.second, std::uint32_t{0x7F}); ++b) add_arc(arcs, b, Grammar::kWhole);
  }
  struct Form {
    std::uint32_t low, high, lead;
    int tail;
  };
  for (const Form& form : {Form{0x80, 0x7FF, 0xC0, 1}, Form{0x800, 0xFFFF, 0xE0, 2}, Form{0x10000, kLast, 0xF0, 3}}) {
    std::size_t whole = 0, at = 0;
    std::vector<CharRange> of_form = cut(ranges, whole, form.low, form.high);
    for (CharRange& r : of_form) r = {r.first + form.low, r.second + form.low};
    const std::uint32_t span = 1u << (6 * form.tail);
    for (std::uint32_t v = form.low / span; v <= form.high / span; ++v) {
      const std::vector<CharRange> part = cut(of_form, at, v * span, (v + 1) * span - 1);
      if (!part.empty()) add_arc(arcs, form.lead + v, tail(form.tail, part));
    }
  }
  const std::uint32_t node = add(std::move(arcs));
  of_ranges_.emplace(ranges, node);
  return node;
}

}  // namespace drift::text
