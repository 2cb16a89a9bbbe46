// recorder.hpp - runs prompts through the stepper and writes all that a replay needs into a trace.
//
// What is recorded is what the run saw: the engines' rows are reduced to what a trace keeps (trace/row.hpp) before the stepper reads
// them, so that a replay from the file draws from the very same numbers. At temperature 0, and wherever the sampler's top-k is within
// the logits kept, the run is the one it would be without; keys of banks are rounded to half precision.
// Threads: one. Cost per step: a few passes over each row; the times written are without them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "drift/decode/stepper.hpp"
#include "drift/engine/wrapper.hpp"
#include "drift/trace/file.hpp"

namespace drift::decode {

// An engine whose rows are as a trace keeps them, and which remembers those it handed out. One sequence at a time.
class RowTap final : public engine::Wrapper {
 public:
  struct Seen {
    Pos position = 0;  // of the token that the row decides
    trace::Row row;
  };

  // `vocab`: width of the rows handed out, at most the engine's own. `hidden`: whether hidden states are kept. Requires: the engine
  // outlives it.
  RowTap(engine::Engine& inner, std::size_t vocab, std::size_t row_tokens, bool hidden);

  engine::ModelInfo info() const override;
  // Fails as the engine's, and with kUnsupported as trace::reduce_hidden.
  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override;

  std::span<const Seen> seen() const { return {seen_.data(), count_}; }  // since forget(), in the order handed out
  void forget() { count_ = 0; }
  std::int64_t own_ns() const { return own_ns_; }  // what reducing took, of all forwards

 private:
  Status reduce(const engine::Node& node, std::size_t row, engine::Rows& out);

  std::size_t vocab_, row_tokens_;
  bool hidden_;
  std::vector<Seen> seen_;  // the first count_ are used: their memory is kept
  std::size_t count_ = 0;
  std::int64_t own_ns_ = 0;
  std::vector<std::vector<float>> logits_, states_;  // of the last forward's rows, as handed out
};

class Recorder {
 public:
  // `draft` may be null. `header` is completed (vocabularies, hidden width, row_tokens where 0) and kept; the trace is to be made
  // with it. Requires: the engines outlive it.
  Recorder(engine::Engine& target, engine::Engine* draft, trace::Header header);

  const trace::Header& header() const { return header_; }
  // Whether a run with this configuration can be recorded. Fails with kUnsupported (rows would not be what the run drew from, or not
  // a function of the text), kInvalid (header).
  Status check(const SequenceConfig& config) const;
  // Decodes one prompt and writes it. `stop` is asked between passes: once it says so nothing of the prompt is kept and the result is
  // kCancelled. Fails as Stepper and trace::Writer; nothing of the prompt is kept then. `done` gets each step as written; may be
  // empty.
  Status record(const trace::Prompt& prompt, const SequenceConfig& config, trace::Writer& writer,
                const std::function<bool()>& stop, const std::function<void(const trace::StepEvent&)>& done);

 private:
  Status run(Sequence& sequence, trace::Writer& writer, const std::function<bool()>& stop,
             const std::function<void(const trace::StepEvent&)>& done);
  Status prefill(Sequence& sequence, const std::function<bool()>& stop);
  Status write_step(trace::StepEvent& event, std::int64_t draft_ns, std::int64_t target_ns, trace::Writer& writer);
  Status fill_draft_rows(std::span<const Token> text, std::size_t prompt, trace::Writer& writer,
                         const std::function<bool()>& stop);
  Status fill_from(SeqId seq, std::span<const Token> text, std::size_t prompt, trace::Writer& writer,
                   const std::function<bool()>& stop);

  trace::Header header_;
  std::unique_ptr<RowTap> target_, draft_;
  std::unique_ptr<Stepper> stepper_;
  std::vector<char> drafted_;  // [emitted] whether the draft's row is written
  std::int64_t prefill_ns_ = 0;
};

}  // namespace drift::decode
