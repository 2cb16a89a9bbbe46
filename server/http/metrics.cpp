#include "server/http/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>

namespace drift::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

const std::vector<double> kSeconds{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                   1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640};
const std::vector<double> kShortSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                                        0.2,   0.3,    0.4,   0.5,  0.75,  1,    2.5,   5,   10};

const char* word(Finish finish) {
  switch (finish) {
    case Finish::kEnd: return "end";
    case Finish::kStop: return "stop";
    case Finish::kLength: return "length";
    case Finish::kContext: return "context";
  }
  return "?";
}

double value_of(const MetricFamily& family) {
  double sum = 0;
  for (const ClientMetric& metric : family.metric) sum += metric.counter.value + metric.gauge.value;
  return sum;
}

}  // namespace

ServerMetrics::Counter& ServerMetrics::counter(const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add({});
}

ServerMetrics::Histogram& ServerMetrics::histogram(const char* name, const char* help, std::vector<double> bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add({}, std::move(bounds));
}

ServerMetrics::ServerMetrics(MetricsConfig config)
    : config_(std::move(config)),
      prompt_tokens_(counter("drift_prompt_tokens_total", "Prompt tokens that were decoded")),
      cached_tokens_(counter("drift_prompt_tokens_cached_total", "Prompt tokens found in a slot's memory")),
      generated_tokens_(counter("drift_generated_tokens_total", "Tokens generated")),
      steps_(counter("drift_steps_total", "Steps: passes of the target over all answers in work")),
      step_answers_(
          counter("drift_step_answers_total", "Answers that took part in steps; over drift_steps_total: the mean batch")),
      drafts_(counter("drift_drafts_total", "Blocks that proposed something")),
      drafted_(counter("drift_drafted_tokens_total", "Tokens proposed and verified")),
      accepted_(counter("drift_accepted_tokens_total", "Proposed tokens that stood")),
      from_bank_(counter("drift_accepted_bank_tokens_total", "Of those, tokens the draft alone would not have proposed")),
      prompt_seconds_(counter("drift_prompt_seconds_total", "Time spent on prompts")),
      predicted_seconds_(counter("drift_step_seconds_total", "Time spent in steps")),
      draft_seconds_(counter("drift_draft_seconds_total", "Of that: passes of the draft")),
      verify_seconds_(counter("drift_verify_seconds_total", "Of that: passes of the target")),
      sample_seconds_(counter("drift_sample_seconds_total", "Of that: proposing and judging")),
      overhead_seconds_(counter("drift_overhead_seconds_total", "Of that: lookup, bias, residual and commit")),
      accepted_at_(prometheus::BuildCounter()
                       .Name("drift_accepted_tokens_per_pos_total")
                       .Help("Proposed tokens that stood, by place in the block")
                       .Register(registry_)),
      ended_(prometheus::BuildCounter().Name("drift_answers_total").Help("Answers that ended, by reason").Register(registry_)),
      requests_(prometheus::BuildCounter().Name("drift_http_requests_total").Help("HTTP requests").Register(registry_)),
      shifts_(prometheus::BuildCounter()
                  .Name("drift_shifts_total")
                  .Help("How often a tenant's proposals were found to be accepted less than before")
                  .Register(registry_)),
      first_token_(histogram("drift_time_to_first_token_seconds", "From arrival to the first tokens", kSeconds)),
      between_tokens_(histogram("drift_inter_token_seconds", "Step time over the tokens an answer got in it", kShortSeconds)),
      per_token_(histogram("drift_time_per_token_seconds", "Mean time per token of an answer", kShortSeconds)),
      answer_time_(histogram("drift_answer_seconds", "From arrival to the last token", kSeconds)),
      queue_time_(histogram("drift_queue_seconds", "From arrival to a slot", kSeconds)) {
  const auto gauge = [this](const char* name, const char* help) {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  };
  shift_score_ = gauge("drift_shift_score", "Standard deviations that acceptance lies below what it was; an alarm from 5 on");
  answers_ = gauge("drift_answers", "Answers by state");
  slots_ = gauge("drift_slots", "Answers that can be in work at once");
  bank_entries_ = gauge("drift_bank_entries", "Entries of a bank");
  bank_bytes_ = gauge("drift_bank_bytes", "Memory of a bank");
  bank_saves_ = gauge("drift_bank_saves", "How often a bank was saved since the start");
  bank_save_failures_ = gauge("drift_bank_save_failures", "How often saving a bank failed since the start");
  for (const char* reason : {"end", "stop", "length", "context", "dropped"}) ended_.Add({{"reason", reason}});
}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::prefilled(int slot, std::size_t tokens, std::chrono::nanoseconds time) {
  history_.prefilled(slot, time);
  prompt_tokens_.Increment(static_cast<double>(tokens));
  prompt_seconds_.Increment(seconds(time.count()));
}

void ServerMetrics::stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners) {
  history_.stepped(events, owners);
  steps_.Increment();
  step_answers_.Increment(static_cast<double>(events.size()));
  // Model passes are the batch's and stand in every event; the rest is each answer's own.
  predicted_seconds_.Increment(seconds(events[0].times.total_ns));
  draft_seconds_.Increment(seconds(events[0].times.draft_ns));
  verify_seconds_.Increment(seconds(events[0].times.verify_ns));
  for (std::size_t e = 0; e < events.size(); ++e) {
    const trace::StepEvent& event = events[e];
    sample_seconds_.Increment(seconds(event.times.sample_ns));
    overhead_seconds_.Increment(seconds(event.times.overhead_ns()));
    generated_tokens_.Increment(static_cast<double>(event.emitted.size()));
    if (!event.emitted.empty())
      between_tokens_.Observe(seconds(event.times.total_ns) / static_cast<double>(event.emitted.size()));
    if (event.proposed.empty()) continue;
    drafts_.Increment();
    drafted_.Increment(static_cast<double>(event.proposed.size()));
    for (std::size_t i = 0; i < event.proposed.size() && event.proposed[i].accepted; ++i) {
      accepted_.Increment();
      if (event.proposed[i].from_bank) from_bank_.Increment();
      Counter*& place = accepted_at_position_[i];
      if (place == nullptr) place = &accepted_at_.Add({{"position", std::to_string(i)}});
      place->Increment();
    }
    look_for_shift(*owners[e].tenant, event);
  }
}

void ServerMetrics::look_for_shift(const std::string& tenant, const trace::StepEvent& event) {
  std::uint64_t accepted = 0;
  while (accepted < event.proposed.size() && event.proposed[accepted].accepted) ++accepted;
  const std::uint64_t tested = std::min<std::uint64_t>(accepted + 1, event.proposed.size());
  double now = 0, before = 0;
  std::string label;
  {
    const std::lock_guard lock(shift_mutex_);
    const bool room = shift_of_.contains(tenant) || shift_of_.size() < kTenantLabelsMax;
    label = room ? tenant : "other";
    ShiftDetector& detector = shift_of_[label];
    if (!detector.add(accepted, tested)) return;
    now = detector.short_rate();
    before = detector.long_rate();
  }
  shifts_.Add({{"tenant", label}}).Increment();
  history_.shifted(label, now, before);
  if (config_.on_shift) config_.on_shift(label, now, before);
}

void ServerMetrics::ended(const GenerationConfig& /*config*/, const Ended& ended) {
  ended_.Add({{"reason", word(ended.finish)}}).Increment();
  cached_tokens_.Increment(static_cast<double>(ended.cached_tokens));
  first_token_.Observe(ended.first_token_ms * 1e-3);
  queue_time_.Observe(ended.queue_ms * 1e-3);
  answer_time_.Observe((ended.queue_ms + ended.prompt_ms + ended.predicted_ms) * 1e-3);
  if (ended.tokens > 0) per_token_.Observe(ended.predicted_ms * 1e-3 / static_cast<double>(ended.tokens));
  const std::uint64_t length = ended.prompt_tokens + ended.tokens;
  if (length > longest_.load(std::memory_order_relaxed)) longest_.store(length, std::memory_order_relaxed);
}

void ServerMetrics::dropped(const GenerationConfig& /*config*/, const Status& /*why*/) {
  ended_.Add({{"reason", "dropped"}}).Increment();
}

void ServerMetrics::request(const std::string& route, int status, std::chrono::nanoseconds /*time*/) {
  requests_.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
}

void ServerMetrics::forget(const std::string& tenant) {
  history_.forget_tenant(tenant);
  const std::lock_guard lock(shift_mutex_);
  shift_of_.erase(tenant);
  // Counters with its name stay in the registry, which forgets none; their value says nothing but that there were shifts.
  shifts_.Remove(&shifts_.Add({{"tenant", tenant}}));
}

// Gauges are made anew each time: what is gone must not be shown.
void ServerMetrics::set_gauges(const SchedulerState& state, const std::vector<BankState>& banks) {
  const std::lock_guard lock(gauges_mutex_);
  for (const auto& [family, gauge] : shown_) family->Remove(gauge);
  shown_.clear();
  const auto show = [this](prometheus::Family<prometheus::Gauge>* family, const std::map<std::string, std::string>& labels,
                           double value) {
    prometheus::Gauge& gauge = family->Add(labels);
    gauge.Set(value);
    shown_.emplace_back(family, &gauge);
  };
  const auto busy =
      std::count_if(state.slots.begin(), state.slots.end(), [](const SlotState& s) { return s.phase != Phase::kIdle; });
  show(answers_, {{"state", "working"}}, static_cast<double>(busy));
  show(answers_, {{"state", "waiting"}}, static_cast<double>(state.waiting));
  show(slots_, {}, static_cast<double>(state.slots.size()));
  {
    const std::lock_guard shifts(shift_mutex_);
    for (const auto& [tenant, detector] : shift_of_) show(shift_score_, {{"tenant", tenant}}, detector.score());
  }
  for (std::size_t i = 0; i < std::min(banks.size(), kBankLabelsMax); ++i) {
    const std::map<std::string, std::string> label{{"tenant", banks[i].id.tenant}, {"bank", banks[i].id.name}};
    show(bank_entries_, label, banks[i].entries);
    show(bank_bytes_, label, static_cast<double>(banks[i].bytes));
    show(bank_saves_, label, static_cast<double>(banks[i].saves));
    show(bank_save_failures_, label, static_cast<double>(banks[i].save_failures));
  }
}

namespace {

// Another name for figures that are there: what dashboards made for other servers look for.
class Aliases {
 public:
  explicit Aliases(const std::vector<MetricFamily>& families) : families_(families) {}
  const MetricFamily* find(const std::string& name) const {
    const auto it = std::find_if(families_.begin(), families_.end(), [&](const MetricFamily& f) { return f.name == name; });
    return it == families_.end() ? nullptr : &*it;
  }
  double value(const std::string& name) const {
    const MetricFamily* family = find(name);
    return family != nullptr ? value_of(*family) : 0.0;
  }
  // The whole family, with more labels.
  void copy(const std::string& from, const std::string& to, const std::vector<ClientMetric::Label>& labels = {}) {
    const MetricFamily* family = find(from);
    if (family == nullptr) return;
    MetricFamily alias = *family;
    alias.name = to;
    for (ClientMetric& metric : alias.metric) metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    made_.push_back(std::move(alias));
  }
  void put(prometheus::MetricType type, const std::string& name, const std::string& help, double value,
           const std::vector<ClientMetric::Label>& labels = {}) {
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    ClientMetric metric;
    metric.label = labels;
    (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family.metric.push_back(std::move(metric));
    made_.push_back(std::move(family));
  }
  std::vector<MetricFamily> take() { return std::move(made_); }

 private:
  const std::vector<MetricFamily>& families_;
  std::vector<MetricFamily> made_;
};

double per(double a, double b) { return b > 0 ? a / b : 0.0; }

void put_vllm(Aliases& out, const std::string& model, double working, double waiting) {
  const std::vector<ClientMetric::Label> labels{{"model_name", model}, {"engine", "0"}};
  out.copy("drift_drafts_total", "vllm:spec_decode_num_drafts_total", labels);
  out.copy("drift_drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total", labels);
  out.copy("drift_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total", labels);
  out.copy("drift_accepted_tokens_per_pos_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total", labels);
  out.put(prometheus::MetricType::Counter, "vllm:prompt_tokens_total", "Prompt tokens, found in memory or decoded",
          out.value("drift_prompt_tokens_total") + out.value("drift_prompt_tokens_cached_total"), labels);
  out.copy("drift_generated_tokens_total", "vllm:generation_tokens_total", labels);
  out.put(prometheus::MetricType::Gauge, "vllm:num_requests_running", "Answers in work", working, labels);
  out.put(prometheus::MetricType::Gauge, "vllm:num_requests_waiting", "Answers that wait for a slot", waiting, labels);
  out.copy("drift_time_to_first_token_seconds", "vllm:time_to_first_token_seconds", labels);
  out.copy("drift_inter_token_seconds", "vllm:inter_token_latency_seconds", labels);
  out.copy("drift_time_per_token_seconds", "vllm:request_time_per_output_token_seconds", labels);
  out.copy("drift_answer_seconds", "vllm:e2e_request_latency_seconds", labels);
}

void put_llamacpp(Aliases& out, double working, double waiting, double longest) {
  const auto counter = prometheus::MetricType::Counter;
  const auto gauge = prometheus::MetricType::Gauge;
  out.copy("drift_prompt_tokens_total", "llamacpp:prompt_tokens_total");
  out.copy("drift_prompt_tokens_cached_total", "llamacpp:prompt_tokens_cached_total");
  out.copy("drift_prompt_seconds_total", "llamacpp:prompt_seconds_total");
  out.copy("drift_generated_tokens_total", "llamacpp:tokens_predicted_total");
  out.copy("drift_step_seconds_total", "llamacpp:tokens_predicted_seconds_total");
  out.put(gauge, "llamacpp:prompt_tokens_seconds", "Mean prompt tokens per second",
          per(out.value("drift_prompt_tokens_total"), out.value("drift_prompt_seconds_total")));
  out.put(gauge, "llamacpp:predicted_tokens_seconds", "Mean generated tokens per second",
          per(out.value("drift_generated_tokens_total"), out.value("drift_step_seconds_total")));
  out.put(gauge, "llamacpp:requests_processing", "Answers in work", working);
  out.put(gauge, "llamacpp:requests_deferred", "Answers that wait for a slot", waiting);
  out.copy("drift_steps_total", "llamacpp:n_decode_total");
  out.put(gauge, "llamacpp:n_busy_slots_per_decode", "Mean answers per step",
          per(out.value("drift_step_answers_total"), out.value("drift_steps_total")));
  out.put(counter, "llamacpp:n_tokens_max", "Most tokens one slot has held", longest);
  out.copy("drift_drafts_total", "llamacpp:spec_decode_num_drafts_total");
  out.copy("drift_drafted_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total");
  out.copy("drift_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total");
  out.copy("drift_accepted_tokens_per_pos_total", "llamacpp:spec_decode_num_accepted_tokens_per_pos_total");
}

}  // namespace

std::string ServerMetrics::text(const SchedulerState& state, const std::vector<BankState>& banks) {
  set_gauges(state, banks);
  std::vector<MetricFamily> families = registry_.Collect();
  const double working = static_cast<double>(
      std::count_if(state.slots.begin(), state.slots.end(), [](const SlotState& s) { return s.phase != Phase::kIdle; }));
  Aliases aliases(families);
  if (config_.vllm) put_vllm(aliases, config_.model, working, static_cast<double>(state.waiting));
  if (config_.llamacpp)
    put_llamacpp(aliases, working, static_cast<double>(state.waiting),
                 static_cast<double>(longest_.load(std::memory_order_relaxed)));
  std::vector<MetricFamily> made = aliases.take();
  std::move(made.begin(), made.end(), std::back_inserter(families));
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace drift::server
