// Tenants of a server on the built-in pair: what one is proposed, learns and gets does not depend on who else is in the batch.
//
// Floats of a real model depend a little on the shape of a batch, so equality is asked of everything but the model: the rows that A was
// given beside B are written down, and A alone, on the same rows, must decide the same to the last bit. Texts of two real runs may
// differ at a near tie only.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <tuple>

#include "drift/engine/wrapper.hpp"
#include "engines/llama/text.hpp"
#include "server/schedule/scheduler.hpp"
#include "tests/contract/llama_models.hpp"

namespace drift::engine {
namespace {

using Text = std::vector<Token>;
struct KeptRow {
  std::vector<float> logits, hidden;
};
// The rows that followed each text, in the order they were asked for.
using Tape = std::map<Text, std::deque<KeptRow>>;

constexpr int kSlots = 4;
constexpr std::size_t kContext = 192;

// What each sequence of an engine holds; nodes form lines.
class Texts {
 public:
  void open(SeqId seq) { of_[seq] = {}; }
  void add(const Node& node) { of_[node.seq].pending.push_back(node.token); }
  void keep(SeqId seq, std::size_t path) {
    Lines& lines = of_[seq];
    lines.kept.insert(lines.kept.end(), lines.pending.begin(), lines.pending.begin() + static_cast<std::ptrdiff_t>(path));
    lines.pending.clear();
  }
  void truncate(SeqId seq, Pos length) {
    of_[seq].kept.resize(static_cast<std::size_t>(length));
    of_[seq].pending.clear();
  }
  void close(SeqId seq) { of_.erase(seq); }
  std::size_t open_ones() const { return of_.size(); }
  bool is_open(SeqId seq) const { return of_.contains(seq); }
  Pos length(SeqId seq) const { return static_cast<Pos>(of_.at(seq).kept.size()); }
  Text text(SeqId seq) const {
    Text out = of_.at(seq).kept;
    out.insert(out.end(), of_.at(seq).pending.begin(), of_.at(seq).pending.end());
    return out;
  }

 private:
  struct Lines {
    Text kept, pending;
  };
  std::map<SeqId, Lines> of_;
};

// Writes down the rows of one tenant: of the texts that begin with one of its prompts.
class RecordingEngine final : public Wrapper {
 public:
  RecordingEngine(Engine& inner, const std::vector<Text>& prompts) : Wrapper(inner), prompts_(prompts) {}
  Tape tape;

  Result<SeqId> open() override {
    DRIFT_ASSIGN(const SeqId seq, Wrapper::open());
    texts_.open(seq);
    return seq;
  }
  Status forward(std::span<const Node> nodes, Rows& out) override {
    DRIFT_TRY(Wrapper::forward(nodes, out));
    std::size_t row = 0;
    for (const Node& node : nodes) {
      texts_.add(node);
      if (!node.wants_row) continue;
      const std::size_t at = row++;
      Text text = texts_.text(node.seq);
      if (!is_ours(text)) continue;
      KeptRow kept;
      kept.logits.assign(out.logits_row(at).begin(), out.logits_row(at).end());
      if (!out.hidden.empty()) kept.hidden.assign(out.hidden_row(at).begin(), out.hidden_row(at).end());
      tape[std::move(text)].push_back(std::move(kept));
    }
    return Status::ok();
  }
  Status keep(SeqId seq, std::span<const NodeIndex> path) override {
    texts_.keep(seq, path.size());
    return Wrapper::keep(seq, path);
  }
  Status truncate(SeqId seq, Pos length) override {
    texts_.truncate(seq, length);
    return Wrapper::truncate(seq, length);
  }
  void close(SeqId seq) override {
    texts_.close(seq);
    Wrapper::close(seq);
  }

 private:
  bool is_ours(const Text& text) const {
    return std::any_of(prompts_.begin(), prompts_.end(), [&](const Text& prompt) {
      return text.size() >= prompt.size() && std::equal(prompt.begin(), prompt.end(), text.begin());
    });
  }
  const std::vector<Text>& prompts_;
  Texts texts_;
};

// Gives the rows of a tape back, each once.
class PlayingEngine final : public Engine {
 public:
  PlayingEngine(ModelInfo info, Tape tape) : info_(std::move(info)), tape_(std::move(tape)) {}
  bool all_played() const { return tape_.empty(); }

  ModelInfo info() const override { return info_; }
  Counters counters() const override { return {}; }
  Result<SeqId> open() override {
    const auto seq = static_cast<SeqId>(next_++);
    texts_.open(seq);
    return seq;
  }
  Status forward(std::span<const Node> nodes, Rows& out) override {
    out = {};
    out.vocab = info_.vocab;
    out.hidden_width = info_.hidden_width;
    given_.clear();
    for (const Node& node : nodes) {
      texts_.add(node);
      if (!node.wants_row) continue;
      const auto found = tape_.find(texts_.text(node.seq));
      if (found == tape_.end()) return {Code::kInternal, "a row is asked for that was not asked for beside the other tenant"};
      given_.push_back(std::move(found->second.front()));
      found->second.pop_front();
      if (found->second.empty()) tape_.erase(found);
    }
    for (const KeptRow& row : given_) {
      out.logits.push_back(row.logits.data());
      if (!row.hidden.empty()) out.hidden.push_back(row.hidden.data());
    }
    return Status::ok();
  }
  Status keep(SeqId seq, std::span<const NodeIndex> path) override {
    texts_.keep(seq, path.size());
    return Status::ok();
  }
  Result<SeqId> fork(SeqId /*seq*/) override { return Status(Code::kUnsupported, "no forks here"); }
  Status truncate(SeqId seq, Pos length) override {
    texts_.truncate(seq, length);
    return Status::ok();
  }
  Pos length(SeqId seq) const override { return texts_.is_open(seq) ? texts_.length(seq) : -1; }
  void close(SeqId seq) override { texts_.close(seq); }

 private:
  ModelInfo info_;
  Tape tape_;
  Texts texts_;
  std::size_t next_ = 0;
  std::deque<KeptRow> given_;
};

class PairText final : public server::TextModel {
 public:
  explicit PairText(const LlamaEngine& target) : text_(target), vocab_(target.describe().vocab) {}
  Result<Text> tokenize(std::string_view text, bool add_special, bool parse_special) const override {
    return text_.tokenize(text, add_special, parse_special);
  }
  std::string piece(Token token) const override { return text_.piece(token); }
  bool is_end(Token token) const override { return text_.is_end(token); }
  bool has_chat_template() const override { return false; }
  Result<std::string> chat(const std::vector<server::Message>&, bool) const override { return Status(Code::kUnsupported, ""); }
  std::size_t vocab() const override { return vocab_; }

 private:
  LlamaText text_;
  std::size_t vocab_;
};

// All that happened to A.
struct OfA {
  std::vector<std::tuple<Token, bool, bool, float, float, float>> proposed;
  std::vector<Text> texts;  // tokens of its answers
  bank::StoredBank bank;
};

class BuiltInTenants : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {kBuiltInTarget, kBuiltInDraft}) {
      if (model_path(file).empty()) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(file);
    }
    target_ = load_engine(kBuiltInTarget, false, static_cast<int>(kContext), kSlots);
    draft_ = load_engine(kBuiltInDraft, true, static_cast<int>(kContext), kSlots);
    ASSERT_TRUE(target_ && draft_);
    text_ = std::make_unique<PairText>(*target_);
    for (const char* prompt : {"The court held that the", "def add(a, b):\n    return", "The patient was given"})
      prompts_.push_back(text_->tokenize(prompt, true, false).value());
  }
  server::BankSource source() const {
    recal::RecalConfig config;
    config.bank.key_dim = static_cast<std::uint32_t>(draft_->describe().hidden_width);
    config.bank.vocab = static_cast<std::uint32_t>(draft_->describe().vocab);
    config.bank.capacity = 256;
    server::BankSource out;
    out.open = [config](const server::BankId&, const std::string&) -> Result<std::optional<recal::BankSession>> {
      DRIFT_ASSIGN(auto session, recal::BankSession::open("", false, config, {}));
      return std::optional(std::move(session));
    };
    out.file = [](const server::BankId&) -> Result<std::string> { return std::string(); };
    return out;
  }

  // A asks one thing after the other; with B, that floods the other slots with the same prompts behind a word of its own.
  OfA run(Engine& target, Engine& draft, float temperature, bool with_b) {
    struct Seen final : server::Observer {
      void stepped(std::span<const trace::StepEvent> events, std::span<const server::StepOwner> owners) override {
        for (std::size_t i = 0; i < events.size(); ++i) {
          if (*owners[i].tenant != "a") continue;
          for (const trace::ProposedToken& p : events[i].proposed)
            of_a.proposed.emplace_back(p.token, p.accepted, p.from_bank, p.gain, p.similarity, p.q);
        }
      }
      OfA of_a;
    } seen;
    server::Banks banks({}, source());
    server::SchedulerConfig slots;
    slots.slots = kSlots;
    server::Scheduler scheduler(target, &draft, *text_, &banks, slots, &seen);
    const auto submit = [&](const std::string& tenant, const Text& prompt, std::uint64_t seed, std::int64_t tokens) {
      server::GenerationConfig config;
      config.prompt = prompt;
      config.mode = decode::Mode::kDrift;
      config.sampler = {temperature, 40, 0.95f, 0.0f};
      config.seed = seed;
      config.max_tokens = tokens;
      config.rules.ignore_end = true;
      config.tenant = tenant;
      config.bank = banks.get({tenant, server::kDefaultBank}).value();
      auto job = std::make_shared<server::Job>(std::vector{config});
      EXPECT_TRUE(scheduler.submit(job).is_ok());
      return job;
    };
    for (std::size_t i = 0; i < 2 * prompts_.size(); ++i) {
      const Text& prompt = prompts_[i % prompts_.size()];
      for (std::uint64_t b = 0; with_b && b < 3; ++b) {
        Text of_b = text_->tokenize("Listen. ", true, false).value();
        of_b.insert(of_b.end(), prompt.begin(), prompt.end());
        submit("b", of_b, 100 * b + i, 50);
      }
      const auto job = submit("a", prompt, i, 30);
      Text answer;
      server::Job::Event event;
      for (bool ended = false; !ended;) {
        scheduler.tick();
        server::Job::Got got{};
        while ((got = job->next(std::chrono::milliseconds(0), event)) == server::Job::Got::kEvent) {
          if (const auto* delta = std::get_if<server::Delta>(&event.what)) {
            for (const server::TokenInfo& token : delta->tokens) answer.push_back(token.token);
          } else {
            ended = true;
          }
        }
        if (got == server::Job::Got::kFailed) {
          ADD_FAILURE() << job->failure().message();
          ended = true;
        }
      }
      seen.of_a.texts.push_back(std::move(answer));
    }
    seen.of_a.bank = banks.get({"a", server::kDefaultBank}).value()->recal()->save({});
    return std::move(seen.of_a);
  }

  std::unique_ptr<LlamaEngine> target_, draft_;
  std::unique_ptr<PairText> text_;
  std::vector<Text> prompts_;  // of A
};

TEST_F(BuiltInTenants, OnTheSameRowsAAloneDecidesAsBesideB) {
  for (const float temperature : {0.0f, 0.8f}) {
    SCOPED_TRACE("at temperature " + std::to_string(temperature));
    RecordingEngine target(*target_, prompts_), draft(*draft_, prompts_);
    const OfA mixed = run(target, draft, temperature, /*with_b=*/true);
    PlayingEngine played_target(target_->describe(), target.tape), played_draft(draft_->describe(), draft.tape);
    const OfA alone = run(played_target, played_draft, temperature, /*with_b=*/false);
    EXPECT_EQ(mixed.texts, alone.texts);
    EXPECT_EQ(mixed.proposed, alone.proposed);
    EXPECT_GT(mixed.proposed.size(), 150u);
    EXPECT_GT(mixed.bank.image.size, 20u);
    EXPECT_TRUE(mixed.bank.image.keys == alone.bank.image.keys && mixed.bank.image.tokens == alone.bank.image.tokens &&
                mixed.bank.image.values == alone.bank.image.values && mixed.bank.image.counts == alone.bank.image.counts &&
                mixed.bank.image.last_used == alone.bank.image.last_used && mixed.bank.extras == alone.bank.extras);
    EXPECT_TRUE(played_target.all_played() && played_draft.all_played()) << "alone it asks for fewer rows";
  }
}

// Two real runs: where the texts part, plain decoding was as near to a tie as batch shape moves rows.
TEST_F(BuiltInTenants, TextsBesideBAreThoseAloneButForTies) {
  RecordingEngine target(*target_, prompts_), draft(*draft_, prompts_), target_alone(*target_, prompts_),
      draft_alone(*draft_, prompts_);
  const OfA mixed = run(target, draft, 0.0f, true), alone = run(target_alone, draft_alone, 0.0f, false);
  double noise = 0;
  std::size_t common = 0;
  for (const auto& [text, rows] : target.tape) {
    const auto other = target_alone.tape.find(text);
    if (other == target_alone.tape.end()) continue;
    ++common;
    for (std::size_t v = 0; v < rows.front().logits.size(); ++v)
      noise = std::max(
          noise, std::fabs(static_cast<double>(rows.front().logits[v]) - static_cast<double>(other->second.front().logits[v])));
  }
  EXPECT_GT(common, 100u);
  EXPECT_LT(noise, 0.5) << "rows of one text are the same but for noise";
  for (std::size_t i = 0; i < mixed.texts.size(); ++i) {
    const Text &a = mixed.texts[i], &b = alone.texts[i];
    ASSERT_EQ(a.size(), b.size());
    const auto parts = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
    if (parts == a.size()) continue;
    Text before = prompts_[i % prompts_.size()];
    before.insert(before.end(), a.begin(), a.begin() + static_cast<std::ptrdiff_t>(parts));
    ASSERT_TRUE(target.tape.contains(before));
    const std::vector<float>& row = target.tape.at(before).front().logits;
    const double margin = static_cast<double>(row[static_cast<std::size_t>(a[parts])]) -
                          static_cast<double>(row[static_cast<std::size_t>(b[parts])]);
    EXPECT_LE(margin, 2 * noise) << "answer " << i << " parts at token " << parts << ", which is no near tie";
  }
}

}  // namespace
}  // namespace drift::engine
