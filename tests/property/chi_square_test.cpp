// The same law seen from outside: answers drawn with the production RngStream, 1e5 seeds, against the exact law.
#include <cmath>
#include <cstdio>

#include "tests/property/harness.hpp"

namespace drift::property {
namespace {

// Upper tail of the chi-square distribution: Q(k/2, x/2), by series and continued fraction (Abramowitz & Stegun 6.5.29, 6.5.31).
double chi_square_tail(double x, double degrees) {
  const double a = degrees / 2.0, z = x / 2.0;
  if (!(z > 0.0)) return 1.0;
  const double scale = std::exp(-z + a * std::log(z) - std::lgamma(a));
  if (z < a + 1.0) {
    double term = 1.0 / a, sum = term;
    for (int n = 1; n < 10'000 && term > sum * 1e-16; ++n) sum += term *= z / (a + n);
    return 1.0 - scale * sum;
  }
  double b = z + 1.0 - a, c = 1e300, d = 1.0 / b, h = d;
  for (int n = 1; n < 10'000; ++n) {
    const double an = -n * (n - a);
    b += 2.0;
    d = 1.0 / (an * d + b);
    c = b + an / c;
    const double delta = d * c;
    h *= delta;
    if (std::fabs(delta - 1.0) < 1e-15) break;
  }
  return scale * h;
}

// p-value of counts against a law; cells of small expectation are put together.
double p_value(const std::map<Answer, std::uint64_t>& counts, const Law& law, std::uint64_t draws) {
  double statistic = 0.0, rest_expected = 0.0, rest_seen = 0.0;
  int cells = 0;
  const auto add = [&](double seen, double expected) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  std::uint64_t covered = 0;
  for (const auto& [answer, p] : law) {
    const auto it = counts.find(answer);
    const std::uint64_t seen = it == counts.end() ? 0 : it->second;
    covered += seen;
    const double expected = p * static_cast<double>(draws);
    if (expected >= 10.0) {
      add(static_cast<double>(seen), expected);
    } else {
      rest_expected += expected;
      rest_seen += static_cast<double>(seen);
    }
  }
  if (covered != draws) return 0.0;  // something came out that the law forbids
  if (rest_expected > 0.0) add(rest_seen, rest_expected);
  return chi_square_tail(statistic, cells - 1);
}

constexpr std::uint64_t kDraws = 100'000;
constexpr std::uint64_t kFirstSeed = 7'000'000;
const std::vector<Token> kPrompt{1, 2};

struct Experiment {
  JudgeRule rule = JudgeRule::kRejection;
  SamplerConfig sampler = kPlain;
  ToyModel target = testing::random_model(61, 4, 0, 3, 2.0f);
  ToyModel draft = testing::random_model(62, 4, 4, 3, 2.0f);
};

void draw_answers(const Experiment& experiment, std::map<Answer, std::uint64_t>& counts) {
  Rig rig(experiment.target, experiment.draft);
  auto made = recal::Recalibrator::create(hostile_config(4, 4, recal::GainRule::kFixed, 2.0f));
  ASSERT_TRUE(made.is_ok());
  recal::Recalibrator& r = **made;
  const bank::StoredBank hostile = hostile_bank(r.config(), 63);
  RngStream first(kFirstSeed);
  SequenceConfig config;
  config.mode = Mode::kDrift;
  config.rule = experiment.rule;
  config.sampler = experiment.sampler;
  config.draft_tokens = 2;
  config.max_tokens = 3;
  config.recal = &r;
  config.choices = &first;
  auto opened = rig.stepper.open(kPrompt, config);
  ASSERT_TRUE(opened.is_ok());
  ASSERT_TRUE(rig.stepper.prefill(**opened).is_ok());
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    RngStream stream(kFirstSeed + i);
    config.choices = &stream;
    ASSERT_TRUE(r.restore(hostile).is_ok());
    ASSERT_TRUE(rig.stepper.rewind(**opened, config).is_ok() && rig.stepper.prefill(**opened).is_ok());
    ASSERT_TRUE(run(rig.stepper, **opened).is_ok());
    ++counts[answer_of(**opened)];
  }
}

Law law_of(const Experiment& experiment) {
  Law law;
  std::vector<Token> context = kPrompt;
  exact_law(experiment.target, experiment.sampler, 3, {}, context, kPrompt.size(), 1.0, law);
  return law;
}

void expect_law(const Experiment& experiment) {
  std::map<Answer, std::uint64_t> counts;
  draw_answers(experiment, counts);
  if (::testing::Test::HasFatalFailure()) return;
  const double p = p_value(counts, law_of(experiment), kDraws);
  std::printf("seeds %llu .. %llu: p = %.4g\n", static_cast<unsigned long long>(kFirstSeed),
              static_cast<unsigned long long>(kFirstSeed + kDraws - 1), p);
  EXPECT_GT(p, 1e-4);
  // Power: the same answers against a law that is wrong by 5 % of temperature must be refused, or the check above is idle.
  Experiment wrong = experiment;
  wrong.sampler.temperature *= 1.05f;
  EXPECT_LT(p_value(counts, law_of(wrong), kDraws), 1e-6);
}

TEST(ChiSquare, TailMatchesKnownValues) {
  EXPECT_NEAR(chi_square_tail(3.841458820694124, 1), 0.05, 1e-9);
  EXPECT_NEAR(chi_square_tail(18.307038053275146, 10), 0.05, 1e-9);
  EXPECT_NEAR(chi_square_tail(2.0, 2), std::exp(-1.0), 1e-12);
  EXPECT_NEAR(chi_square_tail(149.44925277903886, 100), 0.001, 1e-9);
}

TEST(ChiSquare, RejectionInDriftMode) { expect_law({}); }

TEST(ChiSquare, MatchInDriftMode) {
  Experiment experiment;
  experiment.rule = JudgeRule::kMatch;
  expect_law(experiment);
}

TEST(ChiSquare, RejectionWithFilters) {
  Experiment experiment;
  experiment.sampler = {0.8f, 3, 0.95f, 0.05f};
  expect_law(experiment);
}

// The draft's own answers must not pass for the target's: what AcceptAlways would give.
TEST(ChiSquare, TheDraftsLawIsRefused) {
  Experiment experiment;
  experiment.draft = testing::random_model(62, 4, 4, 3, 2.0f);
  experiment.target = experiment.draft;
  experiment.target.hidden_width = 0;
  experiment.target.row = [row = experiment.draft.row](std::span<const Token> context, std::span<float> logits,
                                                       std::span<float>) { row(context, logits, {}); };
  std::map<Answer, std::uint64_t> counts;
  draw_answers(experiment, counts);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_LT(p_value(counts, law_of(Experiment{}), kDraws), 1e-12);
}

}  // namespace
}  // namespace drift::property
