#include "drift/trace/metrics.hpp"

#include <cmath>

#include <gtest/gtest.h>

namespace drift::trace {
namespace {

// A step that proposed `drafted` tokens of which the first `stood` stood, `from_bank` of those thanks to the bank.
StepEvent event(std::size_t drafted, std::size_t stood, std::size_t emitted, std::size_t from_bank = 0) {
  StepEvent e;
  for (std::size_t i = 0; i < drafted; ++i) {
    ProposedToken p;
    p.token = static_cast<Token>(i);
    p.accepted = i < stood;
    p.from_bank = i < from_bank || i >= stood;  // a proposal that fell may be the bank's too: it does not count
    e.proposed.push_back(p);
  }
  for (std::size_t i = 0; i < emitted; ++i)
    e.emitted.push_back({static_cast<Token>(i), i < stood ? Origin::kAccepted : Origin::kTarget});
  e.times.draft_ns = 100;
  e.times.verify_ns = 300;
  e.times.lookup_ns = 4;
  e.times.bias_ns = 3;
  e.times.residual_ns = 2;
  e.times.commit_ns = 1;
  e.times.total_ns = 1'000;
  return e;
}

Metrics example() {
  Metrics m;
  m.add(event(3, 3, 4, 1));
  m.add(event(3, 1, 2));
  m.add(event(3, 0, 1));
  m.add(event(2, 2, 3, 2));
  m.add(event(0, 0, 1));
  return m;
}

TEST(Metrics, CountsByHand) {
  const Metrics m = example();
  EXPECT_EQ(m.steps, 5u);
  EXPECT_EQ(m.blocks, 4u);
  EXPECT_EQ(m.tokens, 11u);
  EXPECT_EQ(m.drafted, 11u);
  EXPECT_EQ(m.accepted, 6u);
  EXPECT_EQ(m.accepted_bank, 3u);
  EXPECT_EQ(m.tested, 3u + 2u + 1u + 2u);
  EXPECT_EQ(m.tested_at, (std::vector<std::uint64_t>{4, 3, 1}));
  EXPECT_EQ(m.accepted_at, (std::vector<std::uint64_t>{3, 2, 1}));
  EXPECT_EQ(m.accepted_histogram, (std::vector<std::uint64_t>{1, 1, 1, 1}));
}

TEST(Metrics, CopiedProposalsAreCountedAndCostNoDraft) {
  StepEvent e = event(3, 2, 3);
  e.proposed[1].match = 4;  // stands
  e.proposed[2].match = 5;  // falls
  Metrics m, twice;
  m.add(e);
  EXPECT_EQ(m.drafted, 3u);
  EXPECT_EQ(m.copied, 2u);
  EXPECT_EQ(m.accepted_copied, 1u);
  EXPECT_DOUBLE_EQ(m.modelled_speedup(0.5, 1.0), 3.0 / (1 * 0.5 + 1.0));
  twice.add(e);
  twice.merge(m);
  EXPECT_EQ(twice.copied, 4u);
  EXPECT_EQ(twice.accepted_copied, 2u);
}

TEST(Metrics, RatiosByHand) {
  const Metrics m = example();
  EXPECT_DOUBLE_EQ(m.acceptance(), 6.0 / 11.0);
  EXPECT_DOUBLE_EQ(m.acceptance_conditional(), 6.0 / 8.0);
  const std::vector<double> per = m.per_position();
  ASSERT_EQ(per.size(), 3u);
  EXPECT_DOUBLE_EQ(per[0], 0.75);
  EXPECT_DOUBLE_EQ(per[1], 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(per[2], 1.0);
  EXPECT_DOUBLE_EQ(m.mean_accepted_per_block(), 1.5);
  EXPECT_DOUBLE_EQ(m.mean_length(), 11.0 / 5.0);
  EXPECT_DOUBLE_EQ(m.predicted_accepted(), 0.75 + 0.75 * 0.75 + 0.75 * 0.75 * 0.75);
  EXPECT_DOUBLE_EQ(m.tokens_per_s(), 11.0 / 5e-6);
  EXPECT_DOUBLE_EQ(m.overhead_fraction(), 10.0 / 400.0);
  EXPECT_DOUBLE_EQ(m.modelled_speedup(0.1, 1.05), 11.0 / (1.1 + 4 * 1.05 + 1.0));
}

TEST(Metrics, NothingIsZeroNotNan) {
  const Metrics m;
  for (double v :
       {m.acceptance(), m.acceptance_conditional(), m.mean_accepted_per_block(), m.mean_length(), m.predicted_accepted(),
        m.tokens_per_s(), m.overhead_fraction(), m.modelled_speedup(0.1, 1.05), m.step_percentile_ms(0.5)}) {
    EXPECT_EQ(v, 0.0);
  }
  EXPECT_TRUE(m.per_position().empty());
}

TEST(Metrics, MergingEqualsAddingAll) {
  Metrics a, b, all = example();
  a.add(event(3, 3, 4, 1));
  a.add(event(3, 1, 2));
  b.add(event(3, 0, 1));
  b.add(event(2, 2, 3, 2));
  b.add(event(0, 0, 1));
  a.merge(b);
  EXPECT_EQ(a.tested_at, all.tested_at);
  EXPECT_EQ(a.accepted_at, all.accepted_at);
  EXPECT_EQ(a.accepted_histogram, all.accepted_histogram);
  EXPECT_EQ(a.accepted_bank, all.accepted_bank);
  EXPECT_EQ(a.step_ns, all.step_ns);
  EXPECT_EQ(a.times.total_ns, all.times.total_ns);
  EXPECT_DOUBLE_EQ(a.modelled_speedup(0.1, 1.0), all.modelled_speedup(0.1, 1.0));
}

TEST(Metrics, Percentiles) {
  Metrics m;
  for (int i = 100; i >= 1; --i) {
    StepEvent e;
    e.times.total_ns = i * 1'000'000;
    m.add(e);
  }
  EXPECT_DOUBLE_EQ(m.step_percentile_ms(0.0), 1.0);
  EXPECT_DOUBLE_EQ(m.step_percentile_ms(1.0), 100.0);
  EXPECT_DOUBLE_EQ(m.step_percentile_ms(0.99), 99.0);
  EXPECT_DOUBLE_EQ(m.step_percentile_ms(2.0), 100.0);
}

}  // namespace
}  // namespace drift::trace
