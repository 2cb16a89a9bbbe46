// The header of a trace as text fields, and what makes a prompt and a step sound.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "drift/trace/file_impl.hpp"

namespace drift::trace {
namespace {

constexpr const char* kFormat = "drift trace";
constexpr std::string_view kSettingPrefix = "setting ";
constexpr std::size_t kMaxSettings = 64;

Status bad(const std::string& what) { return {Code::kInvalid, what}; }

std::string text_of(float value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

// Takes fields out of a meta and remembers the first that is missing or no such value.
class Fields {
 public:
  explicit Fields(const Meta& meta) : meta_(meta) {}

  std::string text(const char* name) {
    const auto it = meta_.find(name);
    if (it == meta_.end()) {
      fail(name, "is missing");
      return {};
    }
    taken_.insert(name);
    return it->second;
  }
  template <class T>
  T number(const char* name) {
    const std::string value = text(name);
    T out{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    if (error != std::errc() || end != value.data() + value.size()) fail(name, "is no number within its bounds");
    return out;
  }
  bool flag(const char* name, const char* yes, const char* no) {
    const std::string value = text(name);
    if (value != yes && value != no) fail(name, std::string("must be ") + yes + " or " + no);
    return value == yes;
  }
  void fail(const std::string& name, const std::string& why) {
    if (status_.is_ok()) status_ = {Code::kCorrupt, "its meta field '" + name + "' " + why};
  }
  bool taken(const std::string& name) const { return taken_.contains(name); }
  const Status& status() const { return status_; }

 private:
  const Meta& meta_;
  std::set<std::string> taken_;
  Status status_;
};

Status check_text(const char* what, const std::string& text) {
  if (text.size() > kMaxTextBytes) {
    return bad(std::string(what) + " has " + std::to_string(text.size()) + " bytes; a trace holds at most " +
               std::to_string(kMaxTextBytes));
  }
  if (text.find('\0') != std::string::npos) return bad(std::string(what) + " holds a zero byte");
  return Status::ok();
}

bool fine(float value) { return std::isfinite(value); }

Status check_proposal(const ProposedToken& p, bool known, std::size_t vocab) {
  const bool marked = !known && p.token == kNoToken;
  if (!marked && (p.token < 0 || static_cast<std::size_t>(p.token) >= vocab))
    return bad("proposes a token outside the vocabulary");
  if (!fine(p.q) || p.q < 0.0f || !fine(p.gain) || !fine(p.similarity) || !fine(p.overlap) || p.match < 0)
    return bad("has a proposal with a number out of bounds");
  return Status::ok();
}

}  // namespace

Status Header::validate() const {
  for (const auto& [what, text] : {std::pair("the program's name", &program), std::pair("the target's name", &target.name),
                                   std::pair("the target's hash", &target.hash), std::pair("the draft's name", &draft.name),
                                   std::pair("the draft's hash", &draft.hash), std::pair("the mode", &mode)}) {
    DRIFT_TRY(check_text(what, *text));
  }
  constexpr std::uint32_t kMost = 1u << 24;
  if (target.vocab == 0 || target.vocab > kMost || draft.vocab > kMost) return bad("a vocabulary is empty or too large");
  if (hidden_width > (1u << 16)) return bad("hidden states are wider than 65536");
  if (hidden_width > 0 && !has_draft()) return bad("there are hidden states and no draft");
  if (row_tokens < 1 || row_tokens > kRowTokens) return bad("rows keep 1 to 1024 logits");
  if (context == 0 || context > kMaxPromptTokens) return bad("the context is empty or too large");
  if (mode.empty()) return bad("the mode is not named");
  if (generate < -1 || generate == 0) return bad("the number of tokens to generate is out of bounds");
  const Sampling& s = sampling;
  const bool sane =
      s.temperature >= 0 && s.temperature <= 100 && s.top_k >= 0 && s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1;
  if (!sane) return bad("the sampler's settings are out of bounds");
  if (settings.size() > kMaxSettings) return bad("there are too many settings");
  for (const auto& [key, value] : settings) {
    DRIFT_TRY(check_text("a setting", value));
    if (key.empty() || key.size() > 64) return bad("a setting's name is empty or too long");
  }
  return Status::ok();
}

Status check_drawable(const Sampling& sampling, std::size_t vocab, std::size_t row_tokens) {
  if (sampling.temperature == 0.0f || vocab <= row_tokens) return Status::ok();
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) <= row_tokens) return Status::ok();
  return {Code::kUnsupported, "a trace keeps the " + std::to_string(row_tokens) + " largest of " + std::to_string(vocab) +
                                  " logits, and above temperature 0 this sampler may draw any token; give --top-k 1 to " +
                                  std::to_string(row_tokens) + ", or --temp 0"};
}

Meta make_meta(const Header& h, const Totals& totals) {
  Meta meta{{"format", kFormat},
            {"program", h.program},
            {"target_name", h.target.name},
            {"target_hash", h.target.hash},
            {"target_vocab", std::to_string(h.target.vocab)},
            {"draft_name", h.draft.name},
            {"draft_hash", h.draft.hash},
            {"draft_vocab", std::to_string(h.draft.vocab)},
            {"hidden_width", std::to_string(h.hidden_width)},
            {"row_tokens", std::to_string(h.row_tokens)},
            {"context", std::to_string(h.context)},
            {"mode", h.mode},
            {"judge", h.sampling.rejection ? "rejection" : "match"},
            {"temperature", text_of(h.sampling.temperature)},
            {"top_k", std::to_string(h.sampling.top_k)},
            {"top_p", text_of(h.sampling.top_p)},
            {"min_p", text_of(h.sampling.min_p)},
            {"seed", std::to_string(h.sampling.seed)},
            {"generate", std::to_string(h.generate)},
            {"prompts", std::to_string(totals.prompts)},
            {"partial", totals.partial ? "yes" : "no"}};
  for (const auto& [key, value] : h.settings) meta.emplace(std::string(kSettingPrefix) + key, value);
  return meta;
}

Status parse_meta(const Meta& meta, Header& h, Totals& totals) {
  Fields fields(meta);
  if (fields.text("format") != kFormat) fields.fail("format", "is not that of a trace");
  h = {};
  h.program = fields.text("program");
  h.target = {fields.text("target_name"), fields.text("target_hash"), fields.number<std::uint32_t>("target_vocab")};
  h.draft = {fields.text("draft_name"), fields.text("draft_hash"), fields.number<std::uint32_t>("draft_vocab")};
  h.hidden_width = fields.number<std::uint32_t>("hidden_width");
  h.row_tokens = fields.number<std::uint32_t>("row_tokens");
  h.context = fields.number<std::uint32_t>("context");
  h.mode = fields.text("mode");
  h.sampling.rejection = fields.flag("judge", "rejection", "match");
  h.sampling.temperature = fields.number<float>("temperature");
  h.sampling.top_k = fields.number<int>("top_k");
  h.sampling.top_p = fields.number<float>("top_p");
  h.sampling.min_p = fields.number<float>("min_p");
  h.sampling.seed = fields.number<std::uint64_t>("seed");
  h.generate = fields.number<std::int64_t>("generate");
  totals.prompts = fields.number<std::uint64_t>("prompts");
  totals.partial = fields.flag("partial", "yes", "no");
  for (const auto& [key, value] : meta) {
    if (key.starts_with(kSettingPrefix))
      h.settings.emplace(key.substr(kSettingPrefix.size()), value);
    else if (!fields.taken(key))
      fields.fail(key, "is not one of a trace");
  }
  DRIFT_TRY(fields.status());
  if (totals.prompts > kMaxPrompts) return {Code::kCorrupt, "it names more prompts than there can be"};
  const Status valid = h.validate();
  return valid.is_ok() ? valid : Status(Code::kCorrupt, valid.message());
}

Status check_prompt(const Prompt& prompt, const Header& header) {
  DRIFT_TRY(check_text("a prompt's id", prompt.id));
  DRIFT_TRY(check_text("a prompt's domain", prompt.domain));
  DRIFT_TRY(check_text("a prompt's kind", prompt.kind));
  DRIFT_TRY(check_text("a prompt's split", prompt.split));
  if (prompt.tokens.empty() || prompt.tokens.size() >= header.context) return bad("a prompt is empty or fills the context");
  for (const Token t : prompt.tokens) {
    if (t < 0 || static_cast<std::uint32_t>(t) >= header.target.vocab)
      return bad("a prompt holds a token outside the vocabulary");
  }
  return Status::ok();
}

Status check_ending(const std::string& ending) {
  if (ending == "end" || ending == "length" || ending == "context") return Status::ok();
  return bad("an answer ends with 'end', 'length' or 'context'");
}

std::size_t accepted_of(const StepEvent& event) {
  return static_cast<std::size_t>(
      std::count_if(event.proposed.begin(), event.proposed.end(), [](const ProposedToken& p) { return p.accepted; }));
}

Status check_step(const StepEvent& event, const Place& place, std::size_t vocab) {
  const std::string name = "step " + std::to_string(event.step) + " ";
  if (event.step != place.step || event.first != place.first) return bad(name + "does not continue the answer");
  if (event.proposed.size() > kMaxProposals) return bad(name + "has too many proposals");
  const std::size_t stood = accepted_of(event), emitted = event.emitted.size();
  // The target's own token comes last, unless an accepted end token closed the answer.
  if (emitted == 0 || emitted < stood || emitted > stood + 1) return bad(name + "emits another number of tokens than it decides");
  for (std::size_t i = 0; i < event.proposed.size(); ++i) {
    const Status sound = check_proposal(event.proposed[i], i < emitted, vocab);
    if (!sound.is_ok()) return bad(name + sound.message());
    if (event.proposed[i].accepted != (i < stood)) return bad(name + "accepts a proposal behind one that fell");
  }
  for (std::size_t i = 0; i < emitted; ++i) {
    const EmittedToken& e = event.emitted[i];
    if (e.token < 0 || static_cast<std::size_t>(e.token) >= vocab) return bad(name + "emits a token outside the vocabulary");
    const bool own = i == stood;
    const Origin origin = own ? Origin::kTarget : event.proposed[i].from_bank ? Origin::kAcceptedBank : Origin::kAccepted;
    if (e.origin != origin || (!own && e.token != event.proposed[i].token))
      return bad(name + "emits another token than it accepted");
  }
  const StepTimes& t = event.times;
  for (const std::int64_t ns :
       {t.draft_ns, t.verify_ns, t.sample_ns, t.lookup_ns, t.bias_ns, t.residual_ns, t.commit_ns, t.total_ns}) {
    if (ns < 0 || ns > (std::int64_t{1} << 60)) return bad(name + "took a time out of bounds");
  }
  if (event.sequences < 1) return bad(name + "belongs to no sequence");
  return Status::ok();
}

StepEvent recorded_part(StepEvent event) {
  for (std::size_t i = event.emitted.size(); i < event.proposed.size(); ++i) event.proposed[i] = {};
  return event;
}

const char* origin_name(Origin origin) {
  switch (origin) {
    case Origin::kTarget: return "target";
    case Origin::kAccepted: return "accepted";
    case Origin::kAcceptedBank: return "bank";
  }
  return "?";
}

}  // namespace drift::trace
