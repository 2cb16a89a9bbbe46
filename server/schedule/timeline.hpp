// timeline.hpp - counts by time in bounded memory: the newest spans, all of one width; or all there were, the wider the longer.
//
// `Counts` is a value with += that begins at zero. Times are seconds from a common zero, at least 0.
// Threads: plain values. Cost: constant per at(), but for a span that is begun: then linear in `most` at worst.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace drift::server {

template <class Counts>
struct Spans {
  double from_s = 0, width_s = 1;
  std::vector<Counts> counts;  // one span after the other, the last holds the moment of reading
};

// The newest `most` spans. Requires: at() is called with times that do not go back.
template <class Counts>
class RecentSpans {
 public:
  RecentSpans(double width_s, std::size_t most) : width_s_(width_s), ring_(most) {}

  Counts& at(double t_s) {
    const std::int64_t number = number_of(t_s);
    Span& span = ring_[place_of(number)];
    if (span.number != number) span = {number, {}};
    return span.counts;
  }
  Spans<Counts> read(double now_s) const {
    const std::int64_t last = number_of(now_s), most = static_cast<std::int64_t>(ring_.size());
    const std::int64_t first = std::max<std::int64_t>(0, last - most + 1);
    Spans<Counts> out;
    out.width_s = width_s_;
    out.from_s = static_cast<double>(first) * width_s_;
    for (std::int64_t number = first; number <= last; ++number) {
      const Span& span = ring_[place_of(number)];
      out.counts.push_back(span.number == number ? span.counts : Counts{});
    }
    return out;
  }

 private:
  struct Span {
    std::int64_t number = -1;
    Counts counts{};
  };
  std::int64_t number_of(double t_s) const { return static_cast<std::int64_t>(std::max(0.0, t_s) / width_s_); }
  std::size_t place_of(std::int64_t number) const { return static_cast<std::size_t>(number) % ring_.size(); }
  double width_s_;
  std::vector<Span> ring_;
};

// All spans since zero, at most `most` (an even number): when they do not suffice, each two become one and the width doubles.
template <class Counts>
class WholeSpans {
 public:
  WholeSpans(double width_s, std::size_t most) : width_s_(width_s), most_(most) {}

  Counts& at(double t_s) {
    std::size_t number = number_of(t_s);
    while (number >= most_) {
      halve();
      number = number_of(t_s);
    }
    if (counts_.size() <= number) counts_.resize(number + 1);
    return counts_[number];
  }
  // Timelines that are read at the same moment have the same spans.
  Spans<Counts> read(double now_s) const {
    WholeSpans whole = *this;
    whole.at(now_s);
    return {0, whole.width_s_, std::move(whole.counts_)};
  }

 private:
  std::size_t number_of(double t_s) const { return static_cast<std::size_t>(std::max(0.0, t_s) / width_s_); }
  void halve() {
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (i % 2 == 0) {
        counts_[i / 2] = counts_[i];
      } else {
        counts_[i / 2] += counts_[i];
      }
    }
    counts_.resize((counts_.size() + 1) / 2);
    width_s_ *= 2;
  }
  double width_s_;
  std::size_t most_;
  std::vector<Counts> counts_;
};

}  // namespace drift::server
