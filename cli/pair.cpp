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

Status named(const std::string& flag, const Status& status) {
  return {status.code(), fmt::format("{}: {}", flag, status.message())};
}

Result<std::shared_ptr<LlamaModel>> load_model(const std::string& flag, const std::string& path, int gpu_layers, bool verbose) {
  auto model = LlamaModel::load({.path = path, .gpu_layers = gpu_layers, .verbose = verbose});
  if (!model.is_ok()) return named(flag, model.status());
  return model;
}

// All engines get the same context, so that a sequence ends in all at once.
Result<int> choose_context(const PairOptions& options, const LlamaModel& target,
                           const std::vector<std::shared_ptr<LlamaModel>>& drafts) {
  std::size_t trained = target.trained_context();
  for (const auto& draft : drafts) trained = std::min(trained, draft->trained_context());
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
  out.hidden_width = static_cast<std::uint32_t>(draft_info.hidden_width);
  return out;
}

namespace {

// What can be refused before a model is read.
Status check_draft_engine(const PairOptions& options) {
  if (options.draft_engine == DraftEngine::kLlama) return Status::ok();
  DRIFT_TRY(check_torch("--draft-engine torch"));
  if (!options.loras_draft.empty())
    return {Code::kInvalid, "--lora-draft belongs to --draft-engine llama; a draft in LibTorch takes no adapter file"};
  if (options.gpu_layers_draft != 0)
    return {Code::kInvalid, "-ngld belongs to --draft-engine llama; a draft in LibTorch runs on the CPU"};
  return Status::ok();
}

// The pair's own draft first.
std::vector<OtherDraft> draft_files(const PairOptions& options) {
  std::vector<OtherDraft> files;
  if (options.draft.empty()) return files;
  files.push_back({options.draft, "-md"});
  files.insert(files.end(), options.more_drafts.begin(), options.more_drafts.end());
  return files;
}

Result<Draft> make_draft(const PairOptions& options, const OtherDraft& file, const std::shared_ptr<LlamaModel>& model,
                         LlamaConfig config) {
  if (options.draft_engine == DraftEngine::kTorch) {
    auto loaded = load_torch_draft({file.path, config.context, options.torch_threads});
    if (!loaded.is_ok()) return named(file.shown, loaded.status());
    return loaded;
  }
  config.hidden = true;
  auto made = LlamaEngine::make(model, config);
  if (!made.is_ok()) return named(file.shown, made.status());
  Draft draft;
  draft.info = (*made)->describe();
  draft.engine = std::move(made).value();
  return draft;
}

}  // namespace

Result<Pair> load_pair(const PairOptions& options) {
  if (options.draft.empty() && !options.loras_draft.empty())
    return Status(Code::kInvalid, "--lora-draft needs a draft: give one with -md");
  DRIFT_TRY(check_draft_engine(options));
  const auto start = std::chrono::steady_clock::now();
  DRIFT_ASSIGN(std::shared_ptr<LlamaModel> target, load_model("-m", options.target, options.gpu_layers, options.verbose));
  Pair pair;
  pair.vocab = target->vocab();
  const std::vector<OtherDraft> files = draft_files(options);
  std::vector<std::shared_ptr<LlamaModel>> models;  // [files]
  for (const OtherDraft& file : files) {
    if (file.path == options.target && options.gpu_layers == options.gpu_layers_draft) {
      models.push_back(target);  // a model as its own draft: the weights are shared
    } else {
      DRIFT_ASSIGN(auto model, load_model(file.shown, file.path, options.gpu_layers_draft, options.verbose));
      models.push_back(std::move(model));
    }
    auto common = engine::check_same_vocabulary(*target, *models.back());
    if (!common.is_ok()) return models.size() == 1 ? common.status() : named(file.shown, common.status());
    pair.vocab = std::min(pair.vocab, *common);
  }
  DRIFT_ASSIGN(const int context, choose_context(options, *target, models));
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
  pair.text = std::make_unique<engine::LlamaText>(*pair.target);
  if (auto chat = engine::ChatTemplate::make(pair.target->model(), ""); chat.is_ok()) pair.chat = std::move(chat).value();
  pair.context = pair.target->describe().context;
  for (std::size_t i = 0; i < files.size(); ++i) {
    config.loras = i == 0 ? options.loras_draft : std::vector<engine::LoraAdapter>{};
    DRIFT_ASSIGN(Draft draft, make_draft(options, files[i], models[i], config));
    pair.context = std::min(pair.context, draft.info.context);
    if (i == 0) {
      pair.draft = std::move(draft.engine);
      pair.draft_info = std::move(draft.info);
    } else {
      pair.more_drafts.push_back(std::move(draft));
    }
  }
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
  config.bank.key_dim = static_cast<std::uint32_t>(pair.draft_info.hidden_width);
  config.bank.vocab = static_cast<std::uint32_t>(pair.vocab);
  DRIFT_TRY(config.validate());
  return config;
}

Result<std::string> frame_chat(const Pair& pair, const std::vector<engine::ChatMessage>& messages) {
  if (!pair.chat) return pair.text->chat(messages, /*add_assistant=*/true);
  std::vector<engine::ToolMessage> all;
  for (const engine::ChatMessage& message : messages) all.push_back({message.role, message.content, {}, {}, {}});
  return pair.chat->apply(all, /*add_assistant=*/true);
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
