// Chat templates, tools and grammars over a real vocabulary: our masks are those of llama.cpp's own grammar sampler, token for token.
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "drift/spec/constraint.hpp"
#include "engines/llama/chat.hpp"
#include "tests/contract/llama_models.hpp"
#include "text/grammar_matcher.hpp"

namespace drift::engine {
namespace {

constexpr const char* kTools = R"({%- for t in tools %}{{ t | tojson }}
{% endfor %}{%- for m in messages %}{%- if m.tool_calls %}<|im_start|>assistant
{%- for c in m.tool_calls %}{%- set f = c.function %}
<tool_call>
{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% elif m.role == "tool" %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %})";

class BuiltInChats : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_llama_common()) GTEST_SKIP() << "SKIPPED ALOUD: this build has no llama-common";
    model_ = shared_model(kBuiltInTarget);
    if (!model_) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(kBuiltInTarget);
  }
  std::shared_ptr<const text::Pieces> pieces() const {
    const LlamaText text(model_);
    std::vector<std::string> bytes(model_->vocab());
    std::vector<Token> ends;
    for (Token t = 0; static_cast<std::size_t>(t) < bytes.size(); ++t) {
      if (text.is_end(t)) {
        ends.push_back(t);
      } else {
        bytes[static_cast<std::size_t>(t)] = text.piece(t, /*special=*/false);
      }
    }
    return std::make_shared<const text::Pieces>(bytes, ends);
  }
  std::shared_ptr<LlamaModel> model_;
};

TEST_F(BuiltInChats, MasksAreThoseOfLlamasOwnSampler) {
  const auto all = pieces();
  const auto schema = schema_grammar(
      R"({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer", "minimum": -5, "maximum": 120},
          "tags": {"type": "array", "items": {"enum": ["a", "b\"c", null]}, "minItems": 1}, "at": {"type": "string", "format": "date"}},
          "required": ["name", "tags"], "additionalProperties": {"type": "number"}})");
  ASSERT_TRUE(schema.is_ok()) << schema.status().message();
  std::mt19937 random(7);
  std::size_t compared = 0;
  for (const std::string& gbnf :
       {schema.value(), std::string("root ::= ([^a-z\\u00e9] | \"the\" | [\\U0001F600-\\U0001F64F]){3,12} .")}) {
    auto read = text::Grammar::parse(gbnf);
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    for (int walk = 0; walk < 3; ++walk) {
      text::GrammarMatcher ours(read.value(), all);
      const std::unique_ptr<llama_sampler, void (*)(llama_sampler*)> theirs(
          llama_sampler_init_grammar(model_->vocab_handle(), gbnf.c_str(), "root"), &llama_sampler_free);
      ASSERT_NE(theirs, nullptr);
      auto state = ours.start();
      for (int step = 0; step < 24; ++step) {
        std::vector<float> logits(model_->vocab());
        ours.mask(state, logits);
        std::vector<llama_token_data> data;
        for (std::size_t t = 0; t < logits.size(); ++t) data.push_back({static_cast<llama_token>(t), 0.0f, 0.0f});
        llama_token_data_array array{data.data(), data.size(), -1, false};
        llama_sampler_apply(theirs.get(), &array);
        std::vector<Token> may;
        for (std::size_t t = 0; t < logits.size(); ++t) {
          const bool end = std::find(all->ends().begin(), all->ends().end(), static_cast<Token>(t)) != all->ends().end();
          if (all->of(static_cast<Token>(t)).empty() && !end) continue;  // control tokens: by their names there, never here
          const bool here = logits[t] == 0.0f, there = data[t].logit == 0.0f;
          // Of a part of a character llama.cpp looks at a range only: it takes some that nothing can complete, and leaves some that can be.
          if (here != there) EXPECT_TRUE((all->of(static_cast<Token>(t)).back() & 0x80) != 0) << t << " at step " << step;
          if (here && there && !end) may.push_back(static_cast<Token>(t));
          ++compared;
        }
        if (may.empty()) break;
        const Token token = may[random() % may.size()];
        state = ours.settle(ours.after(state, token));
        llama_sampler_accept(theirs.get(), token);
      }
    }
  }
  EXPECT_GT(compared, 10'000u);
}

// Not a bound: what a mask costs, for the note.
TEST_F(BuiltInChats, MasksAreLookedUp) {
  const auto all = pieces();
  text::GrammarMatcher matcher(text::Grammar::parse(schema_grammar(R"({"type": "object"})").value()).value(), all);
  std::vector<float> logits(model_->vocab());
  const auto timed = [&](const char* what, auto&& run) {
    const auto from = std::chrono::steady_clock::now();
    run();
    std::printf("%s: %.3f ms\n", what,
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - from).count());
  };
  auto state = matcher.start();
  for (const char c : std::string("{\"a")) {
    for (std::size_t i = 0; i < all->size(); ++i) {
      if (all->bytes(i) != std::string_view(&c, 1)) continue;
      state = matcher.after(state, all->token(i));
      break;
    }
  }
  timed("inside a string, the first mask", [&] { matcher.mask(state, logits); });
  timed("the next ones, 100 times", [&] {
    for (int i = 0; i < 100; ++i) matcher.mask(state, logits);
  });
  EXPECT_FALSE(matcher.complete(state));
}

TEST_F(BuiltInChats, TemplatesAreExecutedAndErrorsAreStatuses) {
  auto made = ChatTemplate::make(
      model_, "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}");
  ASSERT_TRUE(made.is_ok()) << made.status().message();
  EXPECT_EQ((*made)->apply({{"system", "a", {}, "", ""}, {"user", "b", {}, "", ""}}, true).value(), "[system|a][user|b]>");
  EXPECT_EQ((*made)->apply({{"user", "b", {}, "", ""}}, false).value(), "[user|b]");
  EXPECT_FALSE((*made)->knows_tools());
  EXPECT_EQ((*made)->apply_tools({{{"user", "b", {}, "", ""}}, {{"f", "", "{}"}}, ToolChoice::kAuto, false}).status().code(),
            Code::kUnsupported);
  EXPECT_EQ((*made)->apply({}, true).status().code(), Code::kInvalid);
  EXPECT_EQ((*made)->apply({{"user", "\xff", {}, "", ""}}, true).status().code(), Code::kInvalid);
  for (const char* bad : {"{% for m in %}", "{{ messages[0].content", "{{ raise_exception('no') }}", "{{ 1 / 0 | nothing }}"})
    EXPECT_EQ(ChatTemplate::make(model_, bad).status().code(), Code::kInvalid) << bad;
  auto strict = ChatTemplate::make(model_,
                                   "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics here') "
                                   "}}{% endif %}{{ m.content }}{% endfor %}");
  ASSERT_TRUE(strict.is_ok()) << strict.status().message();
  const auto refused = (*strict)->apply({{"critic", "a", {}, "", ""}, {"user", "b", {}, "", ""}}, true);
  EXPECT_EQ(refused.status().code(), Code::kInvalid);
  EXPECT_NE(refused.status().message().find("no critics here"), std::string::npos) << refused.status().message();
}

TEST_F(BuiltInChats, CallsOfToolsAreAskedForAndRead) {
  auto made = ChatTemplate::make(model_, kTools);
  ASSERT_TRUE(made.is_ok()) << made.status().message();
  ASSERT_TRUE((*made)->knows_tools());
  ToolRequest request{
      {{"user", "Weather?", {}, "", ""}},
      {{"weather", "of a city", R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})"}},
      ToolChoice::kRequired,
      false};
  for (const ToolChoice choice : {ToolChoice::kRequired, ToolChoice::kAuto}) {
    request.choice = choice;
    auto prompt = (*made)->apply_tools(request);
    ASSERT_TRUE(prompt.is_ok()) << prompt.status().message();
    EXPECT_NE(prompt->prompt.find("\"weather\""), std::string::npos) << prompt->prompt;
    EXPECT_EQ(prompt->required, choice == ToolChoice::kRequired);
    ASSERT_EQ(prompt->triggers.size(), 1u);
    auto grammar = text::Grammar::parse(prompt->grammar);
    ASSERT_TRUE(grammar.is_ok()) << grammar.status().message();
    const std::string call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    auto whole = prompt->reader->read(call, true);
    ASSERT_TRUE(whole.is_ok()) << whole.status().message();
    ASSERT_EQ(whole->calls.size(), 1u);
    EXPECT_EQ(whole->calls[0].name, "weather");
    EXPECT_EQ(whole->calls[0].arguments, "{\"city\": \"Oslo\"}");
    EXPECT_EQ(whole->content, "");
    const LlamaText text(model_);
    text::GrammarMatcher matcher(grammar.value(), pieces(), {prompt->triggers, prompt->required, prompt->read, {}});
    auto state = matcher.start();
    const std::vector<Token> tokens = text.tokenize(call, false, false).value();
    for (const Token token : tokens) {
      EXPECT_TRUE(matcher.allows(state, token)) << text.piece(token);
      state = matcher.after(state, token);
    }
    EXPECT_TRUE(matcher.complete(state));
    std::string arguments;
    for (std::size_t n = 0; n <= call.size(); ++n) {  // however little of it there is
      auto part = prompt->reader->read(call.substr(0, n), false);
      if (!part.is_ok() || part->calls.empty()) continue;
      EXPECT_EQ(part->calls[0].arguments.rfind(arguments, 0), 0u) << "arguments only grow";
      arguments = part->calls[0].arguments;
    }
  }
}

TEST_F(BuiltInChats, HostileSchemasAreRefusedOrBounded) {
  for (const char* bad :
       {R"({"type": "nonsense"})", R"({"$ref": "#"})", R"([1])", "{", R"({"enum": []})", R"({"pattern": "^(a$"})",
        R"({"pattern": "a+"})", R"({"minItems": -1, "items": {}})", R"({"type": "string", "pattern": "^(?=a)$"})"})
    EXPECT_EQ(schema_grammar(bad).status().code(), Code::kInvalid) << bad;
  const auto made = [](const std::string& schema) -> Status {
    const auto gbnf = schema_grammar(schema);
    return gbnf.is_ok() ? text::Grammar::parse(gbnf.value()).status() : gbnf.status();
  };
  EXPECT_EQ(made(R"({"type": "string", "maxLength": 2000000000})").code(), Code::kLimit);
  EXPECT_TRUE(made(R"({"type": "string", "minLength": 3000, "maxLength": 5000})").is_ok());
  EXPECT_EQ(made(R"({"type": "array", "items": {}, "minItems": 5, "maxItems": 2})").code(), Code::kInvalid);
  EXPECT_EQ(made(R"({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})").code(), Code::kInvalid);
  EXPECT_TRUE(
      made(R"({"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"})").is_ok());
  EXPECT_TRUE(made(R"({"type": "integer", "minimum": -9223372036854775807, "maximum": 9223372036854775806})").is_ok());
  std::string words = R"({"enum": [)";
  for (int i = 0; i < 4'000; ++i) words += (i > 0 ? ", \"word " : "\"word ") + std::to_string(i) + "\"";
  EXPECT_TRUE(made(words + "]}").is_ok());
}

}  // namespace
}  // namespace drift::engine
