#include "cli/interruptible.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "drift/control/cost_curve.hpp"

namespace drift::cli {
namespace {

// Interrupts the program in its `last`-th pass.
class Interrupting final : public engine::Engine {
 public:
  explicit Interrupting(int last) : last_(last) {}
  int passes() const { return passes_; }
  bool closed() const { return closed_; }

  engine::ModelInfo info() const override {
    engine::ModelInfo info;
    info.context = 1'000;
    return info;
  }
  engine::Counters counters() const override { return {}; }
  Result<SeqId> open() override { return SeqId{0}; }
  Status forward(std::span<const engine::Node>, engine::Rows&) override {
    if (++passes_ == last_) ::raise(SIGINT);
    return Status::ok();
  }
  Status keep(SeqId, std::span<const NodeIndex>) override { return Status::ok(); }
  Result<SeqId> fork(SeqId) override { return SeqId{1}; }
  Status truncate(SeqId, Pos) override { return Status::ok(); }
  Pos length(SeqId) const override { return 0; }
  void close(SeqId) override { closed_ = true; }

 private:
  int last_, passes_ = 0;
  bool closed_ = false;
};

[[noreturn]] void measure_and_be_interrupted(int last) {
  install_signal_handlers();
  Interrupting engine(last);
  Interruptible wrapped(engine);
  const Token text[] = {1, 2, 3};
  const auto curve = control::measure_cost(wrapped, text, 16, 5);
  if (engine.passes() != last || !engine.closed() || curve.is_ok()) ::_exit(8);
  ::_exit(fail(curve.status()));
}

// In a process of its own: that the program was interrupted cannot be taken back.
TEST(InterruptibleDeathTest, AMeasurementEndsAtOnce) {
  EXPECT_EXIT(measure_and_be_interrupted(1), ::testing::ExitedWithCode(130), "drift: interrupted");
  EXPECT_EXIT(measure_and_be_interrupted(10), ::testing::ExitedWithCode(130), "drift: interrupted");
}

}  // namespace
}  // namespace drift::cli
