// What a comparison says on the terminal: settings first, then one table, then what it means in words.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cli/compare.hpp"
#include "cli/shared_weights.hpp"
#include "cli/verdict.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

using Out = std::back_insert_iterator<std::string>;

double per_step_us(std::int64_t ns, const trace::Metrics& m) {
  return m.steps > 0 ? static_cast<double>(ns) * 1e-3 / static_cast<double>(m.steps) : 0;
}

std::string margin_text(double margin) {
  return std::isfinite(margin) ? fmt::format("{:.2g}", margin) : std::string("no near tie");
}

std::string divergence_cell(const CompareResult& result, const VariantResult& v) {
  if (!result.reference || !v.compared) return "-";
  if (v.diverged_prompts == 0) return "0";
  return fmt::format("{} ({}{})", v.diverged_prompts, margin_text(v.max_margin), v.beyond ? "!" : "");
}

void put_row(Out out, const CompareResult& result, const VariantResult& v) {
  const trace::Metrics& m = v.total;
  const bool drafts = v.variant.mode != decode::Mode::kOff;
  const std::string speed =
      result.reference ? fmt::format("{:.2f}x ({:.2f}-{:.2f})", v.speedup, v.speedups.low, v.speedups.high) : "-";
  fmt::format_to(out, "{:<12}", v.variant.label);
  if (drafts) {
    fmt::format_to(out, " {:>10.3f} {:>11.3f} {:>9.2f}", m.acceptance(), m.acceptance_conditional(), m.mean_accepted_per_block());
  } else {
    fmt::format_to(out, " {:>10} {:>11} {:>9}", "-", "-", "-");
  }
  fmt::format_to(out, " {:>8.2f} {:>17}", m.tokens_per_s(), speed);
  if (drafts) {
    fmt::format_to(out, " {:>8.2f}x {:>8.2f}%", m.modelled_speedup(trace::kSeedDraftCost, trace::kSeedVerifyCost),
                   100 * m.overhead_fraction());
  } else {
    fmt::format_to(out, " {:>9} {:>9}", "-", "-");
  }
  fmt::format_to(out, " {:>10}\n", divergence_cell(result, v));
}

void put_table(Out out, const CompareResult& result) {
  fmt::format_to(out, "\n{:<12} {:>10} {:>11} {:>9} {:>8} {:>17} {:>9} {:>9} {:>10}\n", "mode", "acceptance", "conditional",
                 "per block", "tokens/s", "speed-up (IQR)", "modelled", "overhead", "diverged");
  for (const VariantResult& v : result.variants) put_row(out, result, v);
  fmt::format_to(out,
                 "acceptance = accepted / drafted; conditional = accepted / drafted whose predecessors all stood; per block "
                 "without the target's own\n"
                 "token; speed-up: all tokens over all time, in brackets the quartiles over prompts; modelled: with a draft of "
                 "1/30 of the target and\n"
                 "verification of 1.05; overhead: lookup, bias, residual and commit as a share of draft and verification; "
                 "prefill is apart.\n");
}

std::string megabytes(std::uint64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) * 1e-6); }
std::string size_text(std::uint64_t bytes) {
  return bytes < 1'000'000'000 ? megabytes(bytes) + " MB" : fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

// What a mode costs in time and memory. Where an update of the weights makes some steps long, a median hides it.
void put_costs(Out out, const CompareResult& result) {
  fmt::format_to(out, "\n{:<12} {:>9} {:>9} {:>9} {:>8} {:>11} {:>9} {:>9} {:>9} {:>10} {:>8}\n", "mode", "step p50", "p99",
                 "longest", "updates", "ms each", "share", "draft MB", "memory MB", "optimiser", "buffer");
  for (const VariantResult& v : result.variants) {
    const trace::Metrics& m = v.total;
    fmt::format_to(out, "{:<12} {:>9.2f} {:>9.2f} {:>9.2f}", v.variant.label, m.step_percentile_ms(0.5),
                   m.step_percentile_ms(0.99), m.step_percentile_ms(1.0));
    const bool drafts = decode::drafts(v.variant.mode);
    const bool has_memory = decode::recalibrates(v.variant.mode) || decode::remembers(v.variant.mode);
    const std::string memory = has_memory ? megabytes(v.bank_bytes + v.suffix_bytes) : "-";
    if (v.learner) {
      const engine::LearnerStats& s = *v.learner;
      fmt::format_to(out, " {:>8} {:>11.2f} {:>8.2f}% {:>9} {:>9} {:>10} {:>8}\n", s.updates, s.update_ms_mean(),
                     100 * v.update_fraction(), megabytes(s.weight_bytes), memory, megabytes(s.optimiser_bytes),
                     megabytes(s.buffer_bytes));
    } else {
      fmt::format_to(out, " {:>8} {:>11} {:>9} {:>9} {:>9} {:>10} {:>8}\n", "-", "-", "-",
                     drafts ? megabytes(result.drafts[v.draft].weight_bytes) : "-", memory, "-", "-");
    }
  }
  fmt::format_to(
      out,
      "step: ms of a block, drafting, verification and updates included; share: of all step time spent in updates of the "
      "draft's weights;\n"
      "draft: its weights; memory: bank and suffix memory; optimiser: with the gradients; buffer: positions to learn from. "
      "All in MB.\n");
}

void put_learner(Out out, const engine::LearnerStats& s) {
  fmt::format_to(
      out, "  {} updates from {} positions, the longest {:.1f} ms{}; {} tokens passed through the draft again after them\n",
      s.updates, s.positions, static_cast<double>(s.update_ns_max) * 1e-6,
      s.skipped_updates > 0 ? fmt::format(", {} left out (gradients not finite)", s.skipped_updates) : "", s.recomputed_tokens);
}

// Tokens/s of a draft in LibTorch and of one in llama.cpp say more about these two than about the modes.
void put_engines(Out out, const CompareOptions& options, const CompareResult& result) {
  std::string in_llama, in_torch;
  for (const VariantResult& v : result.variants) {
    if (!decode::drafts(v.variant.mode)) continue;
    std::string& names = result.draft_engine(options, v) == DraftEngine::kTorch ? in_torch : in_llama;
    names += (names.empty() ? "" : ", ") + v.variant.label;
  }
  if (in_torch.empty()) return;
  if (in_llama.empty()) {
    fmt::format_to(out, "All drafts run in LibTorch ({} thread{}, float32): their speeds can be compared with each other.\n",
                   options.pair.torch_threads, options.pair.torch_threads == 1 ? "" : "s");
    return;
  }
  fmt::format_to(out,
                 "Drafts in llama.cpp: {}; in LibTorch ({} thread{}, float32): {}. Compare speeds within one of the two only, or "
                 "run all in LibTorch with --draft-engine torch.\n",
                 in_llama, options.pair.torch_threads, options.pair.torch_threads == 1 ? "" : "s", in_torch);
}

void put_details(Out out, const CompareResult& result) {
  for (const VariantResult& v : result.variants) {
    const trace::Metrics& m = v.total;
    if (v.variant.mode == decode::Mode::kOff || m.drafted == 0) continue;
    fmt::format_to(out, "\n{}: {} of {} drafted tokens accepted; by position", v.variant.label, m.accepted, m.drafted);
    for (const double alpha : m.per_position()) fmt::format_to(out, " {:.3f}", alpha);
    fmt::format_to(out, "\n");
    if (v.learner) put_learner(out, *v.learner);
    if (decode::copies(v.variant.mode)) {
      fmt::format_to(out, "  {} copied, {} of them accepted", m.copied, m.accepted_copied);
      if (decode::remembers(v.variant.mode))
        fmt::format_to(out, "; suffix memory: {} tokens, {:.1f} MB", v.suffix_tokens, static_cast<double>(v.suffix_bytes) * 1e-6);
      fmt::format_to(out, "\n");
    }
    if (!decode::recalibrates(v.variant.mode)) continue;
    fmt::format_to(out, "  {} accepted thanks to the bank ({:.2f} % of accepted); bank: {} entries, {:.1f} MB\n", m.accepted_bank,
                   m.accepted > 0 ? 100.0 * static_cast<double>(m.accepted_bank) / static_cast<double>(m.accepted) : 0.0,
                   v.bank_entries, static_cast<double>(v.bank_bytes) * 1e-6);
    if (!v.level_entries.empty()) {
      fmt::format_to(out, "  entries of other levels:");
      for (const auto& [level, entries] : v.level_entries) fmt::format_to(out, " {} {}", level, entries);
      fmt::format_to(out, "\n");
    }
    const auto share = [&](std::int64_t ns) {
      const std::int64_t block = m.times.draft_ns + m.times.verify_ns;
      return block > 0 ? 100 * static_cast<double>(ns) / static_cast<double>(block) : 0.0;
    };
    fmt::format_to(
        out,
        "  overhead per step: lookup {:.0f} us ({:.2f} %), bias {:.0f} us ({:.2f} %), residual {:.0f} us ({:.2f} %), commit "
        "{:.0f} us ({:.2f} %) of draft and verification; a step {:.1f} ms\n",
        per_step_us(m.times.lookup_ns, m), share(m.times.lookup_ns), per_step_us(m.times.bias_ns, m), share(m.times.bias_ns),
        per_step_us(m.times.residual_ns, m), share(m.times.residual_ns), per_step_us(m.times.commit_ns, m),
        share(m.times.commit_ns), per_step_us(m.times.total_ns, m) * 1e-3);
  }
}

void put_part_head(Out out, const char* part) {
  fmt::format_to(out, "\n{:<14} {:<12} {:>8} {:>10} {:>11} {:>8} {:>9}\n", part, "mode", "tokens", "acceptance", "conditional",
                 "tokens/s", "speed-up");
}

void put_part_row(Out out, const std::string& part, const VariantResult& v, const trace::Metrics& m, const double* speedup) {
  const bool drafts = m.drafted > 0;
  fmt::format_to(out, "{:<14} {:<12} {:>8} {:>10} {:>11} {:>8.2f} {:>9}\n", part, v.variant.label, m.tokens,
                 drafts ? fmt::format("{:.3f}", m.acceptance()) : "-",
                 drafts ? fmt::format("{:.3f}", m.acceptance_conditional()) : "-", m.tokens_per_s(),
                 speedup == nullptr ? "-" : fmt::format("{:.2f}x", *speedup));
}

std::string shown_domain(const std::string& domain) { return domain.empty() ? "(none)" : domain; }

void put_segments(Out out, const CompareResult& result) {
  put_part_head(out, "segment");
  for (std::size_t s = 0; s < result.segments.size(); ++s) {
    for (const VariantResult& v : result.variants) {
      if (v.by_segment[s].steps == 0) continue;  // interrupted before it
      const double* speedup = s < v.segment_speedup.size() ? &v.segment_speedup[s] : nullptr;
      put_part_row(out, fmt::format("{} {}", s + 1, shown_domain(result.segments[s].domain)), v, v.by_segment[s], speedup);
    }
  }
}

void put_domains(Out out, const CompareResult& result) {
  const auto& first = result.variants.front().by_domain;
  if (first.size() < 2 && (first.empty() || first.begin()->first.empty())) return;
  put_part_head(out, "domain");
  for (const auto& [domain, unused] : first) {
    for (const VariantResult& v : result.variants) {
      const auto it = v.by_domain.find(domain);
      if (it == v.by_domain.end()) continue;
      const auto speedup = v.domain_speedup.find(domain);
      put_part_row(out, shown_domain(domain), v, it->second, speedup == v.domain_speedup.end() ? nullptr : &speedup->second);
    }
  }
  // Below this, one disturbance of the machine outweighs what a domain can show.
  constexpr std::size_t kPromptsForSpeed = 10;
  if (result.all_runs < kPromptsForSpeed * first.size() * result.variants.size())
    fmt::format_to(out, "Under {} runs a domain and mode: the speeds of single domains are mostly noise.\n", kPromptsForSpeed);
}

const char* prompts(std::size_t count) { return count == 1 ? "prompt differs" : "prompts differ"; }

void put_divergence(Out out, const CompareOptions& options, const CompareResult& result) {
  if (!result.reference) {
    fmt::format_to(out, "\nNo 'off' among the modes: no speed-up and no comparison of texts.\n");
    return;
  }
  if (result.noise_missing) {
    fmt::format_to(out,
                   "\nFloat noise was not measured to its end: whether it explains differences between texts is not known.\n");
  } else if (options.one_by_one) {
    fmt::format_to(out, "\nEvery row of the target was decoded alone, so all texts must be identical.\n");
  } else {
    for (const auto& [rows, noise] : result.noise) {
      if (noise.positions == 0) {
        fmt::format_to(
            out,
            "\nFloat noise of {} rows at once could not be measured (texts shorter than a block): no difference is allowed.\n",
            rows);
        continue;
      }
      fmt::format_to(out,
                     "\nFloat noise: {} rows at once moved {} by up to {:.3g} (p99.9 of {} positions); allowed margin {:.3g}.\n",
                     rows, options.sampler.greedy() ? "best - second best logit" : "the draw's distance to its boundary",
                     noise.p999, noise.positions, noise.allowed());
    }
  }
  for (const VariantResult& v : result.variants) {
    if (!v.compared) {
      fmt::format_to(
          out, "{}: rejection at temperature above 0 gives another text of the same distribution; texts are not compared.\n",
          v.variant.label);
    } else if (v.beyond) {
      fmt::format_to(out, "{}: DIVERGED beyond the margin: {} prompts, largest {} against {:.3g} allowed.\n", v.variant.label,
                     v.diverged_prompts, margin_text(v.max_margin), v.allowed_margin);
    } else if (v.diverged_prompts > 0 && !result.margin_known(v)) {
      fmt::format_to(out, "{}: {} {} from off (largest margin {}); not judged.\n", v.variant.label, v.diverged_prompts,
                     prompts(v.diverged_prompts), margin_text(v.max_margin));
    } else if (v.diverged_prompts > 0) {
      fmt::format_to(out, "{}: {} {} from off, each at a near tie (largest margin {}).\n", v.variant.label, v.diverged_prompts,
                     prompts(v.diverged_prompts), margin_text(v.max_margin));
    }
  }
}

}  // namespace

std::string report_settings(const CompareOptions& options, const CompareResult& result) {
  std::string text;
  const Out out = std::back_inserter(text);
  fmt::format_to(out, "target  {} ({})\n", text::printable(result.target.name, text::kQuoteMax),
                 size_text(result.target.weight_bytes));
  std::uint64_t weights = result.target.weight_bytes, kv = result.target.kv_bytes_per_token * result.context;
  for (std::size_t i = 0; i < result.drafts.size(); ++i) {
    const engine::ModelInfo& draft = result.drafts[i];
    fmt::format_to(out, "draft   {} ({}){}\n", text::printable(draft.name, text::kQuoteMax), size_text(draft.weight_bytes),
                   i == 0 ? "" : ", " + text::printable(result.more_drafts[i - 1].path, text::kQuoteMax));
    const std::string& file = i == 0 ? options.pair.draft : result.more_drafts[i - 1].path;
    if (!shares_weights(options.pair, file)) weights += draft.weight_bytes;
    kv += draft.kv_bytes_per_token * result.context;
  }
  fmt::format_to(out, "memory  weights {}, keys and values {} at a context of {}\n", size_text(weights), size_text(kv),
                 result.context);
  fmt::format_to(out, "machine {}, {} threads of {}; ggml: {}; DRIFT kernels: {}\n", result.machine.cpu, result.machine.threads,
                 result.machine.hardware_threads, result.machine.ggml_flags, result.machine.highway_target);
  fmt::format_to(out,
                 "prompts {} x {} tokens, {} repeat{}, temperature {}, top-k {}, top-p {}, min-p {}, seed {}, context {}{}\n",
                 result.prompts.size(), options.generate, options.repeats, options.repeats == 1 ? "" : "s",
                 options.sampler.temperature, options.sampler.top_k, options.sampler.top_p, options.sampler.min_p, options.seed,
                 result.context, options.one_by_one ? ", rows one by one" : "");
  for (const VariantResult& v : result.variants) {
    fmt::format_to(out, "mode    {} = {}", v.variant.label, mode_name(v.variant.mode));
    const char* separator = ": ";
    for (const auto& [key, value] : effective_settings(v.variant.settings, v.variant.mode)) {
      fmt::format_to(out, "{}{}={}", separator, key, value);
      separator = ", ";
    }
    fmt::format_to(out, "\n");
  }
  return text;
}

std::string report_text(const CompareOptions& options, const CompareResult& result) {
  std::string text;
  const Out out = std::back_inserter(text);
  if (result.partial && result.done_runs == 0) return "\nINTERRUPTED before the first run was done: there are no figures.\n";
  if (result.partial)
    fmt::format_to(out, "\nINTERRUPTED: {} of {} runs are in these figures.\n", result.done_runs, result.all_runs);
  put_table(out, result);
  put_costs(out, result);
  put_engines(out, options, result);
  put_details(out, result);
  result.segments.empty() ? put_domains(out, result) : put_segments(out, result);
  double prefill = 0;
  for (const PromptInfo& info : result.infos) {
    for (const double ms : info.prefill_ms) prefill += ms;
  }
  fmt::format_to(
      out,
      "\nPrefill, shared by all modes and not counted: {:.1f} s; loading: {:.1f} s; load average {:.2f} before, {:.2f} after.\n",
      prefill * 1e-3, result.load_s, result.load_before[0], result.load_after[0]);
  const TextStats& texts = result.variants[result.reference.value_or(0)].text;
  fmt::format_to(
      out,
      "\nHow much the texts of {} repeat themselves (loops flatter every memory): {:.0f} % of 4-grams differ, {:.0f} % of tokens "
      "are among the 32 before,\n{:.0f} % of positions end three tokens that the same text already had.\n",
      result.variants[result.reference.value_or(0)].variant.label, 100 * texts.distinct_4(), 100 * texts.repeat_32(),
      100 * texts.trigram_seen());
  put_divergence(out, options, result);
  if (result.context < control::kCurveRows) {
    fmt::format_to(out, "\nNo cost curve: a context of {} tokens has no room for passes of {} rows (-c).\n", result.context,
                   control::kCurveRows);
  }
  if (result.target_curve) {
    fmt::format_to(out, "\n{}", curve_table(*result.target_curve, result.draft_curve ? &*result.draft_curve : nullptr));
    if (result.draft_curve) {
      const VariantResult* drafting = nullptr;  // the mode whose acceptance the verdict is about: the best one
      for (const VariantResult& v : result.variants) {
        if (v.total.drafted == 0 || !result.in_draft_curve(v)) continue;
        if (drafting == nullptr || v.total.acceptance() > drafting->total.acceptance()) drafting = &v;
      }
      if (drafting != nullptr) {
        fmt::format_to(out, "{}\n",
                       verdict(*result.target_curve, *result.draft_curve, drafting->variant.settings.draft_tokens,
                               drafting->total.acceptance_conditional(), drafting->variant.label, drafting->speedup));
      }
    }
  }
  return text;
}

}  // namespace drift::cli
