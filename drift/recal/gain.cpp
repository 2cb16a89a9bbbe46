#include "drift/recal/gain.hpp"

#include <cmath>
#include <cstring>

namespace drift::recal {

std::size_t gain_bin(float similarity, std::uint32_t count) {
  std::size_t s = 0;
  while (s < kSimilarityEdges.size() && similarity >= kSimilarityEdges[s]) ++s;
  std::size_t c = 0;
  while (c < kCountEdges.size() && count >= kCountEdges[c]) ++c;
  return s * (kCountEdges.size() + 1) + c;
}

std::size_t GainTable::best(GainClass cls, std::size_t bin) const {
  const Scores& s = scores(cls, bin);
  std::size_t best = 0;
  for (std::size_t i = 1; i < s.size(); ++i) {
    if (s[i] > s[best] + (best == 0 ? kGainMargin : 0.0)) best = i;
  }
  return best;
}

void GainTable::learn(GainClass cls, std::size_t bin, const Scores& rewards) {
  Scores& s = scores_[cls.index() * kGainBins + bin];
  for (std::size_t i = 0; i < s.size(); ++i) s[i] = kGainDiscount * s[i] + rewards[i];
}

namespace {

// The constants the scores were collected under travel with them: a table of other edges is refused, not misread.
struct Header {
  std::uint32_t grid, similarity, counts, classes;
  std::array<float, kGainGrid.size()> gains;
  std::array<float, kSimilarityEdges.size()> similarity_edges;
  std::array<std::uint32_t, kCountEdges.size()> count_edges;
  std::uint32_t zero;
  double discount;
};

Header make_header() {
  Header h{};
  h.grid = kGainGrid.size();
  h.similarity = kSimilarityEdges.size();
  h.counts = kCountEdges.size();
  h.classes = kGainClasses;
  h.gains = kGainGrid;
  h.similarity_edges = kSimilarityEdges;
  h.count_edges = kCountEdges;
  h.discount = kGainDiscount;
  return h;
}
static_assert(std::is_trivially_copyable_v<Header>);

}  // namespace

std::vector<std::byte> GainTable::save() const {
  const Header h = make_header();
  std::vector<std::byte> out(sizeof h + sizeof scores_);
  std::memcpy(out.data(), &h, sizeof h);
  std::memcpy(out.data() + sizeof h, scores_.data(), sizeof scores_);
  return out;
}

Status GainTable::load(std::span<const std::byte> bytes) {
  const Header h = make_header();
  if (bytes.size() != sizeof h + sizeof scores_) return {Code::kCorrupt, "gain table has the wrong size"};
  if (std::memcmp(bytes.data(), &h, sizeof h) != 0) return {Code::kCorrupt, "gain table was made with other bins or gains"};
  std::array<Scores, kGainClasses * kGainBins> loaded;
  std::memcpy(loaded.data(), bytes.data() + sizeof h, sizeof loaded);
  const double most = 1.0 / (1.0 - kGainDiscount) * 1.001;  // rewards are at most 1
  for (const Scores& s : loaded) {
    for (double v : s) {
      if (!(v >= 0.0 && v <= most)) return {Code::kCorrupt, "gain table holds a score out of range"};
    }
  }
  scores_ = loaded;
  return Status::ok();
}

}  // namespace drift::recal
