#include <algorithm>
#include <cmath>

#include "cli/compare.hpp"

namespace drift::cli {
namespace {

const PromptRun* find_run(const VariantResult& variant, std::size_t prompt, int repeat) {
  const auto it = std::find_if(variant.runs.begin(), variant.runs.end(),
                               [&](const PromptRun& r) { return r.prompt == prompt && r.repeat == repeat; });
  return it == variant.runs.end() ? nullptr : &*it;
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

// tokens/s of `mine` over tokens/s of the reference on the same prompts and repeats, as far as counts(prompt).
template <class Counts>
double total_ratio(const VariantResult& mine, const VariantResult& plain, const Counts& counts) {
  trace::Metrics a, b;
  for (const PromptRun& run : mine.runs) {
    if (!counts(run.prompt)) continue;
    const PromptRun* same = find_run(plain, run.prompt, run.repeat);
    if (same == nullptr) continue;
    a.merge(run.metrics);
    b.merge(same->metrics);
  }
  return ratio(a.tokens_per_s(), b.tokens_per_s());
}

void summarise_divergence(const CompareOptions& options, const CompareResult& result, VariantResult& v) {
  if (v.variant.mode != decode::Mode::kOff && !options.one_by_one) {
    const auto noise = result.noise.find(static_cast<std::size_t>(v.variant.settings.draft_tokens) + 1);
    if (noise != result.noise.end()) v.allowed_margin = noise->second.allowed();
  }
  std::vector<bool> diverged(result.prompts.size(), false);
  for (const PromptRun& run : v.runs) {
    if (!run.difference) continue;
    diverged[run.prompt] = true;
    v.max_margin = std::max(v.max_margin, run.difference->margin);
    // With identical calls there is no margin: any difference is one too many.
    v.beyond = v.beyond || (result.margin_known(v) && (v.allowed_margin == 0 || run.difference->margin > v.allowed_margin));
  }
  v.diverged_prompts = static_cast<std::size_t>(std::count(diverged.begin(), diverged.end(), true));
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  Spread spread;
  spread.count = values.size();
  if (values.empty()) return spread;
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {  // linear between ranks
    const double rank = q * static_cast<double>(values.size() - 1);
    const auto low = static_cast<std::size_t>(rank);
    const std::size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (rank - static_cast<double>(low)) * (values[high] - values[low]);
  };
  spread.low = at(0.25);
  spread.median = at(0.5);
  spread.high = at(0.75);
  return spread;
}

void summarise(const CompareOptions& options, CompareResult& result) {
  std::vector<std::size_t> segment_of;  // [prompts]; empty unless a stream
  for (std::size_t s = 0; s < result.segments.size(); ++s) segment_of.insert(segment_of.end(), result.segments[s].count, s);
  const VariantResult* plain = result.reference ? &result.variants[*result.reference] : nullptr;
  for (VariantResult& v : result.variants) {
    std::vector<double> speedups;
    v.by_segment.resize(result.segments.size());
    for (PromptRun& run : v.runs) {
      v.total.merge(run.metrics);
      v.by_domain[result.prompts[run.prompt].domain].merge(run.metrics);
      if (!segment_of.empty()) v.by_segment[segment_of[run.prompt]].merge(run.metrics);
      const PromptRun* same = plain != nullptr ? find_run(*plain, run.prompt, run.repeat) : nullptr;
      if (same == nullptr) continue;
      run.speedup = ratio(run.metrics.tokens_per_s(), same->metrics.tokens_per_s());
      speedups.push_back(run.speedup);
    }
    v.speedups = spread_of(std::move(speedups));
    if (plain == nullptr) continue;
    v.speedup = total_ratio(v, *plain, [](std::size_t) { return true; });
    for (const auto& row : v.by_domain) {
      v.domain_speedup[row.first] =
          total_ratio(v, *plain, [&](std::size_t prompt) { return result.prompts[prompt].domain == row.first; });
    }
    for (std::size_t s = 0; s < result.segments.size(); ++s)
      v.segment_speedup.push_back(total_ratio(v, *plain, [&](std::size_t prompt) { return segment_of[prompt] == s; }));
    if (v.compared) summarise_divergence(options, result, v);
  }
}

}  // namespace drift::cli
