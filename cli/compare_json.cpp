// The file that --json writes. docs/compare-format.md describes every field; the schema's number rises when one changes or goes, the
// minor one when some are added.
#include <cmath>

#include "cli/compare.hpp"
#include "cli/json_fields.hpp"

namespace drift::cli {
namespace {

// JSON knows no infinity: null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double per_step(std::int64_t ns, const trace::Metrics& m) {
  return m.steps > 0 ? static_cast<double>(ns) / static_cast<double>(m.steps) : 0;
}

Json curve_json(const std::optional<control::CostCurve>& curve) {
  if (!curve) return nullptr;
  Json out;
  out["depth"] = curve->depth;
  out["repeats"] = curve->repeats;
  out["ms"] = curve->ms;
  return out;
}

Json settings_json(const Variant& variant) {
  Json out = Json::object();
  for (const auto& [key, value] : effective_settings(variant.settings, variant.mode)) out[key] = value;
  return out;
}

Json segments_json(const VariantResult& v, const CompareResult& result) {
  Json out = Json::array();
  for (std::size_t s = 0; s < result.segments.size(); ++s) {
    Json row;
    row["domain"] = result.segments[s].domain;
    put_metrics(row, v.by_segment[s]);
    row["speedup"] = s < v.segment_speedup.size() ? number(v.segment_speedup[s]) : Json(nullptr);
    out.push_back(std::move(row));
  }
  return out;
}

Json points_json(const VariantResult& v, const CompareResult& result) {
  Json out = Json::array();
  for (const CurvePoint& point : curve_of(v.runs)) {
    out.push_back({{"prompt", point.prompt},
                   {"domain", result.prompts[point.prompt].domain},
                   {"tokens", point.tokens},
                   {"drafted", point.drafted},
                   {"accepted", point.accepted},
                   {"cumulative_tokens", point.cumulative_tokens}});
  }
  return out;
}

double ms(std::int64_t ns) { return static_cast<double>(ns) * 1e-6; }

Json learner_json(const VariantResult& v) {
  if (!v.learner) return nullptr;
  const engine::LearnerStats& stats = *v.learner;
  return {{"positions", stats.positions},
          {"updates", stats.updates},
          {"skipped_updates", stats.skipped_updates},
          {"update_ms", ms(stats.update_ns)},
          {"update_ms_max", ms(stats.update_ns_max)},
          {"update_fraction", v.update_fraction()},
          {"last_loss", number(stats.loss)},
          {"weight_bytes", stats.weight_bytes},
          {"optimiser_bytes", stats.optimiser_bytes},
          {"buffer_bytes", stats.buffer_bytes},
          {"recomputed_tokens", stats.recomputed_tokens}};
}

Json mode_json(const CompareOptions& options, const VariantResult& v, const CompareResult& result) {
  const bool reference_there = result.reference.has_value();
  const trace::Metrics& m = v.total;
  Json out;
  out["label"] = v.variant.label;
  out["mode"] = mode_name(v.variant.mode);
  out["settings"] = settings_json(v.variant);
  put_metrics(out, m);
  out["distinct_4"] = v.text.distinct_4();
  out["repeat_32"] = v.text.repeat_32();
  out["trigram_seen"] = v.text.trigram_seen();
  out["per_position"] = m.per_position();
  out["accepted_histogram"] = m.accepted_histogram;
  out["mean_length"] = m.mean_length();
  out["predicted_accepted"] = m.predicted_accepted();
  out["speedup"] = reference_there ? number(v.speedup) : Json(nullptr);
  out["speedup_median"] = reference_there ? number(v.speedups.median) : Json(nullptr);
  out["speedup_quartiles"] = reference_there ? Json::array({v.speedups.low, v.speedups.high}) : Json(nullptr);
  out["modelled_speedup"] = m.modelled_speedup(trace::kSeedDraftCost, trace::kSeedVerifyCost);
  out["step_ms_p50"] = m.step_percentile_ms(0.5);
  out["step_ms_p99"] = m.step_percentile_ms(0.99);
  out["step_ms_max"] = m.step_percentile_ms(1.0);
  out["overhead_fraction"] = m.overhead_fraction();
  out["overhead_ns"] = {{"lookup", per_step(m.times.lookup_ns, m)},
                        {"bias", per_step(m.times.bias_ns, m)},
                        {"residual", per_step(m.times.residual_ns, m)},
                        {"commit", per_step(m.times.commit_ns, m)}};
  out["step_ns"] = {{"draft", per_step(m.times.draft_ns, m)},
                    {"verify", per_step(m.times.verify_ns, m)},
                    {"sample", per_step(m.times.sample_ns, m)},
                    {"total", per_step(m.times.total_ns, m)}};
  out["bank_entries"] = v.bank_entries;
  out["bank_bytes"] = v.bank_bytes;
  out["level_entries"] = v.level_entries;
  out["suffix_tokens"] = v.suffix_tokens;
  out["suffix_bytes"] = v.suffix_bytes;
  const bool drafts = decode::drafts(v.variant.mode);
  out["draft"] = drafts ? Json(v.draft) : Json(nullptr);
  out["draft_engine"] = drafts ? Json(draft_engine_name(result.draft_engine(options, v))) : Json(nullptr);
  out["learner"] = learner_json(v);
  const bool judged = reference_there && v.compared;
  out["diverged_prompts"] = judged ? Json(v.diverged_prompts) : Json(nullptr);
  out["max_divergence_margin"] = judged ? number(v.max_margin) : Json(nullptr);
  const bool known = judged && result.margin_known(v);
  out["allowed_divergence_margin"] = known ? number(v.allowed_margin) : Json(nullptr);
  out["divergence_beyond_margin"] = known ? Json(v.beyond) : Json(nullptr);
  Json domains = Json::object();
  for (const auto& [domain, metrics] : v.by_domain) {
    if (domain.empty()) continue;
    put_metrics(domains[domain], metrics);
    const auto speedup = v.domain_speedup.find(domain);
    domains[domain]["speedup"] = speedup == v.domain_speedup.end() ? Json(nullptr) : number(speedup->second);
  }
  out["domains"] = domains;
  out["segments"] = segments_json(v, result);
  out["curve"] = result.segments.empty() ? Json::array() : points_json(v, result);
  return out;
}

Json runs_json(const CompareResult& result) {
  Json out = Json::array();
  for (std::size_t p = 0; p < result.prompts.size(); ++p) {
    Json row;
    row["id"] = result.prompts[p].id;
    row["domain"] = result.prompts[p].domain;
    row["kind"] = kind_name(result.prompts[p].kind);
    row["split"] = result.prompts[p].split;
    row["prompt_tokens"] = result.infos[p].tokens;
    row["prefill_ms"] = result.infos[p].prefill_ms;
    row["runs"] = Json::array();
    for (const VariantResult& v : result.variants) {
      for (const PromptRun& run : v.runs) {
        if (run.prompt != p) continue;
        Json one;
        one["label"] = v.variant.label;
        one["repeat"] = run.repeat;
        put_metrics(one, run.metrics);
        one["ending"] = run.ending;
        one["speedup"] = run.speedup > 0 ? Json(run.speedup) : Json(nullptr);
        one["first_difference"] = run.difference ? Json(run.difference->position) : Json(nullptr);
        one["divergence_margin"] = run.difference ? number(run.difference->margin) : Json(nullptr);
        row["runs"].push_back(std::move(one));
      }
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

Json loras_json(const std::vector<engine::LoraAdapter>& adapters) {
  Json out = Json::array();
  for (const engine::LoraAdapter& adapter : adapters) out.push_back({{"file", adapter.path}, {"scale", decimal(adapter.scale)}});
  return out;
}

std::string report_json(const CompareOptions& options, const CompareResult& result) {
  Json out;
  out["schema"] = "drift.compare/1";
  out["schema_minor"] = 3;
  out["drift_version"] = program_version();
  out["partial"] = result.partial;
  out["runs_done"] = result.done_runs;
  out["runs_planned"] = result.all_runs;
  out["machine"] = machine_json(result.machine);
  out["load_average_before"] = result.load_before;
  out["load_average_after"] = result.load_after;
  out["load_s"] = result.load_s;
  out["wall_s"] = result.wall_s;
  out["target"] = model_json(result.target);
  out["draft"] = result.drafts.empty() ? Json(nullptr) : model_json(result.drafts[0]);
  out["more_drafts"] = Json::array();
  for (std::size_t i = 0; i < result.more_drafts.size(); ++i) {
    Json draft = model_json(result.drafts[i + 1]);
    draft["file"] = result.more_drafts[i].path;
    out["more_drafts"].push_back(std::move(draft));
  }
  out["vocab"] = result.vocab;
  out["context"] = result.context;
  out["sampler"] = sampler_json(options.sampler, options.seed);
  out["settings"] = {{"prompts", options.prompts.files.size()},
                     {"prompt_files", options.prompts.files},
                     {"loras", loras_json(options.pair.loras)},
                     {"loras_draft", loras_json(options.pair.loras_draft)},
                     {"gpu_layers", options.pair.gpu_layers},
                     {"gpu_layers_draft", options.pair.gpu_layers_draft},
                     {"split", options.prompts.split},
                     {"limit", options.prompts.limit},
                     {"stream", options.stream},
                     {"generate", options.generate},
                     {"modes", options.modes},
                     {"repeat", options.repeats},
                     {"bank", !options.bank.empty()},
                     {"verify_rows_one_by_one", options.one_by_one}};
  out["reference"] = result.reference ? Json(result.variants[*result.reference].variant.label) : Json(nullptr);
  out["noise"] = Json::array();
  for (const auto& [rows, noise] : result.noise)
    out["noise"].push_back({{"rows", rows}, {"positions", noise.positions}, {"p999", noise.p999}, {"allowed", noise.allowed()}});
  out["cost_curve"] = {{"target", curve_json(result.target_curve)}, {"draft", curve_json(result.draft_curve)}};
  out["modelled_at"] = {{"draft_cost", trace::kSeedDraftCost}, {"verify_cost", trace::kSeedVerifyCost}};
  out["segments"] = Json::array();
  for (const Segment& segment : result.segments)
    out["segments"].push_back({{"domain", segment.domain}, {"first_prompt", segment.first}, {"prompts", segment.count}});
  out["modes"] = Json::array();
  for (const VariantResult& v : result.variants) out["modes"].push_back(mode_json(options, v, result));
  out["prompts"] = runs_json(result);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace drift::cli
