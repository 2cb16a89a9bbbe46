// generation.hpp - one answer to be generated, and what comes of it: plain data between the HTTP threads and the decode thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/decode/stepper.hpp"
#include "drift/spec/distribution.hpp"
#include "drift/trace/event.hpp"
#include "drift/trace/metrics.hpp"
#include "server/schedule/logit_rules.hpp"
#include "text/grammar_matcher.hpp"

namespace drift::server {

class Bank;  // banks.hpp

struct GenerationConfig {
  std::vector<Token> prompt;
  decode::Mode mode = decode::Mode::kOff;
  spec::JudgeRule rule = spec::JudgeRule::kMatch;
  int draft_tokens = 3;
  propose::CopyConfig copy;  // modes that copy
  spec::SamplerConfig sampler;
  std::uint64_t seed = 1;
  std::uint64_t name = 0;        // the answer's stable name in random keys: its index within the request
  std::int64_t max_tokens = -1;  // -1: until the model ends or the context is full
  std::vector<std::string> stops;
  LogitRules rules;
  std::shared_ptr<const text::Grammar> grammar;  // null: anything may be answered
  text::GrammarExtras extras;                    // what it waits for; control tokens that belong to the text
  int logprobs = -1;                             // of each token and so many best; -1: none
  std::shared_ptr<Bank> bank;                    // modes that recalibrate or remember
  std::string tenant = "default";
  std::string salt;          // hash of the request's cache_salt; empty: none
  bool reuse_prefix = true;  // a slot's KV memory may serve where an earlier text of this tenant and salt began alike
  bool origins = false;      // tokens come with the proposals that were rejected in their place
};

// Whose a step's event is.
struct StepOwner {
  const std::string* tenant = nullptr;
  const Bank* bank = nullptr;  // null: the mode needs none
  decode::Mode mode = decode::Mode::kOff;
  int slot = 0;
};

// One token of an answer.
struct TokenInfo {
  struct Candidate {
    Token token = kNoToken;
    float logprob = 0.0f;
    std::string bytes;
  };
  Token token = kNoToken;
  trace::Origin origin = trace::Origin::kTarget;
  std::string bytes;                // what it adds to the text
  float logprob = 0.0f;             // the target's, where asked for
  std::vector<Candidate> top;       // ... and of the most likely ones, best first
  std::vector<Candidate> rejected;  // where origins are asked for: proposals from this place on that did not stand; no logprobs
};

// What one step added to an answer: whole characters, nothing that may still become a stop string. Tokens come with the text they
// are part of.
struct Delta {
  std::string text;
  std::vector<TokenInfo> tokens;
  bool empty() const { return text.empty() && tokens.empty(); }
};

enum class Finish {
  kEnd,      // the model ended
  kStop,     // a stop string
  kLength,   // max_tokens
  kContext,  // the context is full
};

// How an answer ended, and all its figures.
struct Ended {
  Finish finish = Finish::kEnd;
  std::string stop_string;
  int slot = 0;
  std::size_t prompt_tokens = 0;
  std::size_t cached_tokens = 0;  // of the prompt, found in the slot's KV memory
  std::uint64_t tokens =
      0;  // of the answer, with the one that ended it; metrics count those a block decided behind a stop string, too
  double queue_ms = 0;        // from arrival to a slot
  double prompt_ms = 0;       // from the slot to the end of prefill
  double predicted_ms = 0;    // from there to the last token
  double first_token_ms = 0;  // from arrival to the first tokens
  int draft_tokens = 0;       // the configured length of a block
  trace::Metrics metrics;
};

}  // namespace drift::server
