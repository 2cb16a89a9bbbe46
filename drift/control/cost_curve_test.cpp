#include "drift/control/cost_curve.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace drift::control {
namespace {

// An engine that only counts and sleeps: a pass of n rows takes n times `row_us`.
class SleepyEngine final : public engine::Engine {
 public:
  explicit SleepyEngine(int row_us) : row_us_(row_us) {}
  engine::ModelInfo info() const override {
    engine::ModelInfo info;
    info.vocab = 4;
    info.context = 100;
    return info;
  }
  engine::Counters counters() const override { return counters_; }
  Result<SeqId> open() override {
    ++open_;
    return SeqId{0};
  }
  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override {
    if (fail_at > 0 && static_cast<int>(counters_.forwards) + 1 == fail_at) return {Code::kInternal, "asked to fail"};
    ++counters_.forwards;
    out.logits.clear();
    std::size_t rows = 0;
    for (const engine::Node& node : nodes) {
      EXPECT_EQ(node.pos, length_ + pending_);
      ++pending_;
      rows += node.wants_row ? 1 : 0;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(row_us_ * static_cast<int>(rows)));
    return Status::ok();
  }
  Status keep(SeqId, std::span<const NodeIndex> path) override {
    length_ += static_cast<Pos>(path.size());
    pending_ = 0;
    return Status::ok();
  }
  Result<SeqId> fork(SeqId) override { return Status(Code::kUnsupported, "no"); }
  Status truncate(SeqId, Pos) override { return Status::ok(); }
  Pos length(SeqId) const override { return length_; }
  void close(SeqId) override { --open_; }
  int open_ = 0;
  int fail_at = 0;

 private:
  int row_us_;
  Pos length_ = 0, pending_ = 0;
  engine::Counters counters_;
};

TEST(CostCurve, FollowsTheRows) {
  SleepyEngine engine(500);
  const std::vector<Token> text{1, 2, 3};
  auto curve = measure_cost(engine, text, 20, 3);
  ASSERT_TRUE(curve.is_ok()) << curve.status().message();
  EXPECT_EQ(engine.open_, 0);
  EXPECT_EQ(engine.length(0), 20);
  EXPECT_EQ(engine.counters().forwards, 1u + 8u * 4u);
  for (std::size_t n = 1; n <= kCurveRows; ++n)
    EXPECT_GE(curve->at(n), 0.5 * static_cast<double>(n));  // a sleep is never shorter
}

TEST(CostCurve, FailuresCloseTheSequence) {
  SleepyEngine engine(0);
  engine.fail_at = 5;
  const std::vector<Token> text{1};
  EXPECT_EQ(measure_cost(engine, text, 0, 2).status().code(), Code::kInternal);
  EXPECT_EQ(engine.open_, 0);
  EXPECT_EQ(measure_cost(engine, text, 93, 2).status().code(), Code::kInvalid);
  EXPECT_EQ(measure_cost(engine, text, 0, 0).status().code(), Code::kInvalid);
  EXPECT_EQ(measure_cost(engine, {}, 0, 1).status().code(), Code::kInvalid);
}

TEST(CostCurve, BreakEvenIsWhereTheSpeedupIsOne) {
  CostCurve target, draft;
  for (std::size_t n = 1; n <= kCurveRows; ++n) {
    target.ms[n - 1] = 10.0 + 0.1 * static_cast<double>(n);
    draft.ms[n - 1] = 1.0;
  }
  for (const int k : {1, 3, 5, 7}) {
    const double alpha = break_even(target, draft, k);
    ASSERT_GT(alpha, 0.0);
    ASSERT_LT(alpha, 1.0);
    EXPECT_NEAR(block_speedup(target, draft, k, alpha), 1.0, 1e-9);
  }
  for (double& ms : draft.ms) ms = 20.0;
  EXPECT_EQ(break_even(target, draft, 3), 2.0);
  EXPECT_DOUBLE_EQ(pass_ms(target, 12), target.at(8) + 4 * 0.1);
}

}  // namespace
}  // namespace drift::control
