#include "train/sampling.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include "drift/base/check.hpp"

namespace drift::train {

torch::Tensor sample_rows(engine::LlamaNet& target, const torch::Tensor& prompts, std::int64_t length,
                          const std::vector<double>& temperatures, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const std::int64_t count = prompts.size(0), given = prompts.size(1);
  DRIFT_CHECK(static_cast<std::size_t>(count) == temperatures.size() && given >= 1 && given < length, "one temperature a prompt");
  torch::Generator generator = at::detail::createCPUGenerator(seed);
  const torch::Tensor temperature = torch::tensor(temperatures, torch::kFloat).unsqueeze(1);  // [count, 1]
  torch::Tensor rows = torch::empty({count, length}, torch::kLong);
  rows.narrow(1, 0, given).copy_(prompts);
  engine::KvCache cache(target->shape(), count, length);
  torch::Tensor fresh = prompts;
  for (std::int64_t at = given; at < length; ++at) {
    const torch::Tensor hidden = target->hidden_states(fresh, &cache);
    const torch::Tensor logits = target->logits(hidden.select(1, hidden.size(1) - 1));  // [count, vocab]
    fresh = torch::multinomial(torch::softmax(logits / temperature, -1), 1, /*replacement=*/true, generator);
    rows.narrow(1, at, 1).copy_(fresh);
  }
  return rows.to(torch::kInt);
}

}  // namespace drift::train
