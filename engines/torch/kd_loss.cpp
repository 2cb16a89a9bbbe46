#include "engines/torch/kd_loss.hpp"

#include <cmath>
#include <limits>
#include <tuple>

namespace drift::engine {
namespace {

// The target's mass outside its labels is known to rounding only; below this it counts as this much.
constexpr double kRestMin = 1e-7;

struct Outcomes {
  torch::Tensor log_p, log_q;  // [n, outcomes]
};

Outcomes outcomes(const torch::Tensor& logits, const KdLabels& labels) {
  const torch::Tensor all = torch::logsumexp(logits, -1, /*keepdim=*/true);
  if (!labels.ids.defined()) return {labels.log_p, logits - all};
  const torch::Tensor log_q = logits.gather(-1, labels.ids) - all;
  const torch::Tensor outside = logits.scatter(-1, labels.ids, -std::numeric_limits<float>::infinity());
  const torch::Tensor rest_q = torch::logsumexp(outside, -1, /*keepdim=*/true) - all;
  const torch::Tensor rest_p = (1 - labels.log_p.exp().sum(-1, /*keepdim=*/true)).clamp_min(kRestMin).log();
  return {torch::cat({labels.log_p, rest_p}, -1), torch::cat({log_q, rest_q}, -1)};
}

// sum p (log p - log q)
torch::Tensor kl(const torch::Tensor& log_p, const torch::Tensor& log_q) { return (log_p.exp() * (log_p - log_q)).sum(-1); }

}  // namespace

torch::Tensor kd_loss(KdLoss loss, const torch::Tensor& logits, const KdLabels& labels) {
  const auto [log_p, log_q] = outcomes(logits, labels);
  switch (loss) {
    case KdLoss::kForward: return kl(log_p, log_q);
    case KdLoss::kReverse: return kl(log_q, log_p);
    case KdLoss::kJs: break;
  }
  const torch::Tensor mixture = torch::logaddexp(log_p, log_q) - std::log(2.0);
  return 0.5 * (kl(log_p, mixture) + kl(log_q, mixture));
}

KdLabels kd_labels(const torch::Tensor& target_logits, std::int64_t m) {
  const torch::Tensor all = torch::logsumexp(target_logits, -1, /*keepdim=*/true);
  if (m == 0 || m >= target_logits.size(-1)) return {{}, target_logits - all};
  const auto [values, ids] = target_logits.topk(m, -1);
  return {ids, values - all};
}

}  // namespace drift::engine
