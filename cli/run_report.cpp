#include <fmt/format.h>

#include <iterator>

#include "cli/json_fields.hpp"
#include "cli/machine.hpp"
#include "cli/run.hpp"

namespace drift::cli {

std::optional<double> plain_factor(const Turn& turn) {
  const double ours = turn.metrics.tokens_per_s();
  if (!turn.plain_ms || *turn.plain_ms <= 0 || ours <= 0) return std::nullopt;
  return 1e3 / *turn.plain_ms / ours;
}

std::string figures_line(const Turn& turn, decode::Mode mode) {
  const trace::Metrics& m = turn.metrics;
  std::string text = fmt::format("{} tokens, {:.1f} tokens/s", m.tokens, m.tokens_per_s());
  auto out = std::back_inserter(text);
  if (mode != decode::Mode::kOff && m.drafted > 0) {
    fmt::format_to(out, "; acceptance {:.3f} of drafted, {:.3f} conditional, {:.2f} per block", m.acceptance(),
                   m.acceptance_conditional(), m.mean_accepted_per_block());
  }
  if (decode::copies(mode)) fmt::format_to(out, "; {} copied, {} of them accepted", m.copied, m.accepted_copied);
  if (decode::recalibrates(mode)) {
    fmt::format_to(out, "; {} accepted thanks to the bank; overhead {:.2f} %", m.accepted_bank, 100 * m.overhead_fraction());
  }
  if (const auto factor = plain_factor(turn)) {
    if (*factor >= 1.005) {
      fmt::format_to(out, "; drafting lost time: plain would be {:.2f}x faster", *factor);
    } else {
      fmt::format_to(out, "; {:.2f}x as fast as plain", 1 / *factor);
    }
  }
  if (turn.ending == "context") text += "; the context is full (-c)";
  return text;
}

std::string run_json(const RunOptions& options, const Pair& pair, decode::Mode mode, const Turn& turn,
                     std::uint64_t bank_entries) {
  const trace::Metrics& m = turn.metrics;
  const auto factor = plain_factor(turn);
  Json out;
  out["schema"] = "drift.run/1";
  out["drift_version"] = program_version();
  out["target"] = pair.target->describe().name;
  out["draft"] = pair.draft ? Json(pair.draft_info.name) : Json(nullptr);
  out["mode"] = mode_name(mode);
  out["settings"] = Json::object();
  for (const auto& [key, value] : effective_settings(options.settings, mode)) out["settings"][key] = value;
  out["sampler"] = sampler_json(options.sampler, options.seed);
  out["text"] = turn.text;
  out["ending"] = turn.ending;
  out["prompt_tokens"] = turn.prompt_tokens;
  out["prefill_ms"] = turn.prefill_ms;
  put_metrics(out, m);
  out["overhead_fraction"] = m.overhead_fraction();
  out["plain_ms_per_token"] = turn.plain_ms ? Json(*turn.plain_ms) : Json(nullptr);
  out["speedup"] = factor ? Json(1 / *factor) : Json(nullptr);
  out["bank_entries"] = bank_entries;
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace drift::cli
