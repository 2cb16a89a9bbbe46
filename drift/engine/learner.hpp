// learner.hpp - the seam between DRIFT and a draft whose weights learn while it serves. The interface only.
//
// Weights are frozen within a step: observe() takes notes, commit(), called once after each step, may change the weights. So q at
// any position depends on earlier steps only and is recorded when its token is drawn: the answers keep the target's law.
// The draft's engine sees to its KV memory when its weights have changed (engines/torch computes kept text anew).
// Threads: the stepper's.
#pragma once

#include <cstdint>
#include <span>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"

namespace drift::engine {

// Consecutive positions of one text that the target verified in one step: drafted ones, up to and including the first rejected.
struct Verified {
  std::uint64_t sequence = 0;   // the text's name; texts of one name go on from each other or begin anew
  std::span<const Token> text;  // the decided tokens, then the accepted proposals that a row follows
  std::span<const float* const>
      target;             // the target's raw logits: the last after all of `text`, each earlier one after a token less
  std::size_t vocab = 0;  // width of these rows: tokens both models know
  bool rejected = false;  // the proposal at the last of these positions fell
};

struct LearnerStats {
  std::uint64_t positions = 0;          // learnt from
  std::uint64_t updates = 0;            // times the weights changed
  std::uint64_t skipped_updates = 0;    // gradients were not finite: the weights stayed
  std::int64_t update_ns = 0;           // of all updates
  std::int64_t update_ns_max = 0;       // of one
  double loss = 0;                      // mean over the positions of the last update, before it
  std::uint64_t weight_bytes = 0;       // of the draft's own weights
  std::uint64_t optimiser_bytes = 0;    // gradients and the optimiser's memory
  std::uint64_t buffer_bytes = 0;       // positions kept to learn from
  std::uint64_t recomputed_tokens = 0;  // passed through the draft again because its weights had changed

  double update_ms_mean() const { return updates > 0 ? static_cast<double>(update_ns) * 1e-6 / static_cast<double>(updates) : 0; }
};

class Learner {
 public:
  virtual ~Learner() = default;
  // Notes positions for the next commit(); the weights stay. Fails with kInvalid (rows of another width, tokens outside the
  // vocabulary), kInternal; nothing is noted then.
  virtual Status observe(const Verified& verified) = 0;
  // Takes over what was noted; the weights may change. Requires: the draft has no pending nodes. Fails with kInternal.
  virtual Status commit() = 0;
  // Forgets what was noted since the last commit(): the step has failed.
  virtual void discard() = 0;
  virtual LearnerStats stats() const = 0;
};

}  // namespace drift::engine
