// contract.hpp - what every Engine must do, as one GoogleTest suite over a factory.
//
// Use: include this in one source file of a test program and add
//   INSTANTIATE_TEST_SUITE_P(Toy, EngineContract, ::testing::Values(ContractCase{"toy", make_toy, /*bitwise=*/true}), contract_case_name);
// The engine must allow at least 3 sequences of at least 48 tokens. An engine whose floats depend on the batch's shape or on where
// its KV lies says bitwise = false: the suite then measures both noise floors by decoding one text in several shapes and with its
// KV out of order, allows twice that, and checks that one wrong token in the context would move a row further than shapes do.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "drift/engine/engine.hpp"

namespace drift::engine {

struct ContractCase {
  std::string name;
  std::function<std::unique_ptr<Engine>()> make;  // null: not available here, the case is skipped aloud
  bool bitwise = true;
  std::string missing = "the engine is not available";  // said when make gives null
};

inline void PrintTo(const ContractCase& contract, std::ostream* out) { *out << contract.name; }
inline std::string contract_case_name(const ::testing::TestParamInfo<ContractCase>& info) { return info.param.name; }

// A row copied out of an engine.
struct RowCopy {
  std::vector<float> logits, hidden;
};

// How far two rows are apart: root mean square of the differences, of logits and of hidden states. Zero only if all values are equal.
struct Distance {
  double logits = 0, hidden = 0;
};

inline double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference * difference;
  }
  return a.empty() ? 0 : std::sqrt(sum / static_cast<double>(a.size()));
}

inline Distance distance(const RowCopy& a, const RowCopy& b) {
  return {rms_difference(a.logits, b.logits), rms_difference(a.hidden, b.hidden)};
}

class EngineContract : public ::testing::TestWithParam<ContractCase> {
 protected:
  using Tokens = std::vector<Token>;
  static constexpr std::uint64_t kSeed = 20240607;

  void SetUp() override {
    engine_ = GetParam().make();
    if (!engine_) GTEST_SKIP() << "SKIPPED ALOUD: " << GetParam().missing;
    info_ = engine_->info();
    ASSERT_GE(info_.max_sequences, 3U);
    ASSERT_GE(info_.context, 48U);
    RecordProperty("seed", std::to_string(kSeed));
    if (!GetParam().bitwise) measure_noise_floor();
  }

  // `count` tokens, fixed by the seed and `stream`.
  Tokens text(std::size_t count, std::uint64_t stream = 0) const {
    std::mt19937_64 random(kSeed + stream);
    Tokens tokens(count);
    // Small ids in large vocabularies are often control tokens; keep clear of them.
    const auto low = static_cast<Token>(info_.vocab > 4096 ? 1000 : 0);
    const std::uint64_t span = info_.vocab - static_cast<std::size_t>(low);
    for (Token& token : tokens) token = low + static_cast<Token>(random() % span);
    return tokens;
  }

  SeqId open() {
    const Result<SeqId> seq = engine_->open();
    EXPECT_TRUE(seq.is_ok()) << seq.status().message();
    return seq.is_ok() ? seq.value() : -1;
  }

  // Nodes for `tokens` in a line behind `pending` nodes of a sequence of `kept` tokens.
  static std::vector<Node> line(SeqId seq, Pos kept, Pos pending, const Tokens& tokens, bool rows) {
    std::vector<Node> nodes;
    for (const Token token : tokens) {
      const auto i = static_cast<Pos>(nodes.size()) + pending;
      nodes.push_back({seq, token, kept + i, i > 0 ? i - 1 : kPrefix, rows});
    }
    return nodes;
  }

  std::vector<RowCopy> forward(const std::vector<Node>& nodes) {
    Rows rows;
    const Status status = engine_->forward(nodes, rows);
    EXPECT_TRUE(status.is_ok()) << status.message();
    std::vector<RowCopy> copies;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      RowCopy copy;
      copy.logits.assign(rows.logits_row(i).begin(), rows.logits_row(i).end());
      if (!rows.hidden.empty()) copy.hidden.assign(rows.hidden_row(i).begin(), rows.hidden_row(i).end());
      copies.push_back(std::move(copy));
    }
    return copies;
  }

  static std::vector<NodeIndex> path_of(std::size_t count) {
    std::vector<NodeIndex> path(count);
    for (std::size_t i = 0; i < count; ++i) path[i] = static_cast<NodeIndex>(i);
    return path;
  }

  void keep(SeqId seq, std::size_t count) {
    const Status status = engine_->keep(seq, path_of(count));
    EXPECT_TRUE(status.is_ok()) << status.message();
  }

  // Appends tokens to the kept text without asking for rows.
  void prefill(SeqId seq, const Tokens& tokens) {
    forward(line(seq, engine_->length(seq), 0, tokens, /*rows=*/false));
    keep(seq, tokens.size());
  }

  // The row after the last of `tokens`, from a sequence of its own that is closed again: all before the last in one prefill.
  RowCopy fresh(const Tokens& tokens) {
    const SeqId seq = open();
    if (tokens.size() > 1) prefill(seq, Tokens(tokens.begin(), tokens.end() - 1));
    auto rows = forward(line(seq, static_cast<Pos>(tokens.size()) - 1, 0, {tokens.back()}, /*rows=*/true));
    engine_->close(seq);
    return rows.empty() ? RowCopy{} : rows[0];
  }

  void expect_same(const RowCopy& a, const RowCopy& b, const std::string& what) { expect_within(allowed_, a, b, what); }
  void expect_same_beside_others(const RowCopy& a, const RowCopy& b, const std::string& what) {
    expect_within(allowed_beside_others_, a, b, what);
  }
  void expect_within(const Distance& allowed, const RowCopy& a, const RowCopy& b, const std::string& what) {
    const Distance d = distance(a, b);
    EXPECT_LE(d.logits, allowed.logits) << what;
    EXPECT_LE(d.hidden, allowed.hidden) << what;
    EXPECT_EQ(a.logits.size(), info_.vocab) << what;
    EXPECT_EQ(a.hidden.size(), info_.can.hidden ? info_.hidden_width : 0) << what;
  }

  static Tokens joined(Tokens a, const Tokens& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static Tokens first(const Tokens& tokens, std::size_t count) {
    return Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // Rows of one text decoded in blocks of `size` nodes.
  std::vector<RowCopy> in_blocks(const Tokens& tokens, std::size_t size) {
    const SeqId seq = open();
    std::vector<RowCopy> all;
    for (std::size_t at = 0; at < tokens.size(); at += size) {
      const Tokens block(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                         tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens.size(), at + size)));
      for (RowCopy& row : forward(line(seq, static_cast<Pos>(at), 0, block, true))) all.push_back(std::move(row));
      keep(seq, block.size());
    }
    engine_->close(seq);
    return all;
  }

  // The rows of a text whose KV lies out of order: grown token by token beside two others, one of which is closed half-way so
  // that its room is reused. Attention then sums the same terms in another order, and quantised activations amplify that.
  std::vector<RowCopy> scattered(const Tokens& tokens) {
    const std::vector<SeqId> others = {open(), open()};
    const SeqId seq = open();
    const Tokens filler = text(tokens.size(), 98);
    std::vector<RowCopy> all;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool first_half = i < tokens.size() / 2;
      if (i == tokens.size() / 2) engine_->close(others[1]);
      for (std::size_t s = 0; s < (first_half ? 2U : 1U); ++s) prefill(others[s], {filler[i]});
      for (RowCopy& row : forward(line(seq, static_cast<Pos>(i), 0, {tokens[i]}, true))) all.push_back(std::move(row));
      keep(seq, 1);
    }
    engine_->close(seq);
    engine_->close(others[0]);
    return all;
  }

  struct Floors {
    Distance shape, layout;
  };

  static void raise(Distance& floor, const Distance& d) {
    floor = {std::max(floor.logits, d.logits), std::max(floor.hidden, d.hidden)};
  }

  Floors measured_floors() {
    const Tokens tokens = text(24, 99);
    const auto reference = in_blocks(tokens, 1);
    Floors floors;
    for (const std::size_t size : {2, 3, 4, 8, 24}) {
      const auto rows = in_blocks(tokens, size);
      for (std::size_t i = 0; i < tokens.size(); ++i) raise(floors.shape, distance(rows.at(i), reference.at(i)));
    }
    raise(floors.shape, distance(fresh(tokens), reference.back()));
    floors.layout = floors.shape;
    const auto rows = scattered(tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) raise(floors.layout, distance(rows.at(i), reference.at(i)));
    std::printf("[ noise    ] %s, rms: by batch shape logits %.3g hidden %.3g; by KV layout too logits %.3g hidden %.3g\n",
                GetParam().name.c_str(), floors.shape.logits, floors.shape.hidden, floors.layout.logits, floors.layout.hidden);
    return floors;
  }

  void measure_noise_floor() {
    static std::map<std::string, Floors> measured;  // per case: the engine is the same for all tests of a case
    auto found = measured.find(GetParam().name);
    if (found == measured.end()) found = measured.emplace(GetParam().name, measured_floors()).first;
    const Floors& floors = found->second;
    allowed_ = {2 * floors.shape.logits, 2 * floors.shape.hidden};
    allowed_beside_others_ = {2 * floors.layout.logits, 2 * floors.layout.hidden};
  }

  std::unique_ptr<Engine> engine_;
  ModelInfo info_;
  // Zero: bitwise. The second for a sequence that took over the room of a closed one, so that its KV is out of order.
  Distance allowed_, allowed_beside_others_;
};

TEST_P(EngineContract, AllowanceIsBelowOneWrongToken) {
  const Tokens tokens = text(16, 1);
  const RowCopy right = fresh(tokens);
  for (const std::size_t place : {std::size_t{1}, std::size_t{8}, std::size_t{14}}) {
    Tokens wrong = tokens;
    wrong[place] = wrong[place] == text(2, 2)[0] ? text(2, 2)[1] : text(2, 2)[0];
    const Distance d = distance(right, fresh(wrong));
    EXPECT_GT(d.logits, allowed_.logits) << "a wrong token at " << place << " of 16 would pass unseen";
  }
}

TEST_P(EngineContract, SameRowsTwice) {
  const Tokens tokens = text(8, 3);
  const auto one = in_blocks(tokens, 4);
  const auto two = in_blocks(tokens, 4);
  ASSERT_EQ(one.size(), tokens.size());
  for (std::size_t i = 0; i < one.size(); ++i) expect_same(one[i], two[i], "row " + std::to_string(i));
}

TEST_P(EngineContract, RowsComeInNodeOrder) {
  const Tokens tokens = text(9, 4);
  const SeqId seq = open();
  auto nodes = line(seq, 0, 0, tokens, false);
  for (const std::size_t i : {2, 3, 6, 8}) nodes[i].wants_row = true;
  const auto rows = forward(nodes);
  ASSERT_EQ(rows.size(), 4U);
  std::size_t row = 0;
  for (const std::size_t i : {2, 3, 6, 8})
    expect_same(rows[row++], fresh(first(tokens, i + 1)), "after token " + std::to_string(i));
}

TEST_P(EngineContract, KeepThenForwardEqualsFresh) {
  const Tokens prompt = text(10, 5), block = text(5, 6), next = text(3, 7);
  const SeqId seq = open();
  prefill(seq, prompt);
  forward(line(seq, 10, 0, block, true));
  keep(seq, 3);
  EXPECT_EQ(engine_->length(seq), 13);
  const auto rows = forward(line(seq, 13, 0, next, true));
  ASSERT_EQ(rows.size(), 3U);
  const Tokens kept = joined(prompt, first(block, 3));
  for (std::size_t i = 0; i < 3; ++i) expect_same(rows[i], fresh(joined(kept, first(next, i + 1))), "row " + std::to_string(i));
}

TEST_P(EngineContract, NodesAreNumberedAcrossForwards) {
  const Tokens prompt = text(6, 8), nodes = text(5, 9), next = text(1, 10);
  const SeqId seq = open();
  prefill(seq, prompt);
  forward(line(seq, 6, 0, {nodes[0], nodes[1]}, true));
  forward(line(seq, 6, 2, {nodes[2]}, true));
  const auto rows = forward(line(seq, 6, 3, {nodes[3], nodes[4]}, true));
  ASSERT_EQ(rows.size(), 2U);
  expect_same(rows[1], fresh(joined(prompt, nodes)), "row of the last node");
  EXPECT_EQ(engine_->length(seq), 6) << "pending nodes are not kept text";
  keep(seq, 4);
  EXPECT_EQ(engine_->length(seq), 10);
  const auto after = forward(line(seq, 10, 0, next, true));
  ASSERT_EQ(after.size(), 1U);
  expect_same(after[0], fresh(joined(joined(prompt, first(nodes, 4)), next)), "after keep of four");
}

TEST_P(EngineContract, KeepOfNothingDropsPendingNodes) {
  const Tokens prompt = text(7, 11), dropped = text(4, 12), next = text(2, 13);
  const SeqId seq = open();
  prefill(seq, prompt);
  forward(line(seq, 7, 0, dropped, true));
  keep(seq, 0);
  EXPECT_EQ(engine_->length(seq), 7);
  const auto rows = forward(line(seq, 7, 0, next, true));
  ASSERT_EQ(rows.size(), 2U);
  expect_same(rows[1], fresh(joined(prompt, next)), "after keep of nothing");
}

TEST_P(EngineContract, SeveralSequencesInOneForwardEqualEachAlone) {
  const std::vector<Tokens> prompts = {text(5, 14), text(9, 15), text(2, 16)};
  const std::vector<Tokens> blocks = {text(2, 17), text(4, 18), text(1, 19)};
  std::vector<SeqId> seqs;
  for (const Tokens& prompt : prompts) {
    seqs.push_back(open());
    prefill(seqs.back(), prompt);
  }
  std::vector<Node> nodes;
  std::vector<Tokens> expected;
  for (std::size_t i = 0; i < 4; ++i) {  // interleaved
    for (std::size_t s = 0; s < 3; ++s) {
      if (i >= blocks[s].size()) continue;
      nodes.push_back(line(seqs[s], static_cast<Pos>(prompts[s].size()), 0, blocks[s], true)[i]);
      expected.push_back(joined(prompts[s], first(blocks[s], i + 1)));
    }
  }
  const auto rows = forward(nodes);
  ASSERT_EQ(rows.size(), nodes.size());
  for (std::size_t s = 0; s < 3; ++s) engine_->close(seqs[s]);
  for (std::size_t i = 0; i < rows.size(); ++i) expect_same(rows[i], fresh(expected[i]), "row " + std::to_string(i));
}

TEST_P(EngineContract, PrefillOfOneSequenceBesideRowsOfAnother) {
  const Tokens prompt = text(6, 40), block = text(3, 41), other = text(30, 42), next = text(1, 43);
  const SeqId a = open(), b = open();
  prefill(a, prompt);
  auto nodes = line(a, 6, 0, block, true);
  for (const Node& node : line(b, 0, 0, other, false)) nodes.push_back(node);
  const auto rows = forward(nodes);
  ASSERT_EQ(rows.size(), 3U);
  keep(a, 3);
  keep(b, 30);
  const auto after = forward(line(b, 30, 0, next, true));
  ASSERT_EQ(after.size(), 1U);
  engine_->close(a);
  engine_->close(b);
  for (std::size_t i = 0; i < 3; ++i)
    expect_same(rows[i], fresh(joined(prompt, first(block, i + 1))), "row " + std::to_string(i));
  expect_same(after[0], fresh(joined(other, next)), "after the prefill");
}

TEST_P(EngineContract, ForkEqualsFreshAndStandsAlone) {
  if (!info_.can.fork) GTEST_SKIP() << "this engine cannot fork";
  const Tokens prompt = text(9, 20), left = text(4, 21), right = text(4, 22);
  const SeqId seq = open();
  prefill(seq, prompt);
  const Result<SeqId> copy = engine_->fork(seq);
  ASSERT_TRUE(copy.is_ok()) << copy.status().message();
  EXPECT_NE(copy.value(), seq);
  EXPECT_EQ(engine_->length(copy.value()), 9);
  prefill(seq, first(left, 2));
  prefill(copy.value(), first(right, 2));
  const auto rows_left = forward(line(seq, 11, 0, {left[2]}, true));
  const auto rows_right = forward(line(copy.value(), 11, 0, {right[2]}, true));
  keep(copy.value(), 1);
  engine_->close(seq);
  const auto rows_after = forward(line(copy.value(), 12, 0, {right[3]}, true));  // may take the closed sequence's room
  ASSERT_EQ(rows_left.size(), 1U);
  ASSERT_EQ(rows_right.size(), 1U);
  ASSERT_EQ(rows_after.size(), 1U);
  engine_->close(copy.value());
  expect_same(rows_left[0], fresh(joined(prompt, first(left, 3))), "the original");
  expect_same(rows_right[0], fresh(joined(prompt, first(right, 3))), "the copy");
  const RowCopy expected = fresh(joined(prompt, right));
  expect_same_beside_others(rows_after[0], expected, "the copy after the original was closed");
  // The allowance for scattered KV is wide: the row must also be nearer to the right text than to the likely wrong ones.
  const Tokens last = {right[3]};
  for (const Tokens& wrong : {joined(joined(prompt, first(left, 3)), last), joined(joined(prompt, first(right, 2)), last),
                              joined(joined(first(prompt, 8), first(right, 3)), last)}) {
    EXPECT_LT(distance(rows_after[0], expected).logits, distance(rows_after[0], fresh(wrong)).logits);
  }
}

TEST_P(EngineContract, TruncateEqualsFresh) {
  if (!info_.can.truncate) GTEST_SKIP() << "this engine cannot truncate";
  const Tokens prompt = text(12, 23), next = text(2, 24);
  const SeqId seq = open();
  prefill(seq, prompt);
  forward(line(seq, 12, 0, next, true));  // pending nodes go as well
  ASSERT_TRUE(engine_->truncate(seq, 5).is_ok());
  EXPECT_EQ(engine_->length(seq), 5);
  auto rows = forward(line(seq, 5, 0, next, true));
  ASSERT_EQ(rows.size(), 2U);
  expect_same(rows[1], fresh(joined(first(prompt, 5), next)), "cut to 5");
  ASSERT_TRUE(engine_->truncate(seq, 0).is_ok());
  EXPECT_EQ(engine_->length(seq), 0);
  rows = forward(line(seq, 0, 0, next, true));
  ASSERT_EQ(rows.size(), 2U);
  expect_same(rows[1], fresh(next), "cut to nothing");
}

TEST_P(EngineContract, SequencesAreLimitedAndReused) {
  std::vector<SeqId> seqs;
  for (std::size_t i = 0; i < info_.max_sequences; ++i) seqs.push_back(open());
  const Result<SeqId> more = engine_->open();
  ASSERT_FALSE(more.is_ok());
  EXPECT_EQ(more.status().code(), Code::kLimit);
  EXPECT_NE(more.status().message().find(std::to_string(info_.max_sequences)), std::string::npos) << more.status().message();
  if (info_.can.fork) {
    const Result<SeqId> copy = engine_->fork(seqs[0]);
    ASSERT_FALSE(copy.is_ok());
    EXPECT_EQ(copy.status().code(), Code::kLimit);
  }
  const Tokens old = text(6, 25), next = text(4, 26);
  prefill(seqs[1], old);
  engine_->close(seqs[1]);
  EXPECT_EQ(engine_->length(seqs[1]), -1);
  const SeqId again = open();
  EXPECT_EQ(engine_->length(again), 0);
  const auto rows = forward(line(again, 0, 0, next, true));
  ASSERT_EQ(rows.size(), 4U);
  for (const SeqId seq : seqs) engine_->close(seq);
  engine_->close(again);
  expect_same(rows[3], fresh(next), "a reused slot is empty");
}

TEST_P(EngineContract, RefusesBadNodesAndStaysUnchanged) {
  const Tokens prompt = text(6, 27), block = text(2, 28), next = text(1, 29);
  const SeqId seq = open();
  prefill(seq, prompt);
  forward(line(seq, 6, 0, block, true));
  const Counters before = engine_->counters();
  const auto vocab = static_cast<Token>(info_.vocab);
  const Node good{seq, next[0], 8, 1, true};
  struct Bad {
    const char* what;
    std::vector<Node> nodes;
  };
  const auto with = [&](auto change) {
    Node node = good;
    change(node);
    return std::vector<Node>{node};
  };
  std::vector<Bad> cases = {
      {"unknown sequence", with([](Node& n) { n.seq = 1000; })},
      {"negative sequence", with([](Node& n) { n.seq = -1; })},
      {"closed sequence", with([&](Node& n) { n.seq = seq + 1; })},
      {"negative token", with([](Node& n) { n.token = -1; })},
      {"token beyond the vocabulary", with([&](Node& n) { n.token = vocab; })},
      {"position too small", with([](Node& n) { n.pos = 7; })},
      {"position too large", with([](Node& n) { n.pos = 9; })},
      {"parent beyond the nodes", with([](Node& n) { n.parent = 2; })},
      {"parent is no node", with([](Node& n) { n.parent = -2; })},
      {"parent's position does not fit", with([](Node& n) { n.parent = kPrefix; })},
      {"good node, then a bad one", {good, {seq, next[0], 12, 2, true}}},
      {"child before its parent", {{seq, next[0], 9, 2, true}, good}},
  };
  for (const Bad& bad : cases) {
    Rows rows;
    const Status status = engine_->forward(bad.nodes, rows);
    EXPECT_TRUE(status.code() == Code::kInvalid || status.code() == Code::kUnsupported)
        << bad.what << ": " << code_name(status.code());
    EXPECT_FALSE(status.message().empty()) << bad.what;
  }
  EXPECT_EQ(engine_->counters().forwards, before.forwards);
  EXPECT_EQ(engine_->counters().tokens, before.tokens);
  EXPECT_EQ(engine_->length(seq), 6);
  const auto rows = forward({good});
  ASSERT_EQ(rows.size(), 1U);
  expect_same(rows[0], fresh(joined(joined(prompt, block), next)), "after the refusals");
}

TEST_P(EngineContract, RefusesBadPathsAndLengths) {
  const Tokens prompt = text(5, 30), block = text(3, 31);
  const SeqId seq = open();
  prefill(seq, prompt);
  forward(line(seq, 5, 0, block, true));
  const std::vector<std::vector<NodeIndex>> bad_paths = {{3}, {-1}, {1}, {0, 2}, {0, 0}, {0, 1, 2, 3}, {2, 1, 0}};
  for (const auto& path : bad_paths) EXPECT_EQ(engine_->keep(seq, path).code(), Code::kInvalid) << ::testing::PrintToString(path);
  EXPECT_EQ(engine_->keep(1000, {}).code(), Code::kInvalid);
  EXPECT_EQ(engine_->truncate(seq, 6).code(), Code::kInvalid) << "longer than the kept text";
  EXPECT_EQ(engine_->truncate(seq, -1).code(), Code::kInvalid);
  EXPECT_EQ(engine_->truncate(1000, 0).code(), Code::kInvalid);
  EXPECT_EQ(engine_->fork(1000).status().code(), Code::kInvalid);
  EXPECT_EQ(engine_->length(1000), -1);
  EXPECT_EQ(engine_->length(-1), -1);
  engine_->close(1000);
  EXPECT_EQ(engine_->length(seq), 5);
  keep(seq, 3);  // the pending nodes are still there
  EXPECT_EQ(engine_->length(seq), 8);
}

TEST_P(EngineContract, ContextIsEnforcedBeforeDecoding) {
  const SeqId seq = open();
  const auto context = static_cast<Pos>(info_.context);
  prefill(seq, text(info_.context - 2, 32));
  const Tokens three = text(3, 33);
  Rows rows;
  const Status status = engine_->forward(line(seq, context - 2, 0, three, true), rows);
  EXPECT_EQ(status.code(), Code::kLimit);
  EXPECT_NE(status.message().find(std::to_string(context)), std::string::npos) << status.message();
  EXPECT_EQ(engine_->length(seq), context - 2);
  const auto last = forward(line(seq, context - 2, 0, first(three, 2), true));  // exactly full is allowed
  ASSERT_EQ(last.size(), 2U);
  keep(seq, 2);
  EXPECT_EQ(engine_->length(seq), context);
  EXPECT_EQ(engine_->forward(line(seq, context, 0, {three[2]}, true), rows).code(), Code::kLimit);
  if (!info_.can.truncate) return;
  ASSERT_TRUE(engine_->truncate(seq, context - 2).is_ok());
  const auto again = forward(line(seq, context - 2, 0, first(three, 2), true));
  ASSERT_EQ(again.size(), 2U);
  expect_same(again[1], last[1], "after room was made");
}

TEST_P(EngineContract, SecondChildIsATreeOrRefused) {
  const Tokens prompt = text(6, 34), children = text(2, 35), next = text(1, 36);
  const SeqId seq = open();
  prefill(seq, prompt);
  const std::vector<Node> siblings = {{seq, children[0], 6, kPrefix, true}, {seq, children[1], 6, kPrefix, true}};
  if (!info_.can.trees) {
    Rows rows;
    EXPECT_EQ(engine_->forward(siblings, rows).code(), Code::kUnsupported);
    EXPECT_EQ(engine_->length(seq), 6);
    return;
  }
  const auto rows = forward(siblings);
  ASSERT_EQ(rows.size(), 2U);
  expect_same(rows[0], fresh(joined(prompt, {children[0]})), "first child");
  expect_same(rows[1], fresh(joined(prompt, {children[1]})), "second child");
  const std::vector<NodeIndex> path = {1};
  ASSERT_TRUE(engine_->keep(seq, path).is_ok());
  const auto after = forward(line(seq, 7, 0, next, true));
  ASSERT_EQ(after.size(), 1U);
  expect_same(after[0], fresh(joined(joined(prompt, {children[1]}), next)), "after the second child");
}

TEST_P(EngineContract, CountersCountCallsNodesAndRows) {
  const Counters before = engine_->counters();
  const SeqId seq = open();
  prefill(seq, text(7, 37));
  forward(line(seq, 7, 0, text(3, 38), true));
  Rows none;
  const Status empty = engine_->forward({}, none);  // decodes nothing, refused or not
  EXPECT_TRUE(empty.is_ok() || empty.code() == Code::kInvalid) << empty.message();
  const Counters after = engine_->counters();
  EXPECT_EQ(after.forwards - before.forwards, 2U);
  EXPECT_EQ(after.tokens - before.tokens, 10U);
  EXPECT_EQ(after.rows - before.rows, 3U);
}

TEST_P(EngineContract, InfoDescribesTheRows) {
  EXPECT_FALSE(info_.name.empty());
  EXPECT_GT(info_.vocab, 0U);
  EXPECT_FALSE(info_.content_hash.empty()) << "a bank is bound to it";
  EXPECT_EQ(info_.content_hash, engine_->info().content_hash);
  EXPECT_TRUE(!info_.can.hidden || info_.hidden_width > 0);
  const SeqId seq = open();
  const auto nodes = line(seq, 0, 0, text(2, 39), true);
  Rows rows;
  ASSERT_TRUE(engine_->forward(nodes, rows).is_ok());
  EXPECT_EQ(rows.vocab, info_.vocab);
  EXPECT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows.hidden.size(), info_.can.hidden ? 2U : 0U);
}

}  // namespace drift::engine
