#include "server/http/http_server.hpp"

#include <cpp-httplib/httplib.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "server/api/answer.hpp"
#include "server/http/page.hpp"
#include "server/testing/raw_client.hpp"
#include "server/testing/rig.hpp"

namespace drift::server {
namespace {

using api::Json;
using decode::Mode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::alone;
using testing::ask;
using testing::RawClient;
using testing::Rig;
using testing::unchunk;

struct Options {
  HttpConfig http;
  SchedulerConfig scheduler;
  std::vector<ApiKey> keys;
  std::size_t context = 512;
  milliseconds step_pause{0};  // slows decoding down, so that a test can act in the middle of it
  bool open = true;
};

// A toy server on a free port, and its decode thread.
class Server {
 public:
  explicit Server(Options options = {}) : options_(std::move(options)), rig_(options_.scheduler, options_.context, &metrics_) {
    options_.http.port = 0;
    rig_.target.before = [this](std::span<const engine::Node>) {
      if (options_.step_pause.count() > 0) std::this_thread::sleep_for(options_.step_pause);
    };
    http_ = std::make_unique<HttpServer>(options_.http, ApiKeys::make(options_.keys).value(), metrics_, log_);
    const Status started = http_->start();
    EXPECT_TRUE(started.is_ok()) << started.message();
    service_.defaults.model = "toy-model";
    service_.defaults.sampler = spec::greedy_sampler();
    service_.defaults.max_tokens = 16;
    service_.defaults.mode = Mode::kDrift;
    service_.defaults.has_draft = true;
    service_.defaults.vocab = testing::kToyVocab;
    service_.card.name = "Toy";
    service_.context = options_.context;
    service_.slots = options_.scheduler.slots;
    if (options_.open) open();
    decoding_ = std::thread([this] { EXPECT_TRUE(rig_.scheduler.run().is_ok()); });
  }
  ~Server() {
    rig_.scheduler.stop();
    decoding_.join();
    http_->stop();
  }
  void open() { http_->open(service_); }
  int port() const { return http_->port(); }
  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port());
    client.set_read_timeout(seconds(30));
    return client;
  }
  Json post(const std::string& path, const Json& body, int status = 200) {
    auto got = client().Post(path, api::dump(body), "application/json");
    EXPECT_TRUE(got) << path;
    if (!got) return nullptr;
    EXPECT_EQ(got->status, status) << got->body;
    return Json::parse(got->body);
  }
  Json get(const std::string& path, int status = 200) {
    auto got = client().Get(path);
    EXPECT_TRUE(got) << path;
    if (!got) return nullptr;
    EXPECT_EQ(got->status, status) << got->body;
    return Json::parse(got->body);
  }
  std::string log() {
    const std::lock_guard lock(log_mutex_);
    return log_text_;
  }
  bool wait_until_idle(seconds most = seconds(20)) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    while (std::chrono::steady_clock::now() < deadline) {
      if (rig_.busy() == 0 && rig_.scheduler.state().waiting == 0) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }
  bool wait_until(const std::function<bool(const SchedulerState&)>& what, seconds most = seconds(20)) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    while (std::chrono::steady_clock::now() < deadline) {
      if (what(rig_.scheduler.state())) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }
  Rig& rig() { return rig_; }
  void use(ApiKeys keys) { http_->use(std::move(keys)); }

 private:
  Options options_;
  ServerMetrics metrics_{{"toy-model", true, true, {}}};
  std::mutex log_mutex_;
  std::string log_text_;
  Log log_{Log::Format::kJson, [this](std::string_view line) {
             const std::lock_guard lock(log_mutex_);
             log_text_ += line;
           }};
  Rig rig_;
  Service service_{rig_.scheduler, rig_.text, rig_.banks, {}, {}, 0, 0, {}, {}};
  std::unique_ptr<HttpServer> http_;
  std::thread decoding_;
};

Json chat(const std::string& text) { return {{"messages", Json::array({{{"role", "user"}, {"content", text}}})}}; }

// ---- answers ----

TEST(Http, ACompletionIsTheSteppersText) {
  Server server;
  const Json json = server.post("/v1/completions", {{"prompt", "hello"}, {"max_tokens", 20}, {"drift", {{"mode", "off"}}}});
  EXPECT_EQ(json["choices"][0]["text"], alone(ask("hello", 20)));
  EXPECT_EQ(json["model"], "toy-model");
  EXPECT_EQ(json["usage"]["completion_tokens"], 20);
  EXPECT_FALSE(json["timings"].contains("draft_n"));
}

TEST(Http, DraftingChangesTheFiguresAndNotTheText) {
  Server server;
  for (const char* mode : {"static", "drift", "draft+suffix", "drift+suffix"}) {
    const Json json = server.post("/v1/completions", {{"prompt", "hello"}, {"max_tokens", 40}, {"drift", {{"mode", mode}}}});
    EXPECT_EQ(json["choices"][0]["text"], alone(ask("hello", 40))) << mode;
    EXPECT_GT(json["timings"]["draft_n"].get<int>(), 0) << mode;
    EXPECT_GT(json["timings"]["draft_n_accepted"].get<int>(), 0) << mode;
    EXPECT_EQ(json["metrics"]["speculative_decoding"]["num_spec_tokens"], 3);
  }
}

TEST(Http, AChatIsFramedByTheTemplate) {
  Server server;
  const Json json = server.post("/v1/chat/completions", chat("hi"));
  GenerationConfig config = ask("user: hi\nassistant: ", 16);
  EXPECT_EQ(json["choices"][0]["message"]["content"], alone(config));
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(server.post("/chat/completions", chat("hi"))["choices"], json["choices"]);
  EXPECT_EQ(server.post("/apply-template", chat("hi"))["prompt"], "user: hi\nassistant: ");
}

// The toy's answers are calls of eight bytes each, without end.
TEST(Http, AnAnswerEndsWhereASecondCallBegins) {
  Options options;
  options.step_pause = milliseconds(5);
  Server server(options);
  Json body = chat("hi");
  body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  body["max_tokens"] = 400;
  body["drift"] = {{"mode", "off"}};
  const std::string first = alone(ask("user: hi\nassistant: ", 8));
  const Json whole = server.post("/v1/chat/completions", body);
  const Json& choice = whole["choices"][0];
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], first);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_LT(whole["usage"]["completion_tokens"], 200) << "it was not ended, only cut";
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto got = server.client().Post("/v1/chat/completions", api::dump(body), "application/json");
  ASSERT_TRUE(got);
  const std::size_t usage = got->body.find("\"completion_tokens\":");
  ASSERT_NE(usage, std::string::npos) << got->body;
  EXPECT_LT(std::stoi(got->body.substr(usage + 20)), 200);
  EXPECT_NE(got->body.find("\"finish_reason\":\"tool_calls\""), std::string::npos);
  EXPECT_EQ(got->body.find("{\"index\":1"), std::string::npos) << "a second call";
}

TEST(Http, SeedsAndSeveralAnswers) {
  Server server;
  const Json body = {{"prompt", Json::array({"one", "two"})}, {"n", 2}, {"temperature", 1.0}, {"seed", 7}, {"max_tokens", 12}};
  const Json first = server.post("/v1/completions", body), again = server.post("/v1/completions", body);
  ASSERT_EQ(first["choices"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    GenerationConfig config = ask(i < 2 ? "one" : "two", 12);
    config.sampler = {1.0f, 0, 1.0f, 0.0f};
    config.seed = 7;
    config.name = i;
    EXPECT_EQ(first["choices"][i]["text"], alone(config));
    EXPECT_EQ(first["choices"][i]["text"], again["choices"][i]["text"]);
  }
  EXPECT_NE(first["choices"][0]["text"], first["choices"][1]["text"]);
  Json free = body;
  free.erase("seed");
  EXPECT_NE(server.post("/v1/completions", free)["choices"], server.post("/v1/completions", free)["choices"])
      << "random seeds differ";
}

TEST(Http, LlamaServersCompletion) {
  Server server;
  const Json json = server.post("/completion", {{"prompt", "hello"}, {"n_predict", 8}, {"return_tokens", true}});
  EXPECT_EQ(json["content"], alone(ask("hello", 8)));
  EXPECT_EQ(json["stop_type"], "limit");
  EXPECT_EQ(json["tokens"].size(), 8u);
  EXPECT_EQ(json["timings"]["predicted_n"], 8);
}

TEST(Http, AStopStringIsNeverShown) {
  Server server;
  const std::string whole = alone(ask("hello", 60)), stop = whole.substr(9, 2);
  const Json json = server.post("/v1/completions", {{"prompt", "hello"}, {"max_tokens", 60}, {"stop", stop}});
  EXPECT_EQ(json["choices"][0]["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
}

TEST(Http, LogitsCanBeChangedAndSeen) {
  Server server;
  Json body = {{"prompt", "hello"}, {"max_tokens", 30}, {"frequency_penalty", 1.5}, {"logit_bias", {{"33", 3.0}}}};
  GenerationConfig config = ask("hello", 30);
  config.rules.frequency = 1.5f;
  config.rules.bias = {{33, 3.0f}};
  const std::string expected = alone(config);
  EXPECT_NE(expected, alone(ask("hello", 30)));
  for (const char* mode : {"off", "static", "drift"}) {
    body["drift"] = {{"mode", mode}};
    EXPECT_EQ(server.post("/v1/completions", body)["choices"][0]["text"], expected) << mode;
  }
  // Log-probabilities are the same however a token came about.
  Json logged = {{"prompt", "hello"}, {"max_tokens", 30}, {"logprobs", 3}, {"drift", {{"mode", "off"}}}};
  const Json plain = server.post("/v1/completions", logged)["choices"][0]["logprobs"];
  EXPECT_EQ(plain["tokens"].size(), 30u);
  logged["drift"]["mode"] = "static";
  EXPECT_EQ(server.post("/v1/completions", logged)["choices"][0]["logprobs"], plain);
  // An end is put off, or never comes.
  body = {{"prompt", "hello"}, {"max_tokens", 200}, {"logit_bias", {{"95", 100}}}, {"min_tokens", 7}};
  EXPECT_EQ(server.post("/v1/completions", body)["usage"]["completion_tokens"], 8);
  body["ignore_eos"] = true;
  EXPECT_EQ(server.post("/v1/completions", body)["usage"]["completion_tokens"], 200);
}

TEST(Http, ContextOverflowIsToldInNumbers) {
  Options options;
  options.context = 32;
  Server server(options);
  const Json json = server.post("/v1/completions", {{"prompt", std::string(40, 'x')}}, 400);
  EXPECT_EQ(json["error"]["type"], "exceed_context_size_error");
  EXPECT_EQ(json["error"]["n_prompt_tokens"], 40);
  EXPECT_EQ(json["error"]["n_ctx"], 32);
  const Json full = server.post("/v1/completions", {{"prompt", std::string(30, 'x')}, {"max_tokens", 100}});
  EXPECT_EQ(full["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(full["usage"]["total_tokens"], 32);
}

// ---- streams ----

TEST(HttpStream, IsTheContractToTheLetter) {
  Server server;
  Json body = chat("hi");
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  RawClient client(server.port());
  client.post("/v1/chat/completions", api::dump(body), "Connection: close\r\n");
  const std::string answer = client.read_all();
  EXPECT_EQ(answer.rfind("HTTP/1.1 200", 0), 0u);
  EXPECT_NE(answer.find("Content-Type: text/event-stream\r\n"), std::string::npos) << answer.substr(0, 400);
  EXPECT_NE(answer.find("Cache-Control: no-cache\r\n"), std::string::npos);
  const std::string events = unchunk(answer);
  EXPECT_EQ(events.rfind("data: {", 0), 0u);
  EXPECT_EQ(events.substr(events.size() - 16), "\n\ndata: [DONE]\n\n");
  std::string text;
  std::vector<std::string> finishes;
  int usages = 0, chunks = 0;
  for (std::size_t at = 0; at < events.size();) {
    const std::size_t end = events.find("\n\n", at);
    const std::string line = events.substr(at, end - at);
    at = end + 2;
    ASSERT_EQ(line.rfind("data: ", 0), 0u) << line;
    if (line == "data: [DONE]") continue;
    const Json chunk = Json::parse(line.substr(6));
    if (chunk["choices"].empty()) {
      ++usages;
      EXPECT_EQ(chunk["usage"]["completion_tokens"], 16);
      continue;
    }
    const Json& choice = chunk["choices"][0];
    if (chunks++ == 0) {
      EXPECT_EQ(choice["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
    }
    if (choice["delta"].contains("content")) text += choice["delta"]["content"];
    if (!choice["finish_reason"].is_null()) finishes.push_back(choice["finish_reason"]);
  }
  EXPECT_EQ(text, alone(ask("user: hi\nassistant: ", 16)));
  EXPECT_EQ(finishes, std::vector<std::string>{"length"});
  EXPECT_EQ(usages, 1);
}

TEST(HttpStream, EarlyFailuresHaveTheirOwnStatus) {
  Options options;
  Server server(options);
  server.rig().target.fault = [] { return Status(Code::kInternal, "the backend broke"); };
  Json body = chat("hi");
  body["stream"] = true;
  const Json json = server.post("/v1/chat/completions", body, 500);
  EXPECT_EQ(json["error"]["type"], "server_error");
  EXPECT_EQ(json["error"]["message"], "the backend broke");
}

TEST(HttpStream, LaterFailuresAreAnEvent) {
  Options options;
  options.scheduler.slots = 1;
  Server server(options);
  std::atomic<int> passes{0};
  server.rig().target.fault = [&] { return ++passes < 6 ? Status::ok() : Status(Code::kInternal, "the backend broke"); };
  RawClient client(server.port());
  client.post("/v1/completions", R"({"prompt": "hello", "stream": true, "max_tokens": 200, "drift": {"mode": "off"}})",
              "Connection: close\r\n");
  const std::string events = unchunk(client.read_all());
  EXPECT_NE(events.find("\"text\":"), std::string::npos);
  const std::size_t error = events.find("data: {\"error\":{\"message\":\"the backend broke\"");
  ASSERT_NE(error, std::string::npos) << events;
  EXPECT_EQ(events.find("[DONE]"), std::string::npos);
}

TEST(HttpStream, ASilentStreamIsKeptAlive) {
  Options options;
  options.http.status_patience = milliseconds(150);
  options.http.ping_every = milliseconds(150);
  options.step_pause = milliseconds(700);
  Server server(options);
  RawClient client(server.port());
  client.post("/v1/completions", R"({"prompt": "hello", "stream": true, "max_tokens": 2, "drift": {"mode": "off"}})",
              "Connection: close\r\n");
  const std::string events = unchunk(client.read_all());
  EXPECT_EQ(events.rfind(": keep-alive\n\n", 0), 0u) << events;
  EXPECT_NE(events.find("data: [DONE]\n\n"), std::string::npos);
}

// ---- clients that go away ----

// Sends a request, waits for a state, hangs up, and sees every slot come back although much was left to do.
void hang_up(const char* path, bool stream, const std::function<bool(const SchedulerState&)>& when,
             milliseconds pause = milliseconds(20)) {
  Options options;
  options.scheduler.slots = 1;
  options.scheduler.chunk_alone = options.scheduler.chunk_shared = 8;
  options.context = 4'096;
  options.step_pause = pause;
  Server server(options);
  RawClient other(server.port());
  Json body = {{"prompt", "the other one"}, {"max_tokens", 30}, {"drift", {{"mode", "off"}}}};
  other.post("/v1/completions", api::dump(body), "Connection: close\r\n");
  ASSERT_TRUE(server.wait_until([](const SchedulerState& s) { return s.slots[0].phase != Phase::kIdle; }));
  {
    RawClient client(server.port());
    body = {{"prompt", std::string(400, 'x')}, {"max_tokens", 3'000}, {"stream", stream}, {"drift", {{"mode", "off"}}}};
    client.post(path, api::dump(body));
    ASSERT_TRUE(server.wait_until(when));
  }
  const auto from = std::chrono::steady_clock::now();
  EXPECT_TRUE(server.wait_until_idle());
  EXPECT_LT(std::chrono::steady_clock::now() - from, seconds(10));
  const std::string answer = other.read_all();
  EXPECT_EQ(Json::parse(answer.substr(answer.find("\r\n\r\n") + 4))["choices"][0]["text"], alone(ask("the other one", 30)));
}

bool is_queued(const SchedulerState& state) { return state.waiting == 1; }
bool is_prefilling(const SchedulerState& state) {
  return state.slots[0].phase == Phase::kPrefill && state.slots[0].prompt_tokens == 400;
}
bool is_decoding(const SchedulerState& state) {
  return state.slots[0].phase == Phase::kDecode && state.slots[0].prompt_tokens == 400;
}

TEST(HttpHangUp, QueuedWhole) { hang_up("/v1/completions", false, is_queued); }
TEST(HttpHangUp, QueuedStream) { hang_up("/v1/completions", true, is_queued); }
TEST(HttpHangUp, PrefillWhole) { hang_up("/completion", false, is_prefilling, milliseconds(30)); }
TEST(HttpHangUp, PrefillStream) { hang_up("/completion", true, is_prefilling, milliseconds(30)); }
TEST(HttpHangUp, DecodeWhole) { hang_up("/v1/completions", false, is_decoding, milliseconds(5)); }
TEST(HttpHangUp, DecodeStream) { hang_up("/v1/completions", true, is_decoding, milliseconds(5)); }

TEST(HttpHangUp, AStormLeavesNothingBehind) {
  Options options;
  options.scheduler.slots = 4;
  options.context = 4'096;
  Server server(options);
  for (int round = 0; round < 100; ++round) {
    RawClient client(server.port());
    client.post("/v1/completions", R"({"prompt": "storm", "max_tokens": 3000, "stream": true})");
    if (round % 3 == 0) client.read_until("data: ", milliseconds(1'000));
  }
  EXPECT_TRUE(server.wait_until_idle());
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "hello"}, {"max_tokens", 4}})["choices"][0]["text"],
            alone(ask("hello", 4)));
}

TEST(HttpHangUp, AReaderThatDoesNotReadHoldsNobodyUp) {
  Options options;
  options.scheduler.slots = 2;
  options.context = 4'096;
  options.http.write_timeout = seconds(1);
  Server server(options);
  RawClient slow(server.port(), /*receive_bytes=*/2'048);
  slow.post("/v1/completions", R"({"prompt": "slow", "max_tokens": 3500, "stream": true, "drift": {"mode": "off"}})");
  ASSERT_TRUE(server.wait_until([](const SchedulerState& s) { return s.slots[0].phase == Phase::kDecode; }));
  const auto from = std::chrono::steady_clock::now();
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "quick"}, {"max_tokens", 20}})["choices"][0]["text"],
            alone(ask("quick", 20)));
  EXPECT_LT(std::chrono::steady_clock::now() - from, seconds(10));
  EXPECT_TRUE(server.wait_until_idle());
}

// ---- limits and errors ----

TEST(HttpLimits, BodiesAreBounded) {
  Options options;
  options.http.body_bytes_max = 10'000;
  Server server(options);
  const Json json = server.post("/v1/completions", {{"prompt", std::string(20'000, 'x')}}, 413);
  EXPECT_NE(json["error"]["message"].get<std::string>().find("10000 bytes"), std::string::npos) << json;
  // The same in chunks, whose length nobody announces.
  RawClient client(server.port());
  std::string chunks = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunks += "400\r\n" + std::string(1'024, 'x') + "\r\n";
  client.send(chunks + "0\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n").rfind("HTTP/1.1 413", 0), 0u);
}

TEST(HttpLimits, ABodyThatTricklesInIsCutOff) {
  Options options;
  options.http.body_timeout = seconds(1);
  Server server(options);
  RawClient client(server.port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n");
  for (int i = 0; i < 100 && client.try_send("x"); ++i) std::this_thread::sleep_for(milliseconds(100));
  const std::string answer = client.read_until("}}");
  EXPECT_EQ(answer.rfind("HTTP/1.1 408", 0), 0u) << answer;
}

TEST(HttpLimits, AHeadThatTricklesInIsCutOff) {
  Options options;
  options.http.head_timeout = seconds(1);
  Server server(options);
  for (const std::string start : {"GET /he", "GET /health HTTP/1.1\r\nHost: x\r\nX-Long: "}) {
    RawClient client(server.port());
    client.send(start);
    const auto from = std::chrono::steady_clock::now();
    while (client.try_send("x") && std::chrono::steady_clock::now() - from < seconds(8))
      std::this_thread::sleep_for(milliseconds(100));
    client.read_all();
    EXPECT_TRUE(client.ended()) << start;
    EXPECT_LT(std::chrono::steady_clock::now() - from, seconds(5)) << start;
  }
}

TEST(HttpLimits, TheSizesOfChunksAreInTheBodysTime) {
  Options options;
  options.http.body_timeout = seconds(1);
  Server server(options);
  RawClient client(server.port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;");
  for (int i = 0; i < 100 && client.try_send("x"); ++i) std::this_thread::sleep_for(milliseconds(100));
  const std::string answer = client.read_until("}}");
  EXPECT_EQ(answer.rfind("HTTP/1.1 408", 0), 0u) << answer;
}

TEST(HttpLimits, RequestsThatComeTogetherAreAllAnswered) {
  Server server;
  RawClient client(server.port());
  const std::string body = R"({"content": "ab"})";
  const std::string one =
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  client.send(one + one + "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answers = client.read_all();
  std::size_t count = 0;
  for (std::size_t at = answers.find("HTTP/1.1 200"); at != std::string::npos; at = answers.find("HTTP/1.1 200", at + 1)) ++count;
  EXPECT_EQ(count, 3u) << answers;
}

TEST(HttpLimits, AFullQueueIs503AndTheTenantsOwnShare429) {
  Options options;
  options.scheduler.slots = 1;
  options.scheduler.queue_max = 3;
  options.scheduler.queue_per_tenant_max = 2;
  options.step_pause = milliseconds(20);
  options.context = 4'096;
  Server server(options);
  RawClient busy(server.port());
  busy.post("/v1/completions", R"({"prompt": "x", "max_tokens": 3000, "drift": {"mode": "off"}})");
  ASSERT_TRUE(server.wait_until([](const SchedulerState& s) { return s.slots[0].phase == Phase::kDecode; }));
  const auto many = [&](int n) {
    return server.client().Post("/v1/completions", R"({"prompt": "y", "n": )" + std::to_string(n) + "}", "application/json");
  };
  const auto full = many(4);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->status, 503);
  EXPECT_EQ(full->get_header_value("Retry-After"), "1");
  const auto share = many(3);
  ASSERT_TRUE(share);
  EXPECT_EQ(share->status, 429);
  EXPECT_EQ(share->get_header_value("Retry-After"), "1");
  EXPECT_EQ(Json::parse(share->body)["error"]["type"], "rate_limit_error");
}

TEST(HttpLimits, MalformedBodiesAndUnknownAddressesAreAnsweredInJson) {
  Server server;
  const auto refused = [&](const std::string& body, int status = 400) {
    auto got = server.client().Post("/v1/completions", body, "application/json");
    EXPECT_TRUE(got);
    EXPECT_EQ(got->status, status) << got->body;
    return Json::parse(got->body)["error"];
  };
  EXPECT_NE(refused("{")["message"].get<std::string>().find("JSON"), std::string::npos);
  EXPECT_NE(refused("[]")["message"].get<std::string>().find("object"), std::string::npos);
  EXPECT_EQ(refused(R"({"prompt": "x", "top_p": 7})")["param"], "top_p");
  EXPECT_NE(refused("{\"prompt\": \"\xFF\"}")["message"].get<std::string>().find("JSON"), std::string::npos);
  EXPECT_NE(refused("{\"a\":" + std::string(1'000'000, '[') + "}")["message"].get<std::string>().find("the body"),
            std::string::npos);
  EXPECT_EQ(server.get("/nowhere", 404)["error"]["type"], "not_found_error");
  EXPECT_EQ(server.get("/v1/models/other", 404)["error"]["code"], "model_not_found");
  EXPECT_EQ(server.get("/v1/models/" + std::string(8'000, 'x'), 404)["error"]["type"], "not_found_error");
  EXPECT_EQ(server.get("/v1/completions", 404)["error"]["type"], "not_found_error");
}

TEST(HttpLimits, ManyConnectionsThatNeverSendDoNotEndService) {
  Options options;
  options.http.threads_max = 32;
  options.http.read_timeout = seconds(1);
  Server server(options);
  std::vector<std::unique_ptr<RawClient>> silent;
  const auto from = std::chrono::steady_clock::now();
  for (int i = 0; i < 64; ++i) silent.push_back(std::make_unique<RawClient>(server.port()));
  EXPECT_EQ(server.post("/v1/completions", {{"prompt", "hello"}, {"max_tokens", 4}})["choices"][0]["text"],
            alone(ask("hello", 4)));
  EXPECT_LT(std::chrono::steady_clock::now() - from, seconds(6)) << "two rounds of threads, a second each";
}

// ---- keys, origins, names ----

TEST(HttpKeys, WithoutOneOnlyHealthIsTold) {
  Options options;
  options.keys = {{"secret-1", {}}, {"secret-2", {"other", false}}};
  Server server(options);
  EXPECT_EQ(server.get("/health")["status"], "ok");
  EXPECT_EQ(server.get("/ready")["status"], "ready");
  for (const char* path : {"/v1/models", "/props", "/slots", "/metrics", "/version", "/v1/drift/state"}) {
    EXPECT_EQ(server.get(path, 401)["error"]["type"], "authentication_error") << path;
  }
  const auto with = [&](const httplib::Headers& headers) {
    auto got = server.client().Post("/v1/completions", headers, R"({"prompt": "x", "max_tokens": 1})", "application/json");
    return got ? got->status : 0;
  };
  EXPECT_EQ(with({}), 401);
  EXPECT_EQ(with({{"Authorization", "Bearer secret-3"}}), 401);
  EXPECT_EQ(with({{"Authorization", "secret-1"}}), 401);
  RawClient nothing(server.port());
  nothing.post("/v1/completions", R"({"prompt": "x"})", "Authorization: Bearer \r\n");
  EXPECT_EQ(nothing.read_until("\r\n\r\n").rfind("HTTP/1.1 401", 0), 0u);
  EXPECT_EQ(with({{"Authorization", "Bearer secret-1"}}), 200);
  EXPECT_EQ(with({{"X-Api-Key", "secret-2"}}), 200);
  EXPECT_EQ(server.log().find("secret"), std::string::npos) << "keys are never logged";
}

TEST(HttpKeys, AreReadFromTextAndChecked) {
  const std::vector<ApiKey> read = keys_of_text("a\n# comment\n\n  b  law \r\nc law operator").value();
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].identity, (Identity{"default", true}));
  EXPECT_EQ(read[1].key, "b");
  EXPECT_EQ(read[1].identity, (Identity{"law", false}));
  EXPECT_EQ(read[2].identity, (Identity{"law", true}));
  const Status bad = keys_of_text("a\ntop-secret law king\n").status();
  EXPECT_NE(bad.message().find("line 2"), std::string::npos);
  EXPECT_EQ(bad.message().find("top-secret"), std::string::npos);
  EXPECT_EQ(ApiKeys::make({{"with space", {}}}).status().code(), Code::kInvalid);
  EXPECT_EQ(ApiKeys::make({{"", {}}}).status().code(), Code::kInvalid);
  EXPECT_EQ(ApiKeys::make({{std::string(513, 'x'), {}}}).status().code(), Code::kInvalid);
  EXPECT_EQ(ApiKeys::make({{"k", {"../up", false}}}).status().code(), Code::kInvalid);
  EXPECT_EQ(ApiKeys::make({{"k", {}}, {"k", {"law", false}}}).status().code(), Code::kInvalid);
  EXPECT_EQ(ApiKeys::make({{"top-secret\n", {}}}).status().message().find("top-secret"), std::string::npos);
  const ApiKeys keys = ApiKeys::make({{"a", {"x", false}}, {"b", {}}}).value();
  EXPECT_EQ(keys.find("a")->tenant, "x");
  EXPECT_TRUE(keys.find("b")->is_operator);
  for (const std::string& other : {std::string(), std::string("A"), std::string("ab"), std::string(100'000, 'a')})
    EXPECT_FALSE(keys.find(other));
  EXPECT_TRUE(ApiKeys().find("anything")->is_operator);
}

TEST(HttpKeys, ATenantSharesWhereAllItsKeysSaySo) {
  const auto made = [](const std::string& text) { return ApiKeys::make(keys_of_text(text).value()); };
  const ApiKeys keys = made("boss\na law share\nb law operator share\nc med share operator\nd tax\n").value();
  EXPECT_EQ(keys.sharing(), (std::set<std::string>{"law", "med"}));
  EXPECT_FALSE(keys.find("a")->is_operator);
  EXPECT_TRUE(keys.find("b")->is_operator);
  EXPECT_FALSE(keys.find("d")->shares);
  EXPECT_TRUE(made("boss\n")->sharing().empty()) << "nobody shares unasked";
  const Status torn = made("a law share\nsecret law\n").status();
  EXPECT_EQ(torn.code(), Code::kInvalid);
  EXPECT_NE(torn.message().find("'law' shares its banks by one key and not by"), std::string::npos) << torn.message();
  EXPECT_EQ(torn.message().find("secret"), std::string::npos);
  for (const char* bad : {"a law share share", "a law shared", "a law operator share operator"})
    EXPECT_EQ(keys_of_text(bad).status().code(), Code::kInvalid) << bad;
}

TEST(HttpKeys, OthersAreTakenWhileItServes) {
  Options options;
  options.keys = {{"old", {}}};
  Server server(options);
  const auto status = [&](const std::string& key) {
    return server.client().Get("/v1/models", httplib::Headers{{"X-Api-Key", key}})->status;
  };
  EXPECT_EQ(status("old"), 200);
  EXPECT_EQ(status("new"), 401);
  server.use(ApiKeys::make({{"new", {}}}).value());
  EXPECT_EQ(status("old"), 401);
  EXPECT_EQ(status("new"), 200);
}

TEST(HttpKeys, AFileNeedNotHoldTheKeyItself) {
  const std::string hash = "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";  // of "a"
  const ApiKeys keys = ApiKeys::make(keys_of_text(hash + " law\n").value()).value();
  EXPECT_EQ(keys.find("a")->tenant, "law");
  EXPECT_FALSE(keys.find(hash));
  EXPECT_FALSE(keys.find(hash.substr(7)));
  for (const std::string& bad : {hash.substr(0, hash.size() - 1), hash + "0", hash.substr(0, hash.size() - 1) + "B"})
    EXPECT_EQ(ApiKeys::make({{bad, {}}}).status().code(), Code::kInvalid) << bad;
}

// ---- tenants ----

class HttpTenants : public ::testing::Test {
 protected:
  static Options options() {
    Options out;
    out.keys = {{"boss", {}}, {"ka", {"a", false}}, {"kb", {"b", false}}};
    out.step_pause = milliseconds(2);
    return out;
  }
  Json call(const std::string& method, const std::string& path, const std::string& key, int status,
            const std::string& body = "{}") {
    httplib::Client client = server_.client();
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.set_header("Authorization", "Bearer " + key);
    if (method != "GET") request.body = body;
    auto got = client.send(request);
    EXPECT_TRUE(got) << method << path;
    if (!got) return nullptr;
    EXPECT_EQ(got->status, status) << method << " " << path << ": " << got->body.substr(0, 300);
    last_ = got->body;
    const auto json = Json::parse(got->body, nullptr, false);
    return json.is_discarded() ? Json(nullptr) : json;
  }
  void teach(const std::string& key, const std::string& prompt) {
    call("POST", "/v1/completions", key, 200, api::dump({{"prompt", prompt}, {"max_tokens", 40}}));
  }
  int entries(const std::string& tenant) {
    const Json list = call("GET", "/v1/drift/banks", "boss", 200);
    for (const Json& bank : list["data"]) {
      if (bank["tenant"] == tenant) return bank["entries"];
    }
    return -1;
  }
  std::vector<std::string> names(const std::string& key) {
    std::vector<std::string> out;
    const Json list = call("GET", "/v1/drift/banks", key, 200);
    for (const Json& bank : list["data"]) out.push_back(bank["name"]);
    return out;
  }
  Server server_{options()};
  std::string last_;
};

TEST_F(HttpTenants, EachHasBanksOfItsOwn) {
  teach("ka", "something about law");
  ASSERT_TRUE(server_.wait_until_idle());
  EXPECT_GT(entries("a"), 0);
  EXPECT_EQ(entries("b"), -1);
  teach("kb", "x");
  const Json of_b = call("GET", "/v1/drift/banks", "kb", 200)["data"];
  ASSERT_EQ(of_b.size(), 1u) << "a tenant sees its own only";
  EXPECT_EQ(of_b[0]["tenant"], "b");
  EXPECT_EQ(call("GET", "/v1/drift/state", "kb", 200)["banks"].size(), 1u);
  call("GET", "/v1/drift/banks?tenant=a", "kb", 403);
  call("GET", "/v1/drift/state?history=recent", "kb", 403);
  const Json history = call("GET", "/v1/drift/state?history=recent", "boss", 200)["history"]["banks"];
  ASSERT_EQ(history.size(), 2u);
  EXPECT_EQ(history[0]["tenant"], "a");
  EXPECT_EQ(history[1]["tenant"], "b");
  EXPECT_EQ(history[1]["name"], "default");
  EXPECT_EQ(call("GET", "/v1/drift/banks?tenant=a", "boss", 200)["data"].size(), 1u);
}

TEST_F(HttpTenants, ChangesAreTheOperators) {
  teach("ka", "something about law");
  ASSERT_TRUE(server_.wait_until_idle());
  for (const char* path : {"/v1/drift/banks/default/reset", "/v1/drift/banks/default/freeze"}) call("POST", path, "ka", 403);
  call("GET", "/v1/drift/banks/default/export", "ka", 403);
  call("DELETE", "/v1/drift/banks/default", "ka", 403);
  call("DELETE", "/v1/drift/tenants/a", "ka", 403);
  call("DELETE", "/v1/drift/tenants/a", "nobody", 401);
  EXPECT_GT(entries("a"), 0);
}

TEST_F(HttpTenants, FreezeResetExportImportDelete) {
  teach("ka", "something about law");
  ASSERT_TRUE(server_.wait_until_idle());
  const int learned = entries("a");
  ASSERT_GT(learned, 0);
  call("POST", "/v1/drift/banks/default/freeze?tenant=a", "boss", 200);
  teach("ka", "quite another text");
  ASSERT_TRUE(server_.wait_until_idle());
  EXPECT_EQ(entries("a"), learned) << "a frozen bank learns nothing";
  call("POST", "/v1/drift/banks/default/freeze?tenant=a", "boss", 200, R"({"on": false})");
  call("POST", "/v1/drift/banks/default/freeze?tenant=a", "boss", 400, R"({"on": 5})");
  call("GET", "/v1/drift/banks/default/export?tenant=a", "boss", 200);
  const std::string exported = last_;
  EXPECT_EQ(exported.rfind("SQLite format 3", 0), 0u);
  call("POST", "/v1/drift/banks/default/reset?tenant=a", "boss", 200);
  EXPECT_TRUE(server_.rig().scheduler.between_steps([] { return Status::ok(); }).is_ok());  // a turn is over, and its state told
  EXPECT_EQ(entries("a"), 0);
  call("PUT", "/v1/drift/banks/default?tenant=a", "boss", 200, exported);
  call("PUT", "/v1/drift/banks/copy?tenant=b", "boss", 200, exported);
  EXPECT_TRUE(server_.rig().scheduler.between_steps([] { return Status::ok(); }).is_ok());
  EXPECT_EQ(entries("a"), learned);
  EXPECT_EQ(entries("b"), learned);
  call("PUT", "/v1/drift/banks/default?tenant=a", "boss", 400, "no bank");
  call("PUT", "/v1/drift/banks/default?tenant=a", "boss", 400, exported.substr(0, exported.size() / 2));
  EXPECT_EQ(call("DELETE", "/v1/drift/tenants/a", "boss", 200)["banks"], 1);
  EXPECT_EQ(entries("a"), -1);
  EXPECT_EQ(entries("b"), learned);
  call("DELETE", "/v1/drift/banks/copy?tenant=b", "boss", 200);
  EXPECT_EQ(entries("b"), -1);
  call("DELETE", "/v1/drift/tenants/..", "boss", 400);
  teach("ka", "a new beginning");
  ASSERT_TRUE(server_.wait_until_idle());
  EXPECT_GT(entries("a"), 0);
}

TEST_F(HttpTenants, WhatIsNotThereIsNotMade) {
  for (const char* path : {"/v1/drift/banks/none/reset", "/v1/drift/banks/none/freeze", "/v1/drift/banks/none/reset?tenant=x"})
    call("POST", path, "boss", 404);
  call("GET", "/v1/drift/banks/none/export", "boss", 404);
  call("DELETE", "/v1/drift/banks/none", "boss", 404);
  EXPECT_EQ(call("DELETE", "/v1/drift/tenants/none", "boss", 200)["banks"], 0);
  EXPECT_TRUE(names("boss").empty());
}

TEST_F(HttpTenants, ASaltSelectsAPrivatePart) {
  const auto ask = [&](const Json& more, int status = 200) {
    Json body = {{"prompt", "one prompt for all of them"}, {"max_tokens", 40}};
    body.update(more);
    return call("POST", "/v1/completions", "ka", status, api::dump(body));
  };
  const auto cached = [](const Json& answer) { return answer["timings"]["cache_n"].get<int>(); };
  EXPECT_EQ(cached(ask({{"cache_salt", "one"}})), 0);
  EXPECT_EQ(cached(ask({{"cache_salt", "two"}})), 0);
  EXPECT_GT(cached(ask({{"cache_salt", "two"}})), 0);
  EXPECT_EQ(cached(ask(Json::object())), 0);
  ASSERT_TRUE(server_.wait_until_idle());
  const std::vector<std::string> all = names("ka");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0], "default");
  for (std::size_t i : {1u, 2u}) {
    EXPECT_EQ(all[i].substr(0, 8), "default~");
    EXPECT_EQ(all[i].size(), 8 + kSaltDigits);
  }
  // A part is reached by its salt, not by its name.
  EXPECT_EQ(ask({{"drift", {{"bank", all[1]}}}}, 400)["error"]["param"], "drift.bank");
  EXPECT_EQ(ask({{"cache_salt", ""}}, 400)["error"]["param"], "cache_salt");
  EXPECT_EQ(ask({{"cache_salt", 5}}, 400)["error"]["param"], "cache_salt");
  call("DELETE", "/v1/drift/banks/" + all[1] + "?tenant=a", "boss", 200);
  EXPECT_EQ(names("ka").size(), 2u);
}

TEST_F(HttpTenants, ATenantSeesNothingOfOthers) {
  RawClient client(server_.port());
  client.post("/v1/completions", R"({"prompt": "long", "max_tokens": 500, "stream": true, "drift": {"mode": "off"}})",
              "Authorization: Bearer ka\r\n");
  ASSERT_TRUE(server_.wait_until([](const SchedulerState& s) { return s.slots[0].phase == Phase::kDecode; }));
  const auto prompt = [&](const std::string& path, const std::string& key) {
    const Json json = call("GET", path, key, 200);
    return (path == "/slots" ? json : json["slots"])[0]["n_prompt_tokens"].get<int>();
  };
  for (const char* path : {"/slots", "/v1/drift/state"}) {
    EXPECT_EQ(prompt(path, "ka"), 4) << path;
    EXPECT_EQ(prompt(path, "boss"), 4) << path;
    EXPECT_EQ(prompt(path, "kb"), 0) << path;
  }
  call("GET", "/metrics", "kb", 403);
  call("GET", "/metrics", "boss", 200);
}

TEST_F(HttpTenants, ABusyTenantIsNotDeleted) {
  RawClient client(server_.port());
  client.post("/v1/completions", R"({"prompt": "long", "max_tokens": 500, "stream": true})", "Authorization: Bearer ka\r\n");
  ASSERT_TRUE(server_.wait_until([](const SchedulerState& s) { return s.slots[0].phase != Phase::kIdle; }));
  const Json refused = call("DELETE", "/v1/drift/tenants/a", "boss", 409);
  EXPECT_EQ(refused["error"]["type"], "conflict_error");
}

TEST(HttpCors, IsOffUnlessAsked) {
  const auto header = [](Server& server, const std::string& origin) {
    return server.client()
        .Get("/v1/models", httplib::Headers{{"Origin", origin}})
        ->get_header_value("Access-Control-Allow-Origin");
  };
  Server off;
  EXPECT_EQ(header(off, "http://a.example"), "");
  EXPECT_EQ(
      off.client().Options("/v1/completions", {{"Origin", "http://a.example"}})->get_header_value("Access-Control-Allow-Methods"),
      "");
  Options options;
  options.http.cors_origins = {"http://a.example"};
  Server some(options);
  EXPECT_EQ(header(some, "http://a.example"), "http://a.example");
  EXPECT_EQ(header(some, "http://b.example"), "");
  const auto preflight = some.client().Options("/v1/completions", {{"Origin", "http://a.example"}});
  EXPECT_EQ(preflight->status, 204);
  EXPECT_NE(preflight->get_header_value("Access-Control-Allow-Headers").find("Authorization"), std::string::npos);
  options.http.cors_origins = {"*"};
  Server any(options);
  EXPECT_EQ(header(any, "http://b.example"), "*");
}

TEST(HttpNames, AnotherModelsNameIsIgnoredUnlessStrict) {
  Server lenient;
  EXPECT_EQ(lenient.post("/v1/completions", {{"prompt", "x"}, {"model", "gpt-9"}})["model"], "toy-model");
  Options options;
  options.http.strict_model = true;
  Server strict(options);
  EXPECT_EQ(strict.post("/v1/completions", {{"prompt", "x"}, {"model", "gpt-9"}}, 404)["error"]["param"], "model");
  EXPECT_EQ(strict.post("/v1/completions", {{"prompt", "x"}, {"model", "toy-model"}})["model"], "toy-model");
}

// ---- what is told ----

TEST(HttpInfo, RequestIdsComeBack) {
  Server server;
  EXPECT_EQ(server.client().Get("/v1/models", httplib::Headers{{"X-Request-Id", "my-id"}})->get_header_value("X-Request-Id"),
            "my-id");
  const std::string made = server.client().Get("/v1/models")->get_header_value("X-Request-Id");
  EXPECT_EQ(made.rfind("req-", 0), 0u);
  EXPECT_NE(server.client()
                .Get("/v1/models", httplib::Headers{{"X-Request-Id", std::string(129, 'x')}})
                ->get_header_value("X-Request-Id"),
            std::string(129, 'x'));
  server.post("/v1/completions", {{"prompt", "not for the log"}});
  EXPECT_NE(server.log().find("\"id\":\"my-id\""), std::string::npos);
  EXPECT_EQ(server.log().find("not for the log"), std::string::npos) << "prompts are never logged";
}

TEST(HttpInfo, ModelsPropsSlotsState) {
  Server server;
  const Json models = server.get("/v1/models");
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "toy-model");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(server.get("/v1/models/toy-model"), models["data"][0]);
  EXPECT_EQ(server.get("/props")["total_slots"], 4);
  EXPECT_EQ(server.get("/props")["default_generation_settings"]["n_ctx"], 512);
  EXPECT_EQ(server.get("/slots").size(), 4u);
  EXPECT_TRUE(server.get("/version").contains("version"));
  server.post("/v1/completions", {{"prompt", "teach the bank"}, {"max_tokens", 30}});
  const Json state = server.get("/v1/drift/state");
  EXPECT_EQ(state["banks"][0]["name"], "default");
  EXPECT_GT(state["banks"][0]["entries"].get<int>(), 0);
  Options options;
  options.http.show_slots = false;
  Server quiet(options);
  EXPECT_EQ(quiet.get("/slots", 501)["error"]["type"], "not_supported_error");
}

TEST(HttpPage, IsServedToAnybodyAndLoadsNothingFromElsewhere) {
  Options options;
  options.keys = {{"secret-1", {}}};
  options.open = false;  // the page is there before the models
  Server server(options);
  for (const PageFile& file : page_files()) {
    const auto got = server.client().Get(file.path);
    ASSERT_TRUE(got) << file.path;
    EXPECT_EQ(got->status, 200) << file.path;
    EXPECT_EQ(got->get_header_value("Content-Type"), file.type);
    const std::string policy = got->get_header_value("Content-Security-Policy");
    EXPECT_EQ(policy.rfind("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ", 0), 0u) << policy;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
    EXPECT_EQ(got->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(got->get_header_value("Referrer-Policy"), "no-referrer");
    // The only address in the files is the name of SVG.
    for (std::size_t at = got->body.find("://"); at != std::string::npos; at = got->body.find("://", at + 1))
      EXPECT_EQ(got->body.substr(at, 21), "://www.w3.org/2000/sv") << file.path;
    // What models and clients say goes in as text.
    for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", " onclick="})
      EXPECT_EQ(got->body.find(way), std::string::npos) << file.path << " has " << way;
    for (const char* store : {"localStorage", "sessionStorage", "document.cookie", "indexedDB"})
      EXPECT_EQ(got->body.find(store), std::string::npos) << "keys stay in memory";
  }
  EXPECT_NE(server.client().Get("/")->body.find("<!doctype html>"), std::string::npos);
  server.get("/v1/drift/state?history=recent", 401);
}

TEST(HttpPage, TheStateHasTheHistoryItDraws) {
  Server server;
  const int tokens = 200;
  for (const char* mode : {"off", "static", "drift"})
    server.post("/v1/completions", {{"prompt", "teach the bank"}, {"max_tokens", tokens}, {"drift", {{"mode", mode}}}});
  ASSERT_TRUE(server.wait_until_idle());
  EXPECT_FALSE(server.get("/v1/drift/state").contains("history")) << "only where asked for";
  EXPECT_EQ(server.get("/v1/drift/state?history=all", 400)["error"]["param"], "history");
  for (const char* range : {"recent", "whole"}) {
    const Json state = server.get(std::string("/v1/drift/state?history=") + range);
    EXPECT_EQ(state["draft"], true);
    EXPECT_EQ(state["chat_template"], true);
    const Json& history = state["history"];
    EXPECT_EQ(history["all"]["tokens"], 3 * tokens);
    EXPECT_EQ(history["all"]["verified_tokens"], 2 * tokens);
    for (const auto& [name, list] : history["spans"].items()) {
      EXPECT_EQ(list.size(), history["spans"]["steps"].size()) << name;
      double sum = 0;
      for (const Json& value : list) sum += value.get<double>();
      EXPECT_NEAR(sum, history["all"][name].get<double>(), 1e-2 * static_cast<double>(list.size())) << name;
    }
    ASSERT_EQ(history["banks"].size(), 2u);
    EXPECT_EQ(history["banks"][0]["name"], "") << "static answers have no bank";
    EXPECT_EQ(history["banks"][1]["name"], "default");
    EXPECT_GT(history["banks"][1]["all"]["hits"].get<int>(), 0);
    EXPECT_EQ(history["banks"][1]["spans"]["drafted"].size(), history["spans"]["steps"].size());
    EXPECT_EQ(history["positions"]["all"]["tested"].size(), 3u);
    EXPECT_EQ(history["plain"][0]["answers"], 1);
    EXPECT_GT(history["plain"][0]["steps"].get<int>(), 100);
    EXPECT_GT(history["all"]["compared_ms"].get<double>(), 0);
    EXPECT_GE(history["slots"]["of"].size(), 1u);
  }
  EXPECT_EQ(server.log().find("/v1/drift/state\",\"status\":200"), std::string::npos) << "what is polled does not fill the log";
}

TEST(HttpPage, AStreamTellsTheOriginsItIsAskedFor) {
  Server server;
  const Json body = {
      {"prompt", "hello"}, {"max_tokens", 60}, {"stream", true}, {"drift", {{"mode", "static"}, {"origins", true}}}};
  RawClient client(server.port());
  client.post("/v1/completions", api::dump(body), "Connection: close\r\n");
  const std::string events = unchunk(client.read_all());
  std::string text, of_tokens;
  std::map<std::string, int> seen;
  Json last;
  for (std::size_t at = 0; at < events.size();) {
    const std::size_t end = events.find("\n\n", at);
    const std::string line = events.substr(at, end - at);
    at = end + 2;
    if (line == "data: [DONE]") continue;
    last = Json::parse(line.substr(6));
    const Json& choice = last["choices"][0];
    text += choice["text"];
    if (!choice.contains("drift")) continue;
    for (const Json& token : choice["drift"]["tokens"]) {
      of_tokens += token["token"];
      ++seen[token["origin"]];
      seen["rejected"] += static_cast<int>(token["rejected"].size());
    }
  }
  EXPECT_EQ(text, alone(ask("hello", 60)));
  EXPECT_EQ(of_tokens, text);
  EXPECT_EQ(seen["accepted"], last["timings"]["draft_n_accepted"]);
  EXPECT_EQ(seen["accepted"] + seen["target"], 60);
  EXPECT_GT(seen["rejected"], 0);
}

TEST(HttpInfo, TokensAndBack) {
  Server server;
  const Json tokens = server.post("/tokenize", {{"content", "ab"}})["tokens"];
  EXPECT_EQ(tokens, Json::array({65, 66}));
  EXPECT_EQ(server.post("/detokenize", {{"tokens", tokens}})["content"], "ab");
  EXPECT_EQ(server.post("/tokenize", {{"content", "a"}, {"with_pieces", true}})["tokens"][0], (Json{{"id", 65}, {"piece", "a"}}));
  const Json counted = server.post("/tokenize", {{"prompt", "abc"}});
  EXPECT_EQ(counted["count"], 3);
  EXPECT_EQ(counted["max_model_len"], 512);
  EXPECT_EQ(server.post("/tokenize", chat("x"))["count"], std::string("user: x\nassistant: ").size());
  EXPECT_EQ(server.post("/detokenize", {{"tokens", Json::array({98})}}, 400)["error"]["param"], "tokens[0]");
}

TEST(HttpInfo, EveryExampleOfTheDescriptionIsAnswered) {
  Server server;
  const Json openapi = server.get("/openapi.json");
  EXPECT_EQ(openapi["openapi"], "3.1.0");
  int posts = 0, gets = 0, others = 0;
  for (const auto& [path, methods] : openapi["paths"].items()) {
    std::string real = path;
    for (const auto& [hole, what] :
         {std::pair("{id}", "toy-model"), std::pair("{name}", "default"), std::pair("{tenant}", "default")}) {
      const std::size_t at = real.find(hole);
      if (at != std::string::npos) real.replace(at, std::string(hole).size(), what);
    }
    if (methods.contains("post")) {
      const Json& content = methods["post"]["requestBody"]["content"]["application/json"];
      std::vector<Json> bodies;
      if (content.contains("example")) bodies.push_back(content["example"]);
      for (const Json& one : content.value("examples", Json::object())) bodies.push_back(one["value"]);
      EXPECT_FALSE(bodies.empty()) << path;
      for (const Json& body : bodies) {
        const auto got = server.client().Post(real, api::dump(body), "application/json");
        ASSERT_TRUE(got) << path;
        EXPECT_EQ(got->status, 200) << path << " " << api::dump(body) << ": " << got->body;
        EXPECT_EQ(got->body.rfind("data: ", 0) == 0, body.value("stream", false)) << got->body;
        ++posts;
      }
    } else if (methods.contains("get") && path != "/metrics" && path.find("/export") == std::string::npos) {
      server.get(real);
      ++gets;
    } else {
      ++others;
    }
  }
  EXPECT_GE(posts, 16);
  EXPECT_GE(gets, 9);
  EXPECT_EQ(others, 4);  // no JSON comes, or no example can stand in a text: metrics, a bank's file, deletion
}

TEST(HttpInfo, MetricsHaveTheNamesToolsLookFor) {
  Server server;
  server.post("/v1/completions", {{"prompt", "hello"}, {"max_tokens", 40}, {"drift", {{"mode", "static"}}}});
  server.get("/openapi.json");
  ASSERT_TRUE(server.wait_until_idle());
  const auto got = server.client().Get("/metrics");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->get_header_value("Content-Type").rfind("text/plain", 0), 0u);
  const auto value = [&](const std::string& series) {
    const std::size_t at = got->body.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return at == std::string::npos ? -1.0 : std::stod(got->body.substr(at + series.size() + 2));
  };
  EXPECT_EQ(value("drift_generated_tokens_total"), 40);
  EXPECT_EQ(value("drift_prompt_tokens_total"), 5);
  EXPECT_EQ(value("drift_answers_total{reason=\"length\"}"), 1);
  const double drafted = value("drift_drafted_tokens_total"), accepted = value("drift_accepted_tokens_total");
  EXPECT_GT(drafted, accepted);
  EXPECT_GT(accepted, 0);
  const std::string labels = "{model_name=\"toy-model\",engine=\"0\"}";
  EXPECT_EQ(value("vllm:spec_decode_num_draft_tokens_total" + labels), drafted);
  EXPECT_EQ(value("vllm:spec_decode_num_accepted_tokens_total" + labels), accepted);
  EXPECT_EQ(value("llamacpp:spec_decode_num_accepted_tokens_total"), accepted);
  EXPECT_EQ(value("llamacpp:tokens_predicted_total"), 40);
  EXPECT_EQ(value("drift_slots"), 4);
  EXPECT_EQ(value("drift_http_requests_total{route=\"/openapi.json\",status=\"200\"}"), 1);
}

TEST(HttpEnd, BeforeTheModelsAreLoadedAndWhileDraining) {
  Options options;
  options.open = false;
  options.step_pause = milliseconds(10);
  Server server(options);
  EXPECT_EQ(server.get("/health", 503)["error"]["type"], "unavailable_error");
  EXPECT_EQ(server.client().Get("/ready")->get_header_value("Retry-After"), "1");
  server.post("/v1/completions", {{"prompt", "x"}}, 503);
  server.open();
  EXPECT_EQ(server.get("/ready")["status"], "ready");
  RawClient client(server.port());
  client.post("/v1/completions", R"({"prompt": "hello", "max_tokens": 60, "drift": {"mode": "off"}})", "Connection: close\r\n");
  ASSERT_TRUE(server.wait_until([](const SchedulerState& s) { return s.slots[0].phase != Phase::kIdle; }));
  server.rig().scheduler.drain();
  server.get("/ready", 503);
  EXPECT_EQ(server.get("/health")["status"], "ok");
  server.post("/v1/completions", {{"prompt", "late"}}, 503);
  const std::string answer = client.read_all();
  EXPECT_EQ(Json::parse(answer.substr(answer.find("\r\n\r\n") + 4))["choices"][0]["text"], alone(ask("hello", 60)));
}

TEST(HttpEnd, AnAddressInUseIsSaid) {
  Server server;
  ServerMetrics metrics({"m", false, false, {}});
  Log log(Log::Format::kText, [](std::string_view) {});
  HttpConfig config;
  config.port = server.port();
  HttpServer second(config, {}, metrics, log);
  const Status status = second.start();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("in use"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace drift::server
