// answer.hpp - what comes of a request, as bodies and as server-sent events: OpenAI's shapes, llama-server's `timings`, vLLM's
// `metrics.speculative_decoding`.
//
// Threads: plain values, one reader's. The stream's contract, to the letter: "data: {json}\n\n" lines; per choice the role first, then
// text (one chunk a verify step), then an empty delta with the finish_reason in a chunk of its own; usage when asked for; [DONE].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/json.hpp"
#include "server/api/problem.hpp"
#include "server/api/request.hpp"
#include "server/schedule/job.hpp"

namespace drift::server::api {

// What every chunk of one answer has in common.
struct Head {
  std::string id;            // "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
};

Json timings_json(const Ended& ended);
// The root's "metrics" object; its speculative_decoding is null where nothing was drafted.
Json metrics_json(const Ended& ended);
const char* finish_reason(Finish finish);
// A message's tool_calls, of whole calls.
Json calls_json(const std::vector<ToolCall>& calls);

std::string sse(const Json& json);
std::string sse_error(const Problem& problem);

// A whole answer, collected from a job's events.
class AnswerBody {
 public:
  AnswerBody(const GenerateRequest& request, Head head, std::size_t choices);
  void add(Job::Event event);
  // Whether a second call has begun where one only may come: what follows does not count, the answer may end.
  bool enough(std::size_t choice) const { return choices_[choice].enough; }
  // Requires: every choice has ended. /completion with several prompts gives a list.
  Json json() const;

 private:
  friend class AnswerStream;
  struct Choice {
    std::string text;
    std::vector<TokenInfo> tokens;
    std::optional<Ended> ended;
    bool enough = false;
    std::size_t looked_bytes = 0;  // the length of the text when it was last looked at for that
  };
  ToolAnswer read(std::size_t index, bool complete) const;
  void keep_one(std::size_t index, ToolAnswer& answer);
  Json choice_json(std::size_t index) const;
  Json logprobs_json(const std::vector<TokenInfo>& tokens, std::size_t& offset) const;
  Json llama_json(std::size_t index, const std::string& content, const std::vector<TokenInfo>& tokens) const;
  Json usage_json() const;
  void put_figures(Json& out) const;

  const GenerateRequest& request_;
  Head head_;
  std::vector<Choice> choices_;
};

// The same as server-sent events.
class AnswerStream {
 public:
  AnswerStream(const GenerateRequest& request, Head head, std::size_t choices);
  // Everything to send before the first event.
  std::string begin() const;
  std::string event(Job::Event event);
  bool enough(std::size_t choice) const { return body_.enough(choice); }
  // After the last event.
  std::string end() const;

 private:
  Json chunk(Json choices) const;
  Json choice_chunk(std::size_t index, Json content, Json logprobs, Json finish) const;
  std::string delta_chunk(std::size_t index, const Delta& delta);
  std::string told(std::size_t index, bool complete);
  std::string end_chunk(std::size_t index);

  const GenerateRequest& request_;
  AnswerBody body_;                      // figures and counts; texts are kept where they may hold calls
  std::vector<ToolAnswer> told_;         // of an answer that may call tools: what was sent
  std::vector<std::size_t> told_bytes_;  // the length of its text then
  std::vector<std::size_t> sent_tokens_;
  std::vector<std::size_t> offsets_;  // of the next token in the text, per choice
};

}  // namespace drift::server::api
