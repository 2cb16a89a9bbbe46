// request_fuzz.cpp - any bytes as the body of any route: read into a request that keeps its bounds, or refused in words.
//
// The first byte chooses the route (the digits 0 to 5 in the seeds), the rest is the body.
#include <cstddef>
#include <cstdint>
#include <string>

#include "server/api/request.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "text/stop.hpp"

namespace {

using namespace drift;
using namespace drift::server::api;

constexpr std::size_t kVocab = 1'000;

Defaults defaults() {
  Defaults out;
  out.model = "model";
  out.mode = decode::Mode::kDrift;
  out.has_draft = true;
  out.vocab = kVocab;
  return out;
}

void expect_tokens(const std::vector<Token>& tokens) {
  for (const Token token : tokens) FUZZ_EXPECT(token >= 0 && static_cast<std::size_t>(token) < kVocab);
}

void expect_told(const Problem& problem) {
  FUZZ_EXPECT(problem.http >= 400 && problem.http < 500);
  FUZZ_EXPECT(!problem.message.empty());
  FUZZ_EXPECT(parse_body(dump(body_of(problem))).is_ok());
}

void expect_bounds(const GenerateRequest& request) {
  const std::size_t prompts = request.route == Route::kChat ? 1 : request.prompts.size();
  FUZZ_EXPECT(request.n >= 1 && prompts >= 1 && prompts * static_cast<std::size_t>(request.n) <= kChoicesMax);
  FUZZ_EXPECT(request.max_tokens == -1 || (request.max_tokens >= 1 && request.max_tokens <= kTokensMax));
  FUZZ_EXPECT(request.sampler.temperature >= 0 && request.sampler.temperature <= 100);
  FUZZ_EXPECT(request.sampler.top_p > 0 && request.sampler.top_p <= 1 && request.sampler.top_k >= 0);
  FUZZ_EXPECT(request.sampler.min_p >= 0 && request.sampler.min_p <= 1);
  FUZZ_EXPECT(request.logprobs >= -1 && request.logprobs <= kTopLogprobsMax);
  FUZZ_EXPECT(request.draft_tokens >= 1 && request.draft_tokens <= 3);
  FUZZ_EXPECT(request.rules.bias.size() + request.rules.banned.size() + request.text_bias.size() <= kLogitBiasMax);
  FUZZ_EXPECT(request.cache_salt.size() <= kSaltBytesMax && !decode::learns(request.mode));
  FUZZ_EXPECT(text::StopStrings::make(request.stops).is_ok());
  for (const auto& [token, bias] : request.rules.bias) {
    expect_tokens({token});
    FUZZ_EXPECT(bias >= -kBiasMax && bias <= kBiasMax);
  }
  expect_tokens(request.rules.banned);
  for (const Prompt& prompt : request.prompts) {
    if (const auto* tokens = std::get_if<std::vector<Token>>(&prompt)) expect_tokens(*tokens);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto body = parse_body({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!body.is_ok()) {
    expect_told(problem_of(body.status()));
    return 0;
  }
  const auto judge = [](const auto& read, const auto& sound) {
    if (const auto* problem = std::get_if<Problem>(&read)) return expect_told(*problem);
    sound(std::get<0>(read));
  };
  static const Defaults kDefaults = defaults();
  switch (data[0] % 6) {
    case 0: judge(read_generate(Route::kCompletions, body.value(), kDefaults), expect_bounds); break;
    case 1: judge(read_generate(Route::kChat, body.value(), kDefaults), expect_bounds); break;
    case 2: judge(read_generate(Route::kLlama, body.value(), kDefaults), expect_bounds); break;
    case 3: judge(read_tokenize(body.value()), [](const auto&) {}); break;
    case 4: judge(read_detokenize(body.value(), kVocab), expect_tokens); break;
    case 5: judge(read_messages(body.value()), [](const auto& messages) { FUZZ_EXPECT(!messages.empty()); }); break;
  }
  return 0;
}
