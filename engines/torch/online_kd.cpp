#include "engines/torch/online_kd.hpp"

#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "drift/base/check.hpp"
#include "engines/torch/kd_loss.hpp"

namespace drift::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGradientNormMax = 1.0;
constexpr std::int64_t kLogitsAtOnce = 1 << 22;  // floats of one block of logits: 16 MiB, some six times that with its gradients
constexpr double kAlphaPerRank = 2.0;            // of adapters: alpha = 2 rank

// [count] or [rows, columns]; a copy.
template <class T>
torch::Tensor tensor_of(const std::vector<T>& values, torch::Dtype type, std::int64_t columns) {
  const auto count = static_cast<std::int64_t>(values.size());
  return torch::from_blob(const_cast<T*>(values.data()), {count / columns, columns}, type).clone();
}

}  // namespace

OnlineKd::OnlineKd(TorchEngine& draft, std::size_t vocab, const KdConfig& config)
    : draft_(draft), vocab_(vocab), config_(config) {}
OnlineKd::~OnlineKd() = default;

Result<std::unique_ptr<OnlineKd>> OnlineKd::create(TorchEngine& draft, std::size_t vocab, const KdConfig& config) {
  DRIFT_TRY(config.validate(vocab));
  const auto known = static_cast<std::size_t>(draft.net()->shape().vocab);
  if (vocab < 1 || vocab > known) {
    return Status(Code::kInvalid,
                  "online distillation over " + std::to_string(vocab) + " tokens: the draft knows " + std::to_string(known));
  }
  std::unique_ptr<OnlineKd> kd(new OnlineKd(draft, vocab, config));
  try {
    const std::uint64_t seed = 1;  // of the adapters' A; B is zero, so the draft is unchanged
    if (config.rank > 0 && !draft.net()->has_adapters())
      draft.net()->add_adapters(config.rank, kAlphaPerRank * config.rank, seed);
    kd->optimiser_ = std::make_unique<torch::optim::AdamW>(kd->trained(), torch::optim::AdamWOptions(config.rate));
  } catch (const std::exception& error) {
    return Status(Code::kInternal, std::string("online distillation cannot be set up: ") + error.what());
  }
  return kd;
}

std::vector<torch::Tensor> OnlineKd::trained() const {
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& parameter : draft_.net()->parameters()) {
    if (parameter.requires_grad()) out.push_back(parameter);
  }
  return out;
}

std::size_t OnlineKd::width() const { return config_.labels == 0 ? vocab_ : std::min<std::size_t>(config_.labels, vocab_); }

// ---- noting and keeping positions ----

Status OnlineKd::observe(const Verified& verified) {
  const std::size_t count = verified.target.size();
  if (verified.vocab != vocab_ || count == 0 || verified.text.size() < count) {
    return {Code::kInvalid, "online distillation: " + std::to_string(count) + " rows of " + std::to_string(verified.vocab) +
                                " tokens after a text of " + std::to_string(verified.text.size()) + "; rows of " +
                                std::to_string(vocab_) + " are learnt from, each after a token of its own"};
  }
  const bool fallen_only = config_.positions == KdPositions::kRejected;
  if (fallen_only && !verified.rejected) return Status::ok();
  const std::size_t first = fallen_only ? count - 1 : 0;  // row

  Text text;
  text.sequence = verified.sequence;
  const std::size_t before = verified.text.size() - (count - 1 - first);  // tokens the first of these rows follows
  text.from = before - std::min<std::size_t>(before, config_.window);
  text.tokens.assign(verified.text.begin() + static_cast<std::ptrdiff_t>(text.from), verified.text.end());
  for (const Token token : text.tokens) {
    if (token < 0 || token >= draft_.net()->shape().vocab) {
      return {Code::kInvalid, "online distillation: token " + std::to_string(token) + " of the text is not the draft's"};
    }
  }
  try {
    const torch::NoGradGuard no_grad;
    for (std::size_t row = first; row < count; ++row) {
      text.after.push_back(static_cast<std::uint32_t>(before + (row - first) - text.from - 1));
      const torch::Tensor logits =
          torch::from_blob(const_cast<float*>(verified.target[row]), {static_cast<std::int64_t>(vocab_)}, torch::kFloat);
      const KdLabels labels = kd_labels(logits, config_.labels);
      const torch::Tensor log_p = labels.log_p.contiguous();
      text.log_p.insert(text.log_p.end(), log_p.data_ptr<float>(), log_p.data_ptr<float>() + log_p.numel());
      if (!labels.ids.defined()) continue;
      const torch::Tensor ids = labels.ids.to(torch::kInt).contiguous();
      text.ids.insert(text.ids.end(), ids.data_ptr<std::int32_t>(), ids.data_ptr<std::int32_t>() + ids.numel());
    }
  } catch (const std::exception& error) {
    return {Code::kInternal, std::string("online distillation: LibTorch failed to read the target's rows: ") + error.what()};
  }
  staged_.push_back(std::move(text));
  return Status::ok();
}

// Appends `next` to a text that it goes on from; false if it does not, or the text would get too long.
bool OnlineKd::go_on(Text& text, const Text& next) const {
  if (text.sequence != next.sequence || next.from < text.from) return false;
  const std::size_t at = next.from - text.from;  // where next begins within text
  if (at > text.tokens.size() || at + next.tokens.size() < text.tokens.size()) return false;
  const auto longest = static_cast<std::size_t>(draft_.net()->shape().context);
  if (at + next.tokens.size() > std::min(longest, config_.window + kKdTextTokens)) return false;
  const auto shared = static_cast<std::ptrdiff_t>(text.tokens.size() - at);
  if (!std::equal(next.tokens.begin(), next.tokens.begin() + shared, text.tokens.begin() + static_cast<std::ptrdiff_t>(at)))
    return false;
  text.tokens.insert(text.tokens.end(), next.tokens.begin() + shared, next.tokens.end());
  for (const std::uint32_t after : next.after) text.after.push_back(after + static_cast<std::uint32_t>(at));
  text.ids.insert(text.ids.end(), next.ids.begin(), next.ids.end());
  text.log_p.insert(text.log_p.end(), next.log_p.begin(), next.log_p.end());
  return true;
}

void OnlineKd::forget_first(Text& text, std::size_t count) const {
  const auto labels = static_cast<std::ptrdiff_t>(count * width());
  text.after.erase(text.after.begin(), text.after.begin() + static_cast<std::ptrdiff_t>(count));
  if (!text.ids.empty()) text.ids.erase(text.ids.begin(), text.ids.begin() + labels);
  text.log_p.erase(text.log_p.begin(), text.log_p.begin() + labels);
  if (text.after.empty()) return;
  // No more context than the first position still there may have.
  const std::size_t before = text.after.front() + std::size_t{1};
  if (before <= config_.window) return;
  const std::size_t excess = before - config_.window;
  text.tokens.erase(text.tokens.begin(), text.tokens.begin() + static_cast<std::ptrdiff_t>(excess));
  text.from += excess;
  for (std::uint32_t& after : text.after) after -= static_cast<std::uint32_t>(excess);
}

// Oldest text first.
void OnlineKd::evict() {
  while (buffered_ > config_.buffer) {
    Text& oldest = texts_.front();
    const std::size_t count = std::min(buffered_ - config_.buffer, oldest.after.size());
    forget_first(oldest, count);
    buffered_ -= count;
    if (oldest.after.empty()) texts_.pop_front();
  }
}

Status OnlineKd::commit() {
  for (Text& next : staged_) {
    const std::size_t count = next.after.size();
    // The newest text of that name; an older one cannot be what goes on.
    const auto same =
        std::find_if(texts_.rbegin(), texts_.rend(), [&](const Text& text) { return text.sequence == next.sequence; });
    if (same == texts_.rend() || !go_on(*same, next)) texts_.push_back(std::move(next));
    buffered_ += count;
    fresh_ += count;
    stats_.positions += count;
  }
  staged_.clear();
  evict();
  if (fresh_ < config_.every) return Status::ok();
  fresh_ = 0;
  return update();
}

// ---- training ----

Status OnlineKd::update() {
  const auto start = Clock::now();
  try {
    at::init_num_threads();  // a number of threads is a thread's own in OpenMP: this may not be the one that made the engine
    const torch::AutoGradMode with_gradients(true);
    bool changed = false;
    for (std::uint32_t pass = 0; pass < config_.passes; ++pass) {
      optimiser_->zero_grad();
      double loss = 0;
      for (const Text& text : texts_) loss += train(text);
      const double norm = torch::nn::utils::clip_grad_norm_(trained(), kGradientNormMax);
      if (pass == 0) stats_.loss = loss;
      if (!std::isfinite(loss) || !std::isfinite(norm)) {
        ++stats_.skipped_updates;
        break;
      }
      optimiser_->step();
      changed = true;
    }
    stats_.updates += changed ? 1 : 0;
    optimiser_->zero_grad();
  } catch (const std::exception& error) {
    return {Code::kInternal, std::string("online distillation: LibTorch failed to train the draft: ") + error.what()};
  }
  const std::int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  stats_.update_ns += ns;
  stats_.update_ns_max = std::max(stats_.update_ns_max, ns);
  return Status::ok();
}

// Adds the gradients of one text's share of the mean loss; gives that share. Logits are made in blocks, so that a wide vocabulary
// needs little memory: the loss is differentiated down to the hidden states block by block, and from there on once.
double OnlineKd::train(const Text& text) {
  LlamaNet& net = draft_.net();
  const std::vector<std::int64_t> tokens(text.tokens.begin(), text.tokens.end());
  const std::vector<std::int64_t> after(text.after.begin(), text.after.end());
  const torch::Tensor all = net->hidden_states(torch::tensor(tokens, torch::kLong).unsqueeze(0))[0];  // [time, width]
  const torch::Tensor hidden = all.index_select(0, torch::tensor(after, torch::kLong));               // [n, width]
  const torch::Tensor leaf = hidden.detach().requires_grad_(true);

  const auto labels = static_cast<std::int64_t>(width());
  const torch::Tensor log_p = tensor_of(text.log_p, torch::kFloat, labels);
  const torch::Tensor ids = text.ids.empty() ? torch::Tensor() : tensor_of(text.ids, torch::kInt, labels).to(torch::kLong);
  const auto count = static_cast<std::int64_t>(text.after.size());
  const std::int64_t block = std::max<std::int64_t>(1, kLogitsAtOnce / net->shape().vocab);
  double sum = 0;
  for (std::int64_t at = 0; at < count; at += block) {
    const std::int64_t rows = std::min(block, count - at);
    const torch::Tensor logits = net->logits(leaf.narrow(0, at, rows)).narrow(-1, 0, static_cast<std::int64_t>(vocab_));
    const KdLabels target{ids.defined() ? ids.narrow(0, at, rows) : ids, log_p.narrow(0, at, rows)};
    const torch::Tensor loss = kd_loss(config_.loss, logits, target).sum() / static_cast<double>(buffered_);
    loss.backward();
    sum += loss.item<double>();
  }
  hidden.backward(leaf.grad());
  return sum;
}

LearnerStats OnlineKd::stats() const {
  LearnerStats out = stats_;
  for (const torch::Tensor& parameter : draft_.net()->parameters()) {
    out.weight_bytes += parameter.nbytes();
    if (parameter.requires_grad()) out.optimiser_bytes += 3 * parameter.nbytes();  // gradient, mean, mean of squares
  }
  for (const Text& text : texts_) out.buffer_bytes += text.bytes();
  out.recomputed_tokens = draft_.refreshed_tokens();
  return out;
}

}  // namespace drift::engine
