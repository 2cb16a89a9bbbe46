// testing.hpp - a folder of its own for a test, and a small trace written by hand.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "drift/trace/file.hpp"

namespace drift::trace::test {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "drift-trace-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  // An empty file, as a writer wants it.
  std::filesystem::path empty(const std::string& name) const {
    std::ofstream(path_ / name).close();
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline constexpr std::uint32_t kVocab = 6;

inline Header header() {
  Header h;
  h.program = "0.0 (test)";
  h.target = {"big", "hash-of-big", kVocab};
  h.draft = {"small", "hash-of-small", kVocab};
  h.hidden_width = 2;
  h.row_tokens = 3;
  h.context = 64;
  h.mode = "static";
  h.sampling = {0.8f, 3, 0.95f, 0.05f, 18'446'744'073'709'551'615u, false};
  h.generate = 7;
  h.settings = {{"draft", "3"}, {"judge", "match"}};
  return h;
}

inline Prompt prompt(const std::string& id = "one", const std::string& domain = "law") {
  return {id, domain, "prefix", "eval", 0xfedcba9876543210u, {5, 0, 1}};
}

// A row of kVocab logits whose largest is that of `token`.
inline std::vector<float> logits(Token token) {
  std::vector<float> out{0.5f, -1.25f, 0.75f, 0.125f, -3.0f, 0.25f};
  out[static_cast<std::size_t>(token)] += 4.0f;
  return out;
}

inline Row row(Token token, bool draft, bool seen = true) {
  Row out;
  reduce_logits(logits(token), 3, out);
  if (draft) {
    EXPECT_TRUE(reduce_hidden(std::vector<float>{0.5f, static_cast<float>(token)}, out).is_ok());
  }
  out.seen = seen;
  return out;
}

// `stood` of `drafted` proposals stand, the first `bank` of these thanks to the bank; then the target's own token.
inline StepEvent step(std::uint64_t number, Pos first, std::size_t drafted, std::size_t stood, std::size_t bank = 0) {
  StepEvent e;
  e.sequence = prompt().sequence;
  e.step = number;
  e.first = first;
  for (std::size_t i = 0; i < drafted; ++i) {
    ProposedToken p;
    p.token = static_cast<Token>((number + i) % kVocab);
    p.accepted = i < stood;
    p.from_bank = i < bank;
    p.q = 0.5f;
    p.gain = p.from_bank ? 0.75f : 0.0f;
    p.similarity = p.from_bank ? 0.1f : -1.0f;
    p.overlap = i <= stood ? 0.3f : -1.0f;
    p.match = i == 2 ? 4 : 0;
    e.proposed.push_back(p);
  }
  for (std::size_t i = 0; i < stood; ++i)
    e.emitted.push_back({e.proposed[i].token, i < bank ? Origin::kAcceptedBank : Origin::kAccepted});
  e.emitted.push_back({static_cast<Token>(number % kVocab), Origin::kTarget});
  e.times = {100, 300, 50, 4, 3, 2, 1, 1'000 + static_cast<std::int64_t>(number)};
  return e;
}

// What the trace of the tests below holds for each of its prompts.
inline std::vector<StepEvent> events() { return {step(0, 3, 3, 3, 1), step(1, 7, 3, 1), step(2, 9, 3, 0), step(3, 10, 0, 0)}; }

inline void add_rows(Writer& writer, const StepEvent& event) {
  for (std::size_t i = 0; i < event.emitted.size(); ++i) {
    const Pos position = event.first + static_cast<Pos>(i);
    const Token token = event.emitted[i].token;
    EXPECT_TRUE(writer.add_row(Side::kTarget, position, row(token, false)).is_ok());
    EXPECT_TRUE(writer.add_row(Side::kDraft, position, row(token, true, i != 3)).is_ok());
  }
}

inline void add_prompt(Writer& writer, const Prompt& p) {
  ASSERT_TRUE(writer.begin_prompt(p).is_ok());
  for (const StepEvent& event : events()) {
    const Status added = writer.add_step(event);
    ASSERT_TRUE(added.is_ok()) << added.message();
    add_rows(writer, event);
  }
  const Status ended = writer.end_prompt("length", 12'345);
  ASSERT_TRUE(ended.is_ok()) << ended.message();
}

// Two prompts of two domains.
inline std::filesystem::path sample(const Folder& folder, bool partial = false) {
  const std::filesystem::path path = folder.empty("sample.trace");
  auto writer = Writer::create(path, header());
  EXPECT_TRUE(writer.is_ok()) << writer.status().message();
  add_prompt(**writer, prompt());
  add_prompt(**writer, prompt("two", "code"));
  EXPECT_TRUE((*writer)->finish(partial).is_ok());
  return path;
}

inline std::unique_ptr<Reader> open(const std::filesystem::path& path) {
  auto reader = Reader::open(path);
  EXPECT_TRUE(reader.is_ok()) << reader.status().message();
  return reader.is_ok() ? std::move(reader).value() : nullptr;
}

inline void expect_same(const StepTimes& a, const StepTimes& b) {
  EXPECT_EQ(a.draft_ns, b.draft_ns);
  EXPECT_EQ(a.verify_ns, b.verify_ns);
  EXPECT_EQ(a.sample_ns, b.sample_ns);
  EXPECT_EQ(a.lookup_ns, b.lookup_ns);
  EXPECT_EQ(a.bias_ns, b.bias_ns);
  EXPECT_EQ(a.residual_ns, b.residual_ns);
  EXPECT_EQ(a.commit_ns, b.commit_ns);
  EXPECT_EQ(a.total_ns, b.total_ns);
}

// Equal to the last bit, but for times, margins and log-probabilities.
inline void expect_same_decisions(const StepEvent& a, const StepEvent& b) {
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.first, b.first);
  EXPECT_EQ(a.sequences, b.sequences);
  ASSERT_EQ(a.proposed.size(), b.proposed.size()) << "step " << a.step;
  for (std::size_t i = 0; i < a.proposed.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(a.step) + ", proposal " + std::to_string(i));
    const ProposedToken &p = a.proposed[i], &q = b.proposed[i];
    EXPECT_EQ(p.token, q.token);
    EXPECT_EQ(p.accepted, q.accepted);
    EXPECT_EQ(p.from_bank, q.from_bank);
    EXPECT_EQ(p.q, q.q);
    EXPECT_EQ(p.gain, q.gain);
    EXPECT_EQ(p.similarity, q.similarity);
    EXPECT_EQ(p.overlap, q.overlap);
    EXPECT_EQ(p.match, q.match);
  }
  ASSERT_EQ(a.emitted.size(), b.emitted.size()) << "step " << a.step;
  for (std::size_t i = 0; i < a.emitted.size(); ++i) {
    EXPECT_EQ(a.emitted[i].token, b.emitted[i].token);
    EXPECT_EQ(a.emitted[i].origin, b.emitted[i].origin);
  }
}

}  // namespace drift::trace::test
