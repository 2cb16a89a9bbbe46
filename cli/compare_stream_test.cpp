#include "cli/compare_stream.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/compare.hpp"

namespace drift::cli {
namespace {

std::vector<Prompt> prompts_of(const std::vector<std::string>& domains) {
  std::vector<Prompt> prompts;
  for (const std::string& domain : domains) {
    Prompt prompt;
    prompt.id = "p" + std::to_string(prompts.size());
    prompt.domain = domain;
    prompts.push_back(prompt);
  }
  return prompts;
}

trace::Metrics counts(std::uint64_t tokens, std::uint64_t drafted, std::uint64_t accepted) {
  trace::Metrics metrics;
  metrics.tokens = tokens;
  metrics.steps = tokens - accepted;
  metrics.drafted = drafted;
  metrics.accepted = accepted;
  metrics.times.total_ns = static_cast<std::int64_t>(tokens) * 1'000'000;
  return metrics;
}

PromptRun run_of(std::size_t prompt, int repeat, const trace::Metrics& metrics) {
  PromptRun run;
  run.prompt = prompt;
  run.repeat = repeat;
  run.metrics = metrics;
  return run;
}

TEST(CompareStream, ADomainThatComesBackIsAnotherSegment) {
  EXPECT_TRUE(segments_of({}).empty());
  const auto segments = segments_of(prompts_of({"general", "general", "law", "general"}));
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].domain, "general");
  EXPECT_EQ(segments[0].count, 2u);
  EXPECT_EQ(segments[1].domain, "law");
  EXPECT_EQ(segments[1].first, 2u);
  EXPECT_EQ(segments[2].domain, "general");
  EXPECT_EQ(segments[2].first, 3u);
  EXPECT_EQ(segments[2].count, 1u);
}

TEST(CompareStream, TheCurveIsTheFirstRepeatsAndAddsUp) {
  const auto curve = curve_of({run_of(0, 0, counts(10, 9, 4)), run_of(1, 0, counts(7, 6, 0)), run_of(0, 1, counts(10, 9, 4))});
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_EQ(curve[0].cumulative_tokens, 10u);
  EXPECT_EQ(curve[1].prompt, 1u);
  EXPECT_EQ(curve[1].tokens, 7u);
  EXPECT_EQ(curve[1].drafted, 6u);
  EXPECT_EQ(curve[1].accepted, 0u);
  EXPECT_EQ(curve[1].cumulative_tokens, 17u);
}

TEST(CompareStream, MovingAcceptanceForgets) {
  MovingAcceptance moving;
  EXPECT_FALSE(moving.value().has_value());
  moving.add(counts(5, 0, 0));
  EXPECT_FALSE(moving.value().has_value()) << "nothing drafted is not an acceptance of zero";
  moving.add(counts(5, 10, 10));
  EXPECT_DOUBLE_EQ(moving.value().value(), 1.0);
  moving.add(counts(5, 30, 0));
  EXPECT_DOUBLE_EQ(moving.value().value(), 0.25) << "weighted by what was drafted";
  for (std::size_t i = 0; i < kMovingRuns; ++i) moving.add(counts(5, 10, 5));
  EXPECT_DOUBLE_EQ(moving.value().value(), 0.5) << "what is older than the last runs is forgotten";
}

// Three segments; static accepts 4 of 10 in each prompt, off is half as fast.
CompareResult a_stream() {
  CompareResult result;
  result.prompts = prompts_of({"general", "law", "law", "general"});
  result.infos.assign(4, {3, {1.0}});
  result.segments = segments_of(result.prompts);
  result.variants.resize(2);
  result.variants[0].variant = {"off", decode::Mode::kOff, {}};
  result.variants[1].variant = {"static", decode::Mode::kStatic, {}};
  result.drafts.resize(1);
  result.reference = 0;
  for (std::size_t p = 0; p < 4; ++p) {
    trace::Metrics plain = counts(10, 0, 0);
    plain.times.total_ns *= 2;
    result.variants[0].runs.push_back(run_of(p, 0, plain));
    result.variants[1].runs.push_back(run_of(p, 0, counts(10, 10, p == 3 ? 8 : 4)));
  }
  return result;
}

TEST(CompareStream, SegmentsAreFoldedApart) {
  CompareResult result = a_stream();
  CompareOptions options;
  options.stream = true;
  summarise(options, result);
  const VariantResult& v = result.variants[1];
  ASSERT_EQ(v.by_segment.size(), 3u);
  EXPECT_EQ(v.by_segment[1].tokens, 20u);
  EXPECT_DOUBLE_EQ(v.by_segment[0].acceptance(), 0.4);
  EXPECT_DOUBLE_EQ(v.by_segment[2].acceptance(), 0.8) << "the return is not the beginning";
  EXPECT_DOUBLE_EQ(v.segment_speedup[1], 2.0);
  EXPECT_DOUBLE_EQ(v.by_domain.at("general").acceptance(), 0.6);
  const std::string text = report_text(options, result);
  EXPECT_NE(text.find("1 general"), std::string::npos) << text;
  EXPECT_NE(text.find("3 general"), std::string::npos) << text;
}

TEST(CompareStream, TheJsonHasCurveAndSegments) {
  CompareResult result = a_stream();
  CompareOptions options;
  options.stream = true;
  summarise(options, result);
  const auto json = nlohmann::json::parse(report_json(options, result));
  EXPECT_EQ(json["schema"], "drift.compare/1") << "fields were added only: old readers go on";
  EXPECT_EQ(json["schema_minor"], 3);
  EXPECT_EQ(json["settings"]["stream"], true);
  EXPECT_EQ(json["segments"][1], nlohmann::json::parse(R"({"domain": "law", "first_prompt": 1, "prompts": 2})"));
  const auto& mode = json["modes"][1];
  EXPECT_EQ(mode["curve"][2],
            nlohmann::json::parse(
                R"({"prompt": 2, "domain": "law", "tokens": 10, "drafted": 10, "accepted": 4, "cumulative_tokens": 30})"));
  EXPECT_EQ(mode["segments"].size(), 3u);
  EXPECT_EQ(mode["segments"][2]["accepted"], 8);
  EXPECT_EQ(mode["segments"][2]["speedup"], 2.0);
}

TEST(CompareStream, WithoutStreamThereIsNeither) {
  CompareResult result = a_stream();
  result.segments.clear();
  summarise(CompareOptions(), result);
  const auto json = nlohmann::json::parse(report_json(CompareOptions(), result));
  EXPECT_EQ(json["settings"]["stream"], false);
  EXPECT_TRUE(json["segments"].empty());
  EXPECT_TRUE(json["modes"][1]["curve"].empty());
  EXPECT_TRUE(json["modes"][1]["segments"].empty());
}

}  // namespace
}  // namespace drift::cli
