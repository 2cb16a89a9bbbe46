// history.hpp - what a running server did lately and since its start, by time: the facts the page at / draws.
//
// It is told every prompt chunk and every step on the decode thread and keeps counts by span of time, nothing of any text.
// Speed-up: a server that drafts cannot know what it would do without. But steps in which nobody drafts happen (requests of mode
// off), and what one of those took, with the same number of answers in it, is what plain decoding costs here. Steps with drafting are
// compared with that, and where it was not measured nothing is said.
// Threads: any. Memory: bounded by the constants below, under 1 MB. Cost: a step under a lock, a few counters; a view, a copy.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "drift/decode/stepper.hpp"
#include "drift/trace/event.hpp"
#include "server/schedule/banks.hpp"
#include "server/schedule/generation.hpp"
#include "server/schedule/timeline.hpp"

namespace drift::server {

inline constexpr double kRecentWidth_s = 2.0;
inline constexpr std::size_t kRecentSpans = 300;  // ten minutes
inline constexpr std::size_t kWholeSpans = 300;
inline constexpr double kPlacesWidth_s = 60.0;  // of acceptance by place in the block
inline constexpr std::size_t kPlacesSpans = 10;
inline constexpr std::size_t kStripSpans = 30;          // of a slot: one minute
inline constexpr std::size_t kHistoryBanksMax = 16;     // beyond: the one not used longest is forgotten
inline constexpr std::size_t kHistoryShiftsMax = 64;    // the newest
inline constexpr std::uint64_t kPlainStepsMin = 16;     // before they are called a measurement
inline constexpr double kPlainWeight = 1.0 / 64.0;      // of a new plain step in their mean
inline constexpr std::size_t kHistoryAnswersMax = 128;  // answers in one step for which plain decoding is measured
inline constexpr std::size_t kHistorySlotsMax = 128;

// How the decode thread spent its time, in nanoseconds.
struct SpentTime {
  std::int64_t prefill_ns = 0, draft_ns = 0, verify_ns = 0;
  std::int64_t sample_ns = 0;    // proposing and judging
  std::int64_t overhead_ns = 0;  // lookup, bias, residual, commit
  SpentTime& operator+=(const SpentTime& o);
};

// What one bank, or the answers without one, had to do with proposals.
struct BankWork {
  std::uint64_t drafted = 0, accepted = 0, accepted_bank = 0;  // as in trace::Metrics
  std::uint64_t lookups = 0, hits = 0;  // proposals the draft made with the bank asked; ... and changed by what it knew
  BankWork& operator+=(const BankWork& o);
};

// Of all answers together.
struct Work {
  std::uint64_t steps = 0, tokens = 0;                   // passes of the target; tokens of all modes
  std::uint64_t verifications = 0, verified_tokens = 0;  // answers' steps in modes other than off, and what they gave
  std::uint64_t blocks = 0, drafted = 0, accepted = 0, accepted_bank = 0;
  std::int64_t step_ns = 0;      // in steps
  std::int64_t compared_ns = 0;  // of it, in steps with drafting that can be compared with plain ones
  std::int64_t plain_ns = 0;     // what plain decoding would have taken for the tokens of these
  SpentTime time;
  Work& operator+=(const Work& o);
};

// Proposals at one place in the block whose predecessors all stood, and those of them that stood too.
struct Place {
  std::uint64_t tested = 0, accepted = 0;
};
struct Places {
  std::array<Place, decode::kMaxDraftTokens> at;
  Places& operator+=(const Places& o);
};

struct ShiftMark {
  double at_s = 0;
  std::string tenant;
  double now = 0, before = 0;  // acceptance
};

struct PlainCost {
  std::uint64_t steps = 0;
  double ns = 0;  // of one step, a moving mean
};

struct HistoryView {
  struct OfBank {
    BankId id;  // no name: the tenant's answers without a bank
    double first_s = 0, last_s = 0;
    BankWork all;  // since the start
    std::vector<BankWork> spans;
  };
  double now_s = 0;
  Spans<Work> spans;
  Work all;
  std::vector<OfBank> banks;     // by tenant and name; spans as `spans`
  Places places, places_recent;  // since the start, and of the last ten minutes
  std::vector<ShiftMark> shifts;
  std::map<std::size_t, PlainCost> plain;  // by answers in the step
  Spans<std::vector<SpentTime>> slots;     // by slot, then by span
};

class History {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Range { kRecent, kWhole };
  explicit History(Clock::time_point start = Clock::now());

  // Times do not go back.
  void prefilled(int slot, std::chrono::nanoseconds time, Clock::time_point now = Clock::now());
  void stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners, Clock::time_point now = Clock::now());
  void shifted(const std::string& tenant, double rate_now, double rate_before, Clock::time_point now = Clock::now());
  void forget_bank(const BankId& id);
  void forget_tenant(const std::string& tenant);

  HistoryView view(Range range, Clock::time_point now = Clock::now()) const;

 private:
  struct OfBank {
    double first_s = 0, last_s = 0;
    BankWork all;
    RecentSpans<BankWork> recent{kRecentWidth_s, kRecentSpans};
    WholeSpans<BankWork> whole{kRecentWidth_s, kWholeSpans};
  };
  struct Slot {
    RecentSpans<SpentTime> strip{kRecentWidth_s, kStripSpans};
  };
  double since_start(Clock::time_point now) const { return std::chrono::duration<double>(now - start_).count(); }
  OfBank& bank(const BankId& id, double t_s);
  SpentTime* slot(int id, double t_s);
  void add_block(const trace::StepEvent& event, const StepOwner& owner, double t_s, Work& work);
  void compare(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners, Work& work);
  void add(const Work& work, double t_s);

  const Clock::time_point start_;
  mutable std::mutex mutex_;  // of what follows
  Work all_;
  RecentSpans<Work> recent_{kRecentWidth_s, kRecentSpans};
  WholeSpans<Work> whole_{kRecentWidth_s, kWholeSpans};
  Places places_;
  RecentSpans<Places> recent_places_{kPlacesWidth_s, kPlacesSpans};
  std::map<BankId, OfBank> banks_;
  std::deque<ShiftMark> shifts_;
  std::map<std::size_t, PlainCost> plain_;
  std::vector<Slot> slots_;
};

}  // namespace drift::server
