#include <cmath>
#include <span>

#include "server/http/routes.hpp"

namespace drift::server {
namespace {

using api::Json;

// Shorter in the answer than all the digits of a double.
double rounded(double x) { return std::round(x * 1e3) / 1e3; }
double ms(std::int64_t ns) { return rounded(static_cast<double>(ns) * 1e-6); }

template <class Item, class Value>
Json column(std::span<const Item> items, Value value) {
  Json out = Json::array();
  for (const Item& item : items) out.push_back(value(item));
  return out;
}

Json work_json(const Work& w) {
  return {{"steps", w.steps},
          {"tokens", w.tokens},
          {"verifications", w.verifications},
          {"verified_tokens", w.verified_tokens},
          {"blocks", w.blocks},
          {"drafted", w.drafted},
          {"accepted", w.accepted},
          {"accepted_bank", w.accepted_bank},
          {"step_ms", ms(w.step_ns)},
          {"compared_ms", ms(w.compared_ns)},
          {"plain_ms", ms(w.plain_ns)},
          {"prefill_ms", ms(w.time.prefill_ns)},
          {"draft_ms", ms(w.time.draft_ns)},
          {"verify_ms", ms(w.time.verify_ns)},
          {"sample_ms", ms(w.time.sample_ns)},
          {"overhead_ms", ms(w.time.overhead_ns)}};
}

// A list for each of the names above.
Json spans_json(const Spans<Work>& spans) {
  Json out = Json::object();
  for (const Work& work : spans.counts) {
    const Json now = work_json(work);
    for (const auto& [name, value] : now.items()) out[name].push_back(value);
  }
  return out;
}

Json bank_work_json(const BankWork& w) {
  return {{"drafted", w.drafted},
          {"accepted", w.accepted},
          {"accepted_bank", w.accepted_bank},
          {"lookups", w.lookups},
          {"hits", w.hits}};
}

Json bank_json(const HistoryView::OfBank& bank) {
  const std::span<const BankWork> spans = bank.spans;
  return {{"tenant", bank.id.tenant},
          {"name", bank.id.name},
          {"first_s", rounded(bank.first_s)},
          {"last_s", rounded(bank.last_s)},
          {"all", bank_work_json(bank.all)},
          {"spans",
           {{"drafted", column(spans, [](const BankWork& w) { return w.drafted; })},
            {"accepted", column(spans, [](const BankWork& w) { return w.accepted; })},
            {"accepted_bank", column(spans, [](const BankWork& w) { return w.accepted_bank; })},
            {"lookups", column(spans, [](const BankWork& w) { return w.lookups; })},
            {"hits", column(spans, [](const BankWork& w) { return w.hits; })}}}};
}

// As far as blocks ever went.
Json places_json(const Places& places) {
  Json tested = Json::array(), accepted = Json::array();
  for (const Place& place : places.at) {
    if (place.tested == 0) break;
    tested.push_back(place.tested);
    accepted.push_back(place.accepted);
  }
  return {{"tested", tested}, {"accepted", accepted}};
}

Json strip_json(const std::vector<SpentTime>& spans) {
  const std::span<const SpentTime> all = spans;
  return {{"prefill_ms", column(all, [](const SpentTime& t) { return ms(t.prefill_ns); })},
          {"draft_ms", column(all, [](const SpentTime& t) { return ms(t.draft_ns); })},
          {"verify_ms", column(all, [](const SpentTime& t) { return ms(t.verify_ns); })},
          {"sample_ms", column(all, [](const SpentTime& t) { return ms(t.sample_ns); })},
          {"overhead_ms", column(all, [](const SpentTime& t) { return ms(t.overhead_ns); })}};
}

}  // namespace

Json history_json(const History& history, History::Range range) {
  const HistoryView view = history.view(range);
  Json banks = Json::array(), shifts = Json::array(), plain = Json::array(), slots = Json::array();
  for (const HistoryView::OfBank& bank : view.banks) banks.push_back(bank_json(bank));
  for (const ShiftMark& shift : view.shifts) {
    shifts.push_back({{"at_s", rounded(shift.at_s)},
                      {"tenant", shift.tenant},
                      {"acceptance_now", rounded(shift.now)},
                      {"acceptance_before", rounded(shift.before)}});
  }
  for (const auto& [answers, cost] : view.plain) {
    if (cost.steps >= kPlainStepsMin)
      plain.push_back({{"answers", answers}, {"steps", cost.steps}, {"step_ms", rounded(cost.ns * 1e-6)}});
  }
  for (const std::vector<SpentTime>& strip : view.slots.counts) slots.push_back(strip_json(strip));
  return {{"now_s", rounded(view.now_s)},
          {"from_s", rounded(view.spans.from_s)},
          {"width_s", view.spans.width_s},
          {"spans", spans_json(view.spans)},
          {"all", work_json(view.all)},
          {"banks", banks},
          {"positions", {{"recent", places_json(view.places_recent)}, {"all", places_json(view.places)}}},
          {"shifts", shifts},
          {"plain", plain},
          {"slots", {{"from_s", rounded(view.slots.from_s)}, {"width_s", view.slots.width_s}, {"of", slots}}}};
}

}  // namespace drift::server
