#include "server/api/answer.hpp"

#include <gtest/gtest.h>

namespace drift::server::api {
namespace {

Head head() { return {"cmpl-1", 1'700'000'000, "toy", "drift-x"}; }

Ended ended(Finish finish = Finish::kEnd) {
  Ended out;
  out.finish = finish;
  out.prompt_tokens = 10;
  out.cached_tokens = 4;
  out.queue_ms = 5;
  out.prompt_ms = 60;
  out.predicted_ms = 200;
  out.first_token_ms = 85;
  out.draft_tokens = 3;
  trace::StepEvent full, none;
  full.proposed = {{1, true}, {2, true}, {3, true}};
  full.emitted = {{1, trace::Origin::kAccepted}, {2, trace::Origin::kAccepted}, {3, trace::Origin::kAccepted}, {4}};
  none.proposed = {{1, false}, {2, false}};
  none.emitted = {{9}};
  out.metrics.add(full);
  out.metrics.add(none);
  out.tokens = out.metrics.tokens;
  return out;
}

GenerateRequest request(Route route, bool stream = false, bool usage = false) {
  GenerateRequest out;
  out.route = route;
  out.stream = stream;
  out.include_usage = usage;
  return out;
}

Delta words(const std::string& text) {
  TokenInfo token;
  token.token = 7;
  token.bytes = text;
  token.logprob = -0.5f;
  token.top = {{7, -0.5f, text}, {8, -1.5f, "\xC3"}};
  return {text, {token}};
}

// The JSON of every event of a stream; checks the framing on the way.
std::vector<Json> events(const std::string& stream, bool done = true) {
  std::vector<Json> out;
  std::string rest = stream;
  bool seen_done = false;
  while (!rest.empty()) {
    const std::size_t end = rest.find("\n\n");
    EXPECT_NE(end, std::string::npos);
    const std::string line = rest.substr(0, end);
    rest.erase(0, end + 2);
    EXPECT_EQ(line.rfind("data: ", 0), 0u) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_FALSE(seen_done) << "something after [DONE]";
    if (line == "data: [DONE]") {
      seen_done = true;
    } else {
      out.push_back(Json::parse(line.substr(6)));
    }
  }
  EXPECT_EQ(seen_done, done);
  return out;
}

TEST(Answer, AChatIsOpenAIs) {
  const GenerateRequest r = request(Route::kChat);
  AnswerBody body(r, head(), 1);
  body.add({0, words("Hel")});
  body.add({0, words("lo")});
  body.add({0, ended()});
  const Json json = body.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["id"], "cmpl-1");
  EXPECT_EQ(json["created"], 1'700'000'000);
  EXPECT_EQ(json["model"], "toy");
  EXPECT_EQ(json["system_fingerprint"], "drift-x");
  EXPECT_EQ(json["choices"].size(), 1u);
  EXPECT_EQ(json["choices"][0]["message"], (Json{{"role", "assistant"}, {"content", "Hello"}}));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(json["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(json["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["usage"]["total_tokens"], 15);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

TEST(Answer, FiguresAreThoseOfLlamaServerAndVllm) {
  const Json timings = timings_json(ended());
  EXPECT_EQ(timings["cache_n"], 4);
  EXPECT_EQ(timings["prompt_n"], 6);
  EXPECT_DOUBLE_EQ(timings["prompt_per_second"], 100.0);
  EXPECT_EQ(timings["predicted_n"], 5);
  EXPECT_DOUBLE_EQ(timings["predicted_per_second"], 25.0);
  EXPECT_EQ(timings["draft_n"], 5);
  EXPECT_EQ(timings["draft_n_accepted"], 3);
  const Json metrics = metrics_json(ended());
  const Json& speculative = metrics["speculative_decoding"];
  EXPECT_DOUBLE_EQ(speculative["mean_acceptance_length"], 2.5);
  EXPECT_DOUBLE_EQ(speculative["draft_acceptance_rate"], 0.6);
  EXPECT_EQ(speculative["acceptance_histogram"], Json::array({1, 0, 0, 1}));
  EXPECT_EQ(speculative["num_spec_steps"], 2);
  EXPECT_EQ(speculative["num_accepted_draft_tokens"], 3);
  EXPECT_EQ(speculative["num_draft_tokens"], 5);
  EXPECT_EQ(speculative["num_spec_tokens"], 3);
  EXPECT_DOUBLE_EQ(metrics["time_to_first_token_ms"], 85.0);
  EXPECT_DOUBLE_EQ(metrics["mean_itl_ms"], 45.0);
  Ended plain;
  plain.tokens = 1;
  EXPECT_TRUE(metrics_json(plain)["speculative_decoding"].is_null());
  EXPECT_FALSE(timings_json(plain).contains("draft_n"));
}

TEST(Answer, SeveralChoicesShareTheUsage) {
  GenerateRequest r = request(Route::kCompletions);
  r.n = 2;  // and two prompts: four choices
  AnswerBody body(r, head(), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    body.add({3 - i, words(std::string(1, static_cast<char>('a' + i)))});
    body.add({3 - i, ended(i == 0 ? Finish::kLength : Finish::kStop)});
  }
  const Json json = body.json();
  EXPECT_EQ(json["object"], "text_completion");
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  EXPECT_EQ(json["choices"][3]["text"], "a");
  EXPECT_EQ(json["choices"][3]["finish_reason"], "length");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 20);
  EXPECT_EQ(json["usage"]["completion_tokens"], 20);
  EXPECT_FALSE(json.contains("timings"));
}

TEST(Answer, LogprobsInTheShapeOfEachRoute) {
  GenerateRequest r = request(Route::kChat);
  r.logprobs = 2;
  AnswerBody body(r, head(), 1);
  body.add({0, words("ab")});
  body.add({0, words("cd")});
  body.add({0, ended()});
  const Json content = body.json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "ab");
  EXPECT_FLOAT_EQ(content[0]["logprob"], -0.5f);
  EXPECT_EQ(content[0]["bytes"], Json::array({97, 98}));
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][1]["bytes"], Json::array({0xC3}));
  EXPECT_NO_THROW(Json::parse(dump(body.json())));
  GenerateRequest old = request(Route::kCompletions);
  old.logprobs = 2;
  AnswerBody legacy(old, head(), 1);
  legacy.add({0, words("ab")});
  legacy.add({0, words("cd")});
  legacy.add({0, ended()});
  const Json logprobs = legacy.json()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::array({"ab", "cd"}));
  EXPECT_EQ(logprobs["text_offset"], Json::array({0, 2}));
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][1], -0.5f);
  EXPECT_FLOAT_EQ(logprobs["top_logprobs"][0]["ab"], -0.5f);
  GenerateRequest llama = request(Route::kLlama);
  llama.logprobs = 1;
  AnswerBody probabilities(llama, head(), 1);
  probabilities.add({0, words("ab")});
  probabilities.add({0, ended()});
  EXPECT_EQ(probabilities.json()["completion_probabilities"][0]["id"], 7);
  // In a stream the offsets go on from chunk to chunk.
  old.stream = true;
  AnswerStream stream(old, head(), 1);
  stream.event({0, words("ab")});
  EXPECT_EQ(Json::parse(stream.event({0, words("cd")}).substr(6))["choices"][0]["logprobs"]["text_offset"], Json::array({2}));
}

TEST(Answer, LlamaServersShape) {
  GenerateRequest r = request(Route::kLlama);
  r.return_tokens = true;
  AnswerBody body(r, head(), 1);
  body.add({0, words("Hi")});
  Ended stopped = ended(Finish::kStop);
  stopped.stop_string = "END";
  stopped.slot = 2;
  body.add({0, stopped});
  const Json json = body.json();
  EXPECT_EQ(json["content"], "Hi");
  EXPECT_EQ(json["tokens"], Json::array({7}));
  EXPECT_EQ(json["stop"], true);
  EXPECT_EQ(json["stop_type"], "word");
  EXPECT_EQ(json["stopping_word"], "END");
  EXPECT_EQ(json["id_slot"], 2);
  EXPECT_EQ(json["tokens_predicted"], 5);
  EXPECT_EQ(json["tokens_evaluated"], 10);
  EXPECT_EQ(json["timings"]["draft_n"], 5);
}

TEST(Stream, AChatGoesRoleTextFinishUsageDone) {
  const GenerateRequest r = request(Route::kChat, true, true);
  AnswerStream stream(r, head(), 1);
  std::string sent = stream.begin();
  sent += stream.event({0, words("Hel")});
  sent += stream.event({0, words("lo")});
  sent += stream.event({0, ended(Finish::kLength)});
  sent += stream.end();
  const std::vector<Json> got = events(sent);
  ASSERT_EQ(got.size(), 5u);
  for (const Json& chunk : got) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], "cmpl-1");
    EXPECT_EQ(chunk["created"], 1'700'000'000);
    EXPECT_EQ(chunk["model"], "toy");
  }
  EXPECT_EQ(got[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(got[1]["choices"][0]["delta"], (Json{{"content", "Hel"}}));
  EXPECT_EQ(got[2]["choices"][0]["delta"], (Json{{"content", "lo"}}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(got[static_cast<std::size_t>(i)]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(got[3]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(got[3]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(got[3]["usage"].is_null());
  EXPECT_EQ(got[4]["choices"], Json::array());
  EXPECT_EQ(got[4]["usage"]["completion_tokens"], 5);
  EXPECT_EQ(got[4]["metrics"]["speculative_decoding"]["num_spec_tokens"], 3);
  EXPECT_EQ(got[4]["timings"]["predicted_n"], 5);
}

TEST(Stream, WithoutUsageTheFiguresStandInTheLastChunk) {
  const GenerateRequest r = request(Route::kChat, true);
  AnswerStream stream(r, head(), 1);
  const std::vector<Json> got =
      events(stream.begin() + stream.event({0, words("x")}) + stream.event({0, ended()}) + stream.end());
  ASSERT_EQ(got.size(), 3u);
  for (const Json& chunk : got) EXPECT_FALSE(chunk.contains("usage"));
  EXPECT_EQ(got[2]["timings"]["draft_n_accepted"], 3);
}

TEST(Stream, CompletionsHaveTextAndNoRole) {
  const GenerateRequest r = request(Route::kCompletions, true);
  AnswerStream stream(r, head(), 2);
  std::string sent = stream.begin();
  EXPECT_TRUE(sent.empty());
  sent += stream.event({1, words("b")}) + stream.event({0, words("a")});
  sent += stream.event({0, ended()}) + stream.event({1, ended()}) + stream.end();
  const std::vector<Json> got = events(sent);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(got[0]["choices"][0]["index"], 1);
  EXPECT_EQ(got[0]["choices"][0]["text"], "b");
  EXPECT_EQ(got[2]["choices"][0]["text"], "");
  EXPECT_EQ(got[2]["choices"][0]["finish_reason"], "stop");
}

TEST(Stream, LlamaServersEndsWithStopTrue) {
  const GenerateRequest r = request(Route::kLlama, true);
  AnswerStream stream(r, head(), 1);
  const std::vector<Json> got =
      events(stream.begin() + stream.event({0, words("x")}) + stream.event({0, ended()}) + stream.end(), false);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0]["content"], "x");
  EXPECT_EQ(got[0]["tokens"], Json::array({7}));
  EXPECT_EQ(got[0]["stop"], false);
  EXPECT_EQ(got[1]["stop"], true);
  EXPECT_EQ(got[1]["content"], "");
}

TEST(Stream, OriginsComeWhereAskedForAndNowhereElse) {
  TokenInfo kept, own;
  kept.token = 7;
  kept.bytes = "\xC3";  // half a character
  kept.origin = trace::Origin::kAcceptedBank;
  own.token = 8;
  own.bytes = "\xA4";
  own.rejected = {{5, 0.0f, "no"}, {6, 0.0f, "pe"}};
  const Json expected = Json::parse(R"({"tokens": [
    {"id": 7, "token": "\ufffd", "bytes": [195], "origin": "accepted_bank", "rejected": []},
    {"id": 8, "token": "\ufffd", "bytes": [164], "origin": "target",
     "rejected": [{"id": 5, "token": "no", "bytes": [110, 111]}, {"id": 6, "token": "pe", "bytes": [112, 101]}]}]})");
  for (const Route route : {Route::kChat, Route::kCompletions, Route::kLlama}) {
    for (const bool asked : {true, false}) {
      GenerateRequest r = request(route, true);
      r.origins = asked;
      AnswerStream stream(r, head(), 1);
      const Json chunk = events(stream.event({0, Delta{"\xC3\xA4", {kept, own}}}), false)[0];
      const Json& place = route == Route::kLlama ? chunk : chunk["choices"][0];
      ASSERT_EQ(place.contains("drift"), asked);
      if (asked) {
        EXPECT_EQ(place["drift"], expected);
      }
      AnswerBody body(r, head(), 1);
      body.add({0, Delta{"\xC3\xA4", {kept, own}}});
      body.add({0, ended()});
      const Json whole = Json::parse(dump(body.json())), of_whole = route == Route::kLlama ? whole : whole["choices"][0];
      ASSERT_EQ(of_whole.contains("drift"), asked);
      if (asked) {
        EXPECT_EQ(of_whole["drift"], expected);
      }
    }
  }
  // A token that adds no text is told of too.
  GenerateRequest r = request(Route::kCompletions, true);
  r.origins = true;
  AnswerStream stream(r, head(), 1);
  EXPECT_EQ(events(stream.event({0, Delta{"", {own}}}), false)[0]["choices"][0]["drift"]["tokens"].size(), 1u);
}

TEST(Stream, TextIsEscapedOnOneLine) {
  const GenerateRequest r = request(Route::kChat, true);
  AnswerStream stream(r, head(), 1);
  const std::string chunk = stream.event({0, words("a\nb\r\n\"\x01\xE2\x80\xA8")});
  EXPECT_EQ(std::count(chunk.begin(), chunk.end(), '\n'), 2);
  EXPECT_EQ(Json::parse(chunk.substr(6))["choices"][0]["delta"]["content"], "a\nb\r\n\"\x01\xE2\x80\xA8");
}

// "talk <f(x)><g(y)>": calls between brackets; a complete text must close them.
class Brackets final : public ToolReader {
 public:
  Result<ToolAnswer> read(const std::string& text, bool complete) const override {
    ToolAnswer out;
    std::size_t at = std::min(text.find('<'), text.size());
    out.content = text.substr(0, at);
    while (at < text.size()) {
      const std::size_t open = text.find('(', at), end = text.find('>', at);
      if (complete && end == std::string::npos) return Status(Code::kInvalid, "a call is not whole");
      const std::size_t stop = std::min(end, text.size());
      const std::string name = text.substr(at + 1, std::min(open, stop) - at - 1);
      out.calls.push_back({"", name, open < stop ? text.substr(open, stop - open) : ""});
      at = end == std::string::npos ? text.size() : end + 1;
    }
    return out;
  }
};

GenerateRequest with_calls(bool parallel) {
  GenerateRequest out = request(Route::kChat);
  out.tools.tools = {{"f", "", "{}"}, {"g", "", "{}"}};
  out.tools.parallel = parallel;
  out.reader = std::make_shared<const Brackets>();
  return out;
}

// What came of an answer in these pieces: content, "name(arguments)" of each call, finish_reason; and after which piece it was enough.
struct Seen {
  std::string content, calls, reason;
  std::size_t enough = 99;
  friend bool operator==(const Seen&, const Seen&) = default;
};

Seen whole(const GenerateRequest& r, const std::vector<std::string>& pieces, Finish finish) {
  Seen out;
  AnswerBody body(r, head(), 1);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    body.add({0, words(pieces[i])});
    if (body.enough(0)) out.enough = std::min(out.enough, i);
  }
  body.add({0, ended(finish)});
  const Json choice = body.json()["choices"][0];
  if (choice["message"]["content"].is_string()) out.content = choice["message"]["content"];
  for (const Json& call : choice["message"].value("tool_calls", Json::array()))
    out.calls += call["function"]["name"].get<std::string>() + call["function"]["arguments"].get<std::string>();
  out.reason = choice["finish_reason"];
  return out;
}

Seen streamed(const GenerateRequest& r, const std::vector<std::string>& pieces, Finish finish) {
  Seen out;
  AnswerStream stream(r, head(), 1);
  std::string all = stream.begin();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    all += stream.event({0, words(pieces[i])});
    if (stream.enough(0)) out.enough = std::min(out.enough, i);
  }
  all += stream.event({0, ended(finish)}) + stream.end();
  for (const Json& event : events(all)) {
    const Json& choice = event["choices"][0];
    out.content += choice["delta"].value("content", "");
    for (const Json& call : choice["delta"].value("tool_calls", Json::array()))
      out.calls += call["function"].value("name", "") + call["function"]["arguments"].get<std::string>();
    if (choice["finish_reason"].is_string()) out.reason = choice["finish_reason"];
  }
  return out;
}

TEST(Calls, TheFirstIsTheOnlyOneUnlessSeveralMayCome) {
  const std::vector<std::string> pieces = {"So: ", "<f(1", ")>", "<g", "(2)>", "<f(3)>"};
  for (const auto& see : {whole, streamed}) {
    EXPECT_EQ(see(with_calls(true), pieces, Finish::kEnd), (Seen{"So: ", "f(1)g(2)f(3)", "tool_calls", 99}));
    EXPECT_EQ(see(with_calls(false), pieces, Finish::kEnd), (Seen{"So: ", "f(1)", "tool_calls", 3}));
    EXPECT_EQ(see(with_calls(false), {"<f(1)>"}, Finish::kEnd), (Seen{"", "f(1)", "tool_calls", 99}));
  }
}

TEST(Calls, WhatFollowsTheFirstDoesNotSpoilIt) {
  for (const auto& see : {whole, streamed}) {
    // As it ends when it is cut: in the middle of the second.
    EXPECT_EQ(see(with_calls(false), {"<f(1)>", "<g(2"}, Finish::kStop), (Seen{"", "f(1)", "tool_calls", 1}));
    EXPECT_EQ(see(with_calls(false), {"<f(1)>", "<g(2"}, Finish::kLength), (Seen{"", "f(1)", "tool_calls", 1}));
    EXPECT_EQ(see(with_calls(false), {"<f(1"}, Finish::kLength), (Seen{"", "f(1", "length", 99}));
  }
}

TEST(Problems, HaveTheShapeClientsRead) {
  const Json json = body_of(bad_field("top_p", "top_p is bad"));
  EXPECT_EQ(json["error"]["message"], "top_p is bad");
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  EXPECT_EQ(json["error"]["param"], "top_p");
  EXPECT_TRUE(json["error"]["code"].is_null());
  const Json full = body_of(context_exceeded(5'000, 4'096));
  EXPECT_EQ(full["error"]["type"], "exceed_context_size_error");
  EXPECT_EQ(full["error"]["n_prompt_tokens"], 5'000);
  EXPECT_EQ(full["error"]["n_ctx"], 4'096);
  EXPECT_EQ(problem_of({Code::kInvalid, "x"}).http, 400);
  EXPECT_EQ(problem_of({Code::kLimit, "x"}).http, 503);
  EXPECT_GT(problem_of({Code::kBusy, "x"}).retry_after_s, 0);
  EXPECT_EQ(problem_of({Code::kInternal, "x"}).http, 500);
  EXPECT_EQ(sse_error(bad_field("", "x")).rfind("data: {\"error\":", 0), 0u);
}

}  // namespace
}  // namespace drift::server::api
