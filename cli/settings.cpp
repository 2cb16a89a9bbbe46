#include "cli/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/numbers.hpp"

namespace drift::cli {
namespace {

using Scope = SettingScope;

// The bounds stand once more in bank/config.hpp, recal/config.hpp and kd_config.hpp; settings_test holds the two together.
constexpr std::array<SettingInfo, 37> kTable{{
    {"preset", "default|seed",
     "a whole set of values: 'seed' is the seed's rule (lambda 0.6, fixed gain, kernel sum, shared top m)", Scope::kRecal},
    {"judge", "match|rejection", "how proposals are judged: same draw as the target's, or min(1, p/q)", Scope::kDrafting},
    {"draft", "1..32", "tokens drafted per block; 3 and 7 fit kernels that work on 4 rows at a time", Scope::kDrafting},
    {"model-draft", "FILE", "another draft for this mode: a .gguf file", Scope::kDraftFile},
    {"min-match", "2..32", "tokens of the text's end that must have been seen before, to copy what followed", Scope::kCopy},
    {"copy-q", "top|counts", "copied: the most frequent continuation, or drawn from all by count (above temperature 0)",
     Scope::kCopy},
    {"suffix-tokens", "64..16777216", "tokens of earlier answers the suffix memory holds; 28 bytes each", Scope::kSuffix},
    {"levels", "all|global,hidden,ngram1,ngram2,ngram3,ngram4",
     "what corrects the draft, general to specific, joined by commas: one bias, the bank keyed by hidden states, the last 1 to 4 "
     "tokens",
     Scope::kRecal},
    {"ngram-capacity", "1..32768", "contexts each n-gram level holds", Scope::kRecal},
    {"ngram-support", "1..32", "tokens stored per context", Scope::kRecal},
    {"teach-prompt", "on|off", "the end of each prompt, up to 512 tokens, teaches before the first step", Scope::kRecal},
    {"capacity", "1..65536", "entries of the bank (N)", Scope::kRecal},
    {"support", "1..1024", "tokens an entry holds (m)", Scope::kRecal},
    {"neighbors", "1..256", "entries consulted per position (k)", Scope::kRecal},
    {"sigma", "above 0, to 10", "width of the kernel over cosine distance", Scope::kRecal},
    {"tau", "-1..1", "cosine from which an entry is updated rather than a new one made", Scope::kRecal},
    {"eta", "above 0, to 1", "update rate of an entry", Scope::kRecal},
    {"rate", "fixed|count|error", "how an entry's rate adapts: eta; a mean at first; by its own error", Scope::kRecal},
    {"lambda", "0..10", "strength of the bias; 0 leaves the draft alone", Scope::kRecal},
    {"clip", "above 0, to 100", "bound of a residual, nats", Scope::kRecal},
    {"gain", "fixed|earned", "lambda everywhere, or as much of it as has earned acceptances in such contexts", Scope::kRecal},
    {"weights", "sum|normalised|kriged", "how neighbours are combined: kernel sum, kernel mean, best linear estimate",
     Scope::kRecal},
    {"support-rule", "union|target|draft|intersection", "which tokens a residual is taken on: top m of p, q, both, or shared",
     Scope::kRecal},
    {"renormalise", "on|off", "log-probabilities renormalised on the support first", Scope::kRecal},
    {"centre", "on|off", "residuals taken relative to all tokens outside the support", Scope::kRecal},
    {"key-type", "f32|f16", "how keys are stored", Scope::kRecal},
    {"int8-scan", "on|off", "scan a rounded copy of the keys first", Scope::kRecal},
    {"standardise", "on|off", "keys standardised per dimension", Scope::kRecal},
    {"lr", "above 0, to 1", "learning rate of AdamW", Scope::kLearning},
    {"every", "1..65536", "verified positions from one update of the draft's weights to the next", Scope::kLearning},
    {"buffer", "1..65536", "newest positions an update learns from; at least every", Scope::kLearning},
    {"passes", "1..64", "AdamW steps of an update, each over the whole buffer", Scope::kLearning},
    {"loss", "forward|reverse|js", "KL(target, draft), KL(draft, target), or Jensen-Shannon", Scope::kLearning},
    {"labels", "0..4096", "the target's likeliest tokens kept per position, the rest being one outcome; 0: all",
     Scope::kLearning},
    {"window", "1..8192", "tokens of context before the first position learnt from", Scope::kLearning},
    {"learn-from", "verified|rejected", "which positions teach: all verified ones, or those whose proposal fell",
     Scope::kLearning},
    {"lora-rank", "0..256", "trains low-rank adapters of this rank; 0: all weights", Scope::kLearning},
}};

template <class E>
struct Choice {
  const char* name;
  E value;
};

template <class E, std::size_t N>
Result<E> choose(const std::string& shown, const std::string& text, const std::array<Choice<E>, N>& choices) {
  std::string names;
  for (const auto& choice : choices) {
    if (text == choice.name) return choice.value;
    names += (names.empty() ? "" : ", ") + std::string(choice.name);
  }
  return Status(Code::kInvalid, fmt::format("{} is '{}'; it must be one of {}", shown, text, names));
}

template <class E, std::size_t N>
std::string name_of(E value, const std::array<Choice<E>, N>& choices) {
  for (const auto& choice : choices) {
    if (choice.value == value) return choice.name;
  }
  return "?";
}

constexpr std::array<Choice<spec::JudgeRule>, 2> kJudges{
    {{"match", spec::JudgeRule::kMatch}, {"rejection", spec::JudgeRule::kRejection}}};
constexpr std::array<Choice<bank::RateRule>, 3> kRates{
    {{"fixed", bank::RateRule::kFixed}, {"count", bank::RateRule::kCount}, {"error", bank::RateRule::kError}}};
constexpr std::array<Choice<recal::GainRule>, 2> kGains{
    {{"fixed", recal::GainRule::kFixed}, {"earned", recal::GainRule::kEarned}}};
constexpr std::array<Choice<recal::WeightRule>, 3> kWeights{
    {{"sum", recal::WeightRule::kSum}, {"normalised", recal::WeightRule::kNormalised}, {"kriged", recal::WeightRule::kKriged}}};
constexpr std::array<Choice<recal::SupportRule>, 4> kSupports{{{"union", recal::SupportRule::kUnion},
                                                               {"target", recal::SupportRule::kTarget},
                                                               {"draft", recal::SupportRule::kDraft},
                                                               {"intersection", recal::SupportRule::kIntersection}}};
constexpr std::array<Choice<bank::KeyType>, 2> kKeyTypes{{{"f32", bank::KeyType::kF32}, {"f16", bank::KeyType::kF16}}};
constexpr std::array<Choice<engine::KdLoss>, 3> kLosses{
    {{"forward", engine::KdLoss::kForward}, {"reverse", engine::KdLoss::kReverse}, {"js", engine::KdLoss::kJs}}};
constexpr std::array<Choice<engine::KdPositions>, 2> kPositions{
    {{"verified", engine::KdPositions::kVerified}, {"rejected", engine::KdPositions::kRejected}}};
constexpr std::array<Choice<bool>, 2> kOnOff{{{"on", true}, {"off", false}}};
constexpr std::array<Choice<propose::QRule>, 2> kCopyRules{{{"top", propose::QRule::kTop}, {"counts", propose::QRule::kCounts}}};
constexpr std::array<Choice<bool>, 2> kPresets{{{"default", false}, {"seed", true}}};

template <class T>
Status set_whole(T& out, const std::string& shown, const std::string& text, std::int64_t high, std::int64_t low = 1) {
  DRIFT_ASSIGN(const std::int64_t value, parse_int(shown, text, low, high));
  out = static_cast<T>(value);
  return Status::ok();
}

Status set_real(float& out, const std::string& shown, const std::string& text, double low, double high, bool open_low) {
  DRIFT_ASSIGN(out, parse_float(shown, text, low, high, open_low));
  return Status::ok();
}

template <class E, std::size_t N>
Status set_choice(E& out, const std::string& shown, const std::string& text, const std::array<Choice<E>, N>& choices) {
  DRIFT_ASSIGN(out, choose(shown, text, choices));
  return Status::ok();
}

Status set_levels(recal::LevelSet& out, const std::string& shown, const std::string& text) {
  auto parsed = recal::parse_levels(text);
  if (!parsed.is_ok()) return {Code::kInvalid, fmt::format("{}: {}", shown, parsed.status().message())};
  out = *parsed;
  return Status::ok();
}

// A preset replaces the method's values and leaves what a bank is made of alone.
Status set_preset(Settings& s, const std::string& shown, const std::string& text) {
  bool seed = false;
  DRIFT_TRY(set_choice(seed, shown, text, kPresets));
  const bank::BankConfig kept = s.recal.bank;
  s.recal = seed ? recal::RecalConfig::seed() : recal::RecalConfig::standard();
  s.recal.bank = kept;
  return Status::ok();
}

Status apply(Settings& s, const std::string& key, const std::string& text, const std::string& shown) {
  recal::RecalConfig& r = s.recal;
  if (key == "preset") return set_preset(s, shown, text);
  if (key == "judge") return set_choice(s.judge, shown, text, kJudges);
  if (key == "draft") return set_whole(s.draft_tokens, shown, text, decode::kMaxDraftTokens);
  if (key == "model-draft") {
    if (text.empty()) return {Code::kInvalid, fmt::format("{} is empty; it needs a FILE", shown)};
    s.model_draft = text;
    return Status::ok();
  }
  if (key == "min-match") return set_whole(s.copy.min_match, shown, text, propose::kMostMatch, propose::kLeastMatch);
  if (key == "copy-q") return set_choice(s.copy.q, shown, text, kCopyRules);
  if (key == "suffix-tokens")
    return set_whole(s.suffix_tokens, shown, text, propose::kMostMemoryTokens, propose::kLeastMemoryTokens);
  if (key == "levels") return set_levels(r.levels, shown, text);
  if (key == "ngram-capacity") return set_whole(r.ngram_capacity, shown, text, recal::kMaxNgramCapacity);
  if (key == "ngram-support") return set_whole(r.ngram_support, shown, text, recal::kMaxNgramSupport);
  if (key == "teach-prompt") return set_choice(r.teach_prompt, shown, text, kOnOff);
  if (key == "capacity") return set_whole(r.bank.capacity, shown, text, bank::kMaxCapacity);
  if (key == "support") return set_whole(r.bank.support, shown, text, bank::kMaxSupport);
  if (key == "neighbors") return set_whole(r.neighbors, shown, text, bank::kMaxNeighbors);
  if (key == "sigma") return set_real(r.sigma, shown, text, 0, 10, true);
  if (key == "tau") return set_real(r.bank.tau, shown, text, -1, 1, false);
  if (key == "eta") return set_real(r.bank.eta, shown, text, 0, 1, true);
  if (key == "rate") return set_choice(r.bank.rate, shown, text, kRates);
  if (key == "lambda") return set_real(r.lambda, shown, text, 0, 10, false);
  if (key == "clip") return set_real(r.clip, shown, text, 0, 100, true);
  if (key == "gain") return set_choice(r.gain, shown, text, kGains);
  if (key == "weights") return set_choice(r.weights, shown, text, kWeights);
  if (key == "support-rule") return set_choice(r.support, shown, text, kSupports);
  if (key == "renormalise") return set_choice(r.renormalise, shown, text, kOnOff);
  if (key == "centre") return set_choice(r.centre, shown, text, kOnOff);
  if (key == "key-type") return set_choice(r.bank.key_type, shown, text, kKeyTypes);
  if (key == "int8-scan") return set_choice(r.bank.int8_scan, shown, text, kOnOff);
  if (key == "standardise") return set_choice(r.bank.standardise, shown, text, kOnOff);
  if (key == "lr") return set_real(s.kd.rate, shown, text, 0, engine::kKdRateMax, true);
  if (key == "every") return set_whole(s.kd.every, shown, text, engine::kKdPositionsMax);
  if (key == "buffer") return set_whole(s.kd.buffer, shown, text, engine::kKdPositionsMax);
  if (key == "passes") return set_whole(s.kd.passes, shown, text, engine::kKdPassesMax);
  if (key == "loss") return set_choice(s.kd.loss, shown, text, kLosses);
  if (key == "labels") return set_whole(s.kd.labels, shown, text, engine::kKdLabelsMax, 0);
  if (key == "window") return set_whole(s.kd.window, shown, text, engine::kKdWindowMax);
  if (key == "learn-from") return set_choice(s.kd.positions, shown, text, kPositions);
  if (key == "lora-rank") return set_whole(s.kd.rank, shown, text, engine::kKdRankMax, 0);
  return {Code::kInvalid, fmt::format("{}: there is no setting '{}'", shown, key)};
}

std::string real(float value) { return fmt::format("{}", value); }

}  // namespace

std::span<const SettingInfo> setting_table() { return kTable; }

const SettingInfo* find_setting(const std::string& key) {
  const auto it = std::find_if(kTable.begin(), kTable.end(), [&](const SettingInfo& info) { return key == info.key; });
  return it == kTable.end() ? nullptr : &*it;
}

Status set_setting(Settings& settings, const std::string& key, const std::string& value, const std::string& shown) {
  Settings next = settings;
  DRIFT_TRY(apply(next, key, value, shown));
  next.given.insert(key);
  settings = std::move(next);
  return Status::ok();
}

std::string setting_value(const Settings& s, const std::string& key) {
  const recal::RecalConfig& r = s.recal;
  if (key == "judge") return name_of(s.judge, kJudges);
  if (key == "draft") return std::to_string(s.draft_tokens);
  if (key == "model-draft") return s.model_draft;
  if (key == "min-match") return std::to_string(s.copy.min_match);
  if (key == "copy-q") return name_of(s.copy.q, kCopyRules);
  if (key == "suffix-tokens") return std::to_string(s.suffix_tokens);
  if (key == "levels") return recal::level_names(r.levels, ",");
  if (key == "ngram-capacity") return std::to_string(r.ngram_capacity);
  if (key == "ngram-support") return std::to_string(r.ngram_support);
  if (key == "teach-prompt") return name_of(r.teach_prompt, kOnOff);
  if (key == "capacity") return std::to_string(r.bank.capacity);
  if (key == "support") return std::to_string(r.bank.support);
  if (key == "neighbors") return std::to_string(r.neighbors);
  if (key == "sigma") return real(r.sigma);
  if (key == "tau") return real(r.bank.tau);
  if (key == "eta") return real(r.bank.eta);
  if (key == "rate") return name_of(r.bank.rate, kRates);
  if (key == "lambda") return real(r.lambda);
  if (key == "clip") return real(r.clip);
  if (key == "gain") return name_of(r.gain, kGains);
  if (key == "weights") return name_of(r.weights, kWeights);
  if (key == "support-rule") return name_of(r.support, kSupports);
  if (key == "renormalise") return name_of(r.renormalise, kOnOff);
  if (key == "centre") return name_of(r.centre, kOnOff);
  if (key == "key-type") return name_of(r.bank.key_type, kKeyTypes);
  if (key == "int8-scan") return name_of(r.bank.int8_scan, kOnOff);
  if (key == "standardise") return name_of(r.bank.standardise, kOnOff);
  if (key == "lr") return real(s.kd.rate);
  if (key == "every") return std::to_string(s.kd.every);
  if (key == "buffer") return std::to_string(s.kd.buffer);
  if (key == "passes") return std::to_string(s.kd.passes);
  if (key == "loss") return name_of(s.kd.loss, kLosses);
  if (key == "labels") return std::to_string(s.kd.labels);
  if (key == "window") return std::to_string(s.kd.window);
  if (key == "learn-from") return name_of(s.kd.positions, kPositions);
  if (key == "lora-rank") return std::to_string(s.kd.rank);
  return {};
}

std::vector<std::pair<std::string, std::string>> effective_settings(const Settings& settings, decode::Mode mode) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const SettingInfo& info : kTable) {
    if (std::string(info.key) == "preset") continue;
    if (!applies(info.scope, mode)) continue;
    if (info.scope == Scope::kDraftFile && settings.model_draft.empty()) continue;
    out.emplace_back(info.key, setting_value(settings, info.key));
  }
  return out;
}

bool applies(SettingScope scope, decode::Mode mode) {
  switch (scope) {
    case Scope::kDrafting: return mode != decode::Mode::kOff;
    case Scope::kDraftFile: return decode::drafts(mode);
    case Scope::kCopy: return decode::copies(mode);
    case Scope::kSuffix: return decode::remembers(mode);
    case Scope::kRecal: return decode::recalibrates(mode);
    case Scope::kLearning: return decode::learns(mode);
  }
  return false;
}

const char* scope_modes(SettingScope scope) {
  switch (scope) {
    case Scope::kDrafting: return "modes that draft or copy";
    case Scope::kDraftFile: return "modes with a draft (static, drift, online-kd, draft+suffix, drift+suffix)";
    case Scope::kCopy: return "modes that copy (lookup, suffix, draft+suffix, drift+suffix)";
    case Scope::kSuffix: return "modes with a suffix memory (suffix, draft+suffix, drift+suffix)";
    case Scope::kRecal: return "drift modes (drift, drift+suffix)";
    case Scope::kLearning: return "online-kd";
  }
  return "?";
}

Result<decode::Mode> parse_mode(const std::string& shown, const std::string& text) {
  if (const auto mode = decode::find_mode(text)) return *mode;
  return Status(Code::kInvalid, fmt::format("{} is '{}'; it must be one of {}", shown, text, mode_names()));
}

bool is_mode(const std::string& text) { return decode::find_mode(text).has_value(); }

std::string mode_names() {
  std::string names;
  for (const decode::NamedMode& named : decode::kModeNames) names += (names.empty() ? "" : ", ") + std::string(named.name);
  return names;
}

const char* judge_name(spec::JudgeRule rule) { return rule == spec::JudgeRule::kMatch ? "match" : "rejection"; }

}  // namespace drift::cli
