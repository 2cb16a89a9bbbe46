// Where the text itself is fixed by the seed: match at any temperature, rejection at temperature 0, gain 0, batches.
// Also what a step costs: the calls each engine gets.
#include <cstdio>
#include <cstring>
#include <map>

#include "drift/bank/snapshot.hpp"
#include "drift/engine/wrapper.hpp"
#include "drift/testing/faulty_engine.hpp"
#include "tests/property/harness.hpp"

namespace drift::property {
namespace {

constexpr std::uint64_t kSeeds = 60;  // toy pairs per test, seeds 1 .. kSeeds

struct World {
  explicit World(std::uint64_t seed_number) : seed(seed_number), stream(seed_number * 31 + 1) {
    const std::size_t vocab = 3 + seed % 30;
    const auto width = static_cast<std::uint32_t>(2 + seed % 7);
    target = testing::random_model(seed, vocab, 0, 1 + seed % 4, 1.0f + static_cast<float>(seed % 5));
    draft = seed % 3 == 0 ? testing::random_model(seed + 500, vocab, width, 2, 3.0f) : perturbed(target, seed + 500, width, 1.5f);
    recal.bank.capacity = 1 + static_cast<std::uint32_t>(seed % 20);
    recal.bank.key_dim = width;
    recal.bank.support = 1 + static_cast<std::uint32_t>(seed % 8);
    recal.bank.vocab = static_cast<std::uint32_t>(vocab);
    recal.bank.tau = seed % 2 == 0 ? 0.9f : 0.99f;
    recal.bank.rate = static_cast<bank::RateRule>(seed % 3);
    recal.bank.key_type = seed % 2 == 0 ? bank::KeyType::kF16 : bank::KeyType::kF32;
    recal.bank.standardise = seed % 5 == 0;
    recal.neighbors = 1 + static_cast<std::uint32_t>(seed % 4);
    recal.sigma = seed % 2 == 0 ? 0.1f : 0.5f;
    recal.gain = seed % 4 == 0 ? recal::GainRule::kEarned : recal::GainRule::kFixed;
    recal.weights = static_cast<recal::WeightRule>(seed % 3);
    recal.support = static_cast<recal::SupportRule>(seed % 4);
    if (seed % 3 == 2) {
      recal.levels = recal::parse_levels(seed % 2 == 0 ? "all" : "global,ngram2,ngram3").value();
      recal.ngram_capacity = 1 + static_cast<std::uint32_t>(seed % 30);
      recal.ngram_support = 1 + static_cast<std::uint32_t>(seed % 8);
    }
    recal.teach_prompt = seed % 2 == 1;
    for (std::uint64_t i = 0; i < 1 + seed % 5; ++i) prompt.push_back(static_cast<Token>((seed + i * i) % vocab));
  }

  SequenceConfig config(Mode mode, JudgeRule rule, const SamplerConfig& sampler, recal::Recalibrator* r) {
    SequenceConfig c;
    c.mode = mode;
    c.rule = rule;
    c.sampler = sampler;
    c.name = seed;
    c.draft_tokens = static_cast<int>(seed % 6);
    c.max_tokens = 40;
    c.recal = r;
    c.choices = &stream;
    if (seed % 3 == 1) c.is_end = [last = static_cast<Token>(draft.vocab) - 1](Token t) { return t == last; };
    return c;
  }

  std::unique_ptr<recal::Recalibrator> recalibrator() {
    auto made = recal::Recalibrator::create(recal);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    return std::move(made).value();
  }

  std::uint64_t seed;
  RngStream stream;
  ToyModel target, draft;
  recal::RecalConfig recal;
  std::vector<Token> prompt;
};

// Decodes one answer; `events` receives all steps.
Answer decode_answer(World& w, const SequenceConfig& config, std::vector<trace::StepEvent>* events = nullptr) {
  Rig rig(w.target, w.draft);
  auto opened = rig.stepper.open(w.prompt, config);
  EXPECT_TRUE(opened.is_ok()) << opened.status().message();
  EXPECT_TRUE(rig.stepper.prefill(**opened).is_ok());
  EXPECT_TRUE(run(rig.stepper, **opened, events).is_ok());
  const Answer answer = answer_of(**opened);
  rig.stepper.close(**opened);
  return answer;
}

std::size_t bank_accepted(const std::vector<trace::StepEvent>& events) {
  std::size_t n = 0;
  for (const trace::StepEvent& e : events) {
    for (const trace::ProposedToken& p : e.proposed) n += p.accepted && p.from_bank ? 1 : 0;
  }
  return n;
}

std::size_t copied_accepted(const std::vector<trace::StepEvent>& events) {
  std::size_t n = 0;
  for (const trace::StepEvent& e : events) {
    for (const trace::ProposedToken& p : e.proposed) n += p.accepted && p.copied() ? 1 : 0;
  }
  return n;
}

void expect_plain_text(JudgeRule rule, const SamplerConfig& sampler) {
  std::size_t thanks_to_bank = 0, copied = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World w(seed);
    const Answer plain = decode_answer(w, w.config(Mode::kOff, rule, sampler, nullptr));
    EXPECT_EQ(decode_answer(w, w.config(Mode::kStatic, rule, sampler, nullptr)), plain) << "static, seed " << seed;
    auto r = w.recalibrator();
    for (int round = 0; round < 2; ++round) {  // with an empty bank, then with what it learned
      std::vector<trace::StepEvent> events;
      EXPECT_EQ(decode_answer(w, w.config(Mode::kDrift, rule, sampler, r.get()), &events), plain)
          << "drift, seed " << seed << ", round " << round;
      thanks_to_bank += bank_accepted(events);
    }
    for (const Mode mode : {Mode::kLookup, Mode::kSuffix, Mode::kDraftSuffix, Mode::kDriftSuffix}) {
      auto suffix = suffix_memory();
      for (const propose::QRule q : {propose::QRule::kTop, propose::QRule::kCounts}) {  // the second remembers the first's answer
        SequenceConfig c = w.config(mode, rule, sampler, r.get());
        c.suffix = suffix.get();
        c.copy.q = q;
        std::vector<trace::StepEvent> events;
        EXPECT_EQ(decode_answer(w, c, &events), plain) << "mode " << static_cast<int>(mode) << ", seed " << seed;
        copied += copied_accepted(events);
      }
    }
  }
  std::printf("seeds 1 .. %d, %zu tokens accepted thanks to banks, %zu copied ones accepted\n", static_cast<int>(kSeeds),
              thanks_to_bank, copied);
  EXPECT_GT(thanks_to_bank, 20u) << "the banks must have mattered";
  EXPECT_GT(copied, 500u) << "copying must have mattered";
}

TEST(SameText, MatchGreedy) { expect_plain_text(JudgeRule::kMatch, spec::greedy_sampler()); }
TEST(SameText, MatchAtTemperature08) { expect_plain_text(JudgeRule::kMatch, at_temperature(0.8f)); }
TEST(SameText, MatchWithFilters) { expect_plain_text(JudgeRule::kMatch, {0.8f, 5, 0.9f, 0.05f}); }
TEST(SameText, RejectionGreedy) { expect_plain_text(JudgeRule::kRejection, spec::greedy_sampler()); }

// Everything but times. Similarity is what the bank reports about itself; static mode has none.
void expect_same_events(const std::vector<trace::StepEvent>& a, const std::vector<trace::StepEvent>& b, std::uint64_t seed) {
  ASSERT_EQ(a.size(), b.size()) << "seed " << seed;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].sequence, b[i].sequence);
    EXPECT_EQ(a[i].step, b[i].step);
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_EQ(a[i].sequences, b[i].sequences);
    ASSERT_EQ(a[i].proposed.size(), b[i].proposed.size()) << "seed " << seed << ", step " << i;
    for (std::size_t j = 0; j < a[i].proposed.size(); ++j) {
      const trace::ProposedToken &x = a[i].proposed[j], &y = b[i].proposed[j];
      EXPECT_EQ(x.token, y.token) << "seed " << seed << ", step " << i;
      EXPECT_EQ(x.accepted, y.accepted);
      EXPECT_EQ(x.from_bank, y.from_bank);
      EXPECT_EQ(x.gain, y.gain);
      EXPECT_EQ(std::memcmp(&x.overlap, &y.overlap, sizeof x.overlap), 0)
          << x.overlap << " and " << y.overlap << ", seed " << seed << ", step " << i;
    }
    ASSERT_EQ(a[i].emitted.size(), b[i].emitted.size());
    for (std::size_t j = 0; j < a[i].emitted.size(); ++j) {
      EXPECT_EQ(a[i].emitted[j].token, b[i].emitted[j].token);
      EXPECT_EQ(a[i].emitted[j].origin, b[i].emitted[j].origin);
    }
  }
}

TEST(SameText, GainZeroIsStaticBitForBit) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (const SamplerConfig& sampler : {spec::greedy_sampler(), at_temperature(0.8f), SamplerConfig{0.8f, 5, 0.9f, 0.05f}}) {
      for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        World w(seed);
        w.recal.lambda = 0.0f;
        auto r = w.recalibrator();
        std::vector<trace::StepEvent> fixed, drift;
        const Answer a = decode_answer(w, w.config(Mode::kStatic, rule, sampler, nullptr), &fixed);
        const Answer b = decode_answer(w, w.config(Mode::kDrift, rule, sampler, r.get()), &drift);
        ASSERT_EQ(a, b) << "seed " << seed;
        expect_same_events(fixed, drift, seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A batch changes nothing for its members, as long as each has its own bank.
TEST(SameText, BatchedSequencesEqualEachAlone) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      World w(seed);
      constexpr std::size_t kMembers = 4;
      std::vector<Answer> alone;
      std::vector<std::vector<trace::StepEvent>> alone_events(kMembers), batch_events(kMembers);
      const auto member = [&](std::size_t i, recal::Recalibrator* r) {
        SequenceConfig c = w.config(i == 0 ? Mode::kStatic : Mode::kDrift, rule, at_temperature(0.8f), r);
        if (i == 3) c.mode = Mode::kOff;
        c.name = 100 * seed + i;
        c.draft_tokens = static_cast<int>((seed + i) % 5);
        c.max_tokens = 10 + static_cast<std::int64_t>(7 * i);
        return c;
      };
      for (std::size_t i = 0; i < kMembers; ++i) {
        auto r = w.recalibrator();
        alone.push_back(decode_answer(w, member(i, r.get()), &alone_events[i]));
      }
      Rig rig(w.target, w.draft);
      std::vector<std::unique_ptr<recal::Recalibrator>> banks;
      std::vector<std::unique_ptr<Sequence>> sequences;
      for (std::size_t i = 0; i < kMembers; ++i) {
        banks.push_back(w.recalibrator());
        auto opened = rig.stepper.open(w.prompt, member(i, banks[i].get()));
        ASSERT_TRUE(opened.is_ok()) << opened.status().message();
        ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
        sequences.push_back(std::move(opened).value());
      }
      std::vector<trace::StepEvent> events;
      for (;;) {
        std::vector<Sequence*> running;
        std::vector<std::size_t> who;
        for (std::size_t i = 0; i < kMembers; ++i) {
          if (sequences[i]->ending() != Ending::kRunning) continue;
          running.push_back(sequences[i].get());
          who.push_back(i);
        }
        if (running.empty()) break;
        ASSERT_TRUE(rig.stepper.step(running, events).is_ok());
        for (std::size_t j = 0; j < who.size(); ++j) {
          EXPECT_EQ(events[j].sequences, static_cast<int>(running.size()));
          events[j].sequences = 1;
          batch_events[who[j]].push_back(events[j]);
        }
      }
      for (std::size_t i = 0; i < kMembers; ++i) {
        EXPECT_EQ(answer_of(*sequences[i]), alone[i]) << "seed " << seed << ", member " << i;
        expect_same_events(alone_events[i], batch_events[i], seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// ---- what a step costs ----

// Passes everything on and remembers the whole context of every node it decoded.
class Recorder final : public engine::Wrapper {
 public:
  using Wrapper::Wrapper;
  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override {
    for (const engine::Node& n : nodes) {
      std::vector<Token> context = n.parent == kPrefix ? kept_[n.seq] : pending_[n.seq][static_cast<std::size_t>(n.parent)];
      context.push_back(n.token);
      ++decoded[context];
      pending_[n.seq].push_back(context);
    }
    return Wrapper::forward(nodes, out);
  }
  Status keep(SeqId seq, std::span<const NodeIndex> path) override {
    if (!path.empty()) kept_[seq] = pending_[seq][static_cast<std::size_t>(path.back())];
    pending_[seq].clear();
    return Wrapper::keep(seq, path);
  }

  std::map<std::vector<Token>, int> decoded;  // context, the decoded token last -> how often

 private:
  std::map<SeqId, std::vector<Token>> kept_;
  std::map<SeqId, std::vector<std::vector<Token>>> pending_;
};

struct Work {
  Answer answer;
  engine::Counters target, draft;
  std::vector<trace::StepEvent> events;
};

Work measure(World& w, const SequenceConfig& config) {
  ToyEngine target(w.target), draft(w.draft);
  Recorder target_log(target), draft_log(draft);
  Stepper stepper(target_log, &draft_log);
  auto opened = stepper.open(w.prompt, config);
  EXPECT_TRUE(opened.is_ok());
  EXPECT_TRUE(stepper.prefill(**opened).is_ok());
  Work work;
  EXPECT_TRUE(run(stepper, **opened, &work.events).is_ok());
  work.answer = answer_of(**opened);
  work.target = target.counters();
  work.draft = draft.counters();
  // Each token of the text passes each engine at most once, and the target exactly once (the last one needs no pass).
  std::vector<Token> text;
  for (Token t : (*opened)->tokens()) {
    text.push_back(t);
    const int by_target = target_log.decoded.count(text) != 0 ? target_log.decoded[text] : 0;
    const int by_draft = draft_log.decoded.count(text) != 0 ? draft_log.decoded[text] : 0;
    const bool last = text.size() == (*opened)->tokens().size();
    EXPECT_LE(by_target, 1);
    EXPECT_TRUE(last || by_target == 1) << "seed " << w.seed << ", token " << text.size();
    EXPECT_LE(by_draft, 1) << "seed " << w.seed << ": the draft decoded token " << text.size() << " again";
  }
  return work;
}

// The counts a step may cost, from what it proposed: no pass more in drift mode than in static mode.
void expect_counts(const World& w, const Work& work) {
  const std::uint64_t prompt = w.prompt.size() - 1;
  std::uint64_t proposed = 0;
  for (const trace::StepEvent& e : work.events) proposed += e.proposed.size();
  const std::uint64_t prefills = prompt > 0 ? 1 : 0;
  EXPECT_EQ(work.target.forwards, prefills + work.events.size());
  EXPECT_EQ(work.target.tokens, prompt + work.events.size() + proposed);
  EXPECT_EQ(work.draft.forwards, prefills + proposed);
  EXPECT_EQ(work.draft.rows, proposed);
}

TEST(EngineCalls, DriftCostsWhatStaticCosts) {
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      World w(seed);
      w.recal.teach_prompt = false;  // else the prompt is read with rows as well
      const Work fixed = measure(w, w.config(Mode::kStatic, rule, at_temperature(0.8f), nullptr));
      expect_counts(w, fixed);
      auto r = w.recalibrator();
      expect_counts(w, measure(w, w.config(Mode::kDrift, rule, at_temperature(0.8f), r.get())));
      // With equal acceptances (gain 0) all counts are equal.
      w.recal.lambda = 0.0f;
      auto idle = w.recalibrator();
      const Work same = measure(w, w.config(Mode::kDrift, rule, at_temperature(0.8f), idle.get()));
      EXPECT_EQ(same.answer, fixed.answer);
      EXPECT_EQ(same.target.forwards, fixed.target.forwards);
      EXPECT_EQ(same.target.tokens, fixed.target.tokens);
      EXPECT_EQ(same.target.rows, fixed.target.rows);
      EXPECT_EQ(same.draft.forwards, fixed.draft.forwards);
      EXPECT_EQ(same.draft.tokens, fixed.draft.tokens);
      EXPECT_EQ(same.draft.rows, fixed.draft.rows);
    }
  }
}

// A copied proposal costs no draft pass, and a draft that was left out catches up without decoding a token twice (measure()).
TEST(EngineCalls, CopiedProposalsCostNoDraftPass) {
  std::uint64_t copied = 0, drafted = 0, mixed = 0;
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (const Mode mode : {Mode::kLookup, Mode::kSuffix, Mode::kDraftSuffix, Mode::kDriftSuffix}) {
      for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        World w(seed);
        w.recal.teach_prompt = false;
        auto r = w.recalibrator();
        auto suffix = suffix_memory();
        SequenceConfig c = w.config(mode, rule, at_temperature(0.8f), r.get());
        c.suffix = suffix.get();
        c.max_tokens = 120;
        const Work work = measure(w, c);
        std::uint64_t by_draft = 0, by_copy = 0;
        for (const trace::StepEvent& e : work.events) {
          std::uint64_t here = 0;
          for (const trace::ProposedToken& p : e.proposed) here += p.copied() ? 1 : 0;
          by_copy += here;
          by_draft += e.proposed.size() - here;
          mixed += here > 0 && here < e.proposed.size() ? 1 : 0;
        }
        EXPECT_EQ(work.target.tokens, w.prompt.size() - 1 + work.events.size() + by_draft + by_copy);
        EXPECT_EQ(work.draft.rows, by_draft) << "a row for each drafted proposal and no other";
        EXPECT_TRUE(decode::drafts(mode) || work.draft.tokens == 0) << "without a draft its engine is not touched";
        copied += by_copy;
        drafted += by_draft;
      }
    }
  }
  EXPECT_GT(copied, 1'000u);
  EXPECT_GT(drafted, 1'000u);
  EXPECT_GT(mixed, 100u) << "blocks of both origins were seen";
}

// ---- the k-th engine call fails ----

bool same_image(const bank::BankImage& a, const bank::BankImage& b) {
  return a.size == b.size && a.use_counter == b.use_counter && a.lengths == b.lengths && a.counts == b.counts &&
         a.last_used == b.last_used && a.errors == b.errors && a.tokens == b.tokens && a.values == b.values && a.keys == b.keys;
}

// Runs two sequences of one batch with a fault; true if it fired. Whatever failed: a clean status, nothing learned or emitted.
bool run_with_fault(World& w, bool in_target, testing::Fault fault, std::uint64_t at, Code expected, Mode mode = Mode::kDrift) {
  ToyEngine target(w.target), draft(w.draft);
  testing::FaultyEngine bad_target(target, in_target ? fault : testing::Fault::kStatus, in_target ? at : 0);
  testing::FaultyEngine bad_draft(draft, in_target ? testing::Fault::kStatus : fault, in_target ? 0 : at);
  Stepper stepper(bad_target, &bad_draft);
  auto r = w.recalibrator();
  auto suffix = suffix_memory();
  fill_hostile(*suffix, w.seed, w.target.vocab);
  const auto fired = [&] { return bad_target.fired() || bad_draft.fired(); };
  std::vector<std::unique_ptr<Sequence>> sequences;
  const auto close_all = [&] {
    for (auto& s : sequences) stepper.close(*s);
    auto again = target.open();  // everything was given back: slot 0 is free in both engines
    auto draft_again = draft.open();
    EXPECT_TRUE(again.is_ok() && *again == 0 && draft_again.is_ok() && *draft_again == 0)
        << "a sequence leaked, fault at call " << at;
  };
  for (std::uint64_t name : {1u, 2u}) {
    SequenceConfig c = w.config(mode, JudgeRule::kRejection, at_temperature(0.8f), r.get());
    c.suffix = suffix.get();
    c.name = name;
    c.draft_tokens = 2;
    c.max_tokens = 6;
    c.is_end = nullptr;
    auto opened = stepper.open(w.prompt, c);
    if (!opened.is_ok()) {
      EXPECT_TRUE(fired());
      EXPECT_EQ(opened.status().code(), expected);
      close_all();
      return true;
    }
    sequences.push_back(std::move(opened).value());
    const Status ready = stepper.prefill(*sequences.back());
    if (!ready.is_ok()) {
      EXPECT_TRUE(fired());
      EXPECT_EQ(ready.code(), expected);
      close_all();
      return true;
    }
  }
  std::vector<trace::StepEvent> events;
  for (;;) {
    std::vector<Sequence*> running;
    for (auto& s : sequences) {
      if (s->ending() == Ending::kRunning) running.push_back(s.get());
    }
    if (running.empty()) break;
    const bank::BankImage before = bank::Snapshot::copy(r->bank());
    const std::vector<std::byte> gains = r->gains().save();
    std::vector<std::size_t> lengths;
    for (const Sequence* s : running) lengths.push_back(s->tokens().size());
    const Status stepped = stepper.step(running, events);
    if (stepped.is_ok()) {
      EXPECT_FALSE(fired()) << "a fault at call " << at << " was swallowed";
      continue;
    }
    EXPECT_TRUE(fired());
    EXPECT_EQ(stepped.code(), expected) << stepped.message();
    EXPECT_FALSE(stepped.message().empty());
    EXPECT_TRUE(same_image(before, bank::Snapshot::copy(r->bank()))) << "the bank changed, fault at call " << at;
    EXPECT_EQ(gains, r->gains().save());
    EXPECT_EQ(r->staged(), 0u) << "a lesson is left for the next commit, fault at call " << at;
    for (std::size_t i = 0; i < running.size(); ++i)
      EXPECT_EQ(running[i]->tokens().size(), lengths[i]) << "something was emitted";
    for (const trace::StepEvent& e : events) EXPECT_TRUE(e.emitted.empty());
    close_all();
    return true;
  }
  EXPECT_FALSE(fired());
  close_all();
  return false;
}

TEST(Faults, TheKthEngineCallFails) {
  for (const Mode mode : {Mode::kDrift, Mode::kDriftSuffix}) {
    for (std::uint64_t seed : {3u, 4u, 8u, 20u}) {
      World w(seed);
      for (const bool in_target : {true, false}) {
        std::uint64_t k = 1;
        while (run_with_fault(w, in_target, testing::Fault::kStatus, k, Code::kInternal, mode)) {
          ASSERT_FALSE(HasFailure()) << "seed " << seed << (in_target ? ", target" : ", draft") << ", call " << k;
          ASSERT_LT(++k, 1'000u);
        }
        EXPECT_GT(k, mode == Mode::kDrift || in_target ? 8u : 3u) << "several calls of each kind were failed";
      }
    }
  }
}

TEST(Faults, RowsThatAreNotFiniteAreRefused) {
  const World world(3);
  const std::uint64_t prefills = 2;  // forwards without rows
  for (std::uint64_t k = prefills + 1; k <= prefills + 4; ++k) {
    World w(3);
    ASSERT_GT(w.prompt.size(), 1u);
    EXPECT_TRUE(run_with_fault(w, true, testing::Fault::kNanLogits, k, Code::kInternal)) << k;
    EXPECT_TRUE(run_with_fault(w, false, testing::Fault::kNanLogits, k, Code::kInternal)) << k;
    EXPECT_TRUE(run_with_fault(w, false, testing::Fault::kNanHidden, k, Code::kInvalid)) << k;
  }
}

}  // namespace
}  // namespace drift::property
