#include "cli/noise.hpp"

#include <algorithm>

#include "cli/divergence.hpp"
#include "cli/interruptible.hpp"
#include "drift/base/check.hpp"

namespace drift::cli {
namespace {

// The next `count` tokens of `all` as a line of nodes, decoded and kept.
Status feed(engine::Engine& target, SeqId seq, std::span<const Token> all, std::size_t from, std::size_t count, bool rows_wanted,
            engine::Rows& rows) {
  std::vector<engine::Node> nodes(count);
  for (std::size_t i = 0; i < count; ++i) {
    nodes[i] = {seq, all[from + i], static_cast<Pos>(from + i), i == 0 ? kPrefix : static_cast<NodeIndex>(i) - 1, rows_wanted};
  }
  return target.forward(nodes, rows);
}

Status keep_all(engine::Engine& target, SeqId seq, std::size_t count) {
  std::vector<NodeIndex> path(count);
  for (std::size_t i = 0; i < count; ++i) path[i] = static_cast<NodeIndex>(i);
  return target.keep(seq, path);
}

Status measure(engine::Engine& target, SeqId seq, std::span<const Token> all, std::size_t prompt,
               std::span<const trace::Margin> margins, const spec::SamplerConfig& config, std::size_t vocab, std::size_t rows_max,
               std::vector<double>& changes) {
  engine::Rows rows;
  for (std::size_t at = 0; at < prompt - 1;) {
    const std::size_t count = std::min(kPrefillChunk, prompt - 1 - at);
    DRIFT_TRY(feed(target, seq, all, at, count, false, rows));
    DRIFT_TRY(keep_all(target, seq, count));
    at += count;
  }
  spec::Sampler sampler;
  spec::Distribution now;
  // The row of all[j] decides all[j + 1]; full blocks only, so that every row has the batch shape that is measured.
  for (std::size_t at = prompt - 1; at + rows_max < all.size(); at += rows_max) {
    DRIFT_TRY(feed(target, seq, all, at, rows_max, true, rows));
    for (std::size_t i = 0; i < rows_max; ++i) {
      const std::size_t decided = at + i + 1 - prompt;
      const trace::Margin& margin = margins[decided];
      const std::span<const float> row = rows.logits_row(i).first(vocab);
      if (config.greedy()) {
        if (margin.top.size() >= 2) changes.push_back(greedy_change(margin, row));
      } else {
        sampler.apply(config, row, now);
        changes.push_back(draw_change(margin, all[at + i + 1], now));
      }
    }
    DRIFT_TRY(keep_all(target, seq, rows_max));
  }
  return Status::ok();
}

}  // namespace

Status measure_noise(engine::Engine& target, std::span<const Token> prompt, std::span<const Token> text,
                     std::span<const trace::Margin> margins, const spec::SamplerConfig& sampler, std::size_t vocab,
                     std::size_t rows, std::vector<double>& changes) {
  DRIFT_CHECK(!prompt.empty() && rows > 0 && text.size() == margins.size(), "one margin per token of the text");
  std::vector<Token> all(prompt.begin(), prompt.end());
  all.insert(all.end(), text.begin(), text.end());
  DRIFT_ASSIGN(const SeqId seq, target.open());
  const Status status = measure(target, seq, all, prompt.size(), margins, sampler, vocab, rows, changes);
  target.close(seq);
  return status;
}

}  // namespace drift::cli
