// enumerator.hpp - Choices that take every branch: the exact law of a random program, by replay.
//
// The program is run again and again; each run follows one path of choices, next() moves on to the next path, depth first.
// The production coupling is reproduced: one uniform number stands behind a DrawKey, however often the key is used. So each
// key has the interval [low, high) its number may still lie in; pick() cuts that interval at the normalised cdf and branches
// over the non-empty parts with probability part / interval, accept() cuts it at its probability.
//
//   EnumeratingChoices choices;
//   do { run_program(choices); law[output] += choices.probability(); } while (choices.next());
//
// Requires: the program is a function of its choices alone (checked: a replayed path must ask the same keys in order).
// Threads: one. Limits: kMaxDepth branchings in a path. Cost: as many runs as there are paths.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "drift/base/check.hpp"
#include "drift/base/rng.hpp"

namespace drift::testing {

class EnumeratingChoices final : public Choices {
 public:
  static constexpr std::size_t kMaxDepth = 10'000;
  // Parts of the unit interval narrower than this are rounding, not branches: they are left out, and missing from the total.
  static constexpr double kNarrowest = 1e-13;

  std::size_t pick(const DrawKey& key, std::span<const float> weights) override {
    double sum = 0.0;
    for (float w : weights) sum += static_cast<double>(w);
    DRIFT_CHECK(sum > 0.0, "a draw needs a positive weight");
    parts_.clear();
    double cdf = 0.0, low = 0.0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!(weights[i] > 0.0f)) continue;
      cdf += static_cast<double>(weights[i]);
      parts_.push_back({low, cdf / sum, i});
      low = cdf / sum;
    }
    parts_.back().high = 1.0;  // as inverse_cdf: rounding never leaves a number without an index
    return branch(key);
  }

  bool accept(const DrawKey& key, double probability) override {
    parts_.clear();
    parts_.push_back({0.0, probability, 1});
    parts_.push_back({probability, 1.0, 0});
    return branch(key) == 1;
  }

  // Of the path just run: the product over its branchings.
  double probability() const { return probability_; }
  std::uint64_t paths() const { return paths_; }

  // Goes to the next path; false when all have been run.
  bool next() {
    DRIFT_CHECK(at_ == path_.size(), "a replayed path makes all the choices it made before");
    while (!path_.empty() && path_.back().taken + 1 == path_.back().count) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().taken;
    at_ = 0;
    probability_ = 1.0;
    numbers_.clear();
    ++paths_;
    return true;
  }

 private:
  struct Part {
    double low, high;
    std::size_t result;
  };
  struct Branch {
    DrawKey key;
    std::size_t taken, count;
  };
  struct Number {
    DrawKey key;
    double low = 0.0, high = 1.0;
  };

  // Cuts the key's interval into parts_, takes the part this path wants, narrows the interval to it.
  std::size_t branch(const DrawKey& key) {
    auto number = std::find_if(numbers_.begin(), numbers_.end(), [&](const Number& n) { return n.key == key; });
    if (number == numbers_.end()) {
      numbers_.push_back({key});
      number = numbers_.end() - 1;
    }
    for (Part& part : parts_) {
      part.low = std::max(part.low, number->low);
      part.high = std::min(part.high, number->high);
    }
    std::erase_if(parts_, [](const Part& part) { return part.high - part.low < kNarrowest; });
    DRIFT_CHECK(!parts_.empty(), "some part of the interval is left");
    std::size_t taken = 0;
    if (parts_.size() > 1) {
      if (at_ == path_.size()) {
        DRIFT_CHECK(path_.size() < kMaxDepth, "the program makes a bounded number of choices");
        path_.push_back({key, 0, parts_.size()});
      }
      DRIFT_CHECK(path_[at_].key == key && path_[at_].count == parts_.size(),
                  "a replayed path asks the same keys in the same order");
      taken = path_[at_++].taken;
    }
    const Part part = parts_[taken];
    probability_ *= (part.high - part.low) / (number->high - number->low);
    number->low = part.low;
    number->high = part.high;
    return part.result;
  }

  std::vector<Branch> path_;
  std::size_t at_ = 0;
  std::vector<Number> numbers_;
  std::vector<Part> parts_;
  double probability_ = 1.0;
  std::uint64_t paths_ = 1;
};

}  // namespace drift::testing
