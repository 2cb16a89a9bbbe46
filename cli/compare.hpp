// compare.hpp - the same prompts under several modes, interleaved: what a mode saves, and whether its text is plain decoding's.
//
// Threads: one. compare_run.cpp decodes, compare_stream.cpp and compare_summary.cpp fold, compare_report.cpp and compare_json.cpp tell.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/compare_stream.hpp"
#include "cli/divergence.hpp"
#include "cli/machine.hpp"
#include "cli/modes.hpp"
#include "cli/pair.hpp"
#include "cli/prompts.hpp"
#include "cli/text_stats.hpp"
#include "drift/control/cost_curve.hpp"
#include "drift/engine/learner.hpp"
#include "drift/trace/metrics.hpp"

namespace drift::cli {

struct CompareOptions {
  PairOptions pair;
  PromptOptions prompts;
  std::int64_t generate = 128;
  std::string modes = "off,static,drift";
  Settings settings;  // defaults of every mode
  spec::SamplerConfig sampler = spec::greedy_sampler();
  std::uint64_t seed = 1;
  int repeats = 1;
  std::string json;
  std::string bank;  // read only; every mode that recalibrates begins with its content
  bool one_by_one = false;
  bool stream = false;  // told by segment, with a curve
};

// One prompt in one mode in one repeat.
struct PromptRun {
  std::size_t prompt = 0;
  int repeat = 0;
  std::vector<Token> tokens;
  std::string ending;
  trace::Metrics metrics;
  double speedup = 0;  // against the reference's run of the same prompt and repeat; 0: none
  std::optional<Difference> difference;
};

struct Spread {
  double median = 0, low = 0, high = 0;  // quartiles
  std::size_t count = 0;
};

struct VariantResult {
  Variant variant;
  std::size_t draft = 0;  // which of CompareResult::drafts it drafts with, or begins to learn from
  std::vector<PromptRun> runs;
  std::uint64_t bank_entries = 0, bank_bytes = 0;      // after the last repeat
  std::map<std::string, std::uint64_t> level_entries;  // likewise, of levels other than the hidden one
  std::uint64_t suffix_tokens = 0, suffix_bytes = 0;   // likewise
  std::optional<engine::LearnerStats> learner;         // of drafts that learn: counts and times of all repeats, bytes of the last

  // Filled by summarise().
  trace::Metrics total;
  std::map<std::string, trace::Metrics> by_domain;
  TextStats text;                                // of all its texts
  std::map<std::string, double> domain_speedup;  // total ratio within the domain
  std::vector<trace::Metrics> by_segment;        // [segments]
  std::vector<double> segment_speedup;           // [segments], total ratio; empty: no reference
  double speedup = 0;                            // total ratio; 0: no reference
  Spread speedups;                               // over prompts and repeats
  bool compared = false;                         // whether its text must equal the reference's
  std::size_t diverged_prompts = 0;
  double max_margin = 0;
  double allowed_margin = 0;
  bool beyond = false;  // max_margin > allowed_margin, where that is known

  // Of all step time, what updates of the draft's weights took; 0 unless the mode trains its draft.
  double update_fraction() const {
    return learner && total.times.total_ns > 0
               ? static_cast<double>(learner->update_ns) / static_cast<double>(total.times.total_ns)
               : 0;
  }
};

// What batch shape moved, for one number of rows.
struct Noise {
  std::size_t positions = 0;
  double p999 = 0;
  double allowed() const { return 2 * p999; }
};

struct PromptInfo {
  std::size_t tokens = 0;
  std::vector<double> prefill_ms;  // per repeat, all models
};

struct CompareResult {
  std::vector<Prompt> prompts;
  std::vector<PromptInfo> infos;  // [prompts]
  std::vector<Segment> segments;  // of a stream; else empty
  std::vector<VariantResult> variants;
  std::optional<std::size_t> reference;  // the first `off`
  std::map<std::size_t, Noise> noise;    // by rows of a block
  bool noise_missing = false;            // interrupted before it was measured: nothing is judged by it
  std::size_t done_runs = 0, all_runs = 0;
  bool partial = false;  // interrupted
  std::optional<control::CostCurve> target_curve, draft_curve;
  engine::ModelInfo target;
  std::vector<OtherDraft> more_drafts;    // files that modes name besides -md's, each once
  std::vector<engine::ModelInfo> drafts;  // -md's, then those; empty: no draft
  std::size_t vocab = 0, context = 0;
  Machine machine;
  std::array<double, 3> load_before{}, load_after{};
  double load_s = 0, wall_s = 0;

  // A draft that is run as it is, in the engine that the cost curve is measured with.
  bool in_draft_curve(const VariantResult& v) const { return v.draft == 0 && !decode::learns(v.variant.mode); }
  // What runs the draft in a mode; a mode that trains its draft needs LibTorch whatever runs the others.
  DraftEngine draft_engine(const CompareOptions& options, const VariantResult& v) const {
    return decode::learns(v.variant.mode) ? DraftEngine::kTorch : options.pair.draft_engine;
  }
  // Whether it is known how far the mode's text may leave the reference's.
  bool margin_known(const VariantResult& v) const { return !noise_missing || v.variant.mode == decode::Mode::kOff; }
};

// Decodes everything. Interrupted: ok, with result.partial set.
Status run_modes(const CompareOptions& options, Pair& pair, CompareResult& result);
// Speed-ups, divergence and totals from the runs; margins are those of the reference's runs.
void summarise(const CompareOptions& options, CompareResult& result);

std::string report_text(const CompareOptions& options, const CompareResult& result);
std::string report_settings(const CompareOptions& options, const CompareResult& result);
std::string report_json(const CompareOptions& options, const CompareResult& result);

// Median and quartiles. Empty: zeros.
Spread spread_of(std::vector<double> values);

void add_compare_command(CLI::App& app, int& exit_code);

}  // namespace drift::cli
