// compare_stream.hpp - prompts told as one stream whose domain shifts: its segments, a mode's curve, and acceptance as it moves.
//
// Threads: plain values. Limits: MovingAcceptance holds kMovingRuns pairs of numbers.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/prompts.hpp"
#include "drift/trace/metrics.hpp"

namespace drift::cli {

struct PromptRun;

// Prompts of one domain in a row. A domain that comes back is another segment.
struct Segment {
  std::string domain;
  std::size_t first = 0, count = 0;  // prompts
};

// In order; together they hold every prompt once.
std::vector<Segment> segments_of(const std::vector<Prompt>& prompts);

// What one prompt added to a mode's stream.
struct CurvePoint {
  std::size_t prompt = 0;
  std::uint64_t tokens = 0, drafted = 0, accepted = 0;
  std::uint64_t cumulative_tokens = 0;  // of this and all earlier prompts
};

// One point a prompt, from the first repeat: later repeats begin anew with the banks as they were and would tell the same again.
std::vector<CurvePoint> curve_of(const std::vector<PromptRun>& runs);

inline constexpr std::size_t kMovingRuns = 6;

// Accepted / drafted over the last kMovingRuns runs.
class MovingAcceptance {
 public:
  void add(const trace::Metrics& run);
  std::optional<double> value() const;  // nothing while nothing was drafted

 private:
  struct Counts {
    std::uint64_t drafted, accepted;
  };
  std::deque<Counts> runs_;
};

}  // namespace drift::cli
