#include "drift/trace/file.hpp"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cmath>
#include <fstream>

#include "drift/trace/metrics.hpp"
#include "drift/trace/testing.hpp"

namespace drift::trace {
namespace {

// Runs SQL on a finished trace, as someone with the sqlite3 program might.
void tamper(const std::filesystem::path& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK) << (error == nullptr ? "" : error);
  sqlite3_close(db);
}

// What reading everything says.
Status read_all(const std::filesystem::path& path) {
  DRIFT_ASSIGN(auto reader, Reader::open(path));
  return reader->verify();
}

TEST(TraceFile, ComesBackAsItWasWritten) {
  const test::Folder folder;
  const auto reader = test::open(test::sample(folder));
  ASSERT_NE(reader, nullptr);
  const Header expected = test::header(), &found = reader->header();
  EXPECT_EQ(found.program, expected.program);
  EXPECT_EQ(found.target, expected.target);
  EXPECT_EQ(found.draft, expected.draft);
  EXPECT_EQ(found.hidden_width, expected.hidden_width);
  EXPECT_EQ(found.row_tokens, expected.row_tokens);
  EXPECT_EQ(found.context, expected.context);
  EXPECT_EQ(found.mode, expected.mode);
  EXPECT_EQ(found.sampling, expected.sampling);
  EXPECT_EQ(found.generate, expected.generate);
  EXPECT_EQ(found.settings, expected.settings);
  EXPECT_FALSE(reader->partial());
  ASSERT_EQ(reader->prompts(), 2u);
  const auto record = reader->prompt(1);
  ASSERT_TRUE(record.is_ok()) << record.status().message();
  EXPECT_EQ(record->prompt.id, "two");
  EXPECT_EQ(record->prompt.domain, "code");
  EXPECT_EQ(record->prompt.sequence, test::prompt().sequence);
  EXPECT_EQ(record->prompt.tokens, test::prompt().tokens);
  EXPECT_EQ(record->emitted, (std::vector<Token>{0, 1, 2, 0, 1, 1, 2, 3}));
  EXPECT_EQ(record->ending, "length");
  EXPECT_EQ(record->prefill_ns, 12'345);
  EXPECT_EQ(record->steps, 4u);
  EXPECT_TRUE(reader->verify().is_ok()) << reader->verify().message();
}

// The golden trace: figures folded from the file are those folded from the events, and those are these.
TEST(TraceFile, GoldenFiguresFoldFromTheFileAsFromTheEvents) {
  const test::Folder folder;
  const auto reader = test::open(test::sample(folder));
  ASSERT_NE(reader, nullptr);
  Metrics live, read;
  for (std::size_t p = 0; p < 2; ++p) {
    const auto steps = reader->steps(p);
    ASSERT_TRUE(steps.is_ok()) << steps.status().message();
    const std::vector<StepEvent> events = test::events();
    ASSERT_EQ(steps->size(), events.size());
    for (std::size_t i = 0; i < events.size(); ++i) {
      test::expect_same_decisions(steps.value()[i], events[i]);
      test::expect_same(steps.value()[i].times, events[i].times);
      live.add(events[i]);
      read.add(steps.value()[i]);
    }
  }
  EXPECT_EQ(read.steps, 8u);
  EXPECT_EQ(read.blocks, 6u);
  EXPECT_EQ(read.tokens, 16u);
  EXPECT_EQ(read.drafted, 18u);
  EXPECT_EQ(read.accepted, 8u);
  EXPECT_EQ(read.accepted_bank, 2u);
  EXPECT_EQ(read.copied, 6u);
  EXPECT_EQ(read.accepted_copied, 2u);
  EXPECT_EQ(read.tested, 12u);
  EXPECT_EQ(read.accepted_histogram, (std::vector<std::uint64_t>{2, 2, 0, 2}));
  EXPECT_EQ(read.times.total_ns, 2 * (4 * 1'000 + 6));
  EXPECT_DOUBLE_EQ(read.acceptance(), 8.0 / 18.0);
  EXPECT_EQ(read.tested_at, live.tested_at);
  EXPECT_EQ(read.accepted_at, live.accepted_at);
  EXPECT_EQ(read.accepted_histogram, live.accepted_histogram);
  EXPECT_EQ(read.step_ns, live.step_ns);
  EXPECT_DOUBLE_EQ(read.tokens_per_s(), live.tokens_per_s());
  EXPECT_DOUBLE_EQ(read.overhead_fraction(), live.overhead_fraction());
}

TEST(TraceFile, RowsComeBackAndMissingOnesAreNamed) {
  const test::Folder folder;
  const auto reader = test::open(test::sample(folder));
  ASSERT_NE(reader, nullptr);
  Row row;
  ASSERT_TRUE(reader->row(0, Side::kTarget, 3, row).is_ok());
  const Row expected = test::row(0, false);
  EXPECT_EQ(row.tokens, expected.tokens);
  EXPECT_EQ(row.logits, expected.logits);
  EXPECT_EQ(row.rest, expected.rest);
  EXPECT_TRUE(row.seen);
  EXPECT_TRUE(row.hidden.empty());
  ASSERT_TRUE(reader->row(1, Side::kDraft, 6, row).is_ok());
  EXPECT_EQ(row.hidden, test::row(0, true).hidden);
  EXPECT_FALSE(row.seen);
  for (const Pos position : {0, 2, 11, 1'000}) {
    const Status missing = reader->row(0, Side::kTarget, position, row);
    EXPECT_EQ(missing.code(), Code::kNotFound);
    EXPECT_NE(missing.message().find("position " + std::to_string(position)), std::string::npos);
  }
  ASSERT_TRUE(reader->row(0, Side::kTarget, 10, row).is_ok()) << "a failed call leaves the reader in order";
}

TEST(TraceFile, ADroppedPromptLeavesNothingBehind) {
  const test::Folder folder;
  const std::filesystem::path path = folder.empty("t");
  auto writer = Writer::create(path, test::header());
  ASSERT_TRUE(writer.is_ok());
  test::add_prompt(**writer, test::prompt());
  ASSERT_TRUE((*writer)->begin_prompt(test::prompt("cut")).is_ok());
  ASSERT_TRUE((*writer)->add_step(test::events()[0]).is_ok());
  test::add_rows(**writer, test::events()[0]);
  ASSERT_TRUE((*writer)->drop_prompt().is_ok());
  test::add_prompt(**writer, test::prompt("after"));
  EXPECT_EQ((*writer)->prompts(), 2u);
  ASSERT_TRUE((*writer)->finish(/*partial=*/true).is_ok());
  const auto reader = test::open(path);
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(reader->partial());
  EXPECT_EQ(reader->prompt(1)->prompt.id, "after");
  EXPECT_TRUE(reader->verify().is_ok()) << reader->verify().message();
}

TEST(TraceFile, AnUnfinishedOneIsRefused) {
  const test::Folder folder;
  const std::filesystem::path path = folder.empty("t");
  {
    auto writer = Writer::create(path, test::header());
    ASSERT_TRUE(writer.is_ok());
    test::add_prompt(**writer, test::prompt());
  }
  const Status status = read_all(path);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find("not finished"), std::string::npos) << status.message();
}

TEST(TraceFile, TheWriterRefusesWhatAReaderWould) {
  const test::Folder folder;
  const std::filesystem::path path = folder.empty("t");
  auto made = Writer::create(path, test::header());
  ASSERT_TRUE(made.is_ok());
  Writer& writer = **made;
  EXPECT_EQ(writer.begin_prompt({"x", "", "", "", 0, {}}).code(), Code::kInvalid) << "empty";
  EXPECT_EQ(writer.begin_prompt({"x", "", "", "", 0, {6}}).code(), Code::kInvalid) << "outside the vocabulary";
  EXPECT_EQ(writer.begin_prompt({std::string(2'000, 'x'), "", "", "", 0, {1}}).code(), Code::kInvalid);
  EXPECT_EQ(writer.begin_prompt({"x", "", "", "", 0, std::vector<Token>(64, 1)}).code(), Code::kInvalid) << "fills the context";
  ASSERT_TRUE(writer.begin_prompt(test::prompt()).is_ok());
  const auto refused = [&](auto change) {
    StepEvent event = test::step(0, 3, 3, 2);
    change(event);
    return writer.add_step(event).code();
  };
  EXPECT_EQ(refused([](StepEvent& e) { e.step = 1; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.first = 4; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.emitted.clear(); }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.emitted.push_back(e.emitted.back()); }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.emitted[0].token = 5; }), Code::kInvalid) << "not the accepted token";
  EXPECT_EQ(refused([](StepEvent& e) { e.emitted[2].origin = Origin::kAccepted; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.emitted[2].token = 6; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.proposed[0].accepted = false; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.proposed[0].token = kNoToken; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.proposed[1].q = NAN; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.proposed[1].gain = INFINITY; }), Code::kInvalid);
  EXPECT_EQ(refused([](StepEvent& e) { e.times.draft_ns = -1; }), Code::kInvalid);
  EXPECT_EQ(writer.add_row(Side::kTarget, 3, test::row(0, false)).code(), Code::kInvalid) << "before its step";
  ASSERT_TRUE(writer.add_step(test::step(0, 3, 3, 2)).is_ok()) << "nothing refused left a trace";
  EXPECT_EQ(writer.add_row(Side::kTarget, 2, test::row(0, false)).code(), Code::kInvalid) << "a prompt's position";
  EXPECT_EQ(writer.add_row(Side::kTarget, 6, test::row(0, false)).code(), Code::kInvalid) << "not emitted yet";
  EXPECT_EQ(writer.add_row(Side::kDraft, 3, test::row(0, false)).code(), Code::kInvalid) << "without hidden state";
  ASSERT_TRUE(writer.add_row(Side::kTarget, 3, test::row(0, false)).is_ok());
  EXPECT_EQ(writer.end_prompt("length", 0).code(), Code::kInvalid) << "rows are missing";
  EXPECT_EQ(writer.end_prompt("tired", 0).code(), Code::kInvalid);
  Header h = test::header();
  h.row_tokens = 0;
  EXPECT_EQ(Writer::create(folder.empty("u"), h).status().code(), Code::kInvalid);
}

TEST(TraceFile, OtherFilesAreRefusedByWhatTheyAre) {
  const test::Folder folder;
  EXPECT_EQ(read_all(folder / "none").code(), Code::kNotFound);
  EXPECT_EQ(read_all(folder.empty("empty")).code(), Code::kForeign);
  EXPECT_EQ(read_all(folder / ".").code(), Code::kForeign);
  std::ofstream(folder / "text") << "hello, this is no trace";
  EXPECT_EQ(read_all(folder / "text").code(), Code::kForeign);
  const std::filesystem::path path = test::sample(folder);
  tamper(path, "PRAGMA user_version=2");
  const Status newer = read_all(path);
  EXPECT_EQ(newer.code(), Code::kForeign);
  EXPECT_NE(newer.message().find("newer version"), std::string::npos) << newer.message();
  tamper(path, "PRAGMA user_version=1; PRAGMA application_id=7");
  EXPECT_EQ(read_all(path).code(), Code::kForeign);
}

TEST(TraceFile, DamageIsFound) {
  const test::Folder folder;
  for (const char* sql : {
           "CREATE TABLE more(x)",
           "CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM tokens; END",
           "DELETE FROM meta WHERE key = 'row_tokens'",
           "INSERT INTO meta VALUES('more', 'x')",
           "UPDATE meta SET value = '0' WHERE key = 'target_vocab'",
           "UPDATE meta SET value = '1025' WHERE key = 'row_tokens'",
           "UPDATE meta SET value = '-3' WHERE key = 'prompts'",
           "UPDATE meta SET value = 'maybe' WHERE key = 'partial'",
           "UPDATE meta SET value = '1e99' WHERE key = 'temperature'",
           "DELETE FROM prompts WHERE prompt = 0",
           "UPDATE prompts SET tokens = x'0000' WHERE prompt = 0",
           "UPDATE prompts SET tokens = x'' WHERE prompt = 0",
           "UPDATE prompts SET tokens = x'ffffffff' WHERE prompt = 0",
           "UPDATE prompts SET emitted = 1000000000000 WHERE prompt = 0",
           "UPDATE prompts SET steps = 3 WHERE prompt = 0",
           "UPDATE prompts SET ending = 'tired' WHERE prompt = 0",
           "UPDATE prompts SET id = zeroblob(2000) WHERE prompt = 0",
           "DELETE FROM steps WHERE step = 3",
           "UPDATE steps SET first = 4 WHERE step = 0",
           "UPDATE steps SET proposed = 2 WHERE step = 0",
           "UPDATE steps SET proposed = -1 WHERE step = 0",
           "UPDATE steps SET accepted = 2 WHERE step = 0",
           "UPDATE steps SET emitted = 3 WHERE step = 0",
           "UPDATE steps SET draft_ns = 'long' WHERE step = 0",
           "UPDATE steps SET draft_ns = -5 WHERE step = 0",
           "DELETE FROM proposals WHERE step = 1 AND place = 2",
           "UPDATE proposals SET token = 6 WHERE step = 0 AND place = 0",
           "UPDATE proposals SET token = -2 WHERE step = 0 AND place = 0",
           "UPDATE proposals SET accepted = 0 WHERE step = 0 AND place = 0",
           "UPDATE proposals SET accepted = 7 WHERE step = 0 AND place = 0",
           "UPDATE proposals SET from_bank = 1 WHERE step = 1 AND place = 0",
           "UPDATE proposals SET q = 'much' WHERE step = 0 AND place = 0",
           "UPDATE proposals SET q = 9e999 WHERE step = 0 AND place = 0",
           "INSERT INTO proposals VALUES(0, 9, 0, 1, 0.5, 0, 0, 0, 0, 0, 0)",
           "DELETE FROM tokens WHERE position = 5",
           "UPDATE tokens SET token = 5 WHERE position = 3",
           "UPDATE tokens SET origin = 'bank' WHERE position = 6",
           "UPDATE tokens SET origin = 'elsewhere' WHERE position = 6",
           "DELETE FROM target_rows WHERE position = 4",
           "DELETE FROM draft_rows WHERE position = 4",
           "INSERT INTO target_rows SELECT prompt, 50, seen, rest, tokens, logits FROM target_rows WHERE position = 4",
           "UPDATE target_rows SET logits = zeroblob(8) WHERE position = 4",
           "UPDATE target_rows SET tokens = zeroblob(12) WHERE position = 4",
           "UPDATE target_rows SET rest = NULL WHERE position = 4",
           "UPDATE draft_rows SET hidden = x'00' WHERE position = 4",
           "UPDATE draft_rows SET hidden = zeroblob(8) WHERE position = 4",
           "UPDATE draft_rows SET seen = 2 WHERE position = 4",
       }) {
    const std::filesystem::path path = test::sample(folder);
    tamper(path, sql);
    const Status status = read_all(path);
    EXPECT_EQ(status.code(), Code::kCorrupt) << sql << ": " << status.message();
    std::filesystem::remove(path);
  }
}

TEST(TraceFile, ACutOrFlippedFileNeverCrashesTheReader) {
  const test::Folder folder;
  const std::filesystem::path path = test::sample(folder);
  std::string whole;
  {
    std::ifstream file(path, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(file), {});
  }
  ASSERT_GT(whole.size(), 10'000u);
  const auto with = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return read_all(path);
  };
  for (std::size_t size = 1; size < whole.size(); size += 997) EXPECT_FALSE(with(whole.substr(0, size)).is_ok()) << size;
  EXPECT_FALSE(with(whole + "x").is_ok());
  for (std::size_t at = 0; at < whole.size(); at += 211) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
    (void)with(bytes).is_ok();  // a flip in free space or in a time cannot be seen
  }
  EXPECT_TRUE(with(whole).is_ok());
}

TEST(CheckDrawable, RowsMustHoldWhateverMayBeDrawn) {
  const auto of = [](float temperature, int top_k, std::size_t vocab) {
    Sampling s;
    s.temperature = temperature;
    s.top_k = top_k;
    return check_drawable(s, vocab, 1'024).code();
  };
  EXPECT_EQ(of(0.0f, 0, 100'000), Code::kOk);
  EXPECT_EQ(of(0.8f, 40, 100'000), Code::kOk);
  EXPECT_EQ(of(0.8f, 1'024, 100'000), Code::kOk);
  EXPECT_EQ(of(0.8f, 0, 1'024), Code::kOk);
  EXPECT_EQ(of(0.8f, 0, 100'000), Code::kUnsupported);
  EXPECT_EQ(of(0.8f, 1'025, 100'000), Code::kUnsupported);
}

TEST(RecordedPart, ProposalsBehindTheFirstThatFellKeepTheirNumberOnly) {
  const StepEvent event = recorded_part(test::step(0, 3, 3, 1));
  ASSERT_EQ(event.proposed.size(), 3u);
  EXPECT_EQ(event.proposed[1].token, 1) << "the one that fell is known";
  EXPECT_EQ(event.proposed[2].token, kNoToken);
  EXPECT_EQ(event.proposed[2].q, 0.0f);
  EXPECT_EQ(event.proposed[2].match, 0);
  Metrics whole, part;
  whole.add(test::step(0, 3, 3, 1));
  part.add(event);
  EXPECT_EQ(whole.drafted, part.drafted);
  EXPECT_EQ(whole.tested, part.tested);
  EXPECT_EQ(whole.accepted, part.accepted);
}

}  // namespace
}  // namespace drift::trace
