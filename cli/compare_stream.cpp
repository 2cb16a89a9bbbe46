#include "cli/compare_stream.hpp"

#include "cli/compare.hpp"

namespace drift::cli {

std::vector<Segment> segments_of(const std::vector<Prompt>& prompts) {
  std::vector<Segment> segments;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    if (segments.empty() || segments.back().domain != prompts[p].domain) segments.push_back({prompts[p].domain, p, 0});
    ++segments.back().count;
  }
  return segments;
}

std::vector<CurvePoint> curve_of(const std::vector<PromptRun>& runs) {
  std::vector<CurvePoint> curve;
  std::uint64_t tokens = 0;
  for (const PromptRun& run : runs) {
    if (run.repeat != 0) continue;
    tokens += run.metrics.tokens;
    curve.push_back({run.prompt, run.metrics.tokens, run.metrics.drafted, run.metrics.accepted, tokens});
  }
  return curve;
}

void MovingAcceptance::add(const trace::Metrics& run) {
  runs_.push_back({run.drafted, run.accepted});
  if (runs_.size() > kMovingRuns) runs_.pop_front();
}

std::optional<double> MovingAcceptance::value() const {
  std::uint64_t drafted = 0, accepted = 0;
  for (const Counts& run : runs_) {
    drafted += run.drafted;
    accepted += run.accepted;
  }
  if (drafted == 0) return std::nullopt;
  return static_cast<double>(accepted) / static_cast<double>(drafted);
}

}  // namespace drift::cli
