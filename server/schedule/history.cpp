#include "server/schedule/history.hpp"

#include <algorithm>
#include <utility>

#include "server/schedule/banks.hpp"

namespace drift::server {

SpentTime& SpentTime::operator+=(const SpentTime& o) {
  prefill_ns += o.prefill_ns;
  draft_ns += o.draft_ns;
  verify_ns += o.verify_ns;
  sample_ns += o.sample_ns;
  overhead_ns += o.overhead_ns;
  return *this;
}

BankWork& BankWork::operator+=(const BankWork& o) {
  drafted += o.drafted;
  accepted += o.accepted;
  accepted_bank += o.accepted_bank;
  lookups += o.lookups;
  hits += o.hits;
  return *this;
}

Work& Work::operator+=(const Work& o) {
  steps += o.steps;
  tokens += o.tokens;
  verifications += o.verifications;
  verified_tokens += o.verified_tokens;
  blocks += o.blocks;
  drafted += o.drafted;
  accepted += o.accepted;
  accepted_bank += o.accepted_bank;
  step_ns += o.step_ns;
  compared_ns += o.compared_ns;
  plain_ns += o.plain_ns;
  time += o.time;
  return *this;
}

Places& Places::operator+=(const Places& o) {
  for (std::size_t i = 0; i < at.size(); ++i) {
    at[i].tested += o.at[i].tested;
    at[i].accepted += o.at[i].accepted;
  }
  return *this;
}

History::History(Clock::time_point start) : start_(start) {}

void History::add(const Work& work, double t_s) {
  all_ += work;
  recent_.at(t_s) += work;
  whole_.at(t_s) += work;
}

History::OfBank& History::bank(const BankId& id, double t_s) {
  auto it = banks_.find(id);
  if (it == banks_.end()) {
    if (banks_.size() >= kHistoryBanksMax) {
      const auto older = [](const auto& a, const auto& b) { return a.second.last_s < b.second.last_s; };
      banks_.erase(std::min_element(banks_.begin(), banks_.end(), older));
    }
    it = banks_.try_emplace(id).first;
    it->second.first_s = t_s;
  }
  it->second.last_s = t_s;
  return it->second;
}

SpentTime* History::slot(int id, double t_s) {
  const std::size_t index = static_cast<std::size_t>(id);
  if (id < 0 || index >= kHistorySlotsMax) return nullptr;
  if (slots_.size() <= index) slots_.resize(index + 1);
  return &slots_[index].strip.at(t_s);
}

void History::prefilled(int id, std::chrono::nanoseconds time, Clock::time_point now) {
  const double t_s = since_start(now);
  const std::lock_guard lock(mutex_);
  Work work;
  work.time.prefill_ns = time.count();
  add(work, t_s);
  if (SpentTime* spent = slot(id, t_s)) spent->prefill_ns += time.count();
}

void History::add_block(const trace::StepEvent& event, const StepOwner& owner, double t_s, Work& work) {
  BankWork of_bank;
  Places places;
  bool stands = true;
  for (std::size_t i = 0; i < event.proposed.size(); ++i) {
    const trace::ProposedToken& proposed = event.proposed[i];
    ++of_bank.drafted;
    if (decode::recalibrates(owner.mode) && !proposed.copied()) {
      ++of_bank.lookups;
      if (proposed.gain > 0) ++of_bank.hits;
    }
    if (!stands) continue;
    stands = proposed.accepted;
    if (stands) ++of_bank.accepted;
    if (stands && proposed.from_bank) ++of_bank.accepted_bank;
    if (i >= places.at.size()) continue;
    ++places.at[i].tested;
    if (stands) ++places.at[i].accepted;
  }
  ++work.blocks;
  work.drafted += of_bank.drafted;
  work.accepted += of_bank.accepted;
  work.accepted_bank += of_bank.accepted_bank;
  places_ += places;
  recent_places_.at(t_s) += places;
  const BankId without{owner.tenant != nullptr ? *owner.tenant : kDefaultTenant, ""};
  OfBank& kept = bank(owner.bank != nullptr ? owner.bank->id() : without, t_s);
  kept.all += of_bank;
  kept.recent.at(t_s) += of_bank;
  kept.whole.at(t_s) += of_bank;
}

// A step in which nobody drafts is a measurement of plain decoding; the others are compared with those of as many answers.
void History::compare(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners, Work& work) {
  const std::size_t answers = events.size();
  if (answers > kHistoryAnswersMax) return;
  const double step_ns = static_cast<double>(events[0].times.total_ns);
  if (std::all_of(owners.begin(), owners.end(), [](const StepOwner& owner) { return owner.mode == decode::Mode::kOff; })) {
    PlainCost& plain = plain_[answers];
    ++plain.steps;
    plain.ns += std::max(kPlainWeight, 1.0 / static_cast<double>(plain.steps)) * (step_ns - plain.ns);
    return;
  }
  const auto plain = plain_.find(answers);
  if (plain == plain_.end() || plain->second.steps < kPlainStepsMin) return;
  work.compared_ns = events[0].times.total_ns;
  // Plain steps give each answer one token.
  work.plain_ns = static_cast<std::int64_t>(plain->second.ns * static_cast<double>(work.tokens) / static_cast<double>(answers));
}

void History::stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners, Clock::time_point now) {
  if (events.empty()) return;
  const double t_s = since_start(now);
  const std::lock_guard lock(mutex_);
  Work work;
  work.steps = 1;
  // Model passes are the batch's and stand in every event; the rest is each answer's own.
  work.step_ns = events[0].times.total_ns;
  work.time.draft_ns = events[0].times.draft_ns;
  work.time.verify_ns = events[0].times.verify_ns;
  for (std::size_t e = 0; e < events.size(); ++e) {
    const trace::StepEvent& event = events[e];
    const StepOwner& owner = owners[e];
    work.tokens += event.emitted.size();
    work.time.sample_ns += event.times.sample_ns;
    work.time.overhead_ns += event.times.overhead_ns();
    if (owner.mode != decode::Mode::kOff) {
      ++work.verifications;
      work.verified_tokens += event.emitted.size();
    }
    if (!event.proposed.empty()) add_block(event, owner, t_s, work);
    if (SpentTime* spent = slot(owner.slot, t_s))
      *spent += {0, event.times.draft_ns, event.times.verify_ns, event.times.sample_ns, event.times.overhead_ns()};
  }
  compare(events, owners, work);
  add(work, t_s);
}

void History::shifted(const std::string& tenant, double rate_now, double rate_before, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (shifts_.size() >= kHistoryShiftsMax) shifts_.pop_front();
  shifts_.push_back({since_start(now), tenant, rate_now, rate_before});
}

void History::forget_bank(const BankId& id) {
  const std::lock_guard lock(mutex_);
  banks_.erase(id);
}

void History::forget_tenant(const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  std::erase_if(shifts_, [&](const ShiftMark& mark) { return mark.tenant == tenant; });
  std::erase_if(banks_, [&](const auto& bank) { return bank.first.tenant == tenant; });
}

HistoryView History::view(Range range, Clock::time_point now) const {
  HistoryView out;
  const double t_s = std::max(0.0, since_start(now));
  const std::lock_guard lock(mutex_);
  const auto read = [&](const auto& recent, const auto& whole) {
    return range == Range::kRecent ? recent.read(t_s) : whole.read(t_s);
  };
  out.now_s = t_s;
  out.spans = read(recent_, whole_);
  out.all = all_;
  for (const auto& [id, bank] : banks_)
    out.banks.push_back({id, bank.first_s, bank.last_s, bank.all, read(bank.recent, bank.whole).counts});
  out.places = places_;
  for (const Places& places : recent_places_.read(t_s).counts) out.places_recent += places;
  out.shifts.assign(shifts_.begin(), shifts_.end());
  out.plain = plain_;
  for (const Slot& slot : slots_) {
    Spans<SpentTime> strip = slot.strip.read(t_s);
    out.slots.from_s = strip.from_s;
    out.slots.width_s = strip.width_s;
    out.slots.counts.push_back(std::move(strip.counts));
  }
  return out;
}

}  // namespace drift::server
