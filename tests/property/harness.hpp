// harness.hpp - toy pairs, hostile banks and short runs of the production stepper for the property tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "drift/decode/stepper.hpp"
#include "drift/propose/suffix_memory.hpp"
#include "drift/recal/recalibrator.hpp"
#include "drift/testing/enumerator.hpp"
#include "drift/testing/reference.hpp"
#include "drift/testing/toy_engine.hpp"

namespace drift::property {

using decode::Ending;
using decode::Mode;
using decode::Sequence;
using decode::SequenceConfig;
using decode::Stepper;
using spec::JudgeRule;
using spec::SamplerConfig;
using testing::ToyEngine;
using testing::ToyModel;

using Answer = std::vector<Token>;
using Law = std::map<Answer, double>;

inline constexpr SamplerConfig kPlain{1.0f, 0, 1.0f, 0.0f};

inline SamplerConfig at_temperature(float t) { return {t, 0, 1.0f, 0.0f}; }

// The named settings every law is checked under.
struct NamedSampler {
  const char* name;
  SamplerConfig config;
};
inline const std::vector<NamedSampler>& samplers() {
  static const std::vector<NamedSampler> all{
      {"plain", {1.0f, 0, 1.0f, 0.0f}},    {"topk3_t07", {0.7f, 3, 1.0f, 0.0f}}, {"topp08", {1.0f, 0, 0.8f, 0.0f}},
      {"minp015", {1.0f, 0, 1.0f, 0.15f}}, {"combined", {0.8f, 3, 0.9f, 0.1f}},  {"greedy", {0.0f, 0, 1.0f, 0.0f}},
  };
  return all;
}

// A draft that is the target plus noise of its own: it agrees often, not always.
inline ToyModel perturbed(const ToyModel& target, std::uint64_t seed, std::size_t hidden_width, float noise) {
  ToyModel draft = testing::random_model(seed, target.vocab, hidden_width, 2, noise);
  const auto own = draft.row;
  draft.row = [own, base = target.row](std::span<const Token> context, std::span<float> logits, std::span<float> hidden) {
    own(context, logits, hidden);
    std::vector<float> exact(logits.size());
    base(context, exact, {});
    for (std::size_t v = 0; v < logits.size(); ++v) logits[v] += exact[v];
  };
  return draft;
}

// A bank this small allocates and evicts within one short answer, and its kernel is so wide that every entry speaks.
inline recal::RecalConfig hostile_config(std::size_t vocab, std::size_t width, recal::GainRule gain, float lambda) {
  recal::RecalConfig c;
  c.bank.capacity = 3;
  c.bank.key_dim = static_cast<std::uint32_t>(width);
  c.bank.support = 3;
  c.bank.vocab = static_cast<std::uint32_t>(vocab);
  c.bank.tau = 0.9f;
  c.bank.eta = 0.5f;
  c.neighbors = 2;
  c.sigma = 0.5f;
  c.lambda = lambda;
  c.clip = 3.0f;
  c.gain = gain;
  return c;
}

// All levels, each with room for so few contexts that entries come and go within one answer.
inline recal::RecalConfig hostile_chain_config(std::size_t vocab, std::size_t width, recal::GainRule gain) {
  recal::RecalConfig c = hostile_config(vocab, width, gain, 1.0f);
  c.weights = recal::WeightRule::kKriged;
  c.teach_prompt = true;
  c.levels = recal::parse_levels("all").value();
  c.ngram_capacity = 6;
  c.ngram_support = 3;
  return c;
}

// Levels other than the hidden one: taught by random rows at random contexts, with scores that trust the strongest choice.
inline void make_levels_hostile(recal::Recalibrator& r, std::uint64_t seed, bank::StoredBank& stored) {
  const RngStream random(seed);
  const std::uint32_t vocab = r.config().bank.vocab;
  Pos number = 0;
  const auto uniform = [&] { return static_cast<float>(random.uniform({1, number++, Purpose::kDraw, 0})); };
  for (int i = 0; i < 24; ++i) {
    std::vector<Token> context;
    for (int n = 0; n < 4; ++n) context.push_back(static_cast<Token>(uniform() * static_cast<float>(vocab)));
    std::vector<float> hidden(r.config().bank.key_dim), draft(vocab), target(vocab);
    for (float& x : hidden) x = uniform() - 0.5f;
    for (float& x : draft) x = 6.0f * uniform();
    for (float& x : target) x = 9.0f * uniform();
    recal::Lookup found;
    recal::Bias used;
    const recal::Judging judging{true, kPlain};
    EXPECT_TRUE(r.lookup({hidden, context}, found).is_ok());
    r.bias(found, draft, judging, used);
    EXPECT_TRUE(r.observe(found, used, draft, target, judging).is_ok());
    r.commit();
  }
  const bank::StoredBank taught = r.save({});
  for (std::size_t i = 0; i < recal::kLevels; ++i) {
    const auto level = static_cast<recal::Level>(i);
    if (r.chain()->bank(level) == nullptr) continue;
    const std::string name = recal::kLevelNames[i];
    const bool ngram = level >= recal::Level::kNgram1;
    const std::size_t bins = 1 + (ngram ? recal::kMixCountEdges.size() : recal::kGlobalCountEdges.size());
    recal::ScoreTable scores(r.chain()->scores(level)->choices(), bins);
    std::vector<double> rising(scores.choices().size());
    for (std::size_t n = 0; n < rising.size(); ++n) rising[n] = 0.1 * static_cast<double>(n);
    for (const bool rejection : {false, true}) {
      for (const bool greedy : {false, true}) {
        for (std::size_t bin = 0; bin < 20 * bins; ++bin) scores.learn({rejection, greedy}, bin % bins, rising);
      }
    }
    stored.extras["level." + name] = taught.extras.at("level." + name);
    stored.extras["scores." + name] = scores.save();
  }
}

// Fills a bank with large residuals at random keys, and a gain table that trusts them everywhere.
inline bank::StoredBank hostile_bank(const recal::RecalConfig& config, std::uint64_t seed) {
  auto made = recal::Recalibrator::create(config);
  EXPECT_TRUE(made.is_ok()) << made.status().message();
  recal::Recalibrator& r = **made;
  const RngStream random(seed);
  Pos number = 0;
  const auto uniform = [&] { return random.uniform({0, number++, Purpose::kDraw, 0}); };
  for (std::uint32_t e = 0; e < config.bank.capacity; ++e) {
    std::vector<float> key(config.bank.key_dim);
    double norm = 0.0;
    for (float& x : key) {
      x = static_cast<float>(2.0 * uniform() - 1.0);
      norm += static_cast<double>(x) * static_cast<double>(x);
    }
    for (float& x : key) x = static_cast<float>(static_cast<double>(x) / std::sqrt(norm));
    std::vector<Token> tokens;
    std::vector<float> values;
    for (std::uint32_t t = 0; t < config.bank.vocab; ++t) {
      tokens.push_back(static_cast<Token>(t));
      values.push_back(static_cast<float>(uniform() < 0.5 ? -1.0 : 1.0) * static_cast<float>(2.0 + 6.0 * uniform()));
    }
    const bank::Lesson lesson{key, {}, tokens, values};
    r.bank().commit({}, {&lesson, 1});
  }
  bank::StoredBank stored = r.save({});
  recal::GainTable gains;
  for (const bool rejection : {false, true}) {
    for (const bool greedy : {false, true}) {
      for (std::size_t bin = 0; bin < recal::kGainBins; ++bin) gains.learn({rejection, greedy}, bin, {0.0, 0.1, 0.2, 0.3});
    }
  }
  if (r.chain() != nullptr) {
    auto other = recal::Recalibrator::create(config);
    EXPECT_TRUE(other.is_ok());
    make_levels_hostile(**other, seed + 3, stored);
  }
  stored.extras["gains"] = gains.save();
  return stored;
}

inline std::unique_ptr<propose::SuffixMemory> suffix_memory(std::uint32_t tokens = 128) {
  auto made = propose::SuffixMemory::create(tokens);
  EXPECT_TRUE(made.is_ok()) << made.status().message();
  return std::move(made).value();
}

// Random texts over so few tokens that something matches nearly everywhere, with several continuations.
inline void fill_hostile(propose::SuffixMemory& memory, std::uint64_t seed, std::size_t vocab) {
  const RngStream random(seed);
  memory.clear();
  for (std::uint64_t text = 0; text < 4; ++text) {
    std::vector<Token> tokens;
    for (Pos i = 0; i < 20; ++i)
      tokens.push_back(static_cast<Token>(random.uniform({text, i, Purpose::kDraw, 0}) * static_cast<double>(vocab)));
    memory.add(tokens);
  }
}

// Everything one run needs, kept together because the stepper refers to it.
struct Rig {
  Rig(ToyModel target_model, ToyModel draft_model) : target(target_model), draft(draft_model), stepper(target, &draft) {}
  ToyEngine target, draft;
  Stepper stepper;
};

// Steps until the sequence ends; the events are those of the last step, unless `all` collects them.
inline Status run(Stepper& stepper, Sequence& s, std::vector<trace::StepEvent>* all = nullptr) {
  std::vector<trace::StepEvent> events;
  Sequence* const one[] = {&s};
  while (s.ending() == Ending::kRunning) {
    DRIFT_TRY(stepper.step(one, events));
    if (all != nullptr) all->push_back(events[0]);
  }
  return Status::ok();
}

inline Answer answer_of(const Sequence& s) { return {s.emitted().begin(), s.emitted().end()}; }

// The exact law of the target's answers: products of its own probabilities, by the slow reference.
inline void exact_law(const ToyModel& target, const SamplerConfig& sampler, std::size_t max_tokens,
                      const std::function<bool(Token)>& is_end, std::vector<Token>& context, std::size_t prompt,
                      double probability, Law& out) {
  const bool ended = context.size() > prompt && is_end && is_end(context.back());
  if (ended || context.size() == prompt + max_tokens) {
    out[Answer(context.begin() + static_cast<std::ptrdiff_t>(prompt), context.end())] += probability;
    return;
  }
  std::vector<float> logits(target.vocab), hidden(target.hidden_width);
  target.row(context, logits, hidden);
  const std::vector<double> p = testing::reference_distribution(sampler, logits);
  for (std::size_t v = 0; v < p.size(); ++v) {
    if (p[v] == 0.0) continue;
    context.push_back(static_cast<Token>(v));
    exact_law(target, sampler, max_tokens, is_end, context, prompt, probability * p[v], out);
    context.pop_back();
  }
}

inline double total_variation(const Law& a, const Law& b) {
  double sum = 0.0;
  for (const auto& [answer, p] : a) {
    const auto it = b.find(answer);
    sum += std::fabs(p - (it == b.end() ? 0.0 : it->second));
  }
  for (const auto& [answer, p] : b) {
    if (a.count(answer) == 0) sum += p;
  }
  return sum / 2.0;
}

inline double total(const Law& law) {
  double sum = 0.0;
  for (const auto& [answer, p] : law) sum += p;
  return sum;
}

}  // namespace drift::property
