#include "drift/control/cost_curve.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace drift::control {
namespace {

using Clock = std::chrono::steady_clock;

// Feeds `depth` tokens as kept text, without rows.
Status fill(engine::Engine& engine, SeqId seq, std::span<const Token> text, std::size_t depth) {
  constexpr std::size_t kAtOnce = 256;
  std::array<engine::Node, kAtOnce> nodes;
  std::array<NodeIndex, kAtOnce> path;
  engine::Rows rows;
  for (std::size_t done = 0; done < depth;) {
    const std::size_t count = std::min(kAtOnce, depth - done);
    for (std::size_t i = 0; i < count; ++i) {
      const auto node = static_cast<NodeIndex>(i);
      nodes[i] = {seq, text[(done + i) % text.size()], static_cast<Pos>(done + i), i == 0 ? kPrefix : node - 1, false};
      path[i] = node;
    }
    DRIFT_TRY(engine.forward(std::span(nodes).first(count), rows));
    DRIFT_TRY(engine.keep(seq, std::span(path).first(count)));
    done += count;
  }
  return Status::ok();
}

Result<double> time_pass(engine::Engine& engine, SeqId seq, std::span<const Token> text, std::size_t depth, std::size_t count) {
  std::vector<engine::Node> nodes;
  nodes.reserve(kCurveRows);
  for (std::size_t i = 0; i < count; ++i) {
    nodes.push_back({seq, text[(depth + i) % text.size()], static_cast<Pos>(depth + i),
                     i == 0 ? kPrefix : static_cast<NodeIndex>(i) - 1, true});
  }
  engine::Rows rows;
  const auto start = Clock::now();
  DRIFT_TRY(engine.forward(nodes, rows));
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  DRIFT_TRY(engine.keep(seq, {}));
  return ms;
}

Status measure(engine::Engine& engine, SeqId seq, std::span<const Token> text, CostCurve& curve) {
  DRIFT_TRY(fill(engine, seq, text, curve.depth));
  for (std::size_t count = 1; count <= kCurveRows; ++count) {
    std::vector<double> times;
    for (int i = 0; i <= curve.repeats; ++i) {
      DRIFT_ASSIGN(const double ms, time_pass(engine, seq, text, curve.depth, count));
      if (i > 0) times.push_back(ms);  // the first one warms caches and the backend's graph
    }
    std::sort(times.begin(), times.end());
    const std::size_t mid = times.size() / 2;
    curve.ms[count - 1] = times.size() % 2 == 1 ? times[mid] : 0.5 * (times[mid - 1] + times[mid]);
  }
  return Status::ok();
}

}  // namespace

Result<CostCurve> measure_cost(engine::Engine& engine, std::span<const Token> text, std::size_t depth, int repeats) {
  if (repeats < 1 || repeats > 100)
    return Status(Code::kInvalid, "repeats is " + std::to_string(repeats) + "; it must be 1 to 100");
  if (text.empty()) return Status(Code::kInvalid, "a cost measurement needs at least one token of text");
  const std::size_t context = engine.info().context;
  if (depth + kCurveRows > context) {
    return Status(Code::kInvalid, "depth " + std::to_string(depth) + " + " + std::to_string(kCurveRows) +
                                      " rows is beyond the context of " + std::to_string(context) + " tokens");
  }
  DRIFT_ASSIGN(const SeqId seq, engine.open());
  CostCurve curve;
  curve.depth = depth;
  curve.repeats = repeats;
  const Status status = measure(engine, seq, text, curve);
  engine.close(seq);
  if (!status.is_ok()) return status;
  return curve;
}

double pass_ms(const CostCurve& curve, std::size_t rows) {
  if (rows == 0) return 0.0;
  if (rows <= kCurveRows) return curve.at(rows);
  const double slope =
      std::max(0.0, (curve.at(kCurveRows) - curve.at(kCurveRows / 2)) / static_cast<double>(kCurveRows - kCurveRows / 2));
  return curve.at(kCurveRows) + slope * static_cast<double>(rows - kCurveRows);
}

double block_speedup(const CostCurve& target, const CostCurve& draft, int draft_tokens, double alpha) {
  double tokens = 1.0, power = 1.0;
  for (int i = 0; i < draft_tokens; ++i) tokens += power *= alpha;
  const double block_ms = draft_tokens * draft.at(1) + pass_ms(target, static_cast<std::size_t>(draft_tokens) + 1);
  return block_ms > 0 ? tokens * target.at(1) / block_ms : 0.0;
}

double break_even(const CostCurve& target, const CostCurve& draft, int draft_tokens) {
  if (block_speedup(target, draft, draft_tokens, 1.0) < 1.0) return 2.0;
  double low = 0.0, high = 1.0;
  for (int i = 0; i < 50; ++i) {  // the speed-up grows with alpha, so halving finds the point
    const double mid = 0.5 * (low + high);
    (block_speedup(target, draft, draft_tokens, mid) >= 1.0 ? high : low) = mid;
  }
  return high;
}

}  // namespace drift::control
