#include "server/api/answer.hpp"

#include <utility>

namespace drift::server::api {
namespace {

double per_second(std::uint64_t count, double ms) { return ms > 0 ? 1e3 * static_cast<double>(count) / ms : 0.0; }
double per_one(std::uint64_t count, double ms) { return count > 0 ? ms / static_cast<double>(count) : 0.0; }

const char* stop_type(Finish finish) {
  switch (finish) {
    case Finish::kEnd: return "eos";
    case Finish::kStop: return "word";
    case Finish::kLength:
    case Finish::kContext: return "limit";
  }
  return "none";
}

Json token_ids(const std::vector<TokenInfo>& tokens) {
  Json out = Json::array();
  for (const TokenInfo& token : tokens) out.push_back(token.token);
  return out;
}

Json bytes_json(const std::string& bytes) {
  Json out = Json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

const char* origin_word(trace::Origin origin) {
  switch (origin) {
    case trace::Origin::kTarget: return "target";
    case trace::Origin::kAccepted: return "accepted";
    case trace::Origin::kAcceptedBank: return "accepted_bank";
  }
  return "?";
}

// Where each token came from: {"tokens": [...]}. With the bytes, for a token may be a part of a character.
Json origins_json(const std::vector<TokenInfo>& tokens) {
  const auto one = [](Token token, const std::string& bytes) {
    return Json{{"id", token}, {"token", bytes}, {"bytes", bytes_json(bytes)}};
  };
  Json list = Json::array();
  for (const TokenInfo& token : tokens) {
    Json entry = one(token.token, token.bytes);
    entry["origin"] = origin_word(token.origin);
    entry["rejected"] = Json::array();
    for (const TokenInfo::Candidate& proposed : token.rejected) entry["rejected"].push_back(one(proposed.token, proposed.bytes));
    list.push_back(std::move(entry));
  }
  return {{"tokens", std::move(list)}};
}

// A chat's shape, llama-server's too.
Json content_json(const std::vector<TokenInfo>& tokens, bool with_ids) {
  const auto one = [&](Token token, const std::string& bytes, float logprob) {
    Json out = with_ids ? Json{{"id", token}} : Json::object();
    out["token"] = bytes;
    out["logprob"] = logprob;
    out["bytes"] = bytes_json(bytes);
    return out;
  };
  Json content = Json::array();
  for (const TokenInfo& token : tokens) {
    Json entry = one(token.token, token.bytes, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const TokenInfo::Candidate& candidate : token.top)
      entry["top_logprobs"].push_back(one(candidate.token, candidate.bytes, candidate.logprob));
    content.push_back(std::move(entry));
  }
  return content;
}

// The completions' older shape. `offset` is where the first token stands in the answer's text.
Json legacy_json(const std::vector<TokenInfo>& tokens, std::size_t& offset) {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const TokenInfo& token : tokens) {
    out["tokens"].push_back(token.bytes);
    out["token_logprobs"].push_back(token.logprob);
    Json top = Json::object();
    for (const TokenInfo::Candidate& candidate : token.top) {
      // Two tokens may read alike (parts of characters do); the likelier one comes first and stays.
      const std::string name = dump(candidate.bytes);
      top.emplace(Json::parse(name).get<std::string>(), candidate.logprob);
    }
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(offset);
    offset += token.bytes.size();
  }
  return out;
}

}  // namespace

const char* finish_reason(Finish finish) { return finish == Finish::kEnd || finish == Finish::kStop ? "stop" : "length"; }

Json calls_json(const std::vector<ToolCall>& calls) {
  Json out = Json::array();
  for (const ToolCall& call : calls)
    out.push_back({{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return out;
}

Json timings_json(const Ended& ended) {
  const std::uint64_t prompt = ended.prompt_tokens - ended.cached_tokens, predicted = ended.tokens;
  Json out = {{"cache_n", ended.cached_tokens},
              {"prompt_n", prompt},
              {"prompt_ms", ended.prompt_ms},
              {"prompt_per_token_ms", per_one(prompt, ended.prompt_ms)},
              {"prompt_per_second", per_second(prompt, ended.prompt_ms)},
              {"predicted_n", predicted},
              {"predicted_ms", ended.predicted_ms},
              {"predicted_per_token_ms", per_one(predicted, ended.predicted_ms)},
              {"predicted_per_second", per_second(predicted, ended.predicted_ms)}};
  if (ended.metrics.drafted > 0) {
    out["draft_n"] = ended.metrics.drafted;
    out["draft_n_accepted"] = ended.metrics.accepted;
    out["draft_n_accepted_bank"] = ended.metrics.accepted_bank;  // ours: accepted, and the draft alone would have said otherwise
  }
  return out;
}

Json metrics_json(const Ended& ended) {
  const trace::Metrics& m = ended.metrics;
  Json speculative = nullptr;
  if (m.blocks > 0) {
    // Clients check that the histogram has num_spec_tokens + 1 places.
    std::vector<std::uint64_t> histogram = m.accepted_histogram;
    histogram.resize(static_cast<std::size_t>(ended.draft_tokens) + 1);
    speculative = {{"mean_acceptance_length", 1.0 + static_cast<double>(m.accepted) / static_cast<double>(m.blocks)},
                   {"draft_acceptance_rate", m.acceptance()},
                   {"acceptance_histogram", histogram},
                   {"num_spec_steps", m.blocks},
                   {"num_accepted_draft_tokens", m.accepted},
                   {"num_draft_tokens", m.drafted},
                   {"num_spec_tokens", ended.draft_tokens}};
  }
  const double after_first_ms = ended.queue_ms + ended.prompt_ms + ended.predicted_ms - ended.first_token_ms;
  return {{"speculative_decoding", speculative},
          {"time_to_first_token_ms", ended.first_token_ms},
          {"generation_time_ms", ended.predicted_ms},
          {"queue_time_ms", ended.queue_ms},
          {"mean_itl_ms", ended.tokens > 1 ? after_first_ms / static_cast<double>(ended.tokens - 1) : 0.0},
          {"tokens_per_second", per_second(ended.tokens, ended.predicted_ms)}};
}

std::string sse(const Json& json) { return "data: " + dump(json) + "\n\n"; }
std::string sse_error(const Problem& problem) { return sse(body_of(problem)); }

// ---- whole answers ----

AnswerBody::AnswerBody(const GenerateRequest& request, Head head, std::size_t choices)
    : request_(request), head_(std::move(head)), choices_(choices) {}

void AnswerBody::add(Job::Event event) {
  Choice& choice = choices_[event.choice];
  if (Delta* delta = std::get_if<Delta>(&event.what)) {
    choice.text += delta->text;
    std::move(delta->tokens.begin(), delta->tokens.end(), std::back_inserter(choice.tokens));
  } else {
    choice.ended = std::get<Ended>(std::move(event.what));
  }
  if (!request_.reader || request_.tools.parallel || choice.enough) return;
  // The text is read from its beginning: of a long one not at every step.
  if (!choice.ended && choice.text.size() - choice.looked_bytes < choice.text.size() / 32) return;
  choice.looked_bytes = choice.text.size();
  ToolAnswer now = read(event.choice, /*complete=*/false);
  keep_one(event.choice, now);
}

// Of several calls the first, where only one may come. Most templates' grammars see to that by themselves, but not all have one.
void AnswerBody::keep_one(std::size_t index, ToolAnswer& answer) {
  if (request_.tools.parallel || answer.calls.size() < 2) return;
  choices_[index].enough = true;
  answer.calls.resize(1);
}

Json AnswerBody::usage_json() const {
  std::uint64_t prompt = 0, cached = 0, completion = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Ended& ended = *choices_[i].ended;
    completion += ended.tokens;
    if (i % static_cast<std::size_t>(request_.n) != 0) continue;  // n answers share one prompt
    prompt += ended.prompt_tokens;
    cached += ended.cached_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

// Figures of one answer; of several together they would mean nothing.
void AnswerBody::put_figures(Json& out) const {
  if (choices_.size() != 1) return;
  out["timings"] = timings_json(*choices_[0].ended);
  out["metrics"] = metrics_json(*choices_[0].ended);
}

// An answer as text and calls. One that cannot be read as its template wants is all text.
ToolAnswer AnswerBody::read(std::size_t index, bool complete) const {
  const Choice& choice = choices_[index];
  const bool whole =
      complete && !choice.enough && (choice.ended->finish == Finish::kEnd || choice.ended->finish == Finish::kStop);
  ToolAnswer out{choice.text, {}};
  if (request_.reader) {
    auto read = request_.reader->read(choice.text, whole);
    if (!read.is_ok()) return out;
    out = std::move(read).value();
  }
  // Templates that have ids of their own are few, and clients want one that is nobody else's.
  for (std::size_t i = 0; i < out.calls.size(); ++i) {
    if (out.calls[i].id.empty())
      out.calls[i].id = "call_" + head_.id.substr(head_.id.find('-') + 1) + "_" + std::to_string(index) + "_" + std::to_string(i);
  }
  return out;
}

Json AnswerBody::choice_json(std::size_t index) const {
  const Choice& choice = choices_[index];
  Json out = {{"index", index}};
  bool calls = false;
  if (request_.route == Route::kChat) {
    ToolAnswer read = this->read(index, true);
    if (choice.enough && read.calls.size() > 1) read.calls.resize(1);
    calls = !read.calls.empty();
    out["message"] = {{"role", "assistant"}, {"content", calls && read.content.empty() ? Json(nullptr) : Json(read.content)}};
    if (calls) out["message"]["tool_calls"] = calls_json(read.calls);
  } else {
    out["text"] = choice.text;
  }
  std::size_t offset = 0;
  out["logprobs"] = logprobs_json(choice.tokens, offset);
  const char* reason = finish_reason(choice.ended->finish);
  out["finish_reason"] = calls && (choice.enough || reason == std::string_view("stop")) ? "tool_calls" : reason;
  if (request_.origins) out["drift"] = origins_json(choice.tokens);
  return out;
}

Json AnswerBody::logprobs_json(const std::vector<TokenInfo>& tokens, std::size_t& offset) const {
  if (request_.logprobs < 0) return nullptr;
  if (request_.route == Route::kChat) return {{"content", content_json(tokens, false)}, {"refusal", nullptr}};
  return legacy_json(tokens, offset);
}

Json AnswerBody::llama_json(std::size_t index, const std::string& content, const std::vector<TokenInfo>& tokens) const {
  const Ended& ended = *choices_[index].ended;
  const spec::SamplerConfig& s = request_.sampler;
  Json out = {{"index", index},
              {"content", content},
              {"tokens", request_.return_tokens ? token_ids(tokens) : Json::array()},
              {"id_slot", ended.slot},
              {"stop", true},
              {"model", head_.model},
              {"tokens_predicted", ended.tokens},
              {"tokens_evaluated", ended.prompt_tokens},
              {"generation_settings",
               {{"temperature", s.temperature},
                {"top_k", s.top_k},
                {"top_p", s.top_p},
                {"min_p", s.min_p},
                {"seed", request_.seed ? Json(*request_.seed) : Json(nullptr)},
                {"stop", request_.stops},
                {"presence_penalty", request_.rules.presence},
                {"frequency_penalty", request_.rules.frequency},
                {"repeat_penalty", request_.rules.repetition},
                {"repeat_last_n", request_.rules.repeat_last_n},
                {"ignore_eos", request_.rules.ignore_end},
                {"n_probs", std::max(request_.logprobs, 0)},
                {"n_predict", request_.max_tokens},
                {"max_tokens", request_.max_tokens},
                {"stream", request_.stream},
                {"speculative.n_max", ended.draft_tokens}}},
              {"truncated", false},
              {"stop_type", stop_type(ended.finish)},
              {"stopping_word", ended.stop_string},
              {"tokens_cached", ended.prompt_tokens + ended.tokens - 1},
              {"timings", timings_json(ended)},
              {"metrics", metrics_json(ended)}};
  if (request_.logprobs >= 0 && !tokens.empty()) out["completion_probabilities"] = content_json(tokens, true);
  if (request_.origins) out["drift"] = origins_json(tokens);
  return out;
}

Json AnswerBody::json() const {
  if (request_.route == Route::kLlama) {
    Json all = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) all.push_back(llama_json(i, choices_[i].text, choices_[i].tokens));
    return choices_.size() == 1 ? all[0] : all;
  }
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) choices.push_back(choice_json(i));
  Json out = {{"id", head_.id},
              {"object", request_.route == Route::kChat ? "chat.completion" : "text_completion"},
              {"created", head_.created},
              {"model", head_.model},
              {"choices", choices},
              {"usage", usage_json()},
              {"system_fingerprint", head_.fingerprint}};
  put_figures(out);
  return out;
}

// ---- streams ----

AnswerStream::AnswerStream(const GenerateRequest& request, Head head, std::size_t choices)
    : request_(request),
      body_(request, std::move(head), choices),
      told_(choices),
      told_bytes_(choices),
      sent_tokens_(choices),
      offsets_(choices) {}

Json AnswerStream::chunk(Json choices) const {
  const Head& head = body_.head_;
  Json out = {{"id", head.id},
              {"object", request_.route == Route::kChat ? "chat.completion.chunk" : "text_completion"},
              {"created", head.created},
              {"model", head.model},
              {"choices", std::move(choices)},
              {"system_fingerprint", head.fingerprint}};
  if (request_.include_usage) out["usage"] = nullptr;
  return out;
}

// `content` is a chat's delta, or a completion's text.
Json AnswerStream::choice_chunk(std::size_t index, Json content, Json logprobs, Json finish) const {
  Json choice = {{"index", index}};
  choice[request_.route == Route::kChat ? "delta" : "text"] = std::move(content);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(finish);
  return chunk(Json::array({std::move(choice)}));
}

std::string AnswerStream::begin() const {
  std::string out;
  if (request_.route != Route::kChat) return out;
  for (std::size_t i = 0; i < body_.choices_.size(); ++i)
    out += sse(choice_chunk(i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
  return out;
}

std::string AnswerStream::event(Job::Event event) {
  const std::size_t index = event.choice;
  if (const Delta* delta = std::get_if<Delta>(&event.what)) {
    sent_tokens_[index] += delta->tokens.size();
    return delta_chunk(index, *delta);
  }
  body_.choices_[index].ended = std::get<Ended>(std::move(event.what));
  return end_chunk(index);
}

std::string AnswerStream::delta_chunk(std::size_t index, const Delta& delta) {
  if (request_.route == Route::kLlama) {
    Json out = {{"index", index},
                {"content", delta.text},
                {"tokens", token_ids(delta.tokens)},
                {"stop", false},
                {"tokens_predicted", sent_tokens_[index]}};
    if (request_.logprobs >= 0) out["completion_probabilities"] = content_json(delta.tokens, true);
    if (request_.origins) out["drift"] = origins_json(delta.tokens);
    return sse(out);
  }
  Json logprobs = body_.logprobs_json(delta.tokens, offsets_[index]);
  if (request_.reader) {
    std::string& text = body_.choices_[index].text;
    text += delta.text;
    std::string out;
    if (!logprobs.is_null() || request_.origins) {  // they stand by themselves: text and calls are told when they can be read
      Json empty = choice_chunk(index, Json::object(), std::move(logprobs), nullptr);
      if (request_.origins) empty["choices"][0]["drift"] = origins_json(delta.tokens);
      out = sse(empty);
    }
    // The text is read from its beginning: of a long one not at every step.
    if (text.size() - told_bytes_[index] >= text.size() / 32) out += told(index, /*complete=*/false);
    return out;
  }
  if (delta.text.empty() && logprobs.is_null() && !request_.origins) return {};  // tokens without text say nothing here
  Json out = choice_chunk(index, request_.route == Route::kChat ? Json{{"content", delta.text}} : Json(delta.text),
                          std::move(logprobs), nullptr);
  if (request_.origins) out["choices"][0]["drift"] = origins_json(delta.tokens);
  return sse(out);
}

// What text and calls have become since they were last told. Both only ever grow: what changes in between waits until it does.
std::string AnswerStream::told(std::size_t index, bool complete) {
  ToolAnswer now = body_.read(index, complete);
  body_.keep_one(index, now);
  ToolAnswer& before = told_[index];
  std::string out;
  const auto grown = [](const std::string& from, const std::string& to) {
    return to.size() > from.size() && to.compare(0, from.size(), from) == 0 ? to.substr(from.size()) : std::string();
  };
  if (const std::string more = grown(before.content, now.content); !more.empty()) {
    out += sse(choice_chunk(index, {{"content", more}}, nullptr, nullptr));
    before.content = now.content;
  }
  for (std::size_t i = 0; i < now.calls.size(); ++i) {
    // A name is told when it is whole: when its arguments have begun, or another call has.
    const ToolCall& call = now.calls[i];
    if (i == before.calls.size()) {
      if (call.name.empty() || (call.arguments.empty() && !complete && i + 1 == now.calls.size())) break;
      before.calls.push_back({call.id, call.name, ""});
      out += sse(choice_chunk(index,
                              {{"tool_calls", Json::array({{{"index", i},
                                                            {"id", call.id},
                                                            {"type", "function"},
                                                            {"function", {{"name", call.name}, {"arguments", ""}}}}})}},
                              nullptr, nullptr));
    }
    if (const std::string more = grown(before.calls[i].arguments, call.arguments); !more.empty()) {
      before.calls[i].arguments = call.arguments;
      out += sse(choice_chunk(index, {{"tool_calls", Json::array({{{"index", i}, {"function", {{"arguments", more}}}}})}},
                              nullptr, nullptr));
    }
  }
  told_bytes_[index] = body_.choices_[index].text.size();
  return out;
}

std::string AnswerStream::end_chunk(std::size_t index) {
  const Ended& ended = *body_.choices_[index].ended;
  if (request_.route == Route::kLlama) return sse(body_.llama_json(index, "", {}));
  std::string out;
  std::string reason = finish_reason(ended.finish);
  if (request_.reader) {
    if (!request_.tools.parallel) out = told(index, /*complete=*/false);  // what may follow a call must not spoil it
    out += told(index, /*complete=*/true);
    if (!told_[index].calls.empty() && (reason == "stop" || body_.enough(index))) reason = "tool_calls";
  }
  Json last = choice_chunk(index, request_.route == Route::kChat ? Json::object() : Json(""), nullptr, reason);
  if (!request_.include_usage) body_.put_figures(last);
  return out + sse(last);
}

std::string AnswerStream::end() const {
  if (request_.route == Route::kLlama) return {};  // its clients wait for "stop": true
  std::string out;
  if (request_.include_usage) {
    Json usage = chunk(Json::array());
    usage["usage"] = body_.usage_json();
    body_.put_figures(usage);
    out = sse(usage);
  }
  return out + "data: [DONE]\n\n";
}

}  // namespace drift::server::api
