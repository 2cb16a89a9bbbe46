#include "train/learn.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "drift/base/check.hpp"
#include "train/workers.hpp"

namespace drift::train {
namespace {

constexpr std::int64_t kEvalRows = 4;  // at a time: logits of more would not stay in the caches
constexpr double kDistillationTemperatures[] = {1.0, 0.5};

torch::Tensor inputs_of(const torch::Tensor& rows) { return rows.narrow(1, 0, rows.size(1) - 1); }

torch::Tensor kl_at(const torch::Tensor& teacher, const torch::Tensor& student, double temperature) {
  const torch::Tensor log_p = torch::log_softmax(teacher / temperature, -1);
  const torch::Tensor log_q = torch::log_softmax(student / temperature, -1);
  return (log_p.exp() * (log_p - log_q)).sum(-1).mean();
}

// Calls f(rows of at most kEvalRows) on all workers in turn, gradients off; f gives a sum and the weight it has. Their mean.
template <std::size_t N, class F>
std::array<double, N> mean_over(const torch::Tensor& rows, int workers, F f) {
  const std::int64_t parts = (rows.size(0) + kEvalRows - 1) / kEvalRows;
  std::vector<std::array<double, N>> means(static_cast<std::size_t>(parts));
  run_workers(workers, [&](int worker) {
    const torch::NoGradGuard no_grad;
    for (std::int64_t i = worker; i < parts; i += workers)
      means[static_cast<std::size_t>(i)] = f(rows.narrow(0, i * kEvalRows, std::min(kEvalRows, rows.size(0) - i * kEvalRows)));
  });
  std::array<double, N> out{};
  for (std::int64_t i = 0; i < parts; ++i) {
    const double share =
        static_cast<double>(std::min(kEvalRows, rows.size(0) - i * kEvalRows)) / static_cast<double>(rows.size(0));
    for (std::size_t k = 0; k < N; ++k) out[k] += share * means[static_cast<std::size_t>(i)][k];
  }
  return out;
}

}  // namespace

torch::Tensor next_token_loss(engine::LlamaNet& net, const torch::Tensor& rows) {
  const torch::Tensor logits = net->forward(inputs_of(rows)).logits;
  return torch::cross_entropy_loss(logits.flatten(0, 1), rows.narrow(1, 1, rows.size(1) - 1).flatten());
}

torch::Tensor teacher_logits(engine::LlamaNet& target, const torch::Tensor& rows) {
  const torch::NoGradGuard no_grad;
  return target->forward(inputs_of(rows)).logits;
}

torch::Tensor distillation_loss(engine::LlamaNet& student, const torch::Tensor& rows, const torch::Tensor& teacher) {
  const torch::Tensor logits = student->forward(inputs_of(rows)).logits;
  torch::Tensor loss;
  for (const double temperature : kDistillationTemperatures) {
    const torch::Tensor part = kl_at(teacher, logits, temperature) / static_cast<double>(std::size(kDistillationTemperatures));
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

Gradient gradient_of(const Optimiser& optimiser, const torch::Tensor& rows, int workers,
                     const std::function<torch::Tensor(const torch::Tensor&)>& loss) {
  DRIFT_CHECK(rows.size(0) >= workers, "a row for each worker");
  const std::vector<torch::Tensor>& parameters = optimiser.parameters();
  const auto shares = rows.tensor_split(workers);
  std::vector<std::vector<torch::Tensor>> gradients(static_cast<std::size_t>(workers));
  std::vector<double> losses(static_cast<std::size_t>(workers));
  run_workers(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    const torch::Tensor part = loss(shares[w]) * (static_cast<double>(shares[w].size(0)) / static_cast<double>(rows.size(0)));
    losses[w] = part.item<double>();
    gradients[w] = torch::autograd::grad({part}, parameters);
  });
  Gradient out{std::move(gradients[0]), std::accumulate(losses.begin(), losses.end(), 0.0)};
  for (std::size_t w = 1; w < gradients.size(); ++w)
    for (std::size_t i = 0; i < out.of.size(); ++i) out.of[i] = out.of[i] + gradients[w][i];
  // A gradient may be a view that its producer shares, or one tensor for two parameters: the optimiser changes them in place.
  if (workers == 1)
    for (torch::Tensor& gradient : out.of) gradient = gradient.clone();
  return out;
}

double held_out_loss(engine::LlamaNet& net, const torch::Tensor& rows, int workers) {
  return mean_over<1>(rows, workers, [&](const torch::Tensor& part) {
    return std::array<double, 1>{next_token_loss(net, part).item<double>()};
  })[0];
}

Agreement agreement(engine::LlamaNet& target, engine::LlamaNet& student, const torch::Tensor& rows, int workers) {
  const auto means = mean_over<3>(rows, workers, [&](const torch::Tensor& part) {
    const torch::Tensor teacher = teacher_logits(target, part);
    const torch::Tensor logits = student->forward(inputs_of(part)).logits;
    double kl = 0;
    for (const double temperature : kDistillationTemperatures)
      kl += kl_at(teacher, logits, temperature).item<double>() / static_cast<double>(std::size(kDistillationTemperatures));
    const torch::Tensor match = (teacher.argmax(-1) == logits.argmax(-1)).to(torch::kFloat).mean();
    const torch::Tensor overlap = torch::minimum(torch::softmax(teacher, -1), torch::softmax(logits, -1)).sum(-1).mean();
    return std::array<double, 3>{kl, match.item<double>(), overlap.item<double>()};
  });
  return {means[0], means[1], means[2]};
}

}  // namespace drift::train
