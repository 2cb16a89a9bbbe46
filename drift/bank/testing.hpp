// testing.hpp - random banks, keys and lessons for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "drift/bank/bank.hpp"
#include "drift/bank/snapshot.hpp"
#include "drift/simd/simd.hpp"

namespace drift::bank::test {

struct OwnedLesson {
  std::vector<float> key;
  std::vector<Neighbor> neighbors;
  std::vector<Token> tokens;
  std::vector<float> values;
};

// A random number in 0 .. limit-1.
inline std::uint32_t below(std::uint32_t limit, std::mt19937& rng) { return static_cast<std::uint32_t>(rng() % limit); }

inline BankConfig small_config() {
  BankConfig config;
  config.capacity = 8;
  config.key_dim = 12;
  config.support = 4;
  config.vocab = 40;
  return config;
}

inline std::vector<float> unit(std::vector<float> x) {
  const float length = simd::scalar::norm(x);
  for (float& v : x) v /= length;
  return x;
}

inline std::vector<float> random_key(std::size_t dim, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> key(dim);
  for (float& v : key) v = normal(rng);
  return unit(key);
}

inline std::vector<std::vector<float>> random_keys(std::size_t count, std::size_t dim, std::mt19937& rng) {
  std::vector<std::vector<float>> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(random_key(dim, rng));
  return keys;
}

// A unit vector around `center`: noise of the given length in a random direction is added.
inline std::vector<float> near(std::vector<float> center, float noise, std::mt19937& rng) {
  if (noise == 0.0f) return center;
  const auto direction = random_key(center.size(), rng);
  for (std::size_t i = 0; i < center.size(); ++i) center[i] += noise * direction[i];
  return unit(center);
}

// Values are multiples of 1/4, so that ties are common.
inline OwnedLesson random_lesson(const BankConfig& config, std::mt19937& rng) {
  OwnedLesson lesson;
  lesson.key = random_key(config.key_dim, rng);
  std::set<Token> tokens;
  const std::size_t count = rng() % (2 * config.support + 1);
  for (std::size_t i = 0; i < count; ++i) tokens.insert(static_cast<Token>(rng() % config.vocab));
  lesson.tokens.assign(tokens.begin(), tokens.end());
  for (std::size_t i = 0; i < lesson.tokens.size(); ++i)
    lesson.values.push_back(static_cast<float>(static_cast<int>(rng() % 33) - 16) / 4);
  return lesson;
}

inline std::vector<Lesson> views(const std::vector<OwnedLesson>& lessons) {
  std::vector<Lesson> result;
  for (const OwnedLesson& l : lessons) result.push_back({l.key, l.neighbors, l.tokens, l.values});
  return result;
}

inline void expect_equal(const BankImage& a, const BankImage& b) {
  EXPECT_EQ(a.config, b.config);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.use_counter, b.use_counter);
  EXPECT_EQ(a.lengths, b.lengths);
  EXPECT_EQ(a.counts, b.counts);
  EXPECT_EQ(a.last_used, b.last_used);
  EXPECT_EQ(a.errors, b.errors);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.values, b.values);
  EXPECT_TRUE(a.keys == b.keys) << "keys differ";
}

}  // namespace drift::bank::test
