#include <gtest/gtest.h>

#include "drift/decode/stepper.hpp"
#include "drift/decode/testing.hpp"
#include "drift/engine/wrapper.hpp"
#include "drift/testing/toy_engine.hpp"

namespace drift::decode {
namespace {

using testing::ToyEngine;
using testing::ToyModel;

constexpr std::uint32_t kVocab = 12, kWidth = 5;

// An engine that gives no rows in prefill.
class Silent final : public engine::Wrapper {
 public:
  using Wrapper::Wrapper;
  engine::ModelInfo info() const override {
    engine::ModelInfo info = Wrapper::info();
    info.can.prompt_rows = false;
    return info;
  }
};

struct Rig {
  explicit Rig(bool silent = false)
      : target(model(1, 0)),
        draft(model(2, kWidth)),
        quiet(draft),
        stepper(target, silent ? static_cast<engine::Engine*>(&quiet) : &draft) {
    config.mode = Mode::kDrift;
    config.rule = spec::JudgeRule::kRejection;
    config.sampler = {1.0f, 0, 1.0f, 0.0f};
    config.max_tokens = 6;
    config.choices = &stream;
    recal = fresh();
    config.recal = recal.get();
  }
  static ToyModel model(std::uint64_t seed, std::size_t width) {
    ToyModel m = testing::random_model(seed, kVocab, width, 2, 3.0f);
    m.context = 2000;
    return m;
  }
  static std::unique_ptr<recal::Recalibrator> fresh() {
    recal::RecalConfig c = recal::RecalConfig::standard();
    c.bank.key_dim = kWidth;
    c.bank.vocab = kVocab;
    c.bank.support = 4;
    c.bank.capacity = 4096;
    c.bank.tau = 1.0f;  // nearly every position is an entry of its own, so lessons can be counted
    auto made = recal::Recalibrator::create(c);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    return std::move(made).value();
  }
  std::unique_ptr<Sequence> open(const std::vector<Token>& prompt) {
    auto s = stepper.open(prompt, config);
    EXPECT_TRUE(s.is_ok()) << s.status().message();
    return std::move(s).value();
  }
  std::uint64_t lessons() const { return recal->bank().stats().allocated + recal->bank().stats().updated; }

  ToyEngine target, draft;
  Silent quiet;
  Stepper stepper;
  RngStream stream{77};
  std::unique_ptr<recal::Recalibrator> recal;
  SequenceConfig config;
};

std::vector<Token> text(std::size_t length) {
  std::vector<Token> t(length);
  for (std::size_t i = 0; i < length; ++i) t[i] = static_cast<Token>((i * i + i / 3) % kVocab);
  return t;
}

TEST(PromptLesson, TeachesWhatBothModelsSayAfterEachToken) {
  const std::vector<Token> prompt = text(40);
  Rig rig;
  auto s = rig.open(prompt);
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  EXPECT_EQ(rig.lessons(), prompt.size() - 1) << "the last token's row belongs to the first step";

  // The same by hand: each model's row after each token, in one commit.
  const auto by_hand = Rig::fresh();
  const ToyModel t = Rig::model(1, 0), d = Rig::model(2, kWidth);
  std::vector<float> y(kVocab), z(kVocab), h(kWidth);
  for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
    const std::span<const Token> read = std::span<const Token>(prompt).first(i + 1);
    t.row(read, y, {});
    d.row(read, z, h);
    recal::Lookup found;
    recal::Bias used;
    const recal::Judging judging{true, rig.config.sampler};
    ASSERT_TRUE(by_hand->lookup({h, read}, found).is_ok());
    by_hand->bias(found, z, judging, used);
    ASSERT_TRUE(by_hand->observe(found, used, z, y, judging).is_ok());
  }
  by_hand->commit();
  const bank::StoredBank expected = by_hand->save({}), got = rig.recal->save({});
  EXPECT_EQ(got.image.values, expected.image.values);
  EXPECT_EQ(got.extras, expected.extras) << "other levels, and what they earned";
}

TEST(PromptLesson, OnlyTheEndOfALongPromptInPiecesOfAnySize) {
  const std::vector<Token> prompt = text(kPromptLesson + 200);
  for (const std::size_t piece : {std::size_t{7}, std::size_t{100}, std::size_t{4096}}) {
    Rig rig;
    auto s = rig.open(prompt);
    bool done = false;
    std::size_t calls = 0;
    while (!done) {
      ASSERT_TRUE(rig.stepper.prefill(*s, piece, done).is_ok());
      ++calls;
    }
    EXPECT_EQ(calls, (prompt.size() - 1 + piece - 1) / piece) << "each call reads as much as it may";
    const std::size_t end = prompt.size() - 1, first = (end - kPromptLesson + kLessonChunk - 1) / kLessonChunk * kLessonChunk;
    EXPECT_EQ(rig.lessons(), end - first) << "at most kPromptLesson, and a multiple of a pass before them";
    EXPECT_FALSE(run_to_end(rig.stepper, *s).empty());
  }
}

TEST(PromptLesson, ARewoundPromptTeachesTheBankItIsGivenAndANextTurnOnlyWhatIsNew) {
  std::vector<Token> prompt = text(30);
  Rig rig;
  auto s = rig.open(prompt);
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  const auto other = Rig::fresh();
  SequenceConfig config = rig.config;
  config.recal = other.get();
  ASSERT_TRUE(rig.stepper.rewind(*s, config).is_ok());
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  EXPECT_EQ(other->save({}).image.values, rig.recal->save({}).image.values);
  prompt.insert(prompt.end(), {1, 2, 3, 4});
  const std::uint64_t before = other->bank().stats().allocated + other->bank().stats().updated;
  ASSERT_TRUE(rig.stepper.restart(*s, prompt, config).is_ok());
  ASSERT_TRUE(rig.stepper.prefill(*s).is_ok());
  EXPECT_EQ(other->bank().stats().allocated + other->bank().stats().updated - before, 4u);
}

TEST(PromptLesson, NothingIsLearnedWhereItMayNotBe) {
  const auto taught = [](auto change, bool silent) {
    Rig rig(silent);
    change(rig);
    auto s = rig.open(text(30));
    EXPECT_TRUE(rig.stepper.prefill(*s).is_ok());
    return rig.lessons();
  };
  const auto as_is = [](Rig&) {};
  EXPECT_EQ(taught(as_is, false), 29u);
  EXPECT_EQ(taught(as_is, true), 0u) << "no rows in prefill, as in a trace";
  EXPECT_EQ(taught([](Rig& rig) { rig.recal->freeze(true); }, false), 0u);
  EXPECT_EQ(taught([](Rig& rig) { rig.config.mode = Mode::kStatic; }, false), 0u);
}

}  // namespace
}  // namespace drift::decode
