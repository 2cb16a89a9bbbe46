#include "cli/doctor.hpp"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <memory>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/interruptible.hpp"
#include "cli/json_fields.hpp"
#include "cli/machine.hpp"
#include "cli/options.hpp"
#include "cli/pair.hpp"
#include "cli/shared_weights.hpp"
#include "cli/verdict.hpp"
#include "drift/control/cost_curve.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

constexpr const char* kExamples =
    "Example:\n"
    "  drift doctor -m target.gguf -md draft.gguf\n"
    "Exit codes: 0 the models work together (whether or not drafting pays); 1 failure; 2 they do not, or bad input; 130 "
    "interrupted.";

constexpr std::array<int, 4> kLengths{1, 3, 5, 7};

struct DoctorOptions {
  PairOptions pair;
  Settings settings;  // for the size of a bank
  std::int64_t depth = 128, repeats = 5;
  bool json = false;
};

struct Findings {
  engine::ModelInfo target, draft;
  bool shared = false;  // the draft's weights are the target's
  std::size_t vocab = 0, context = 0;
  recal::RecalConfig recal;
  control::CostCurve target_curve, draft_curve;
  Machine machine;
};

std::uint64_t kv_bytes(const Findings& f, const engine::ModelInfo& model) { return model.kv_bytes_per_token * f.context; }

// What the pair takes when its context and its bank are full. Not counted: the working memory of a pass.
std::string memory_line(const Findings& f) {
  const auto giga = [](std::uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  const std::uint64_t weights = f.target.weight_bytes + (f.shared ? 0 : f.draft.weight_bytes);
  const std::uint64_t kv = kv_bytes(f, f.target) + kv_bytes(f, f.draft), bank = f.recal.bank.bytes();
  return fmt::format("memory   weights {:.2f} GB, KV {:.2f} GB at a context of {}, bank {:.2f} GB: {:.2f} GB in all\n",
                     giga(weights), giga(kv), f.context, giga(bank), giga(weights + kv + bank));
}

std::string alpha_text(double alpha) {
  return alpha > 1 ? "none: it loses even if every proposal stands" : fmt::format("{:.2f}", alpha);
}

std::string closing_words(const Findings& f) {
  int best = 0;
  double best_gain = 1;
  for (const int k : kLengths) {
    const double gain = control::block_speedup(f.target_curve, f.draft_curve, k, 1.0);
    if (gain > best_gain) best = k, best_gain = gain;
  }
  if (best == 0)
    return "Drafting cannot pay with these models on this machine: " +
           verdict(f.target_curve, f.draft_curve, 3, 1.0, "a perfect draft");
  double easiest = 2;
  int length = 0;
  for (const int k : kLengths) {
    const double alpha = control::break_even(f.target_curve, f.draft_curve, k);
    if (alpha < easiest) easiest = alpha, length = k;
  }
  return fmt::format(
      "Drafting can pay here: easiest with {} tokens a block, from a conditional acceptance of {:.2f}; at best {:.2f}x with {}. "
      "`drift compare` measures your acceptance.",
      length, easiest, best_gain, best);
}

std::string text_of(const Findings& f) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto model = [&](const char* name, const engine::ModelInfo& m) {
    fmt::format_to(out, "{:<8} {} ({}): {} tokens in the vocabulary, hidden width {}, weights {:.2f} GB\n", name,
                   text::printable(m.name, text::kQuoteMax), text::printable(m.arch, text::kQuoteMax), m.vocab, m.hidden_width,
                   static_cast<double>(m.weight_bytes) * 1e-9);
  };
  fmt::format_to(out, "machine  {}, {} threads of {}; ggml: {}; DRIFT kernels: {}\n", f.machine.cpu, f.machine.threads,
                 f.machine.hardware_threads, f.machine.ggml_flags, f.machine.highway_target);
  model("target", f.target);
  model("draft", f.draft);
  fmt::format_to(out, "together {} tokens in common; context {}\n", f.vocab, f.context);
  fmt::format_to(out, "bank     {} entries of {} tokens, keys of {} numbers: {:.1f} MB when full\n", f.recal.bank.capacity,
                 f.recal.bank.support, f.recal.bank.key_dim, static_cast<double>(f.recal.bank.bytes()) * 1e-6);
  text += memory_line(f) + "\n";
  text += curve_table(f.target_curve, &f.draft_curve);
  fmt::format_to(out,
                 "(medians of {} at {} tokens in the context)\n\nbreak-even conditional acceptance, and the speed-up if every "
                 "proposal stood:\n",
                 f.target_curve.repeats, f.target_curve.depth);
  for (const int k : kLengths) {
    fmt::format_to(out, "  {} drafted: {} ({:.2f}x)\n", k, alpha_text(control::break_even(f.target_curve, f.draft_curve, k)),
                   control::block_speedup(f.target_curve, f.draft_curve, k, 1.0));
  }
  text += "\n" + closing_words(f) + "\n";
  return text;
}

std::string json_of(const Findings& f) {
  const auto model = [&](const engine::ModelInfo& m) {
    Json out = model_json(m);
    out.erase("content_hash");  // hashing gigabytes is not what one asks a doctor for
    out["kv_bytes"] = kv_bytes(f, m);
    return out;
  };
  Json out;
  out["schema"] = "drift.doctor/1";
  out["drift_version"] = program_version();
  out["machine"] = machine_json(f.machine);
  out["target"] = model(f.target);
  out["draft"] = model(f.draft);
  out["vocab"] = f.vocab;
  out["context"] = f.context;
  out["bank_bytes"] = f.recal.bank.bytes();
  out["cost_curve"] = {{"depth", f.target_curve.depth},
                       {"repeats", f.target_curve.repeats},
                       {"target", f.target_curve.ms},
                       {"draft", f.draft_curve.ms}};
  out["break_even"] = Json::array();
  for (const int k : kLengths) {
    const double alpha = control::break_even(f.target_curve, f.draft_curve, k);
    out["break_even"].push_back({{"draft", k},
                                 {"acceptance_conditional", alpha > 1 ? Json(nullptr) : Json(alpha)},
                                 {"speedup_at_best", control::block_speedup(f.target_curve, f.draft_curve, k, 1.0)}});
  }
  out["verdict"] = closing_words(f);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<int> doctor(const DoctorOptions& options) {
  if (options.pair.draft.empty()) return Status(Code::kInvalid, "doctor looks at a pair: give the draft with -md");
  DRIFT_ASSIGN(Pair pair, load_pair(options.pair));
  Findings f;
  f.target = pair.target->describe();
  f.draft = pair.draft_info;
  f.shared = shares_weights(options.pair, options.pair.draft);
  f.vocab = pair.vocab;
  f.context = pair.context;
  f.machine = this_machine(options.pair.threads);
  DRIFT_ASSIGN(f.recal, complete(options.settings.recal, pair));
  DRIFT_ASSIGN(const std::vector<Token> words,
               pair.text->tokenize("The quick brown fox jumps over the lazy dog, and then it rests a while.", true, false));
  const auto depth = static_cast<std::size_t>(options.depth);
  const int repeats = static_cast<int>(options.repeats);
  note(fmt::format("measuring what 1 to {} tokens cost, of the target, then of the draft", control::kCurveRows));
  Interruptible target(*pair.target), draft(*pair.draft);
  DRIFT_ASSIGN(f.target_curve, control::measure_cost(target, words, depth, repeats));
  DRIFT_ASSIGN(f.draft_curve, control::measure_cost(draft, words, depth, repeats));
  write_out(options.json ? json_of(f) : text_of(f));
  return kExitOk;
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "Whether two models fit together, what they cost here, and whether drafting pays");
  command->footer(kExamples);
  add_pair_options(*command, options->pair);
  add_int(*command, "--depth", 0, 1 << 20, "tokens in the context while costs are measured [128]",
          [options](std::int64_t v) { options->depth = v; });
  add_int(*command, "--repeat", 1, 100, "measurements per figure, of which the median counts [5]",
          [options](std::int64_t v) { options->repeats = v; });
  command->add_flag("--json", options->json, "print one JSON object (schema drift.doctor/1)");
  add_setting_options(*command, options->settings);
  command->callback([options, &exit_code] {
    const Result<int> code = doctor(*options);
    exit_code = code.is_ok() ? code.value() : fail(code.status());
  });
}

}  // namespace drift::cli
