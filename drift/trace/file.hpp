// file.hpp - a trace as one SQLite file: every step of a run, and what both models said at every emitted position.
//
// Format: docs/trace-format.md. A trace is written once, into a file that its maker renames when it is whole; every prompt is there
// with all its steps and rows, or not at all. Every value read is checked against its bounds before it is handed out.
// Threads: an object is used by one thread at a time. Memory: one row, or the steps of one prompt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"
#include "drift/trace/event.hpp"
#include "drift/trace/row.hpp"

namespace drift::trace {

inline constexpr std::size_t kMaxPromptTokens = std::size_t{1} << 24;  // of a prompt with its answer
inline constexpr std::size_t kMaxPrompts = 1'000'000;
inline constexpr std::size_t kMaxTextBytes = 1'024;  // of a name, an id, a setting
inline constexpr std::size_t kMaxProposals = 1'024;  // of a step

struct Model {
  std::string name;         // for people
  std::string hash;         // content hash of the file and its adapters
  std::uint32_t vocab = 0;  // width of its rows in the trace
  friend bool operator==(const Model&, const Model&) = default;
};

// How tokens were drawn.
struct Sampling {
  float temperature = 0.0f;
  int top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::uint64_t seed = 0;
  bool rejection = false;  // the judge: min(1, p / q), or the target's own draw
  friend bool operator==(const Sampling&, const Sampling&) = default;
};

struct Header {
  std::string program;  // what made it: version and commit
  Model target;
  Model draft;                     // vocab 0: there was none
  std::uint32_t hidden_width = 0;  // of the draft's rows
  std::uint32_t row_tokens = 0;    // logits kept of a row, at most
  std::uint32_t context = 0;       // tokens a sequence may hold
  std::string mode;                // as flags spell it: "static"
  Sampling sampling;
  std::int64_t generate = 0;                    // most tokens of an answer; -1: no limit
  std::map<std::string, std::string> settings;  // the mode's, by key

  bool has_draft() const { return draft.vocab > 0; }
  std::uint32_t vocab(Side side) const { return side == Side::kTarget ? target.vocab : draft.vocab; }
  // Fails with kInvalid naming the field.
  Status validate() const;
};

// Fails with kUnsupported, saying what to do, where drawing from rows of `row_tokens` logits differs from drawing from whole ones.
Status check_drawable(const Sampling& sampling, std::size_t vocab, std::size_t row_tokens);

struct Prompt {
  std::string id, domain, kind, split;
  std::uint64_t sequence = 0;  // its name in random keys and events
  std::vector<Token> tokens;
};

struct PromptRecord {
  Prompt prompt;
  std::vector<Token> emitted;
  std::string ending;           // "end", "length", "context"
  std::int64_t prefill_ns = 0;  // of all models
  std::uint64_t steps = 0;
};

class Writer {
 public:
  // Fills the existing, empty file at `path`. Fails with kInvalid (header), kIo.
  static Result<std::unique_ptr<Writer>> create(const std::filesystem::path& path, const Header& header);
  ~Writer();  // without finish(): the file is of no use

  // One prompt at a time, in order. What is added until end_prompt() is kept as a whole or not at all.
  // All fail with kIo, and with kInvalid on what a reader would refuse.
  Status begin_prompt(const Prompt& prompt);
  Status add_step(const StepEvent& event);
  // The row that decides the token at `position`. Each emitted position needs the target's and, with a draft, the draft's.
  Status add_row(Side side, Pos position, const Row& row);
  Status end_prompt(const std::string& ending, std::int64_t prefill_ns);
  Status drop_prompt();  // nothing of the running prompt is kept

  // `partial`: the run was stopped before its last prompt. Nothing may follow. Fails with kIo.
  Status finish(bool partial);
  std::size_t prompts() const;

 private:
  struct Impl;
  explicit Writer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class Reader {
 public:
  // Fails with kNotFound, kForeign (not a trace, another version), kCorrupt, kIo.
  static Result<std::unique_ptr<Reader>> open(const std::filesystem::path& path);
  ~Reader();

  const Header& header() const;
  bool partial() const;
  std::uint64_t file_bytes() const;
  std::size_t prompts() const;
  // Requires: index < prompts(), in all of these. They fail with kCorrupt, kIo.
  Result<PromptRecord> prompt(std::size_t index) const;
  // Its steps in order, as the run emitted them; margins and log-probabilities are not kept.
  Result<std::vector<StepEvent>> steps(std::size_t index) const;
  // The row that decides the token at `position`; also kNotFound where there is none.
  Status row(std::size_t index, Side side, Pos position, Row& out) const;
  // Everything: SQLite's own check, every prompt, step and row. Cost: one pass over the file.
  Status verify() const;

 private:
  struct Impl;
  explicit Reader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The event with what the trace of a run in another mode cannot tell taken out: proposals behind the first that fell, or behind an
// end token, keep their number and nothing else (token kNoToken).
StepEvent recorded_part(StepEvent event);

const char* origin_name(Origin origin);  // "target", "accepted", "bank"

}  // namespace drift::trace
