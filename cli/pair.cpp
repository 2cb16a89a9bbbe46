#include "cli/pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "cli/numbers.hpp"

namespace drift::cli {
namespace {

using engine::LlamaConfig;
using engine::LlamaEngine;
using engine::LlamaModel;

Status named(const char* flag, const Status& status) { return {status.code(), fmt::format("{}: {}", flag, status.message())}; }

Result<std::shared_ptr<LlamaModel>> load_model(const char* flag, const std::string& path, int gpu_layers, bool verbose) {
  auto model = LlamaModel::load({.path = path, .gpu_layers = gpu_layers, .verbose = verbose});
  if (!model.is_ok()) return named(flag, model.status());
  return model;
}

// Both engines get the same context, so that a sequence ends in both at once.
Result<int> choose_context(const PairOptions& options, const LlamaModel& target, const LlamaModel* draft) {
  std::size_t trained = target.trained_context();
  if (draft != nullptr) trained = std::min(trained, draft->trained_context());
  const auto most = static_cast<int>(std::min<std::size_t>(trained, 1 << 20));
  if (options.context < 0) return std::min(kDefaultContext, most);
  if (options.context == 0) return most;
  if (options.context > most) {
    return Status(Code::kLimit, fmt::format("-c is {}; these models were trained for {} tokens at most", options.context, most));
  }
  return options.context;
}

}  // namespace

bank::Fingerprint Pair::fingerprint() const {
  bank::Fingerprint out;
  out.target_hash = target->info().content_hash;
  out.draft_hash = draft->info().content_hash;
  out.vocab = static_cast<std::uint32_t>(vocab);
  out.hidden_width = static_cast<std::uint32_t>(draft->describe().hidden_width);
  return out;
}

Result<Pair> load_pair(const PairOptions& options) {
  if (options.draft.empty() && !options.loras_draft.empty())
    return Status(Code::kInvalid, "--lora-draft needs a draft: give one with -md");
  const auto start = std::chrono::steady_clock::now();
  DRIFT_ASSIGN(std::shared_ptr<LlamaModel> target, load_model("-m", options.target, options.gpu_layers, options.verbose));
  std::shared_ptr<LlamaModel> draft;
  if (!options.draft.empty()) {
    const bool same = options.draft == options.target && options.gpu_layers == options.gpu_layers_draft;
    if (same) {
      draft = target;  // a model as its own draft: the weights are shared
    } else {
      DRIFT_ASSIGN(draft, load_model("-md", options.draft, options.gpu_layers_draft, options.verbose));
    }
  }
  Pair pair;
  pair.vocab = target->vocab();
  if (draft) {
    DRIFT_ASSIGN(pair.vocab, engine::check_same_vocabulary(*target, *draft));
  }
  DRIFT_ASSIGN(const int context, choose_context(options, *target, draft.get()));
  LlamaConfig config;
  config.context = context;
  config.max_sequences = options.sequences;
  config.n_batch = options.batch;
  config.n_ubatch = options.ubatch;
  config.threads = options.threads;
  config.loras = options.loras;
  auto made = LlamaEngine::make(target, config);
  if (!made.is_ok()) return named("-m", made.status());
  pair.target = std::move(made).value();
  if (draft) {
    config.loras = options.loras_draft;
    config.hidden = true;
    made = LlamaEngine::make(draft, config);
    if (!made.is_ok()) return named("-md", made.status());
    pair.draft = std::move(made).value();
  }
  pair.text = std::make_unique<engine::LlamaText>(*pair.target);
  pair.context = pair.target->describe().context;
  if (pair.draft) pair.context = std::min(pair.context, pair.draft->describe().context);
  pair.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return pair;
}

Result<engine::LoraAdapter> parse_lora(const std::string& flag, const std::string& text) {
  engine::LoraAdapter adapter;
  adapter.path = text;
  const std::size_t equals = text.rfind('=');
  std::error_code error;
  if (equals != std::string::npos && !std::filesystem::exists(text, error)) {  // a file of the whole name goes first
    DRIFT_ASSIGN(const double scale, parse_real(flag + " scale", text.substr(equals + 1), -100, 100));
    adapter.scale = static_cast<float>(scale);
    adapter.path = text.substr(0, equals);
  }
  if (adapter.path.empty()) return Status(Code::kInvalid, fmt::format("{} is '{}'; it must be FILE or FILE=SCALE", flag, text));
  return adapter;
}

Result<recal::RecalConfig> complete(recal::RecalConfig config, const Pair& pair) {
  config.bank.key_dim = static_cast<std::uint32_t>(pair.draft->describe().hidden_width);
  config.bank.vocab = static_cast<std::uint32_t>(pair.vocab);
  DRIFT_TRY(config.validate());
  return config;
}

Status check_fits(const Pair& pair, std::size_t prompt_tokens, std::int64_t generate, const std::string& what) {
  const std::size_t wanted = prompt_tokens + static_cast<std::size_t>(std::max<std::int64_t>(generate, 1));
  if (wanted <= pair.context) return Status::ok();
  const std::string remedy = generate > 1 ? "shorten it, generate less (-n), or give a larger context (-c)"
                                          : "shorten it, or give a larger context (-c)";
  return {Code::kLimit,
          fmt::format("{} has {} tokens{}; the context holds {}: {}", what, prompt_tokens,
                      generate > 0 ? fmt::format(" and {} are to be generated", generate) : "", pair.context, remedy)};
}

}  // namespace drift::cli
