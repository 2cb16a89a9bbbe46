// pair.hpp - a target and a draft, loaded and checked to belong together.
//
// Threads: one. Cost: reading the model files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/draft_engine.hpp"
#include "drift/bank/store.hpp"
#include "drift/base/status.hpp"
#include "drift/recal/recalibrator.hpp"
#include "engines/llama/chat.hpp"
#include "engines/llama/engine.hpp"
#include "engines/llama/text.hpp"

namespace drift::cli {

inline constexpr int kDefaultContext = 4'096;

// A draft besides the pair's own, on the same target. Adapters are not applied to it.
struct OtherDraft {
  std::string path;   // a .gguf file
  std::string shown;  // how errors name it
};

struct PairOptions {
  std::string target, draft;            // .gguf files; an empty draft: no draft
  std::vector<OtherDraft> more_drafts;  // Requires: a draft
  int context = -1;   // -1: kDefaultContext, or less if a model was trained for less; 0: what the models were trained for
  int sequences = 1;  // open at the same time, each with a context of its own
  int batch = 2'048;  // most tokens in one decode
  int ubatch = 512;   // most tokens computed at once
  int threads = 0;    // 0: one per hardware thread
  int gpu_layers = 0, gpu_layers_draft = 0;
  std::vector<engine::LoraAdapter> loras, loras_draft;
  DraftEngine draft_engine = DraftEngine::kLlama;
  int torch_threads = 1;  // of drafts in LibTorch
  bool verbose = false;
};

struct Pair {
  std::unique_ptr<engine::LlamaEngine> target;
  std::unique_ptr<engine::Engine> draft;             // may be null
  engine::ModelInfo draft_info;                      // the draft's, without its content hash
  std::vector<Draft> more_drafts;                    // [options.more_drafts]
  std::unique_ptr<engine::LlamaText> text;           // the target's
  std::shared_ptr<const engine::ChatTemplate> chat;  // the target's own, executed; null: there is none, or it cannot be
  std::size_t vocab = 0;                             // tokens all of them know
  std::size_t context = 0;                           // tokens a sequence may hold in each
  double load_s = 0;

  bank::Fingerprint fingerprint() const;  // reads the model files once; Requires: a draft
};

// Fails as LlamaModel::load, LlamaEngine::make, load_torch_draft and check_same_vocabulary, naming the model at fault by its flag;
// kInvalid for a LoRA adapter without its model, and for settings of llama.cpp where the draft is to run in LibTorch.
Result<Pair> load_pair(const PairOptions& options);

// "FILE" or "FILE=SCALE"; where all of the text names a file that is there, it is FILE.
// Fails with kInvalid on an empty file name or a scale outside [-100, 100].
Result<engine::LoraAdapter> parse_lora(const std::string& flag, const std::string& text);

// The method's settings completed with what only the pair knows (key width, vocabulary). Fails as RecalConfig::validate.
Result<recal::RecalConfig> complete(recal::RecalConfig config, const Pair& pair);

// Messages as one prompt that opens the answer: by the target's chat template, or where that cannot be executed by one that llama.cpp
// takes it for. Tokenize it with parse_special. Fails with kInvalid, kUnsupported (no template).
Result<std::string> frame_chat(const Pair& pair, const std::vector<engine::ChatMessage>& messages);

// Whether a prompt and what is to be generated (-1: at least one token) fit the context. Fails with kLimit naming `what`.
Status check_fits(const Pair& pair, std::size_t prompt_tokens, std::int64_t generate, const std::string& what);

}  // namespace drift::cli
