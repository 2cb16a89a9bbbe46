// Online distillation: the losses against their definitions, what an update does to the weights, the bounds of the buffer, and
// the whole loop over a real network: exact law and equal texts with weights that change between steps.
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engines/torch/kd_loss.hpp"
#include "engines/torch/online_kd.hpp"
#include "tests/contract/torch_nets.hpp"
#include "tests/property/harness.hpp"

namespace drift::engine {
namespace {

constexpr KdLoss kLosses[] = {KdLoss::kForward, KdLoss::kReverse, KdLoss::kJs};

// ---- the losses ----

torch::Tensor random_logits(std::int64_t rows, std::int64_t vocab, std::uint64_t seed) {
  torch::manual_seed(seed);
  return 3 * torch::randn({rows, vocab});
}

// From the definitions, in double, over all tokens.
double divergence(KdLoss loss, const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) {
    const double m = (p[v] + q[v]) / 2;
    if (loss == KdLoss::kForward) sum += p[v] * std::log(p[v] / q[v]);
    if (loss == KdLoss::kReverse) sum += q[v] * std::log(q[v] / p[v]);
    if (loss == KdLoss::kJs) sum += (p[v] * std::log(p[v] / m) + q[v] * std::log(q[v] / m)) / 2;
  }
  return sum;
}

std::vector<double> softmax_of(const torch::Tensor& row) {
  const torch::Tensor p = torch::softmax(row.to(torch::kDouble), -1).contiguous();
  return {p.data_ptr<double>(), p.data_ptr<double>() + p.numel()};
}

TEST(KdLoss, IsTheDivergenceOverAllTokens) {
  const torch::Tensor target = random_logits(5, 40, 1), draft = random_logits(5, 40, 2);
  for (const KdLoss loss : kLosses) {
    for (const std::int64_t m : {0, 40, 100}) {
      const torch::Tensor got = kd_loss(loss, draft, kd_labels(target, m));
      for (std::int64_t i = 0; i < 5; ++i)
        EXPECT_NEAR(got[i].item<double>(), divergence(loss, softmax_of(target[i]), softmax_of(draft[i])), 1e-4);
    }
  }
}

TEST(KdLoss, TokensOutsideTheLabelsCountAsOne) {
  const torch::Tensor target = random_logits(4, 40, 3), draft = random_logits(4, 40, 4);
  const KdLabels labels = kd_labels(target, 6);
  ASSERT_EQ(labels.ids.size(1), 6);
  for (const KdLoss loss : kLosses) {
    const torch::Tensor got = kd_loss(loss, draft, labels);
    for (std::int64_t i = 0; i < 4; ++i) {
      const std::vector<double> p = softmax_of(target[i]), q = softmax_of(draft[i]);
      std::vector<double> few_p{1}, few_q{1};
      for (std::int64_t j = 0; j < 6; ++j) {
        const auto v = static_cast<std::size_t>(labels.ids[i][j].item<std::int64_t>());
        few_p.push_back(p[v]), few_q.push_back(q[v]);
        few_p[0] -= p[v], few_q[0] -= q[v];
      }
      EXPECT_NEAR(got[i].item<double>(), divergence(loss, few_p, few_q), 1e-4);
      EXPECT_LE(got[i].item<double>(), divergence(loss, p, q) + 1e-5) << "joining outcomes loses information";
    }
    EXPECT_LT(kd_loss(loss, target, labels).abs().max().item<double>(), 1e-5) << "no divergence from itself";
  }
}

TEST(KdLoss, TheForwardGradientIsQMinusP) {
  const torch::Tensor target = random_logits(3, 20, 5);
  const torch::Tensor draft = random_logits(3, 20, 6).requires_grad_(true);
  kd_loss(KdLoss::kForward, draft, kd_labels(target, 0)).sum().backward();
  EXPECT_LT((draft.grad() - (torch::softmax(draft, -1) - torch::softmax(target, -1))).abs().max().item<double>(), 1e-5);
}

TEST(KdLoss, StaysFiniteWhereTheTwoHaveNothingInCommon) {
  for (const std::int64_t m : {0, 1, 5}) {
    torch::Tensor target = torch::zeros({1, 30}), draft = torch::zeros({1, 30});
    target[0][3] = 200;
    draft[0][9] = 200;
    draft.requires_grad_(true);
    for (const KdLoss loss : kLosses) {
      const torch::Tensor got = kd_loss(loss, draft, kd_labels(target, m)).sum();
      got.backward();
      EXPECT_TRUE(std::isfinite(got.item<double>()));
      EXPECT_TRUE(torch::isfinite(draft.grad()).all().item<bool>());
    }
  }
}

// ---- the learner ----

constexpr std::size_t kVocab = 320;

struct Rig {
  explicit Rig(KdConfig config, std::uint64_t seed = 1) {
    TorchConfig engine_config;
    engine_config.context = 0;
    auto made = TorchEngine::make(lively_net(small_shape(), seed), small_meta(kVocab), engine_config);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    engine = std::move(made).value();
    auto learner = OnlineKd::create(*engine, kVocab, config);
    EXPECT_TRUE(learner.is_ok()) << learner.status().message();
    kd = std::move(learner).value();
  }
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> out;
    for (const torch::Tensor& p : engine->net()->parameters()) out.push_back(p.detach().clone());
    return out;
  }
  std::unique_ptr<TorchEngine> engine;
  std::unique_ptr<OnlineKd> kd;
};

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

// A lesson of `rows` positions at the end of a text, by a target of its own.
struct Lesson {
  Lesson(std::vector<Token> t, std::size_t rows, std::uint64_t seed = 11, std::uint64_t name = 1)
      : text(std::move(t)), logits(random_logits(static_cast<std::int64_t>(rows), kVocab, seed).contiguous()) {
    for (std::size_t i = 0; i < rows; ++i) target.push_back(logits.data_ptr<float>() + i * kVocab);
    verified = {name, text, target, kVocab, /*rejected=*/true};
  }
  Lesson(const Lesson&) = delete;
  Lesson& operator=(const Lesson&) = delete;

  std::vector<Token> text;
  torch::Tensor logits;
  std::vector<const float*> target;
  Verified verified;
};

void teach(OnlineKd& kd, const Verified& verified) {
  const Status seen = kd.observe(verified);
  ASSERT_TRUE(seen.is_ok()) << seen.message();
  const Status done = kd.commit();
  ASSERT_TRUE(done.is_ok()) << done.message();
}

TEST(OnlineKd, UpdatesBringTheDraftToTheTarget) {
  for (const KdLoss loss : kLosses) {
    for (const std::uint32_t labels : {0u, 16u}) {
      KdConfig config;
      config.loss = loss;
      config.labels = labels;
      config.every = config.buffer = 4;
      config.rate = 3e-3f;
      Rig rig(config);
      const Lesson lesson(some_tokens(20, kVocab), 4);
      teach(*rig.kd, lesson.verified);
      const double first = rig.kd->stats().loss;
      for (int i = 0; i < 30; ++i) teach(*rig.kd, lesson.verified);
      const LearnerStats stats = rig.kd->stats();
      EXPECT_EQ(stats.updates, 31u);
      EXPECT_EQ(stats.positions, 31u * 4u);
      EXPECT_EQ(stats.skipped_updates, 0u);
      EXPECT_LT(stats.loss, first / 2) << "loss " << static_cast<int>(loss) << ", labels " << labels;
      EXPECT_GT(stats.update_ns, 0);
      EXPECT_GE(stats.update_ns, stats.update_ns_max);
    }
  }
}

TEST(OnlineKd, WeightsChangeAtACommitThatHasEnough) {
  KdConfig config;
  config.every = 5;
  Rig rig(config);
  const std::vector<torch::Tensor> before = rig.weights();
  const Lesson three(some_tokens(20, kVocab), 3), two(some_tokens(30, kVocab, 2), 2);
  ASSERT_TRUE(rig.kd->observe(three.verified).is_ok());
  ASSERT_TRUE(rig.kd->observe(two.verified).is_ok());
  EXPECT_TRUE(equal(rig.weights(), before)) << "observe() takes notes only";
  rig.kd->discard();
  ASSERT_TRUE(rig.kd->commit().is_ok());
  EXPECT_EQ(rig.kd->buffered(), 0u) << "a failed step teaches nothing";
  teach(*rig.kd, three.verified);
  EXPECT_TRUE(equal(rig.weights(), before)) << "3 positions of 5";
  EXPECT_EQ(rig.kd->buffered(), 3u);
  teach(*rig.kd, two.verified);
  EXPECT_FALSE(equal(rig.weights(), before));
  EXPECT_EQ(rig.kd->stats().updates, 1u);
}

// Texts that go on from each other are read once, and teach what each alone would.
TEST(OnlineKd, ATextGivenInPiecesTeachesWhatItsPiecesTeach) {
  KdConfig config;
  config.every = 6;
  config.labels = 4;  // few, so that most of the buffer is text
  Rig joined(config), apart(config);
  const std::vector<Token> all = some_tokens(80, kVocab);
  for (std::size_t piece = 0; piece < 3; ++piece) {
    const std::vector<Token> text(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(60 + 5 * piece));
    const Lesson lesson(text, 2, 20 + piece);
    teach(*joined.kd, lesson.verified);
    Verified renamed = lesson.verified;
    renamed.sequence = 100 + piece;
    teach(*apart.kd, renamed);
  }
  ASSERT_EQ(joined.kd->stats().updates, 1u);
  ASSERT_EQ(apart.kd->stats().updates, 1u);
  EXPECT_LT(joined.kd->stats().buffer_bytes, apart.kd->stats().buffer_bytes);
  EXPECT_NEAR(joined.kd->stats().loss, apart.kd->stats().loss, 1e-4);
  // Adam's first step is the gradient's sign times the rate: only where a gradient is rounding may the two differ.
  const std::vector<torch::Tensor> a = joined.weights(), b = apart.weights();
  std::int64_t differ = 0, all_weights = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    differ += ((a[i] - b[i]).abs() > 0.1 * static_cast<double>(config.rate)).sum().item<std::int64_t>();
    all_weights += a[i].numel();
  }
  EXPECT_LT(differ, all_weights / 100);
}

TEST(OnlineKd, TheBufferIsBounded) {
  KdConfig config;
  config.every = 8;
  config.buffer = 24;
  config.labels = 10;
  config.window = 12;
  config.rate = 1e-4f;
  Rig rig(config);
  std::uint64_t most = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    // One text that grows, and others in between.
    const std::uint64_t name = i % 3 == 2 ? i : 1;
    const std::vector<Token> text = some_tokens(name == 1 ? 30 + i : 30, kVocab, name);
    const Lesson lesson(text, 3, i, name);
    teach(*rig.kd, lesson.verified);
    EXPECT_LE(rig.kd->buffered(), 24u);
    const std::uint64_t bytes = rig.kd->stats().buffer_bytes;
    if (i < 20) {
      most = std::max(most, bytes);
    } else {
      EXPECT_LE(bytes, 2 * most);
    }
  }
  EXPECT_EQ(rig.kd->buffered(), 24u);
  EXPECT_EQ(rig.kd->stats().positions, 180u);
  EXPECT_EQ(rig.kd->stats().updates, 20u) << "every 9 positions: 8 and what the block brings more";
}

TEST(OnlineKd, RejectedPositionsOnlyOnRequest) {
  KdConfig config;
  config.positions = KdPositions::kRejected;
  config.every = 100;
  config.buffer = 100;
  Rig rig(config);
  const Lesson lesson(some_tokens(20, kVocab), 3);
  teach(*rig.kd, lesson.verified);
  EXPECT_EQ(rig.kd->buffered(), 1u);
  Verified accepted = lesson.verified;
  accepted.rejected = false;
  teach(*rig.kd, accepted);
  EXPECT_EQ(rig.kd->buffered(), 1u);
}

TEST(OnlineKd, WithARankOnlyAdaptersAreTrained) {
  KdConfig config;
  config.every = config.buffer = 4;
  config.rank = 4;
  Rig rig(config), frozen(KdConfig{});
  const Lesson lesson(some_tokens(20, kVocab), 4);
  for (int i = 0; i < 3; ++i) teach(*rig.kd, lesson.verified);
  const auto stock = frozen.engine->net()->named_parameters();
  std::size_t adapters = 0, moved = 0;
  for (const auto& item : rig.engine->net()->named_parameters()) {
    if (stock.contains(item.key())) {
      EXPECT_TRUE(torch::equal(item.value(), stock[item.key()])) << item.key();
    } else {
      ++adapters;
      moved += item.value().abs().max().item<float>() > 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(adapters, 28u) << "A and B of seven matrices in two layers";
  EXPECT_EQ(moved, adapters);
  EXPECT_LT(rig.kd->stats().optimiser_bytes, frozen.kd->stats().optimiser_bytes / 2);
}

TEST(OnlineKd, RefusesWhatDoesNotFit) {
  Rig rig(KdConfig{});
  const auto create = [&](auto change) {
    KdConfig config;
    change(config);
    return OnlineKd::create(*rig.engine, kVocab, config).status().code();
  };
  EXPECT_EQ(create([](KdConfig& c) { c.rate = 0; }), Code::kInvalid);
  EXPECT_EQ(create([](KdConfig& c) { c.rate = std::nanf(""); }), Code::kInvalid);
  EXPECT_EQ(create([](KdConfig& c) { c.every = 0; }), Code::kInvalid);
  EXPECT_EQ(create([](KdConfig& c) { c.buffer = c.every - 1; }), Code::kInvalid);
  EXPECT_EQ(create([](KdConfig& c) { c.passes = 0; }), Code::kInvalid);
  EXPECT_EQ(create([](KdConfig& c) { c.window = kKdWindowMax + 1; }), Code::kInvalid);
  EXPECT_EQ(OnlineKd::create(*rig.engine, kVocab + 1, KdConfig{}).status().code(), Code::kInvalid);
  KdConfig large;
  large.labels = 0;
  large.buffer = kKdPositionsMax;
  EXPECT_EQ(large.validate(150'000).code(), Code::kLimit);

  const Lesson lesson(some_tokens(20, kVocab), 3);
  Verified bad = lesson.verified;
  bad.vocab = kVocab - 1;
  EXPECT_EQ(rig.kd->observe(bad).code(), Code::kInvalid);
  bad = lesson.verified;
  bad.text = bad.text.first(2);
  EXPECT_EQ(rig.kd->observe(bad).code(), Code::kInvalid) << "three rows after two tokens";
  std::vector<Token> foreign = lesson.text;
  foreign.back() = kVocab;
  bad.text = foreign;
  EXPECT_EQ(rig.kd->observe(bad).code(), Code::kInvalid);
  ASSERT_TRUE(rig.kd->commit().is_ok());
  EXPECT_EQ(rig.kd->buffered(), 0u) << "what was refused is not noted";
}

// ---- the whole loop over a real network ----

using decode::Mode;
using property::Law;
using spec::JudgeRule;

// A network so small that an answer's every path can be run.
ModelShape tiny_shape(std::int64_t vocab) {
  ModelShape shape;
  shape.vocab = vocab;
  shape.width = 8;
  shape.layers = 1;
  shape.heads = 2;
  shape.kv_heads = 2;
  shape.ffn = 8;
  shape.context = 32;
  return shape;
}

// A stepper over a toy target and a draft that learns at every step, by steps that are far too large.
struct Loop {
  explicit Loop(std::size_t vocab, std::uint64_t seed)
      : target_model(testing::random_model(seed, vocab, 0, 3, 2.0f)), target(target_model) {
    config.rate = 0.1f;
    config.every = 1;
    config.buffer = 8;
    config.labels = 2;
    TorchConfig engine_config;
    engine_config.context = 0;
    const auto tokens = static_cast<std::int64_t>(vocab);
    auto made = TorchEngine::make(lively_net(tiny_shape(tokens), seed), GgufMeta(), engine_config);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    draft = std::move(made).value();
    stock = copy_of(draft->net());
    stepper = std::make_unique<decode::Stepper>(target, draft.get());
    reset();
  }
  // The draft and its learner as new.
  void reset() {
    const torch::NoGradGuard no_grad;
    const auto from = stock->named_parameters();
    for (auto& item : draft->net()->named_parameters()) item.value().copy_(from[item.key()]);
    auto made = OnlineKd::create(*draft, target_model.vocab, config);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    kd = std::move(made).value();
  }
  decode::SequenceConfig sequence(Mode mode, JudgeRule rule, const spec::SamplerConfig& sampler, Choices& choices) {
    decode::SequenceConfig s;
    s.mode = mode;
    s.rule = rule;
    s.sampler = sampler;
    s.name = 1;
    s.draft_tokens = 2;
    s.learner = kd.get();
    s.choices = &choices;
    return s;
  }
  testing::ToyModel target_model;
  testing::ToyEngine target;
  KdConfig config;
  std::unique_ptr<TorchEngine> draft;
  LlamaNet stock{nullptr};
  std::unique_ptr<OnlineKd> kd;
  std::unique_ptr<decode::Stepper> stepper;
};

TEST(OnlineKdLoop, AnswerLawIsTheTargets) {
  const std::vector<Token> prompt{1, 2};
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    Loop loop(3, 21);
    testing::EnumeratingChoices choices;
    auto opened = loop.stepper->open(prompt, loop.sequence(Mode::kOnlineKd, rule, property::kPlain, choices));
    ASSERT_TRUE(opened.is_ok()) << opened.status().message();
    ASSERT_TRUE(loop.stepper->prefill(**opened).is_ok());
    Law got, expected;
    std::uint64_t updates = 0, recomputed = 0;
    do {
      loop.reset();
      decode::SequenceConfig config = loop.sequence(Mode::kOnlineKd, rule, property::kPlain, choices);
      config.max_tokens = 3;
      ASSERT_TRUE(loop.stepper->rewind(**opened, config).is_ok());
      const Status ran = property::run(*loop.stepper, **opened);
      ASSERT_TRUE(ran.is_ok()) << ran.message();
      got[property::answer_of(**opened)] += choices.probability();
      updates += loop.kd->stats().updates;
      recomputed = loop.kd->stats().recomputed_tokens;
      ASSERT_LT(choices.paths(), 20'000u) << "too many paths for a test";
    } while (choices.next());
    std::vector<Token> context = prompt;
    property::exact_law(loop.target_model, property::kPlain, 3, {}, context, prompt.size(), 1.0, expected);
    EXPECT_NEAR(property::total(got), 1.0, 1e-9);
    EXPECT_LT(property::total_variation(got, expected), 1e-6) << choices.paths() << " paths";
    EXPECT_GT(updates, choices.paths()) << "weights changed within answers";
    EXPECT_GT(recomputed, 0u);
  }
}

TEST(OnlineKdLoop, SameTextAsPlainDecoding) {
  const std::vector<Token> prompt{1, 2, 3};
  for (const JudgeRule rule : {JudgeRule::kMatch, JudgeRule::kRejection}) {
    for (const float temperature : {0.0f, 0.8f}) {
      if (rule == JudgeRule::kRejection && temperature > 0) continue;  // another text of the same law
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        Loop loop(12, seed);
        RngStream stream(seed);
        std::vector<property::Answer> answers;
        for (const Mode mode : {Mode::kOff, Mode::kStatic, Mode::kOnlineKd}) {
          decode::SequenceConfig config = loop.sequence(mode, rule, property::at_temperature(temperature), stream);
          config.max_tokens = 24;
          auto opened = loop.stepper->open(prompt, config);
          ASSERT_TRUE(opened.is_ok()) << opened.status().message();
          ASSERT_TRUE(loop.stepper->prefill(**opened).is_ok());
          const Status ran = property::run(*loop.stepper, **opened);
          ASSERT_TRUE(ran.is_ok()) << ran.message();
          answers.push_back(property::answer_of(**opened));
          loop.stepper->close(**opened);
        }
        EXPECT_EQ(answers[1], answers[0]);
        EXPECT_EQ(answers[2], answers[0]);
        EXPECT_GT(loop.kd->stats().updates, 5u);
      }
    }
  }
}

// A rate that is far too high may ruin the draft, never the answer or the program.
TEST(OnlineKdLoop, ARuinedDraftIsStillLossless) {
  Loop loop(12, 5);
  loop.config.rate = 1.0f;
  loop.reset();
  RngStream stream(5);
  std::vector<property::Answer> answers;
  for (const Mode mode : {Mode::kOff, Mode::kOnlineKd}) {
    decode::SequenceConfig config = loop.sequence(mode, JudgeRule::kMatch, property::kPlain, stream);
    config.max_tokens = 25;
    auto opened = loop.stepper->open(std::vector<Token>{1}, config);
    ASSERT_TRUE(opened.is_ok());
    ASSERT_TRUE(loop.stepper->prefill(**opened).is_ok());
    const Status ran = property::run(*loop.stepper, **opened);
    ASSERT_TRUE(ran.is_ok()) << ran.message();
    answers.push_back(property::answer_of(**opened));
    loop.stepper->close(**opened);
  }
  EXPECT_EQ(answers[1], answers[0]);
}

}  // namespace
}  // namespace drift::engine
