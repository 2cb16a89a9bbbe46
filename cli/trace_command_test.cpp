#include "cli/trace_command.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "drift/trace/testing.hpp"

namespace drift::cli {
namespace {

std::vector<std::string> exported(const trace::Reader& reader, const std::string& table, ExportFormat format) {
  std::vector<std::string> lines;
  const auto whole = export_trace(reader, table, format, [&](const std::string& line) { return lines.push_back(line), true; });
  EXPECT_TRUE(whole.is_ok() && whole.value()) << whole.status().message();
  return lines;
}

// A report of the file and one of the events themselves: the same text.
TEST(TraceCommand, StatsAreTheFoldOfTheEvents) {
  const trace::test::Folder folder;
  const auto reader = trace::test::open(trace::test::sample(folder));
  ASSERT_NE(reader, nullptr);
  const auto read = figures_of(*reader);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  TraceFigures live;
  for (const char* domain : {"law", "code"}) {
    for (const trace::StepEvent& event : trace::test::events()) live.add(domain, event);
  }
  const std::string text = figures_json(reader->header(), false, read.value());
  EXPECT_EQ(text, figures_json(reader->header(), false, live));
  EXPECT_EQ(figures_text("static", read.value()), figures_text("static", live));
  const Json json = Json::parse(text);
  Json of_compare;
  put_metrics(of_compare, live.total);  // what compare writes for a mode
  for (const auto& [key, value] : of_compare.items()) EXPECT_EQ(json["total"][key], value) << key;
  EXPECT_EQ(json["total"]["drafted"], 18);
  EXPECT_EQ(json["total"]["accepted"], 8);
  EXPECT_DOUBLE_EQ(json["total"]["acceptance"].get<double>(), 8.0 / 18.0);
  EXPECT_EQ(json["domains"]["code"]["tokens"], 8);
  EXPECT_EQ(json["total"]["accepted_histogram"], Json::parse("[2, 2, 0, 2]"));
}

TEST(TraceCommand, ShowNamesWhatTheTraceHolds) {
  const trace::test::Folder folder;
  const auto reader = trace::test::open(trace::test::sample(folder, /*partial=*/true));
  ASSERT_NE(reader, nullptr);
  const auto text = describe_trace(*reader), json_text = describe_trace_json(*reader);
  ASSERT_TRUE(text.is_ok() && json_text.is_ok());
  for (const char* word : {"hash-of-big", "hash-of-small", "static (draft=3, judge=match)", "interrupted", "code 1, law 1",
                           "6 of prompts, 16 of answers in 8 steps", "length 2"}) {
    EXPECT_NE(text.value().find(word), std::string::npos) << word << " in\n" << text.value();
  }
  const Json json = Json::parse(json_text.value());
  EXPECT_EQ(json["schema"], "drift.trace/1");
  EXPECT_EQ(json["partial"], true);
  EXPECT_EQ(json["emitted"], 16);
  EXPECT_EQ(json["sampler"]["seed"], 18'446'744'073'709'551'615u);
  EXPECT_EQ(json["draft"]["hidden_width"], 2);
}

TEST(TraceCommand, ExportsEveryTable) {
  const trace::test::Folder folder;
  const auto reader = trace::test::open(trace::test::sample(folder));
  ASSERT_NE(reader, nullptr);
  const auto csv = [&](const char* table) { return exported(*reader, table, ExportFormat::kCsv); };
  EXPECT_EQ(csv("prompts")[0], "prompt,id,domain,kind,split,sequence,prompt_tokens,emitted,steps,ending,prefill_ns\n");
  EXPECT_EQ(csv("prompts")[2], "1,two,code,prefix,eval,18364758544493064720,3,8,4,length,12345\n");
  EXPECT_EQ(csv("steps")[1], "0,0,3,3,3,4,1,100,300,50,4,3,2,1,1000\n");
  EXPECT_EQ(csv("proposals")[0], "prompt,step,place,token,q,accepted,from_bank,gain,similarity,overlap,match\n");
  EXPECT_EQ(csv("proposals")[1], "0,0,0,0,0.5,1,1,0.75,0.1,0.3,0\n");
  EXPECT_EQ(csv("proposals").size(), 1u + 18u);
  EXPECT_EQ(csv("tokens")[1], "0,3,0,0,bank\n");
  EXPECT_EQ(csv("tokens").size(), 1u + 16u);
  EXPECT_EQ(csv("target_rows")[1], "0,3,0,0,4.5\n");
  EXPECT_EQ(csv("target_rows").size(), 1u + 16u * 3u);
  const Json row = Json::parse(exported(*reader, "draft_rows", ExportFormat::kJsonLines)[3]);
  EXPECT_EQ(row["position"], 6);
  EXPECT_EQ(row["seen"], 0);
  EXPECT_EQ(row["tokens"], Json::parse("[0, 2, 5]"));
  EXPECT_EQ(row["hidden"], Json::parse("[0.5, 0.0]"));
  EXPECT_NEAR(row["rest"].get<double>(), 0.3848, 1e-3);  // of -1.25, 0.125 and -3
  EXPECT_EQ(Json::parse(exported(*reader, "prompts", ExportFormat::kJsonLines)[0])["tokens"], Json::parse("[5, 0, 1]"));
}

TEST(TraceCommand, ExportStopsAndRefuses) {
  const trace::test::Folder folder;
  const auto reader = trace::test::open(trace::test::sample(folder));
  ASSERT_NE(reader, nullptr);
  int lines = 0;
  const auto whole = export_trace(*reader, "tokens", ExportFormat::kCsv, [&](const std::string&) { return ++lines < 5; });
  ASSERT_TRUE(whole.is_ok());
  EXPECT_FALSE(whole.value());
  EXPECT_EQ(lines, 5);
  const auto none = export_trace(*reader, "rows", ExportFormat::kCsv, [](const std::string&) { return true; });
  EXPECT_EQ(none.status().code(), Code::kInvalid);
  EXPECT_NE(none.status().message().find("draft_rows"), std::string::npos);
}

TEST(TraceCommand, ReadsOrders) {
  const auto orders = parse_orders("# one bank\n0:1 1:0\t0:0\n\n  1:2@a 1:2@b\n", "o", {2, 3});
  ASSERT_TRUE(orders.is_ok()) << orders.status().message();
  ASSERT_EQ(orders.value().size(), 2u);
  ASSERT_EQ(orders.value()[0].size(), 3u);
  EXPECT_EQ(orders.value()[0][1].trace, 1u);
  EXPECT_EQ(orders.value()[0][1].prompt, 0u);
  EXPECT_EQ(orders.value()[0][1].memory, "");
  EXPECT_EQ(orders.value()[1][0].memory, "a");
  EXPECT_EQ(orders.value()[1][1].memory, "b");
  for (const char* bad : {"", "# nothing\n", "0", "0:", ":0", "0:0@", "0:-1", "0:1x", "2:0", "0:2", "0:0\n1:3"}) {
    const auto refused = parse_orders(bad, "orders.txt", {2, 3});
    ASSERT_FALSE(refused.is_ok()) << bad;
    EXPECT_EQ(refused.status().code(), Code::kInvalid);
    EXPECT_NE(refused.status().message().find("orders.txt"), std::string::npos);
  }
  EXPECT_NE(parse_orders("0:0\n1:3", "o", {2, 3}).status().message().find("o:2"), std::string::npos);
}

}  // namespace
}  // namespace drift::cli
