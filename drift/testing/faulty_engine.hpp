// faulty_engine.hpp - the fault injector: an Engine that passes everything on and fails the k-th call, or spoils its rows.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "drift/engine/engine.hpp"

namespace drift::testing {

enum class Fault { kStatus, kNanLogits, kNanHidden };

class FaultyEngine final : public engine::Engine {
 public:
  // Fails the `at`-th call (1-based) of open, forward, keep, fork and truncate taken together; 0: never.
  // kNan faults apply to forwards only: the `at`-th forward succeeds with a NaN in its first row.
  FaultyEngine(engine::Engine& inner, Fault fault, std::uint64_t at) : inner_(inner), fault_(fault), at_(at) {}

  bool fired() const { return fired_; }
  engine::ModelInfo info() const override { return inner_.info(); }
  engine::Counters counters() const override { return inner_.counters(); }
  Result<SeqId> open() override {
    if (due()) return injected();
    return inner_.open();
  }
  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override {
    if (due()) return injected();
    DRIFT_TRY(inner_.forward(nodes, out));
    if (fault_ != Fault::kStatus && ++forwards_ == at_ && out.size() > 0) spoil(out);
    return Status::ok();
  }
  Status keep(SeqId seq, std::span<const NodeIndex> path) override {
    if (due()) return injected();
    return inner_.keep(seq, path);
  }
  Result<SeqId> fork(SeqId seq) override {
    if (due()) return injected();
    return inner_.fork(seq);
  }
  Status truncate(SeqId seq, Pos length) override {
    if (due()) return injected();
    return inner_.truncate(seq, length);
  }
  Pos length(SeqId seq) const override { return inner_.length(seq); }
  void close(SeqId seq) override { inner_.close(seq); }

 private:
  bool due() {
    if (fault_ != Fault::kStatus || ++calls_ != at_) return false;
    fired_ = true;
    return true;
  }
  static Status injected() { return {Code::kInternal, "injected fault"}; }
  void spoil(engine::Rows& out) {
    fired_ = true;
    std::vector<const float*>& rows = fault_ == Fault::kNanLogits ? out.logits : out.hidden;
    if (rows.empty()) return;
    const std::size_t width = fault_ == Fault::kNanLogits ? out.vocab : out.hidden_width;
    copy_.assign(rows[0], rows[0] + width);
    copy_[width / 2] = std::numeric_limits<float>::quiet_NaN();
    rows[0] = copy_.data();
  }

  engine::Engine& inner_;
  Fault fault_;
  std::uint64_t at_, calls_ = 0, forwards_ = 0;
  bool fired_ = false;
  std::vector<float> copy_;
};

}  // namespace drift::testing
