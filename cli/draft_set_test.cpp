#include "cli/draft_set.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "drift/base/rng.hpp"
#include "drift/decode/stepper.hpp"
#include "drift/testing/toy_engine.hpp"

namespace drift::cli {
namespace {

using decode::Mode;
using testing::ToyEngine;

constexpr std::size_t kVocab = 12;

testing::ToyModel model(std::uint64_t seed) { return testing::random_model(seed, kVocab, 0, 2, 3.0f); }

struct Rig {
  Rig() : target(model(1)), frozen(model(2)), own(model(3)), set({&frozen}), stepper(target, &set) { set.set(1, own); }
  decode::SequenceConfig config() {
    decode::SequenceConfig c;
    c.mode = Mode::kStatic;
    c.sampler = {1.0f, 0, 1.0f, 0.0f};
    c.max_tokens = 30;
    c.choices = &stream;
    return c;
  }
  std::vector<trace::StepEvent> run(decode::Sequence& s, std::size_t place) {
    set.select(place);
    EXPECT_TRUE(stepper.rewind(s, config()).is_ok());
    EXPECT_TRUE(stepper.prefill(s).is_ok());
    std::vector<trace::StepEvent> all, events;
    decode::Sequence* const one[] = {&s};
    while (s.ending() == decode::Ending::kRunning) {
      EXPECT_TRUE(stepper.step(one, events).is_ok());
      all.push_back(events[0]);
    }
    return all;
  }
  ToyEngine target, frozen, own;
  DraftSet set;
  decode::Stepper stepper;
  RngStream stream{4};
};

std::vector<Token> proposals(const std::vector<trace::StepEvent>& events) {
  std::vector<Token> out;
  for (const trace::StepEvent& e : events) {
    for (const trace::ProposedToken& p : e.proposed) out.push_back(p.token);
  }
  return out;
}

// Modes that follow one another on one prompt each draft with their own weights, in any order.
TEST(DraftSet, EachModeDraftsWithItsOwn) {
  Rig rig;
  auto opened = rig.stepper.open(std::vector<Token>{1, 2, 3, 4}, rig.config());
  ASSERT_TRUE(opened.is_ok());
  const auto frozen = proposals(rig.run(**opened, 0)), own = proposals(rig.run(**opened, 1));
  EXPECT_NE(frozen, own);
  EXPECT_EQ(proposals(rig.run(**opened, 1)), own);
  EXPECT_EQ(proposals(rig.run(**opened, 0)), frozen);

  ToyEngine target(model(1)), alone(model(3));
  decode::Stepper stepper(target, &alone);
  auto plain = stepper.open(std::vector<Token>{1, 2, 3, 4}, rig.config());
  ASSERT_TRUE(plain.is_ok());
  ASSERT_TRUE(stepper.prefill(**plain).is_ok());
  std::vector<trace::StepEvent> all, events;
  decode::Sequence* const one[] = {plain->get()};
  while ((*plain)->ending() == decode::Ending::kRunning) {
    ASSERT_TRUE(stepper.step(one, events).is_ok());
    all.push_back(events[0]);
  }
  EXPECT_EQ(own, proposals(all)) << "as in a stepper of its own";
}

TEST(DraftSet, KnowsWhatAllDraftsKnow) {
  testing::ToyModel small = testing::random_model(3, kVocab - 2, 0, 2, 3.0f);
  small.context = 40;
  ToyEngine first(model(2)), second(small);
  DraftSet set({&first, &second});
  EXPECT_EQ(set.info().vocab, kVocab - 2);
  EXPECT_EQ(set.info().context, 40u);
  EXPECT_EQ(DraftSet({&first}).info().vocab, kVocab);
}

TEST(DraftSet, SequencesAreOpenInAllOrInNone) {
  testing::ToyModel narrow = model(3);
  narrow.max_sequences = 1;
  ToyEngine frozen(model(2)), own(narrow);
  DraftSet set({&frozen});
  set.set(1, own);
  const auto first = set.open();
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(set.open().status().code(), Code::kLimit);
  set.close(first.value());
  EXPECT_EQ(frozen.length(first.value()), -1);
  EXPECT_EQ(own.length(first.value()), -1);
  const auto again = set.open();
  ASSERT_TRUE(again.is_ok()) << "the failed open left nothing behind";
  EXPECT_EQ(again.value(), first.value());
}

}  // namespace
}  // namespace drift::cli
