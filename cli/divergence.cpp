#include "cli/divergence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "drift/base/check.hpp"

namespace drift::cli {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double greedy_margin(const trace::Margin& margin, Token other) {
  for (std::size_t i = 0; i < margin.top.size(); ++i) {
    if (margin.top[i] == other)
      return std::abs(static_cast<double>(margin.top_logits[0]) - static_cast<double>(margin.top_logits[i]));
  }
  return kInfinite;
}

double nearest_boundary(double draw, double low, double high) { return std::min(draw - low, high - draw); }

}  // namespace

std::optional<Difference> first_difference(std::span<const Token> reference, std::span<const Token> other,
                                           std::span<const trace::Margin> margins, bool greedy) {
  const std::size_t both = std::min(reference.size(), other.size());
  std::size_t at = 0;
  while (at < both && reference[at] == other[at]) ++at;
  if (at == reference.size() && at == other.size()) return std::nullopt;
  Difference difference{at, kInfinite};
  if (at == both || at >= margins.size()) return difference;
  const trace::Margin& margin = margins[at];
  if (greedy) {
    difference.margin = greedy_margin(margin, other[at]);
  } else {
    difference.margin = other[at] > reference[at] ? margin.high - margin.draw : margin.draw - margin.low;
  }
  return difference;
}

double greedy_change(const trace::Margin& reference, std::span<const float> row) {
  DRIFT_CHECK(reference.top.size() >= 2 && reference.top_logits.size() >= 2, "a greedy margin holds the best few tokens");
  const double before = static_cast<double>(reference.top_logits[0]) - static_cast<double>(reference.top_logits[1]);
  const double now = static_cast<double>(row[static_cast<std::size_t>(reference.top[0])]) -
                     static_cast<double>(row[static_cast<std::size_t>(reference.top[1])]);
  return std::abs(now - before);
}

double draw_change(const trace::Margin& reference, Token token, const spec::Distribution& now) {
  double sum = 0, low = 0, high = 0;
  for (const float p : now.probs) sum += p;
  for (std::size_t i = 0; i < now.size() && now.ids[i] <= token; ++i) {
    low = high;
    high += now.probs[i] / sum;
    if (now.ids[i] < token) low = high;
  }
  return std::abs(nearest_boundary(reference.draw, reference.low, reference.high) - nearest_boundary(reference.draw, low, high));
}

double quantile(std::vector<double> values, double q) {
  DRIFT_CHECK(!values.empty() && q > 0 && q <= 1, "a quantile needs values and a share in (0, 1]");
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size()))) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank), values.end());
  return values[rank];
}

}  // namespace drift::cli
