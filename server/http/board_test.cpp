// The board in contrib/grafana asks for metrics by name; each must be one that /metrics has.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "server/api/json.hpp"
#include "server/http/metrics.hpp"

namespace drift::server {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// The words of a text that begin with drift_.
std::set<std::string> names_in(const std::string& text) {
  const auto part_of_name = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  std::set<std::string> out;
  for (std::size_t at = text.find("drift_"); at != std::string::npos; at = text.find("drift_", at + 1)) {
    if (at > 0 && part_of_name(text[at - 1])) continue;
    std::size_t end = at;
    while (end < text.size() && part_of_name(text[end])) ++end;
    out.insert(text.substr(at, end - at));
  }
  return out;
}

// Everything that can happen has happened once, so that every family has something to show.
std::set<std::string> metrics_of_a_busy_server() {
  ServerMetrics metrics({"toy", false, false, {}});
  const std::string tenant = "default";
  const StepOwner owner{&tenant, nullptr, decode::Mode::kStatic, 0};
  trace::StepEvent good, bad;
  good.proposed = {{1, true, true}};
  good.emitted = {{1, trace::Origin::kAcceptedBank}, {2}};
  bad.proposed = {{1, false}};
  bad.emitted = {{2}};
  for (int i = 0; i < 6'000; ++i) metrics.stepped({&good, 1}, {&owner, 1});
  for (int i = 0; i < 1'000; ++i) metrics.stepped({&bad, 1}, {&owner, 1});  // a shift
  metrics.request("/", 200, {});
  BankState bank;
  bank.id.name = "default";
  SchedulerState state;
  state.slots.resize(1);
  return names_in(metrics.text(state, {bank}));
}

TEST(Board, EveryMetricOfItExists) {
  const std::string text = text_of(DRIFT_CONTRIB "/grafana/drift.json");
  const std::set<std::string> there = metrics_of_a_busy_server();
  ASSERT_TRUE(there.contains("drift_shifts_total")) << "the test's server saw no shift";
  std::string queries;
  const api::Json board = api::Json::parse(text);
  for (const auto& panel : board["panels"]) {
    if (!panel.contains("targets")) continue;
    for (const auto& target : panel["targets"]) queries += target["expr"].get<std::string>() + "\n";
  }
  for (const auto& annotation : board["annotations"]["list"]) queries += annotation.value("expr", "") + "\n";
  const std::set<std::string> asked = names_in(queries);
  EXPECT_GE(asked.size(), 15u);
  for (const std::string& name : asked) EXPECT_TRUE(there.contains(name)) << name << " is on the board and not in /metrics";
}

}  // namespace
}  // namespace drift::server
