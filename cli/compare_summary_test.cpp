#include "cli/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace drift::cli {
namespace {

const CompareOptions kPlainOptions = CompareOptions();

PromptRun run_of(std::size_t prompt, int tokens, std::int64_t ms) {
  PromptRun run;
  run.prompt = prompt;
  trace::StepEvent event;
  for (int i = 0; i < tokens; ++i) event.emitted.push_back({Token{1}, trace::Origin::kTarget});
  event.times.total_ns = ms * 1'000'000;
  run.metrics.add(event);
  return run;
}

// Two prompts, off and drift: 1 s for 10 tokens each against 0.5 s and 2 s.
CompareResult two_modes() {
  CompareResult result;
  result.prompts = {{"a", "law", "", PromptKind::kPrefix, "x"}, {"b", "code", "", PromptKind::kPrefix, "x"}};
  result.infos = {{3, {1.0}}, {4, {1.0}}};
  result.variants.resize(2);
  result.variants[0].variant = {"off", decode::Mode::kOff, {}};
  result.variants[1].variant = {"drift", decode::Mode::kDrift, {}};
  result.drafts.resize(1);
  result.variants[0].compared = result.variants[1].compared = true;
  result.reference = 0;
  result.variants[0].runs = {run_of(0, 10, 1000), run_of(1, 10, 1000)};
  result.variants[1].runs = {run_of(0, 10, 500), run_of(1, 10, 2000)};
  result.noise[4] = {1000, 0.05};
  return result;
}

TEST(CompareSummary, SpeedupsPerPromptPerDomainAndInTotal) {
  CompareResult result = two_modes();
  summarise(kPlainOptions, result);
  const VariantResult& drift = result.variants[1];
  EXPECT_DOUBLE_EQ(drift.runs[0].speedup, 2.0);
  EXPECT_DOUBLE_EQ(drift.runs[1].speedup, 0.5);
  EXPECT_DOUBLE_EQ(drift.speedup, 2000.0 / 2500.0);
  EXPECT_DOUBLE_EQ(drift.speedups.median, 1.25);
  EXPECT_DOUBLE_EQ(drift.domain_speedup.at("law"), 2.0);
  EXPECT_FALSE(drift.beyond);
}

TEST(CompareSummary, ADifferenceWithinTheNoiseIsCountedAndAllowed) {
  CompareResult result = two_modes();
  result.variants[1].runs[0].difference = Difference{3, 0.09};
  summarise(kPlainOptions, result);
  EXPECT_EQ(result.variants[1].diverged_prompts, 1u);
  EXPECT_DOUBLE_EQ(result.variants[1].allowed_margin, 0.1);
  EXPECT_FALSE(result.variants[1].beyond);
}

TEST(CompareSummary, BeyondTheNoiseOrOneByOneItIsNot) {
  CompareResult result = two_modes();
  result.variants[1].runs[0].difference = Difference{3, 0.11};
  summarise(kPlainOptions, result);
  EXPECT_TRUE(result.variants[1].beyond);

  CompareOptions one_by_one;
  one_by_one.one_by_one = true;
  CompareResult exact = two_modes();
  exact.noise.clear();
  exact.variants[1].runs[0].difference = Difference{3, 0.0};
  summarise(one_by_one, exact);
  EXPECT_TRUE(exact.variants[1].beyond) << "identical calls leave no margin";
}

TEST(CompareSummary, WithoutTheWholeNoiseNothingIsJudgedByIt) {
  CompareResult result = two_modes();
  result.noise.clear();
  result.noise_missing = true;
  result.partial = true;
  result.done_runs = 2;
  result.variants[1].runs[0].difference = Difference{3, 5.0};
  summarise(kPlainOptions, result);
  EXPECT_EQ(result.variants[1].diverged_prompts, 1u);
  EXPECT_FALSE(result.variants[1].beyond);
  const auto json = nlohmann::json::parse(report_json(kPlainOptions, result));
  EXPECT_TRUE(json["modes"][1]["divergence_beyond_margin"].is_null());
  EXPECT_TRUE(json["modes"][1]["allowed_divergence_margin"].is_null());
  EXPECT_EQ(json["modes"][1]["max_divergence_margin"], 5.0);
  EXPECT_EQ(json["modes"][0]["divergence_beyond_margin"], false) << "off against off needs no noise";
  const std::string text = report_text(kPlainOptions, result);
  EXPECT_NE(text.find("not judged"), std::string::npos) << text;
  EXPECT_EQ(text.find("DIVERGED"), std::string::npos) << text;
  result.done_runs = 0;
  EXPECT_EQ(report_text(kPlainOptions, result), "\nINTERRUPTED before the first run was done: there are no figures.\n");
}

TEST(CompareSummary, NoCurveInATinyContext) {
  CompareResult result = two_modes();
  summarise(kPlainOptions, result);
  result.context = 2;
  EXPECT_NE(report_text(kPlainOptions, result).find("No cost curve: a context of 2 tokens"), std::string::npos);
  result.context = 4096;
  EXPECT_EQ(report_text(kPlainOptions, result).find("No cost curve"), std::string::npos);
}

TEST(CompareSummary, ANameCannotSteerTheTerminal) {
  CompareResult result = two_modes();
  result.target.name = "t\x1b[2J";
  result.drafts[0].name = std::string(10'000, 'd');
  result.drafts.resize(2);
  result.more_drafts = {{"\x1b[2J" + std::string(10'000, 'p'), ""}};
  const std::string text = report_settings(kPlainOptions, result);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_LT(text.size(), 2'000u);
}

// Two drafts beside -md's, one of them trained while it serves.
TEST(CompareSummary, EachModeTellsItsDraftAndWhatTrainingItCosts) {
  CompareResult result = two_modes();
  result.more_drafts = {{"law.gguf", ""}};
  result.drafts.resize(2);
  result.drafts[0].weight_bytes = 1'000'000;
  result.drafts[1].weight_bytes = 2'500'000;
  result.drafts[1].kv_bytes_per_token = 1'000;
  result.context = 4'096;
  result.variants.resize(4);
  result.variants[2].variant = {"tuned", decode::Mode::kStatic, {}};
  result.variants[2].runs = {run_of(0, 10, 400)};
  result.variants[3].variant = {"kd", decode::Mode::kOnlineKd, {}};
  result.variants[3].runs = {run_of(0, 10, 600), run_of(1, 10, 400), run_of(1, 10, 400)};
  result.variants[3].runs[2].repeat = 1;
  result.variants[2].draft = result.variants[3].draft = 1;
  engine::LearnerStats stats;
  stats.updates = 4;
  stats.update_ns = 280'000'000;
  stats.weight_bytes = 10'000'000;
  stats.optimiser_bytes = 30'000'000;
  stats.buffer_bytes = 700'000;
  result.variants[3].learner = stats;
  summarise(kPlainOptions, result);

  const auto json = nlohmann::json::parse(report_json(kPlainOptions, result));
  ASSERT_EQ(json["more_drafts"].size(), 1u);
  EXPECT_EQ(json["more_drafts"][0]["file"], "law.gguf");
  EXPECT_EQ(json["more_drafts"][0]["weight_bytes"], 2'500'000);
  EXPECT_TRUE(json["modes"][0]["draft"].is_null());
  EXPECT_EQ(json["modes"][1]["draft"], 0);
  EXPECT_EQ(json["modes"][2]["draft"], 1);
  EXPECT_TRUE(json["modes"][2]["learner"].is_null());
  EXPECT_DOUBLE_EQ(json["modes"][3]["learner"]["update_fraction"].get<double>(), 0.2);
  EXPECT_DOUBLE_EQ(json["modes"][3]["step_ms_max"].get<double>(), 600);

  const std::string head = report_settings(kPlainOptions, result), text = report_text(kPlainOptions, result);
  EXPECT_NE(head.find("(2.5 MB), law.gguf"), std::string::npos) << head;
  CompareOptions own = kPlainOptions;  // a target as its own draft is held once, but not in LibTorch
  own.pair.target = own.pair.draft = "target.gguf";
  EXPECT_NE(report_settings(own, result).find("weights 2.5 MB, keys"), std::string::npos) << report_settings(own, result);
  own.pair.draft_engine = DraftEngine::kTorch;
  EXPECT_NE(report_settings(own, result).find("weights 3.5 MB, keys"), std::string::npos);
  EXPECT_NE(head.find("weights 3.5 MB, keys and values 4.1 MB at a context of 4096"), std::string::npos) << head;
  const auto line = [&](const std::string& label) {
    const std::size_t costs = text.find("step p50");
    const std::size_t at = text.find("\n" + label + " ", costs) + 1;
    return text.substr(at, text.find('\n', at) - at);
  };
  for (const char* words : {"400.00", "600.00", " 4 ", "70.00", "20.00%", "10.0", "30.0", "0.7"})
    EXPECT_NE(line("kd").find(words), std::string::npos) << words << " in " << line("kd");
  EXPECT_NE(line("tuned").find(" 2.5 "), std::string::npos) << line("tuned");
  EXPECT_NE(line("drift").find(" 1.0 "), std::string::npos) << line("drift");
}

TEST(CompareSummary, TheJsonHasTheDocumentedFields) {
  CompareResult result = two_modes();
  result.variants[1].runs[0].difference = Difference{3, std::numeric_limits<double>::infinity()};
  summarise(kPlainOptions, result);
  const auto json = nlohmann::json::parse(report_json(kPlainOptions, result));
  EXPECT_EQ(json["schema"], "drift.compare/1");
  for (const char* field : {"drift_version", "partial", "machine", "target", "draft", "sampler", "settings", "noise",
                            "cost_curve", "modes", "prompts", "load_average_before", "load_average_after", "reference"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  for (const char* field : {"mode",
                            "label",
                            "settings",
                            "tokens",
                            "drafted",
                            "accepted",
                            "acceptance",
                            "acceptance_conditional",
                            "mean_accepted_per_block",
                            "per_position",
                            "tokens_per_s",
                            "speedup",
                            "modelled_speedup",
                            "overhead_fraction",
                            "overhead_ns",
                            "bank_entries",
                            "bank_bytes",
                            "diverged_prompts",
                            "max_divergence_margin",
                            "allowed_divergence_margin",
                            "domains"}) {
    EXPECT_TRUE(json["modes"][1].contains(field)) << field;
  }
  for (const char* stage : {"lookup", "bias", "residual", "commit"}) EXPECT_TRUE(json["modes"][1]["overhead_ns"].contains(stage));
  EXPECT_TRUE(json["modes"][1]["max_divergence_margin"].is_null()) << "an infinite margin has no number";
  EXPECT_EQ(json["modes"][1]["divergence_beyond_margin"], true);
  EXPECT_EQ(json["prompts"][0]["runs"].size(), 2u);
  EXPECT_NE(report_text(kPlainOptions, result).find("DIVERGED"), std::string::npos);
}

TEST(CompareSummary, SpreadIsMedianAndQuartiles) {
  const Spread spread = spread_of({4, 1, 3, 2, 5});
  EXPECT_DOUBLE_EQ(spread.median, 3);
  EXPECT_DOUBLE_EQ(spread.low, 2);
  EXPECT_DOUBLE_EQ(spread.high, 4);
  EXPECT_EQ(spread_of({}).count, 0u);
}

}  // namespace
}  // namespace drift::cli
