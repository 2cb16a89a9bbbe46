#include "train/shortlist.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "drift/base/check.hpp"

namespace drift::train {

Shortlist make_shortlist(const torch::Tensor& labelled, const torch::Tensor& by_count, std::int64_t size, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const std::int64_t vocab = by_count.size(0), quarter = size / 4;
  DRIFT_CHECK(quarter >= 1 && size < vocab, "a shortlist is a part of the vocabulary");
  torch::Tensor weight = torch::zeros({vocab});  // tokens each stands for; 0: not on the list
  weight.index_fill_(0, labelled.flatten().to(torch::kLong), 1);
  weight.index_fill_(0, by_count.narrow(0, 0, quarter), 1);
  const torch::Tensor others = (weight == 0).nonzero().flatten();
  const std::int64_t rest = others.size(0), drawn = std::min(rest, std::max(quarter, size - (vocab - rest)));
  if (drawn > 0) {
    const torch::Generator generator = at::detail::createCPUGenerator(seed);
    const torch::Tensor chosen = torch::randperm(rest, generator, torch::kLong).narrow(0, 0, drawn);
    weight.index_fill_(0, others.index_select(0, chosen), static_cast<double>(rest) / static_cast<double>(drawn));
  }
  Shortlist list;
  list.tokens = weight.nonzero().flatten();
  list.log_weight = weight.index_select(0, list.tokens).log();
  list.place = torch::full({vocab}, -1, torch::kLong);
  list.place.index_copy_(0, list.tokens, torch::arange(list.tokens.size(0), torch::kLong));
  return list;
}

torch::Tensor log_probabilities(engine::LlamaNet& net, const torch::Tensor& hidden, const torch::Tensor& tokens) {
  return torch::log_softmax(net->logits(hidden), -1).gather(-1, tokens);
}

torch::Tensor log_probabilities(engine::LlamaNet& net, const torch::Tensor& hidden, const torch::Tensor& tokens,
                                const Shortlist& list) {
  const torch::Tensor& head = net->output ? net->output->weight : net->token_embd->weight;
  const torch::Tensor logits = torch::linear(hidden, head.index_select(0, list.tokens)) + list.log_weight;
  const torch::Tensor places = list.place.index_select(0, tokens.flatten()).view(tokens.sizes());
  return torch::log_softmax(logits, -1).gather(-1, places);
}

}  // namespace drift::train
