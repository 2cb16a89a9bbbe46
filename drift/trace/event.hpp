// event.hpp - what one step of one sequence did. Every figure DRIFT prints is a fold over these (metrics.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "drift/base/ids.hpp"

namespace drift::trace {

// Where an emitted token came from.
enum class Origin : std::uint8_t {
  kTarget,        // drawn from the target after the accepted proposals (or in plain decoding)
  kAccepted,      // a proposal that stood
  kAcceptedBank,  // a proposal that stood and that the raw draft, with the same random number, would not have made
};

struct ProposedToken {
  Token token = kNoToken;
  bool accepted = false;
  bool from_bank = false;    // the raw draft would have proposed another token
  float q = 0.0f;            // the chance it was drawn with; 1 at temperature 0
  float gain = 0.0f;         // gain used; 0: the draft was left alone
  float similarity = -1.0f;  // cosine of the nearest entry; -1: none, or not in drift mode
  float overlap = -1.0f;     // sum min(p, q) where computed (T > 0); -1: not computed
  int match = 0;             // copied: tokens of the text's end found earlier; 0: the draft made it
  bool copied() const { return match > 0; }
};

// Facts about one emitted token under the target, recorded on request (SequenceConfig::record_margins).
struct Margin {
  std::vector<Token> top;              // greedy: the target's best few tokens, best first
  std::vector<float> top_logits;       // greedy: their raw logits
  double draw = 0, low = 0, high = 0;  // sampling: the uniform number and the cdf interval of the token it fell into
};

// The target's view of one emitted token, recorded on request (SequenceConfig::logprobs): log-softmax of its raw logits.
struct TokenLogprobs {
  float logprob = 0.0f;    // of the token itself
  std::vector<Token> top;  // the most likely ones, best first
  std::vector<float> top_logprobs;
};

struct EmittedToken {
  Token token = kNoToken;
  Origin origin = Origin::kTarget;
};

// Nanoseconds. A batched step's model times are those of the whole batch; `sequences` says how many shared it.
struct StepTimes {
  std::int64_t draft_ns = 0;     // draft forwards
  std::int64_t verify_ns = 0;    // target forward
  std::int64_t sample_ns = 0;    // proposing and judging
  std::int64_t lookup_ns = 0;    // keys and bank scans; searches of text and suffix memory
  std::int64_t bias_ns = 0;      // neighbours -> bias, and the raw draft's own choice beside it
  std::int64_t residual_ns = 0;  // residuals and gain scores, row copies they need
  std::int64_t commit_ns = 0;
  std::int64_t total_ns = 0;  // the whole step, without recording margins
  std::int64_t overhead_ns() const { return lookup_ns + bias_ns + residual_ns + commit_ns; }
};

struct StepEvent {
  std::uint64_t sequence = 0;  // the sequence's name
  std::uint64_t step = 0;      // of that sequence, from 0
  Pos first = 0;               // position of the first token decided in this step
  std::vector<ProposedToken> proposed;
  std::vector<EmittedToken> emitted;
  std::vector<Margin> margins;          // one per emitted token, or empty
  std::vector<TokenLogprobs> logprobs;  // one per emitted token, or empty
  StepTimes times;
  int sequences = 1;
};

}  // namespace drift::trace
