#include "drift/trace/metrics.hpp"

#include <algorithm>
#include <cmath>

namespace drift::trace {
namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0.0; }

void grow(std::vector<std::uint64_t>& v, std::size_t size) {
  if (v.size() < size) v.resize(size);
}

void add_all(std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& from) {
  grow(to, from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

void add_times(StepTimes& to, const StepTimes& from) {
  to.draft_ns += from.draft_ns;
  to.verify_ns += from.verify_ns;
  to.sample_ns += from.sample_ns;
  to.lookup_ns += from.lookup_ns;
  to.bias_ns += from.bias_ns;
  to.residual_ns += from.residual_ns;
  to.commit_ns += from.commit_ns;
  to.total_ns += from.total_ns;
}

}  // namespace

void Metrics::add(const StepEvent& event) {
  ++steps;
  tokens += event.emitted.size();
  drafted += event.proposed.size();
  for (const ProposedToken& p : event.proposed) copied += p.copied() ? 1 : 0;
  std::size_t stood = 0;
  while (stood < event.proposed.size() && event.proposed[stood].accepted) {
    if (event.proposed[stood].from_bank) ++accepted_bank;
    if (event.proposed[stood].copied()) ++accepted_copied;
    ++stood;
  }
  accepted += stood;
  if (!event.proposed.empty()) {
    ++blocks;
    const std::size_t seen = std::min(stood + 1, event.proposed.size());
    tested += seen;
    grow(tested_at, event.proposed.size());
    grow(accepted_at, event.proposed.size());
    grow(accepted_histogram, event.proposed.size() + 1);
    for (std::size_t i = 0; i < seen; ++i) ++tested_at[i];
    for (std::size_t i = 0; i < stood; ++i) ++accepted_at[i];
    ++accepted_histogram[stood];
  }
  add_times(times, event.times);
  step_ns.push_back(event.times.total_ns);
}

void Metrics::merge(const Metrics& other) {
  steps += other.steps;
  blocks += other.blocks;
  tokens += other.tokens;
  drafted += other.drafted;
  accepted += other.accepted;
  accepted_bank += other.accepted_bank;
  copied += other.copied;
  accepted_copied += other.accepted_copied;
  tested += other.tested;
  add_all(tested_at, other.tested_at);
  add_all(accepted_at, other.accepted_at);
  add_all(accepted_histogram, other.accepted_histogram);
  add_times(times, other.times);
  step_ns.insert(step_ns.end(), other.step_ns.begin(), other.step_ns.end());
}

double Metrics::acceptance() const { return ratio(static_cast<double>(accepted), static_cast<double>(drafted)); }
double Metrics::acceptance_conditional() const { return ratio(static_cast<double>(accepted), static_cast<double>(tested)); }

std::vector<double> Metrics::per_position() const {
  std::vector<double> out(tested_at.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = ratio(static_cast<double>(accepted_at[i]), static_cast<double>(tested_at[i]));
  return out;
}

double Metrics::mean_accepted_per_block() const { return ratio(static_cast<double>(accepted), static_cast<double>(blocks)); }
double Metrics::mean_length() const { return ratio(static_cast<double>(tokens), static_cast<double>(steps)); }

double Metrics::predicted_accepted() const {
  // One alpha for all positions, as the seed's formula has it: alpha + alpha^2 + ... + alpha^k.
  const double alpha = acceptance_conditional();
  double sum = 0.0, power = 1.0;
  for (std::size_t i = 0; i < tested_at.size(); ++i) sum += power *= alpha;
  return sum;
}

double Metrics::tokens_per_s() const { return ratio(static_cast<double>(tokens) * 1e9, static_cast<double>(times.total_ns)); }

double Metrics::overhead_fraction() const {
  return ratio(static_cast<double>(times.overhead_ns()), static_cast<double>(times.draft_ns + times.verify_ns));
}

double Metrics::modelled_speedup(double draft_cost, double verify_cost) const {
  // A step that proposed nothing is one plain target pass; a copied proposal costs no draft pass.
  const double cost = static_cast<double>(drafted - copied) * draft_cost + static_cast<double>(blocks) * verify_cost +
                      static_cast<double>(steps - blocks);
  return ratio(static_cast<double>(tokens), cost);
}

double Metrics::step_percentile_ms(double q) const {
  if (step_ns.empty()) return 0.0;
  std::vector<std::int64_t> sorted = step_ns;
  const auto rank = static_cast<std::size_t>(std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1) + 0.5);
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(rank), sorted.end());
  return static_cast<double>(sorted[rank]) * 1e-6;
}

}  // namespace drift::trace
