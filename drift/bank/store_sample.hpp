// store_sample.hpp - made-up banks for the tests of the store, each wholly determined by a number.
#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "drift/bank/store.hpp"

namespace drift::bank::sample {

struct Shape {
  std::uint32_t entries = 5, capacity = 8, key_dim = 4, support = 3, vocab = 100;
  KeyType key_type = KeyType::kF32;
};

inline std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline StoredBank bank(std::uint64_t number, const Shape& shape = {}) {
  std::uint64_t state = mix(number + 0x9e3779b97f4a7c15u);
  const auto next = [&] { return state = mix(state + 0x9e3779b97f4a7c15u); };
  const auto real = [&] { return static_cast<float>(next() >> 40) / 16'777'216.0f - 0.5f; };
  StoredBank out;
  out.fingerprint = {"aa11" + std::to_string(number % 7), "bb22", shape.vocab, shape.key_dim};
  out.target_name = "target \xc3\xa9";
  out.draft_name = "draft";
  BankImage& image = out.image;
  image.config.capacity = shape.capacity;
  image.config.key_dim = shape.key_dim;
  image.config.support = shape.support;
  image.config.vocab = shape.vocab;
  image.config.key_type = shape.key_type;
  image.config.tau = 0.1f + 0.001f * static_cast<float>(number % 100);
  image.size = shape.entries;
  image.use_counter = shape.entries + number;
  for (std::uint32_t i = 0; i < shape.entries; ++i) {
    const auto length = static_cast<std::uint32_t>(next() % (shape.support + 1));
    image.lengths.push_back(length);
    image.counts.push_back(static_cast<std::uint32_t>(1 + next() % 1000));
    image.last_used.push_back(shape.entries - i + number);
    image.errors.push_back(std::fabs(real()));
    Token token = static_cast<Token>(next() % 3);
    for (std::uint32_t j = 0; j < shape.support; ++j) {
      image.tokens.push_back(j < length ? token : kNoToken);
      image.values.push_back(j < length ? real() : 0.0f);
      token += 1 + static_cast<Token>(next() % 5);
    }
    std::vector<float> key(shape.key_dim);
    float norm = 0;
    for (float& x : key) {
      x = real() + 0.001f;
      norm += x * x;
    }
    for (float& x : key) x /= std::sqrt(norm);
    const std::size_t at = image.keys.size();
    if (shape.key_type == KeyType::kF32) {
      image.keys.resize(at + 4 * key.size());
      std::memcpy(image.keys.data() + at, key.data(), 4 * key.size());
    } else {
      image.keys.resize(at + 2 * key.size());  // halves 1, 0, 0, ...: a unit vector
      image.keys[at + 1] = std::byte{0x3c};
    }
  }
  out.extras["number"].resize(sizeof number);
  std::memcpy(out.extras["number"].data(), &number, sizeof number);
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline bool same(const StoredBank& a, const StoredBank& b) {
  const BankImage &x = a.image, &y = b.image;
  return a.fingerprint == b.fingerprint && a.target_name == b.target_name && a.draft_name == b.draft_name &&
         a.extras == b.extras && x.config == y.config && x.size == y.size && x.use_counter == y.use_counter &&
         same_bits(x.lengths, y.lengths) && same_bits(x.counts, y.counts) && same_bits(x.last_used, y.last_used) &&
         same_bits(x.errors, y.errors) && same_bits(x.tokens, y.tokens) && same_bits(x.values, y.values) &&
         same_bits(x.keys, y.keys);
}

}  // namespace drift::bank::sample
