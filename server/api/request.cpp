#include "server/api/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "drift/decode/mode_name.hpp"
#include "server/api/fields.hpp"
#include "text/stop.hpp"

namespace drift::server::api {
namespace {

constexpr std::size_t kTextBytesMax = std::size_t{64} << 20;  // bodies are bounded before; the tokenizer has this limit too

// ---- prompts and messages ----

bool is_token_list(const Input& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Input& v) { return v.is_number(); });
}

// 36.0 is a whole number too, as in Fields::whole.
bool is_token(const Input& value, std::size_t vocab) {
  if (!value.is_number()) return false;
  const double real = value.get<double>();
  return real >= 0 && real < static_cast<double>(vocab) && std::floor(real) == real;
}

std::optional<std::vector<Token>> read_tokens(const Fields& fields, const std::string& place, const Input& list,
                                              std::size_t vocab) {
  if (list.size() > static_cast<std::size_t>(kTokensMax)) {
    fields.refuse(place, fmt::format("has {} tokens; at most {} are taken", list.size(), kTokensMax));
    return std::nullopt;
  }
  std::vector<Token> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_token(list[i], vocab)) {
      fields.refuse(fmt::format("{}[{}]", place, i),
                    fmt::format("is {}; it must be a token from 0 to {}", list[i].dump().substr(0, 40), vocab - 1));
      return std::nullopt;
    }
    tokens.push_back(list[i].get<Token>());
  }
  return tokens;
}

// A string, a list of tokens, or a list of those.
void read_prompts(const Fields& fields, std::size_t vocab, std::vector<Prompt>& out) {
  const Input* prompt = fields.find("prompt");
  if (!fields.ok()) return;
  if (prompt == nullptr) return fields.refuse("prompt", "is missing; it must be a string, a list of tokens, or a list of those");
  if (prompt->is_string()) {
    out.emplace_back(prompt->get_ref<const std::string&>());
    return;
  }
  if (is_token_list(*prompt)) {
    if (auto tokens = read_tokens(fields, "prompt", *prompt, vocab)) out.emplace_back(std::move(*tokens));
    return;
  }
  if (!prompt->is_array() || prompt->empty()) {
    return fields.refuse("prompt",
                         fmt::format("is {}; it must be a string, a list of tokens, or a list of those",
                                     prompt->is_array() ? "an empty list" : std::string("a JSON ") + prompt->type_name()));
  }
  if (prompt->size() > static_cast<std::size_t>(kChoicesMax))
    return fields.refuse("prompt", fmt::format("has {} prompts; at most {} are taken", prompt->size(), kChoicesMax));
  for (std::size_t i = 0; i < prompt->size(); ++i) {
    const Input& one = (*prompt)[i];
    const std::string place = fmt::format("prompt[{}]", i);
    if (one.is_string()) {
      out.emplace_back(one.get_ref<const std::string&>());
    } else if (is_token_list(one)) {
      if (auto tokens = read_tokens(fields, place, one, vocab)) out.emplace_back(std::move(*tokens));
    } else {
      fields.refuse(place, fmt::format("is a JSON {}; it must be a string or a list of tokens", one.type_name()));
    }
    if (!fields.ok()) return;
  }
}

// A message's content: a string, null (an answer that only called tools), or a list of text parts.
void read_content(const Fields& message, std::string& out) {
  const Input* content = message.find("content");
  if (content == nullptr) return;
  if (content->is_string()) return message.text("content", kTextBytesMax, out);
  if (!content->is_array())
    return message.refuse("content",
                          fmt::format("is a JSON {}; it must be a string or a list of text parts", content->type_name()));
  if (content->size() > kPartsMax)
    return message.refuse("content", fmt::format("has {} parts; at most {} are taken", content->size(), kPartsMax));
  for (std::size_t i = 0; i < content->size(); ++i) {
    const Input& part = (*content)[i];
    const std::string place = fmt::format("content[{}]", i);
    const bool sound = part.is_object() && part.contains("type") && part["type"].is_string();
    if (!sound) return message.refuse(place, "must be an object with a type, such as {\"type\": \"text\", \"text\": ...}");
    if (part["type"] != "text") {
      return message.refuse(place + ".type",
                            fmt::format("is '{}'; this server takes text only", part["type"].get<std::string>().substr(0, 40)));
    }
    if (!part.contains("text") || !part["text"].is_string()) return message.refuse(place + ".text", "must be a string");
    out += part["text"].get_ref<const std::string&>();
  }
}

void read_message_list(const Fields& fields, std::optional<Problem>& problem, std::vector<Message>& out) {
  const Input* list = fields.find("messages");
  if (!fields.ok()) return;
  if (list == nullptr) return fields.refuse("messages", "is missing; it must be a list of {\"role\", \"content\"}");
  if (!list->is_array() || list->empty())
    return fields.refuse("messages", fmt::format("must be a list of at least one message, not a JSON {}",
                                                 list->is_array() ? "list of none" : list->type_name()));
  if (list->size() > kMessagesMax)
    return fields.refuse("messages", fmt::format("has {} messages; at most {} are taken", list->size(), kMessagesMax));
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Input& element = (*list)[i];
    const std::string place = fmt::format("messages[{}]", i);
    if (!element.is_object()) return fields.refuse(place, fmt::format("is a JSON {}; it must be an object", element.type_name()));
    const Fields message(element, problem, fields.full(place) + ".");
    Message one;
    if (message.find("role") == nullptr) return message.refuse("role", "is missing");
    message.text("role", kRoleBytesMax, one.role);
    read_content(message, one.content);
    if (one.role == "assistant") read_calls(message, one.calls);
    if (one.role == "tool") message.text("tool_call_id", kToolNameBytesMax * 4, one.call_id);
    message.text("name", kToolNameBytesMax, one.name);
    if (one.role == "function") return message.refuse("role", "is 'function'; an answer of a tool has the role 'tool'");
    if (one.role == "developer") one.role = "system";  // OpenAI's newer word for it; templates know the older one
    if (!message.ok()) return;
    out.push_back(std::move(one));
  }
}

// ---- what is refused because it cannot be done ----

// Whether a field asks for nothing: left out, false, zero, an empty list or object, or one of the words that mean "no".
bool asks_for_nothing(const Input& value) {
  return (value.is_boolean() && !value.get<bool>()) || (value.is_number() && value.get<double>() == 0.0) ||
         ((value.is_array() || value.is_object()) && value.empty()) || value == "" || value == "none" || value == "auto";
}

void refuse_what_is_not_there(const Fields& fields, Route route) {
  struct Missing {
    const char* field;
    const char* why;
  };
  static constexpr Missing kMissing[] = {
      {"functions", "cannot be used: send tools"},
      {"guided_json", "cannot be used: send response_format"},
      {"guided_regex", "cannot be used: send a grammar (GBNF)"},
      {"guided_grammar", "cannot be used: send a grammar (GBNF)"},
      {"structured_outputs", "cannot be used: send response_format or a grammar (GBNF)"},
      {"echo", "cannot be used: this server returns generated tokens only"},
      {"prompt_logprobs", "cannot be used: this server gives no logprobs of the prompt"},
      {"suffix", "cannot be used: this server cannot fill in the middle"},
      {"input_prefix", "cannot be used: this server cannot fill in the middle"},
      {"input_suffix", "cannot be used: this server cannot fill in the middle"},
      {"audio", "cannot be used: this server takes and gives text only"},
      {"lora", "cannot be used: adapters are chosen when the server is started (--lora)"},
      {"mirostat", "cannot be used: this server samples with temperature, top_k, top_p and min_p"},
      {"xtc_probability", "cannot be used: this server samples with temperature, top_k, top_p and min_p"},
      {"dry_multiplier", "cannot be used: this server samples with temperature, top_k, top_p and min_p"},
      {"dynatemp_range", "cannot be used: this server samples with temperature, top_k, top_p and min_p"},
      {"use_beam_search", "cannot be used: this server samples"},
  };
  for (const Missing& missing : kMissing) {
    const Input* value = fields.find(missing.field);
    if (value != nullptr && !asks_for_nothing(*value)) return fields.refuse(missing.field, missing.why);
  }
  if (route == Route::kChat && fields.find("modalities") != nullptr && *fields.find("modalities") != Input::array({"text"}))
    return fields.refuse("modalities", "must be [\"text\"]: this server gives text only");
}

// ---- sampling ----

void read_sampling(const Fields& fields, GenerateRequest& out) {
  fields.real("temperature", 0, 100, false, out.sampler.temperature);
  fields.real("top_p", 0, 1, true, out.sampler.top_p);
  fields.real("min_p", 0, 1, false, out.sampler.min_p);
  int top_k = out.sampler.top_k;
  fields.whole("top_k", -1, 1 << 24, top_k);
  out.sampler.top_k = std::max(top_k, 0);  // vLLM's word for "off" is -1
  std::int64_t seed = -1;
  const bool given = fields.find("seed") != nullptr;
  fields.whole("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), seed);
  if (given) out.seed = seed == -1 ? std::nullopt : std::optional(static_cast<std::uint64_t>(seed));
  std::vector<std::string> stops;
  fields.texts("stop", text::kStopStringsMax, text::kStopBytesMax, stops);
  for (std::string& stop : stops) {
    if (!stop.empty()) out.stops.push_back(std::move(stop));  // an empty one means "none" to those who send it
  }
}

// ---- changes to logits ----

void add_bias(const Fields& fields, const std::string& place, const Input& token, const Input& value, std::size_t vocab,
              GenerateRequest& out) {
  const bool never = value.is_boolean() && !value.get<bool>();  // llama-server's word for it
  if (!never && !(value.is_number() && std::fabs(value.get<double>()) <= static_cast<double>(kBiasMax))) {
    return fields.refuse(place, fmt::format("has the bias {}; it must be a number from {} to {}, or false for never",
                                            value.dump().substr(0, 40), -kBiasMax, kBiasMax));
  }
  if (token.is_string()) {
    const std::size_t bytes = token.get_ref<const std::string&>().size();
    if (bytes > kBiasTextBytesMax)
      return fields.refuse(place, fmt::format("is a text of {} bytes; at most {} are taken", bytes, kBiasTextBytesMax));
    out.text_bias.emplace_back(token.get<std::string>(), never ? kBanned : value.get<float>());
    return;
  }
  if (!is_token(token, vocab))
    return fields.refuse(place, fmt::format("is {}; it must be a token from 0 to {}", token.dump().substr(0, 40), vocab - 1));
  if (never) {
    out.rules.banned.push_back(token.get<Token>());
  } else {
    out.rules.bias.emplace_back(token.get<Token>(), value.get<float>());
  }
}

// {"TOKEN": bias} (OpenAI), or [[token or text, bias or false], ...] (llama-server).
void read_bias(const Fields& fields, std::size_t vocab, GenerateRequest& out) {
  const Input* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() && !bias->is_array())
    return fields.refuse("logit_bias", fmt::format("is a JSON {}; it must be an object or a list", bias->type_name()));
  if (bias->size() > kLogitBiasMax)
    return fields.refuse("logit_bias", fmt::format("has {} entries; at most {} are taken", bias->size(), kLogitBiasMax));
  if (bias->is_object()) {
    for (const auto& [name, value] : bias->items()) {
      std::int64_t token = -1;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
      const bool whole = error == std::errc() && end == name.data() + name.size();
      if (!whole)
        return fields.refuse("logit_bias", fmt::format("has the name '{}'; names are tokens, as numbers", name.substr(0, 40)));
      add_bias(fields, "logit_bias." + name, Input(token), value, vocab, out);
      if (!fields.ok()) return;
    }
    return;
  }
  for (std::size_t i = 0; i < bias->size(); ++i) {
    const Input& pair = (*bias)[i];
    const std::string place = fmt::format("logit_bias[{}]", i);
    if (!pair.is_array() || pair.size() != 2) return fields.refuse(place, "must be a pair of a token (or a text) and a bias");
    add_bias(fields, place, pair[0], pair[1], vocab, out);
    if (!fields.ok()) return;
  }
}

void read_rules(const Fields& fields, const Defaults& defaults, GenerateRequest& out) {
  LogitRules& rules = out.rules;
  rules = defaults.rules;
  fields.real("presence_penalty", -100, 100, false, rules.presence);
  fields.real("frequency_penalty", -100, 100, false, rules.frequency);
  fields.real("repeat_penalty", 0, 100, true, rules.repetition);
  fields.real("repetition_penalty", 0, 100, true, rules.repetition);
  // llama-server looks at the last tokens (--repeat-last-n), vLLM at all of them: each by its own name.
  if (fields.find("repetition_penalty") != nullptr) rules.repeat_last_n = -1;
  fields.whole("repeat_last_n", -1, kTokensMax, rules.repeat_last_n);
  fields.boolean("ignore_eos", rules.ignore_end);
  fields.whole("min_tokens", 0, kTokensMax, rules.min_tokens);
  read_bias(fields, defaults.vocab, out);
}

// Chats ask with a boolean and a number, completions with a number, llama-server with n_probs.
void read_logprobs(const Fields& fields, GenerateRequest& out) {
  int top = -1;
  if (out.route == Route::kChat) {
    bool wanted = false;
    fields.boolean("logprobs", wanted);
    int asked = 0;
    fields.whole("top_logprobs", 0, kTopLogprobsMax, asked);
    if (!wanted && asked > 0) return fields.refuse("top_logprobs", "needs logprobs to be true");
    if (wanted) top = asked;
  } else if (out.route == Route::kCompletions) {
    fields.whole("logprobs", 0, kTopLogprobsMax, top);
  }
  int probs = 0;
  fields.whole("n_probs", 0, kTopLogprobsMax, probs);
  out.logprobs = probs > 0 ? probs : top;
}

// ---- drafting ----

void read_drafting(const Fields& fields, const Defaults& defaults, GenerateRequest& out) {
  // llama-server's flat names; the same in an object is understood too.
  const std::optional<Fields> nested = fields.object("speculative");
  std::string type;
  int n_max = defaults.draft_tokens, n_min = 0;
  float p_min = 0;
  for (const Fields* from : {nested ? &*nested : nullptr, &fields}) {
    if (from == nullptr) continue;
    const std::string prefix = from == &fields ? "speculative." : "";
    from->whole((prefix + "n_max").c_str(), 0, decode::kMaxDraftTokens, n_max);
    from->whole((prefix + "n_min").c_str(), 0, decode::kMaxDraftTokens, n_min);  // read, and without effect: see docs/server.md
    from->real((prefix + "p_min").c_str(), 0, 1, false, p_min);
    from->text((prefix + "type").c_str(), kNameBytesMax, type);
  }
  const bool off = n_max == 0 || type == "none";
  if (!type.empty() && type != "none" && type != "draft-simple" && type != "draft-drift") {
    return fields.refuse("speculative.type",
                         fmt::format("is '{}'; it must be none, draft-simple or draft-drift", type.substr(0, 40)));
  }
  if (type == "draft-simple") out.mode = decode::Mode::kStatic;
  if (type == "draft-drift") out.mode = decode::Mode::kDrift;
  if (const std::optional<Fields> drift = fields.object("drift")) {
    std::string mode;
    drift->text("mode", kNameBytesMax, mode);
    drift->text("bank", kNameBytesMax, out.bank);
    drift->boolean("origins", out.origins);
    const auto named = decode::find_mode(mode);
    if (named && !decode::learns(*named)) {  // a draft that learns is a thing to compare with, not to serve
      out.mode = *named;
    } else if (!mode.empty()) {
      std::string names;
      for (const decode::NamedMode& one : decode::kModeNames)
        if (!decode::learns(one.mode)) names += (names.empty() ? "" : ", ") + std::string(one.name);
      return drift->refuse("mode", fmt::format("is '{}'; it must be one of {}", mode.substr(0, 40), names));
    }
  }
  if (off) out.mode = decode::Mode::kOff;
  if (decode::drafts(out.mode) && !defaults.has_draft)
    return fields.refuse("drift.mode", "needs a draft model, and this server was started without one (-md)");
  // More than the server's own length would change what every other answer in the batch waits for.
  out.draft_tokens = std::min(std::max(n_max, 1), defaults.draft_tokens);
}

void read_common(const Fields& fields, const Defaults& defaults, GenerateRequest& out) {
  out.sampler = defaults.sampler;
  out.seed = defaults.seed;
  out.mode = defaults.mode;
  out.cache_prompt = defaults.cache_prompt;
  fields.text("model", kNameBytesMax, out.model);
  fields.boolean("stream", out.stream);
  if (const std::optional<Fields> options = fields.object("stream_options")) {
    options->boolean("include_usage", out.include_usage);
    bool continuous = false;
    options->boolean("continuous_usage_stats", continuous);  // read, and without effect: usage comes at the end
  }
  fields.whole("n_cmpl", 1, kChoicesMax, out.n);
  fields.whole("n", 1, kChoicesMax, out.n);
  out.max_tokens = defaults.max_tokens;
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {  // the last one there counts
    fields.whole(name, -1, kTokensMax, out.max_tokens);
    if (fields.ok() && out.max_tokens == 0)
      fields.refuse(name, fmt::format("is 0; it must be 1 to {}, or -1 for no limit", kTokensMax));
  }
  fields.boolean("cache_prompt", out.cache_prompt);
  fields.boolean("return_tokens", out.return_tokens);
  fields.text("cache_salt", kSaltBytesMax, out.cache_salt);
  if (fields.find("cache_salt") != nullptr && out.cache_salt.empty())
    fields.refuse("cache_salt", "is empty; leave it out for none");
  read_sampling(fields, out);
  read_rules(fields, defaults, out);
  read_logprobs(fields, out);
  read_drafting(fields, defaults, out);
}

}  // namespace

std::variant<GenerateRequest, Problem> read_generate(Route route, const Input& body, const Defaults& defaults,
                                                     std::string_view text) {
  std::optional<Problem> problem;
  const Fields fields(body, problem);
  GenerateRequest out;
  out.route = route;
  read_common(fields, defaults, out);
  if (route == Route::kChat) {
    read_message_list(fields, problem, out.messages);
  } else {
    read_prompts(fields, defaults.vocab, out.prompts);
  }
  read_shape(fields, text, out.shape);
  if (route == Route::kChat) {
    read_tools(fields, text, out.tools);
  } else if (fields.find("tools") != nullptr && !asks_for_nothing(*fields.find("tools"))) {
    fields.refuse("tools", "cannot be used: tools belong to /v1/chat/completions");
  }
  const bool calls = !out.tools.tools.empty() && out.tools.choice != ToolChoice::kNone;
  if (calls && !out.shape.empty())
    fields.refuse(out.shape.field, "cannot be used together with tools, unless tool_choice is none");
  if (!calls && out.shape.empty()) out.shape = defaults.shape;
  refuse_what_is_not_there(fields, route);
  const std::size_t prompts = route == Route::kChat ? 1 : out.prompts.size();
  if (prompts * static_cast<std::size_t>(out.n) > static_cast<std::size_t>(kChoicesMax)) {
    fields.refuse("n", fmt::format("is {}: {} prompts times that are {} answers; at most {} are given", out.n, prompts,
                                   prompts * static_cast<std::size_t>(out.n), kChoicesMax));
  }
  if (problem) return *problem;
  return out;
}

std::variant<TokenizeRequest, Problem> read_tokenize(const Input& body) {
  std::optional<Problem> problem;
  const Fields fields(body, problem);
  TokenizeRequest out;
  std::string text;
  if (fields.find("content") != nullptr) {
    fields.text("content", kTextBytesMax, text);
    out.content = std::move(text);
  } else if (fields.find("prompt") != nullptr) {
    fields.text("prompt", kTextBytesMax, text);
    out.prompt = std::move(text);
    out.add_special = true;  // vLLM's default for a prompt
  } else if (fields.find("messages") != nullptr) {
    read_message_list(fields, problem, out.messages);
  } else {
    fields.refuse("content", "is missing; /tokenize takes content, prompt or messages");
  }
  fields.boolean("add_special", out.add_special);
  fields.boolean("add_special_tokens", out.add_special);
  fields.boolean("parse_special", out.parse_special);
  fields.boolean("with_pieces", out.with_pieces);
  fields.boolean("add_generation_prompt", out.add_generation_prompt);
  if (problem) return *problem;
  return out;
}

std::variant<std::vector<Token>, Problem> read_detokenize(const Input& body, std::size_t vocab) {
  std::optional<Problem> problem;
  const Fields fields(body, problem);
  const Input* list = fields.find("tokens");
  if (list == nullptr || !list->is_array()) {
    fields.refuse("tokens", "must be a list of tokens");
    return *problem;
  }
  auto tokens = read_tokens(fields, "tokens", *list, vocab);
  if (problem) return *problem;
  return std::move(*tokens);
}

std::variant<std::vector<Message>, Problem> read_messages(const Input& body) {
  std::optional<Problem> problem;
  const Fields fields(body, problem);
  std::vector<Message> out;
  read_message_list(fields, problem, out);
  if (problem) return *problem;
  return out;
}

}  // namespace drift::server::api
