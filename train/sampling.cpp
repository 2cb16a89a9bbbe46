#include "train/sampling.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <algorithm>
#include <limits>

#include "drift/base/check.hpp"
#include "drift/base/rng.hpp"
#include "drift/simd/simd.hpp"

namespace drift::train {
namespace {

// Closes what it opened, whatever happens in between.
class Sequences {
 public:
  explicit Sequences(engine::Engine& engine) : engine_(engine) {}
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;
  ~Sequences() {
    for (const SeqId id : ids_) engine_.close(id);
  }
  Status open(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      DRIFT_ASSIGN(const SeqId id, engine_.open());
      ids_.push_back(id);
    }
    return Status::ok();
  }
  const std::vector<SeqId>& ids() const { return ids_; }

 private:
  engine::Engine& engine_;
  std::vector<SeqId> ids_;
};

// Draws tokens at a temperature from rows of logits.
class Drawer {
 public:
  explicit Drawer(const Writing& writing) : writing_(writing), random_(writing.seed) {}

  Token draw(std::span<const float> logits, std::int64_t row, std::int64_t position) {
    allowed_.assign(logits.begin(), logits.end());
    for (const Token token : writing_.never) allowed_[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
    weights_.resize(allowed_.size());
    const double inverse = 1 / writing_.temperatures[static_cast<std::size_t>(row)];
    simd::exp_shifted(allowed_, allowed_[simd::argmax(allowed_)], static_cast<float>(inverse), weights_);
    return static_cast<Token>(
        random_.pick({.sequence = static_cast<std::uint64_t>(row), .position = static_cast<Pos>(position)}, weights_));
  }

 private:
  const Writing& writing_;
  RngStream random_;
  std::vector<float> allowed_, weights_;  // [vocab]
};

}  // namespace

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

Result<LabelledRows> write_rows(engine::Engine& target, const Writing& writing, const std::function<bool(std::int64_t)>& told) {
  const std::int64_t count = writing.prompts.size(0), given = writing.prompts.size(1), length = writing.length, top = writing.top;
  DRIFT_CHECK(static_cast<std::size_t>(count) == writing.temperatures.size() && given >= 1 && given <= length,
              "one temperature a prompt, and prompts no longer than rows");
  LabelledRows out{torch::empty({count, length + 1}, torch::kInt),
                   {torch::empty({count, length, top}, torch::kInt), torch::empty({count, length, top}, torch::kFloat)}};
  out.rows.narrow(1, 0, given).copy_(writing.prompts);
  auto* rows = out.rows.data_ptr<std::int32_t>();
  auto* tokens = out.labels.tokens.data_ptr<std::int32_t>();
  auto* log_p = out.labels.log_p.data_ptr<float>();
  Sequences sequences(target);
  DRIFT_TRY(sequences.open(count));
  Drawer drawer(writing);
  engine::Rows logits;
  std::vector<engine::Node> nodes;
  std::vector<NodeIndex> path;
  for (std::int64_t at = 0, step = 1; at < length; at += step) {
    if (!told(at)) return Status(Code::kCancelled, "interrupted while the target writes");
    // As much of the prompts as a batch holds; then token by token.
    step = at < given ? std::min(given - at, std::max<std::int64_t>(1, kWriteNodesMax / count)) : 1;
    nodes.clear();
    path.clear();
    for (std::int64_t i = 0; i < step; ++i) path.push_back(static_cast<NodeIndex>(i));
    for (std::int64_t row = 0; row < count; ++row)
      for (std::int64_t i = 0; i < step; ++i)
        nodes.push_back({.seq = sequences.ids()[static_cast<std::size_t>(row)],
                         .token = rows[row * (length + 1) + at + i],
                         .pos = static_cast<Pos>(at + i),
                         .parent = i == 0 ? kPrefix : static_cast<NodeIndex>(i - 1),
                         .wants_row = true});
    DRIFT_TRY(target.forward(nodes, logits));
    const auto width = static_cast<std::size_t>(top);
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t i = 0; i < step; ++i) {
        const std::int64_t label = (row * length + at + i) * top;
        label_logits(logits.logits_row(static_cast<std::size_t>(row * step + i)), {tokens + label, width},
                     {log_p + label, width});
      }
      if (at + step >= given)
        rows[row * (length + 1) + at + step] =
            drawer.draw(logits.logits_row(static_cast<std::size_t>(row * step + step - 1)), row, at + step);
    }
    for (const SeqId id : sequences.ids()) DRIFT_TRY(target.keep(id, path));
  }
  return out;
}

}  // namespace drift::train
