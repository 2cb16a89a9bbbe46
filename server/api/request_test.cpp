#include "server/api/request.hpp"

#include <gtest/gtest.h>

namespace drift::server::api {
namespace {

Defaults defaults() {
  Defaults d;
  d.model = "toy";
  d.mode = decode::Mode::kDrift;
  d.has_draft = true;
  d.draft_tokens = 7;
  d.vocab = 100;
  d.rules.repeat_last_n = 64;
  return d;
}

GenerateRequest good(Route route, const std::string& body, const Defaults& d = defaults()) {
  auto read = read_generate(route, parse_body(body).value(), d);
  if (const auto* problem = std::get_if<Problem>(&read)) ADD_FAILURE() << body << ": " << problem->message;
  return std::get<GenerateRequest>(std::move(read));
}

Problem bad(Route route, const std::string& body, const Defaults& d = defaults()) {
  auto read = read_generate(route, parse_body(body).value(), d);
  if (std::holds_alternative<GenerateRequest>(read)) {
    ADD_FAILURE() << body << " was taken";
    return {};
  }
  return std::get<Problem>(std::move(read));
}

// The body with one more field.
std::string with(const std::string& field) { return R"({"prompt": "x", )" + field + "}"; }

constexpr Route kC = Route::kCompletions;

TEST(Request, WhatIsLeftOutIsTheServers) {
  Defaults d = defaults();
  d.sampler = {0.3f, 5, 0.7f, 0.1f};
  d.max_tokens = 12;
  d.cache_prompt = false;
  const GenerateRequest r = good(kC, R"({"prompt": "hello"})", d);
  EXPECT_EQ(std::get<std::string>(r.prompts.at(0)), "hello");
  EXPECT_EQ(r.sampler, d.sampler);
  EXPECT_EQ(r.max_tokens, 12);
  EXPECT_EQ(r.mode, decode::Mode::kDrift);
  EXPECT_EQ(r.draft_tokens, 7);
  EXPECT_EQ(r.n, 1);
  EXPECT_EQ(r.bank, "default");
  EXPECT_FALSE(r.seed);
  EXPECT_FALSE(r.stream);
  EXPECT_FALSE(r.cache_prompt);
}

TEST(Request, NullCountsAsLeftOutAndUnknownFieldsAreIgnored) {
  const GenerateRequest r =
      good(kC, R"({"prompt": "x", "stop": null, "seed": null, "temperature": null, "stream": null, "tools": null,
    "stream_options": null, "response_format": null, "user": "me", "whatever": [1, {"deep": true}], "ignore_eos_": 5})");
  EXPECT_TRUE(r.stops.empty());
}

TEST(Request, EveryFieldIsRead) {
  const GenerateRequest r = good(kC, R"({"model": "m", "prompt": "x", "stream": true,
    "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.2,
    "seed": 42, "stop": ["a", "bc"], "n": 3, "max_tokens": 9, "cache_prompt": false, "return_tokens": true})");
  EXPECT_EQ(r.model, "m");
  EXPECT_TRUE(r.stream && r.include_usage && r.return_tokens && !r.cache_prompt);
  EXPECT_EQ(r.sampler, (spec::SamplerConfig{0.5f, 7, 0.9f, 0.2f}));
  EXPECT_EQ(r.seed, 42u);
  EXPECT_EQ(r.stops, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(r.n, 3);
  EXPECT_EQ(r.max_tokens, 9);
}

TEST(Request, WrongTypesAndBoundsNameTheField) {
  struct Case {
    const char* field;
    const char* name;
    const char* part;
  };
  for (const Case& c : std::vector<Case>{
           {R"("temperature": "hot")", "temperature", "JSON string"},
           {R"("temperature": -1)", "temperature", "from 0 to 100"},
           {R"("temperature": 1e40)", "temperature", "from 0 to 100"},
           {R"("top_p": 0)", "top_p", "above 0 to 1"},
           {R"("top_p": 1e-60)", "top_p", "above 0 to 1"},
           {R"("top_p": 1.5)", "top_p", "above 0 to 1"},
           {R"("top_k": 1.5)", "top_k", "whole number"},
           {R"("top_k": -2)", "top_k", "from -1"},
           {R"("min_p": true)", "min_p", "JSON boolean"},
           {R"("seed": 18446744073709551615)", "seed", "whole number"},
           {R"("seed": "x")", "seed", "JSON string"},
           {R"("stream": 1)", "stream", "true or false"},
           {R"("stream_options": [])", "stream_options", "an object"},
           {R"("stream_options": {"include_usage": "yes"})", "stream_options.include_usage", "true or false"},
           {R"("n": 0)", "n", "from 1 to 64"},
           {R"("n": 65)", "n", "from 1 to 64"},
           {R"("max_tokens": 0)", "max_tokens", "is 0"},
           {R"("max_tokens": -2)", "max_tokens", "from -1"},
           {R"("max_tokens": 1e300)", "max_tokens", "from -1"},
           {R"("max_completion_tokens": "10")", "max_completion_tokens", "JSON string"},
           {R"("n_predict": 0)", "n_predict", "is 0"},
           {R"("model": 5)", "model", "a string"},
           {R"("stop": 5)", "stop", "a string or a list of strings"},
           {R"("stop": ["a", 5])", "stop[1]", "a string"},
           {R"("speculative.n_max": 33)", "speculative.n_max", "from 0 to 32"},
           {R"("speculative.p_min": 2)", "speculative.p_min", "from 0 to 1"},
           {R"("speculative": {"n_max": "3"})", "speculative.n_max", "JSON string"},
           {R"("speculative.type": "ngram-mod")", "speculative.type", "none, draft-simple or draft-drift"},
           {R"("drift": "off")", "drift", "an object"},
           {R"("drift": {"mode": "on"})", "drift.mode", "one of off, static, drift, lookup"},
           {R"("drift": {"mode": "online-kd"})", "drift.mode", "one of off, static, drift, lookup"},
           {R"("drift": {"bank": 7})", "drift.bank", "a string"},
       }) {
    const Problem problem = bad(kC, with(c.field));
    EXPECT_EQ(problem.http, 400) << c.field;
    EXPECT_EQ(problem.type, "invalid_request_error") << c.field;
    EXPECT_EQ(problem.param, c.name) << c.field;
    EXPECT_NE(problem.message.find(c.part), std::string::npos) << problem.message;
    EXPECT_EQ(problem.message.rfind(c.name, 0), 0u) << problem.message;
  }
}

TEST(Request, LongThingsAreBounded) {
  std::string many = R"("stop": [)";
  for (int i = 0; i < 33; ++i) many += (i > 0 ? ", " : "") + std::string("\"s\"");
  EXPECT_NE(bad(kC, with(many + "]")).message.find("33 strings; at most 32"), std::string::npos);
  EXPECT_NE(bad(kC, with(R"("stop": ")" + std::string(1'025, 'x') + "\"")).message.find("at most 1024"), std::string::npos);
  EXPECT_NE(bad(kC, with(R"("model": ")" + std::string(257, 'x') + "\"")).message.find("at most 256"), std::string::npos);
  std::string prompts = R"({"prompt": [)";
  for (int i = 0; i < 65; ++i) prompts += (i > 0 ? ", " : "") + std::string("\"p\"");
  EXPECT_EQ(bad(kC, prompts + "]}").param, "prompt");
  EXPECT_EQ(bad(kC, R"({"prompt": ["a", "b", "c"], "n": 22})").param, "n");
  std::string messages = R"({"messages": [)";
  for (int i = 0; i < 4'097; ++i) messages += (i > 0 ? ", " : "") + std::string(R"({"role": "user", "content": "x"})");
  EXPECT_NE(bad(Route::kChat, messages + "]}").message.find("4097 messages; at most 4096"), std::string::npos);
}

TEST(Request, PromptsOfEveryKind) {
  EXPECT_EQ(std::get<std::vector<Token>>(good(kC, R"({"prompt": [1, 2, 99]})").prompts.at(0)), (std::vector<Token>{1, 2, 99}));
  const GenerateRequest mixed = good(kC, R"({"prompt": ["a", [1, 2], "b"]})");
  EXPECT_EQ(mixed.prompts.size(), 3u);
  EXPECT_EQ(std::get<std::vector<Token>>(good(kC, R"({"prompt": [1.0, 2]})").prompts.at(0)), (std::vector<Token>{1, 2}))
      << "1.0 is a whole number, as everywhere in JSON Schema";
  EXPECT_EQ(bad(kC, R"({"prompt": [1, 1.5]})").param, "prompt[1]");
  EXPECT_EQ(bad(kC, R"({"prompt": [1, 100]})").param, "prompt[1]");
  EXPECT_EQ(bad(kC, R"({"prompt": [[1], [-1]]})").param, "prompt[1][0]");
  EXPECT_EQ(bad(kC, R"({"prompt": ["a", {}]})").param, "prompt[1]");
  for (const char* body : {R"({})", R"({"prompt": null})", R"({"prompt": []})", R"({"prompt": 5})", R"({"prompt": {}})"}) {
    EXPECT_EQ(bad(kC, body).param, "prompt") << body;
  }
}

TEST(Request, MessagesOfEveryKind) {
  const GenerateRequest r = good(Route::kChat, R"({"messages": [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "name": null, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "tool_calls": []},
    {"role": "user", "content": "c"}]})");
  ASSERT_EQ(r.messages.size(), 4u);
  EXPECT_EQ(r.messages[0].role, "system");
  EXPECT_EQ(r.messages[1].content, "ab");
  EXPECT_EQ(r.messages[2].content, "");
  struct Case {
    const char* messages;
    const char* param;
  };
  for (const Case& c : std::vector<Case>{
           {R"(null)", "messages"},
           {R"([])", "messages"},
           {R"({})", "messages"},
           {R"(["hi"])", "messages[0]"},
           {R"([{"content": "x"}])", "messages[0].role"},
           {R"([{"role": 5}])", "messages[0].role"},
           {R"([{"role": "user", "content": 5}])", "messages[0].content"},
           {R"([{"role": "user", "content": ["x"]}])", "messages[0].content[0]"},
           {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content[0].type"},
           {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text"},
           {R"([{"role": "user", "content": "x"}, {"role": "function", "content": "x"}])", "messages[1].role"},
           {R"([{"role": "tool", "tool_call_id": 5}])", "messages[0].tool_call_id"},
           {R"([{"role": "assistant", "tool_calls": {}}])", "messages[0].tool_calls"},
           {R"([{"role": "assistant", "tool_calls": [{}]}])", "messages[0].tool_calls[0]"},
           {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}])",
            "messages[0].tool_calls[0].function.arguments"},
       }) {
    EXPECT_EQ(bad(Route::kChat, std::string(R"({"messages": )") + c.messages + "}").param, c.param) << c.messages;
  }
}

TEST(Request, WhatCannotBeDoneIsRefusedByName) {
  for (const char* field :
       {R"("tools": [{"type": "function"}])", R"("guided_json": {"type": "object"})", R"("functions": [{"name": "f"}])",
        R"("echo": true)", R"("suffix": "x")", R"("mirostat": 2)", R"("lora": [{"id": 0, "scale": 1}])"}) {
    const Problem problem = bad(kC, with(field));
    EXPECT_EQ(std::string(field).rfind("\"" + problem.param + "\"", 0), 0u) << problem.message;
    EXPECT_NE(problem.message.find("cannot be used"), std::string::npos) << problem.message;
  }
  EXPECT_EQ(bad(kC, with(R"("response_format": {"type": "xml"})")).param, "response_format.type");
  // What asks for nothing is no reason to refuse.
  good(
      kC,
      with(
          R"("tools": [], "echo": false, "suffix": "", "mirostat": 0, "dry_multiplier": 0.0, "response_format": {"type": "text"})"));
}

TEST(Request, DraftingPerRequest) {
  using decode::Mode;
  EXPECT_EQ(good(kC, with(R"("drift": {"mode": "off"})")).mode, Mode::kOff);
  EXPECT_EQ(good(kC, with(R"("drift": {"mode": "static"})")).mode, Mode::kStatic);
  EXPECT_EQ(good(kC, with(R"("drift": {"mode": "drift", "bank": "law"})")).bank, "law");
  EXPECT_FALSE(good(kC, with(R"("drift": {"mode": "drift"})")).origins);
  EXPECT_TRUE(good(kC, with(R"("drift": {"origins": true})")).origins);
  EXPECT_EQ(bad(kC, with(R"("drift": {"origins": 1})")).param, "drift.origins");
  EXPECT_EQ(good(kC, with(R"("speculative.n_max": 0)")).mode, Mode::kOff);
  EXPECT_EQ(good(kC, with(R"("speculative.type": "none")")).mode, Mode::kOff);
  EXPECT_EQ(good(kC, with(R"("speculative.type": "draft-simple")")).mode, Mode::kStatic);
  EXPECT_EQ(good(kC, with(R"("speculative.n_max": 2)")).draft_tokens, 2);
  EXPECT_EQ(good(kC, with(R"("speculative": {"n_max": 2, "n_min": 1, "p_min": 0.5})")).draft_tokens, 2);
  EXPECT_EQ(good(kC, with(R"("speculative.n_max": 20)")).draft_tokens, 7) << "the server's own length is the most";
  Defaults plain = defaults();
  plain.has_draft = false;
  plain.mode = Mode::kOff;
  EXPECT_EQ(good(kC, with(R"("speculative.n_max": 5)"), plain).mode, Mode::kOff);
  EXPECT_EQ(bad(kC, with(R"("drift": {"mode": "static"})"), plain).param, "drift.mode");
  EXPECT_EQ(bad(kC, with(R"("drift": {"mode": "drift+suffix"})"), plain).param, "drift.mode");
  EXPECT_EQ(good(kC, with(R"("drift": {"mode": "suffix"})"), plain).mode, Mode::kSuffix) << "copying needs no draft";
}

TEST(Request, NumbersThatClientsWriteInOtherWays) {
  EXPECT_EQ(good(kC, with(R"("max_tokens": 16.0)")).max_tokens, 16);
  EXPECT_EQ(good(kC, with(R"("top_k": -1)")).sampler.top_k, 0);
  EXPECT_FALSE(good(kC, with(R"("seed": -1)")).seed) << "llama-server's word for a random one";
  EXPECT_EQ(good(kC, with(R"("seed": -5)")).seed, static_cast<std::uint64_t>(-5));
  EXPECT_EQ(good(kC, with(R"("max_tokens": 5, "max_completion_tokens": 7, "n_predict": 3)")).max_tokens, 7);
  EXPECT_TRUE(good(kC, with(R"("stop": "")")).stops.empty());
  EXPECT_EQ(good(kC, with(R"("stop": "end")")).stops, std::vector<std::string>{"end"});
}

TEST(Request, RulesForLogits) {
  const GenerateRequest r =
      good(kC, with(R"("presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.2, "ignore_eos": true,
    "min_tokens": 3, "logit_bias": {"5": -100, "7": 2.5})"));
  EXPECT_EQ(r.rules.presence, 0.5f);
  EXPECT_EQ(r.rules.frequency, -1.0f);
  EXPECT_EQ(r.rules.repetition, 1.2f);
  EXPECT_EQ(r.rules.repeat_last_n, -1);
  EXPECT_TRUE(r.rules.ignore_end);
  EXPECT_EQ(r.rules.min_tokens, 3);
  EXPECT_EQ(r.rules.bias, (std::vector<std::pair<Token, float>>{{5, -100.0f}, {7, 2.5f}}));
  EXPECT_EQ(good(kC, with(R"("repeat_penalty": 1.1)")).rules.repeat_last_n, 64) << "the server's own";
  EXPECT_EQ(good(kC, with(R"("repeat_penalty": 1.1, "repeat_last_n": 8)")).rules.repeat_last_n, 8);
  const GenerateRequest llama = good(Route::kLlama, with(R"("logit_bias": [[5, -1], [6, false], [" cat", 2]])"));
  EXPECT_EQ(llama.rules.bias.size(), 1u);
  EXPECT_EQ(llama.rules.banned, std::vector<Token>{6});
  EXPECT_EQ(llama.text_bias, (std::vector<std::pair<std::string, float>>{{" cat", 2.0f}}));
  EXPECT_TRUE(good(kC, with(R"("presence_penalty": 0, "logit_bias": {})")).rules.empty());
  EXPECT_EQ(bad(kC, with(R"("logit_bias": {"100": 1})")).param, "logit_bias.100");
  EXPECT_EQ(bad(kC, with(R"("logit_bias": {"x": 1})")).param, "logit_bias");
  EXPECT_EQ(bad(kC, with(R"("logit_bias": {"5": true})")).param, "logit_bias.5");
  EXPECT_EQ(bad(kC, with(R"("logit_bias": {"5": 1e9})")).param, "logit_bias.5");
  EXPECT_EQ(bad(kC, with(R"("logit_bias": [[5]])")).param, "logit_bias[0]");
  EXPECT_EQ(bad(kC, with(R"("logit_bias": 5)")).param, "logit_bias");
  EXPECT_EQ(bad(kC, with("\"logit_bias\": [[\"" + std::string(kBiasTextBytesMax + 1, 'x') + "\", 1]]")).param, "logit_bias[0]");
  EXPECT_EQ(bad(kC, with(R"("repetition_penalty": 0)")).param, "repetition_penalty");
}

TEST(Request, LogprobsOfEachRoute) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "x"}], )";
  EXPECT_EQ(good(Route::kChat, chat + R"("logprobs": true})").logprobs, 0);
  EXPECT_EQ(good(Route::kChat, chat + R"("logprobs": true, "top_logprobs": 5})").logprobs, 5);
  EXPECT_EQ(good(Route::kChat, chat + R"("logprobs": false})").logprobs, -1);
  EXPECT_EQ(bad(Route::kChat, chat + R"("top_logprobs": 5})").param, "top_logprobs");
  EXPECT_EQ(bad(Route::kChat, chat + R"("logprobs": 5})").param, "logprobs");
  EXPECT_EQ(good(kC, with(R"("logprobs": 2)")).logprobs, 2);
  EXPECT_EQ(good(kC, with(R"("logprobs": 0)")).logprobs, 0);
  EXPECT_EQ(good(Route::kLlama, with(R"("n_probs": 3)")).logprobs, 3);
  EXPECT_EQ(good(Route::kLlama, with(R"("n_probs": 0)")).logprobs, -1);
  EXPECT_EQ(bad(kC, with(R"("logprobs": 21)")).param, "logprobs");
}

TEST(Request, TokenizeTakesThreeKinds) {
  const auto read = [](const std::string& body) { return read_tokenize(parse_body(body).value()); };
  const auto content = std::get<TokenizeRequest>(read(R"({"content": "x", "add_special": true, "with_pieces": true})"));
  EXPECT_EQ(content.content, "x");
  EXPECT_TRUE(content.add_special && content.with_pieces);
  EXPECT_EQ(std::get<TokenizeRequest>(read(R"({"prompt": "x"})")).prompt, "x");
  EXPECT_EQ(std::get<TokenizeRequest>(read(R"({"messages": [{"role": "user", "content": "x"}]})")).messages.size(), 1u);
  EXPECT_EQ(std::get<Problem>(read("{}")).param, "content");
  EXPECT_EQ(std::get<Problem>(read(R"({"content": 5})")).param, "content");
  const auto tokens = [](const std::string& body) { return read_detokenize(parse_body(body).value(), 10); };
  EXPECT_EQ(std::get<std::vector<Token>>(tokens(R"({"tokens": [1, 9]})")), (std::vector<Token>{1, 9}));
  EXPECT_TRUE(std::get<std::vector<Token>>(tokens(R"({"tokens": []})")).empty());
  EXPECT_EQ(std::get<Problem>(tokens(R"({"tokens": [10]})")).param, "tokens[0]");
  EXPECT_EQ(std::get<Problem>(tokens(R"({"tokens": "x"})")).param, "tokens");
  EXPECT_EQ(std::get<Problem>(tokens("{}")).param, "tokens");
}

}  // namespace
}  // namespace drift::server::api
