// replay.hpp - the engine that answers from a trace: the recorded run, or another mode on the same text, without its models.
//
// Under the match judge the text is the target's own draws, whatever is proposed; so with the recorded sampler and seed every mode
// decodes the recorded text, and asks target and draft at recorded positions, besides proposals that cannot stand any more. Rows
// there are marked, not invented: all logits 0, and the engine refuses to go on from them. trace::recorded_part() takes what was
// proposed from them out of an event.
// Exact: every decision of the run that was recorded; those of another mode as far as its draft's rows are the recorded ones (a row
// the recorded run did not draw from was computed in another batch shape, and a bias on a token outside the row's largest logits
// starts from the mean of the others).
// Threads: one at a time; the two engines of a pair share their trace and its thread. Cost of a row: one read of the file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "drift/engine/engine.hpp"
#include "drift/trace/file.hpp"

namespace drift::engine {

// What a replay is to do.
struct ReplayUse {
  trace::Sampling sampling;
  bool trees = false;         // several proposals for one position
  bool trains_draft = false;  // a mode that changes the draft's weights
};

// Whether the trace determines every decision. Fails with kUnsupported and the reason.
Status check_replay(const trace::Header& recorded, const ReplayUse& use);
// After a replay: whether it decoded the recorded text. Fails with kUnsupported naming the first position that differs.
Status check_replayed(const trace::PromptRecord& recorded, std::span<const Token> emitted);

class ReplayEngine final : public Engine {
 public:
  // One side of a trace's pair. Fails with kUnsupported (a trace without a draft), and as Reader::prompt. Requires: the trace
  // outlives it, and has a prompt.
  static Result<std::unique_ptr<ReplayEngine>> make(const trace::Reader& trace, trace::Side side);

  // Which prompt's text the next open() serves. Fails as Reader::prompt. Requires: index < trace.prompts().
  Status select(std::size_t index);

  ModelInfo info() const override;
  Counters counters() const override { return counters_; }
  Result<SeqId> open() override;
  // Fails as Engine::forward; kUnsupported where a row inside the prompt or after the end of the text is wanted, and, on the
  // target's side, where decided text is not the recorded one.
  Status forward(std::span<const Node> nodes, Rows& out) override;
  // Fails as Engine::keep; kUnsupported where the text leaves the recorded one or reaches its end.
  Status keep(SeqId seq, std::span<const NodeIndex> path) override;
  Result<SeqId> fork(SeqId seq) override;
  Status truncate(SeqId seq, Pos length) override;
  Pos length(SeqId seq) const override;
  void close(SeqId seq) override;

 private:
  // A recorded text.
  struct Text {
    std::size_t index = 0;      // of the trace's prompts
    std::size_t prompt = 0;     // tokens
    std::vector<Token> tokens;  // with the answer
  };
  struct Sequence {
    bool open = false;
    std::shared_ptr<const Text> text;
    Pos kept = 0;     // all of it as recorded
    Pos pending = 0;  // nodes since the last keep
    Pos on_path = 0;  // of these, how many are as recorded
  };

  ReplayEngine(const trace::Reader& trace, trace::Side side) : trace_(trace), side_(side) {}
  bool is_open(SeqId seq) const {
    return seq >= 0 && static_cast<std::size_t>(seq) < sequences_.size() && sequences_[static_cast<std::size_t>(seq)].open;
  }
  Sequence& at(SeqId seq) { return sequences_[static_cast<std::size_t>(seq)]; }
  Status check_decided(const Node& node, const Sequence& s) const;
  Status put_row(const Node& node, const Sequence& s, bool on_path, Rows& out);
  Status off_text(const Text& text, Pos position) const;

  const trace::Reader& trace_;
  trace::Side side_;
  std::shared_ptr<const Text> selected_;
  std::vector<Sequence> sequences_;
  Counters counters_;
  std::vector<Pos> added_;
  trace::Row row_;
  std::vector<std::vector<float>> logits_, hidden_;  // the rows handed out last
};

}  // namespace drift::engine
