#include "drift/recal/score_table.hpp"

#include <cstdint>
#include <cstring>

#include "drift/base/check.hpp"

namespace drift::recal {
namespace {

// A strength above "not at all" must lead it by this many expected acceptances before it is used: on a pair that is well aligned the
// first few scores are noise, and following them costs more than waiting (docs/findings.md, What was tried).
constexpr double kLead = 1.0;

}  // namespace

ScoreTable::ScoreTable(std::span<const float> choices, std::size_t bins)
    : choices_(choices), bins_(bins), scores_(kGainClasses * bins * choices.size()) {
  DRIFT_CHECK(!choices.empty() && choices[0] == 0.0f, "the first choice is to do nothing");
}

std::span<const double> ScoreTable::scores(GainClass cls, std::size_t bin) const {
  DRIFT_CHECK(bin < bins_, "a bin of this table");
  return std::span(scores_).subspan(at(cls, bin), choices_.size());
}

std::size_t ScoreTable::best(GainClass cls, std::size_t bin) const {
  const std::span<const double> s = scores(cls, bin);
  std::size_t best = 0;
  for (std::size_t i = 1; i < s.size(); ++i) {
    if (s[i] > s[best] + (best == 0 ? kLead : 0.0)) best = i;
  }
  return best;
}

void ScoreTable::learn(GainClass cls, std::size_t bin, std::span<const double> rewards) {
  DRIFT_CHECK(bin < bins_ && rewards.size() == choices_.size(), "one reward per choice, for a bin of this table");
  double* const s = scores_.data() + at(cls, bin);
  for (std::size_t i = 0; i < rewards.size(); ++i) s[i] = kGainDiscount * s[i] + rewards[i];
}

// What the scores were collected under travels with them: a table of other choices or bins is refused, not misread.
std::vector<std::byte> ScoreTable::header() const {
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(choices_.size()), static_cast<std::uint32_t>(bins_), kGainClasses,
                                  0};
  const double discount = kGainDiscount;
  std::vector<std::byte> out(sizeof counts + sizeof discount + choices_.size_bytes());
  std::memcpy(out.data(), counts, sizeof counts);
  std::memcpy(out.data() + sizeof counts, &discount, sizeof discount);
  std::memcpy(out.data() + sizeof counts + sizeof discount, choices_.data(), choices_.size_bytes());
  return out;
}

std::vector<std::byte> ScoreTable::save() const {
  std::vector<std::byte> out = header();
  const std::size_t head = out.size();
  out.resize(head + bytes());
  std::memcpy(out.data() + head, scores_.data(), bytes());
  return out;
}

Status ScoreTable::load(std::span<const std::byte> bytes) {
  const std::vector<std::byte> head = header();
  if (bytes.size() != head.size() + this->bytes()) return {Code::kCorrupt, "score table has the wrong size"};
  if (std::memcmp(bytes.data(), head.data(), head.size()) != 0)
    return {Code::kCorrupt, "score table was made with other bins or choices"};
  std::vector<double> loaded(scores_.size());
  std::memcpy(loaded.data(), bytes.data() + head.size(), this->bytes());
  const double most = 1.0 / (1.0 - kGainDiscount) * 1.001;  // rewards are at most 1
  for (const double v : loaded) {
    if (!(v >= 0.0 && v <= most)) return {Code::kCorrupt, "score table holds a score out of range"};
  }
  scores_ = std::move(loaded);
  return Status::ok();
}

}  // namespace drift::recal
