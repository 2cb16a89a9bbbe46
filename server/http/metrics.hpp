// metrics.hpp - /metrics: counters folded from step events, with the names that dashboards and benchmark tools look for.
//
// Canonical names begin with drift_; vLLM's and llama-server's names can be served beside them. Definitions are those of
// docs/method.md: acceptance = accepted / drafted; a draft is a block that proposed something.
// Threads: any; counters are atomic.
#pragma once

#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/schedule/history.hpp"
#include "server/schedule/scheduler.hpp"
#include "server/schedule/shift.hpp"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
template <typename T>
class Family;
}  // namespace prometheus

namespace drift::server {

struct MetricsConfig {
  std::string model;  // label of vLLM's names
  bool vllm = false, llamacpp = false;
  // Told when a tenant's proposals are accepted less than they used to be: the rates now and before. Must not wait.
  std::function<void(const std::string& tenant, double now, double before)> on_shift;
};

inline constexpr std::size_t kTenantLabelsMax = 32;  // further tenants share the label "other"
inline constexpr std::size_t kBankLabelsMax = 128;   // further banks are not shown

class ServerMetrics final : public Observer {
 public:
  explicit ServerMetrics(MetricsConfig config);
  ~ServerMetrics() override;

  void prefilled(int slot, std::size_t tokens, std::chrono::nanoseconds time) override;
  void stepped(std::span<const trace::StepEvent> events, std::span<const StepOwner> owners) override;
  void ended(const GenerationConfig& config, const Ended& ended) override;
  void dropped(const GenerationConfig& config, const Status& why) override;

  void forget(const BankId& bank) { history_.forget_bank(bank); }
  void forget(const std::string& tenant);  // nothing of it is shown any more
  void request(const std::string& route, int status, std::chrono::nanoseconds time);
  // The text of /metrics. `state` and `banks` become gauges.
  std::string text(const SchedulerState& state, const std::vector<BankState>& banks);
  const History& history() const { return history_; }  // the same events by time

 private:
  using Counter = prometheus::Counter;
  using Histogram = prometheus::Histogram;
  Counter& counter(const char* name, const char* help);
  Histogram& histogram(const char* name, const char* help, std::vector<double> bounds);
  void set_gauges(const SchedulerState& state, const std::vector<BankState>& banks);
  void look_for_shift(const std::string& tenant, const trace::StepEvent& event);

  const MetricsConfig config_;
  prometheus::Registry registry_;
  Counter &prompt_tokens_, &cached_tokens_, &generated_tokens_, &steps_, &step_answers_, &drafts_, &drafted_, &accepted_,
      &from_bank_;
  Counter &prompt_seconds_, &predicted_seconds_, &draft_seconds_, &verify_seconds_, &sample_seconds_, &overhead_seconds_;
  prometheus::Family<Counter>& accepted_at_;
  std::array<Counter*, decode::kMaxDraftTokens> accepted_at_position_{};
  prometheus::Family<Counter>& ended_;
  prometheus::Family<Counter>& requests_;
  prometheus::Family<Counter>& shifts_;
  std::mutex shift_mutex_;
  std::map<std::string, ShiftDetector> shift_of_;  // by tenant
  prometheus::Family<prometheus::Gauge>*shift_score_, *answers_, *slots_, *bank_entries_, *bank_bytes_, *bank_saves_,
      *bank_save_failures_;
  Histogram &first_token_, &between_tokens_, &per_token_, &answer_time_, &queue_time_;
  std::mutex gauges_mutex_;
  std::vector<std::pair<prometheus::Family<prometheus::Gauge>*, prometheus::Gauge*>> shown_;
  std::atomic<std::uint64_t> longest_{0};
  History history_;
};

}  // namespace drift::server
