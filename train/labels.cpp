#include "train/labels.hpp"

#include <algorithm>
#include <vector>

#include "drift/base/check.hpp"
#include "drift/simd/simd.hpp"

namespace drift::train {
namespace {

constexpr std::int64_t kRowsAtOnce = 64;  // rows of logits held at a time: a wide vocabulary's are half a megabyte each

// Labels of one row into tokens and log_p, [length * top] each.
Status label_row(engine::Engine& target, SeqId seq, const std::int64_t* row, std::int64_t length, std::int64_t top,
                 std::int32_t* tokens, float* log_p) {
  engine::Rows out;
  for (std::int64_t at = 0; at < length; at += kRowsAtOnce) {
    std::vector<engine::Node> nodes;
    std::vector<NodeIndex> path;
    for (std::int64_t i = at; i < std::min(length, at + kRowsAtOnce); ++i) {
      path.push_back(static_cast<NodeIndex>(nodes.size()));
      nodes.push_back({.seq = seq,
                       .token = static_cast<Token>(row[i]),
                       .pos = static_cast<Pos>(i),
                       .parent = nodes.empty() ? kPrefix : static_cast<NodeIndex>(nodes.size() - 1),
                       .wants_row = true});
    }
    DRIFT_TRY(target.forward(nodes, out));
    const auto width = static_cast<std::size_t>(top);
    for (std::size_t i = 0; i < out.size(); ++i, tokens += top, log_p += top)
      label_logits(out.logits_row(i), {tokens, width}, {log_p, width});
    DRIFT_TRY(target.keep(seq, path));
  }
  return Status::ok();
}

}  // namespace

Labels Labels::of(const torch::Tensor& rows) const { return {tokens.index_select(0, rows), log_p.index_select(0, rows)}; }

torch::Tensor numbered(const torch::Tensor& rows, std::int64_t first) {
  return torch::cat({torch::arange(first, first + rows.size(0)).unsqueeze(1), rows}, 1);
}

void label_logits(std::span<const float> logits, std::span<Token> tokens, std::span<float> log_p) {
  const std::size_t found = simd::top_k(logits, tokens.size(), tokens);
  DRIFT_CHECK(found == tokens.size() && found == log_p.size(), "a vocabulary of at least `top` tokens");
  const double norm = simd::log_sum_exp(logits);
  for (std::size_t k = 0; k < found; ++k) log_p[k] = static_cast<float>(logits[tokens[k]] - norm);
}

Result<Labels> label_rows(engine::Engine& target, const torch::Tensor& rows, std::int64_t top,
                          const std::function<bool(std::int64_t)>& told) {
  const std::int64_t count = rows.size(0), length = rows.size(1) - 1;
  Labels labels{torch::empty({count, length, top}, torch::kInt), torch::empty({count, length, top}, torch::kFloat)};
  for (std::int64_t row = 0; row < count; ++row) {
    if (!told(row)) return Status(Code::kCancelled, "interrupted while the target labels text");
    DRIFT_ASSIGN(const SeqId seq, target.open());
    const Status status = label_row(target, seq, rows[row].data_ptr<std::int64_t>(), length, top,
                                    labels.tokens.data_ptr<std::int32_t>() + row * length * top,
                                    labels.log_p.data_ptr<float>() + row * length * top);
    target.close(seq);
    DRIFT_TRY(status);
  }
  return labels;
}

torch::Tensor labelled_loss(const torch::Tensor& logits, const Labels& labels) {
  return labelled_kl(torch::log_softmax(logits, -1).gather(-1, labels.tokens.to(torch::kLong)), labels);
}

torch::Tensor labelled_kl(const torch::Tensor& log_q, const Labels& labels) {
  constexpr double kTiny = 1e-6;  // keeps the logarithm of "all others" finite where the labelled tokens are everything
  const torch::Tensor p = labels.log_p.exp();
  const torch::Tensor p_rest = (1 - p.sum(-1)).clamp_min(kTiny), q_rest = (1 - log_q.exp().sum(-1)).clamp_min(kTiny);
  return ((p * (labels.log_p - log_q)).sum(-1) + p_rest * (p_rest.log() - q_rest.log())).mean();
}

}  // namespace drift::train
