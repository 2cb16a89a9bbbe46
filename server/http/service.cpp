#include "server/http/service.hpp"

#include <fmt/format.h>

#include <random>

#include "server/http/sha256.hpp"
#include "text/grammar.hpp"
#include "text/stop.hpp"

namespace drift::server {
namespace {

using api::Problem;

// The form that answers are held to.
struct Form {
  std::shared_ptr<const text::Grammar> grammar;
  text::GrammarExtras extras;
};

// The token that a name stands for, if it is one.
std::optional<Token> token_named(const TextModel& text, std::string_view name) {
  const auto tokens = text.tokenize(name, /*add_special=*/false, /*parse_special=*/true);
  return tokens.is_ok() && tokens->size() == 1 ? std::optional(tokens->front()) : std::nullopt;
}

std::optional<Problem> read_grammar(const std::string& gbnf, const std::string& field, const Service& service, Form& out) {
  if (!service.scheduler.can_end())
    return api::bad_field(field, field + " cannot be used: the model has no token to end an answer with");
  auto read = text::Grammar::parse(gbnf, [&](std::string_view name) { return token_named(service.text, name); });
  if (!read.is_ok()) return api::bad_field(field, fmt::format("{} cannot be used: {}", field, read.status().message()));
  out.grammar = std::move(read).value();
  return std::nullopt;
}

std::optional<Problem> read_shape(const api::Shape& shape, const Service& service, Form& out) {
  if (shape.empty()) return std::nullopt;
  if (shape.schema.empty()) return read_grammar(shape.grammar, shape.field, service, out);
  const auto gbnf = service.text.schema_grammar(shape.schema);
  if (!gbnf.is_ok())
    return api::bad_field(shape.field, fmt::format("{} cannot be used: {}", shape.field, gbnf.status().message()));
  return read_grammar(gbnf.value(), shape.field, service, out);
}

// A chat's messages as one prompt; with tools, also what its answers look like and how they are read.
std::optional<Problem> frame(api::GenerateRequest& request, const Service& service, std::string& prompt, Form& form) {
  if (request.tools.tools.empty()) {
    auto text = service.text.chat(request.messages, /*add_assistant=*/true);
    if (!text.is_ok()) return api::bad_field("messages", text.status().message());
    prompt = std::move(text).value();
    return std::nullopt;
  }
  auto with_tools = service.text.chat_with_tools(request.messages, request.tools);
  if (!with_tools.is_ok()) {
    const bool unsupported = with_tools.status().code() == Code::kUnsupported;
    return api::bad_field(unsupported ? "tools" : "messages", with_tools.status().message());
  }
  prompt = std::move(with_tools->prompt);
  if (request.tools.choice == ToolChoice::kNone) return std::nullopt;
  request.reader = with_tools->reader;
  form.extras.triggers = with_tools->triggers;
  form.extras.required = with_tools->required;
  form.extras.read = with_tools->read;
  for (const std::string& name : with_tools->shown) {
    const auto token = token_named(service.text, name);
    if (token && service.text.piece(*token).empty() && !service.text.is_end(*token)) form.extras.shown.emplace_back(*token, name);
  }
  for (const std::string& stop : with_tools->stops) {
    if (request.stops.size() < text::kStopStringsMax) request.stops.push_back(stop);
  }
  if (with_tools->grammar.empty()) return std::nullopt;
  return read_grammar(with_tools->grammar, "tools", service, form);
}

// The prompts as tokens, one list per prompt.
std::variant<std::vector<std::vector<Token>>, Problem> tokenize(const api::GenerateRequest& request,
                                                                const std::optional<std::string>& framed,
                                                                const Service& service) {
  std::vector<std::vector<Token>> out;
  const auto add = [&](const std::string& text, const std::string& field) -> std::optional<Problem> {
    auto tokens = service.text.tokenize(text, /*add_special=*/true, /*parse_special=*/true);
    if (!tokens.is_ok()) {
      Problem problem = api::problem_of(tokens.status());
      problem.http = 400;
      problem.type = "invalid_request_error";
      problem.param = field;
      return problem;
    }
    out.push_back(std::move(tokens).value());
    return std::nullopt;
  };
  if (framed) {
    if (auto problem = add(*framed, "messages")) return *problem;
    return out;
  }
  for (const api::Prompt& prompt : request.prompts) {
    if (const auto* tokens = std::get_if<std::vector<Token>>(&prompt)) {
      out.push_back(*tokens);
    } else if (auto problem = add(std::get<std::string>(prompt), "prompt")) {
      return *problem;
    }
  }
  return out;
}

Result<std::shared_ptr<Bank>> find_bank(const BankId& id, decode::Mode mode, Service& service) {
  auto found = service.banks.get(id, mode);
  if (found.is_ok() || found.status().code() != Code::kLimit) return found;
  // All are in use, maybe only by slots that are idle.
  DRIFT_TRY(service.scheduler.between_steps([&] {
    service.scheduler.let_banks_go();
    return Status::ok();
  }));
  return service.banks.get(id, mode);
}

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32 | device()) >> 1;  // clients that read it back know signed numbers only
}

}  // namespace

std::variant<std::vector<GenerationConfig>, Problem> prepare(api::GenerateRequest& request, Service& service,
                                                             const std::string& tenant) {
  Form form;
  std::optional<std::string> framed;
  if (request.route == api::Route::kChat) {
    if (auto problem = frame(request, service, framed.emplace(), form)) return *problem;
  }
  if (auto problem = read_shape(request.shape, service, form)) return *problem;
  auto tokenized = tokenize(request, framed, service);
  if (const auto* problem = std::get_if<Problem>(&tokenized)) return *problem;
  auto& prompts = std::get<std::vector<std::vector<Token>>>(tokenized);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) return api::bad_field("prompt", "the prompt gives no tokens; it needs text");
    if (prompts[i].size() >= service.context) return api::context_exceeded(prompts[i].size(), service.context);
    for (const Token token : prompts[i]) {
      if (static_cast<std::size_t>(token) >= service.scheduler.vocab())
        return api::bad_field("prompt", fmt::format("the prompt has token {}, which target and draft do not both know", token));
    }
  }
  const std::string salt = request.cache_salt.empty() ? "" : hex_of(sha256(request.cache_salt)).substr(0, kSaltDigits);
  std::shared_ptr<Bank> bank;
  if (decode::recalibrates(request.mode) || decode::remembers(request.mode)) {
    const Status plain = check_plain_name("the name of a bank", request.bank);
    if (!plain.is_ok()) return api::bad_field("drift.bank", plain.message());
    auto found = find_bank({tenant, salt.empty() ? request.bank : request.bank + kSaltMark + salt}, request.mode, service);
    if (!found.is_ok()) {
      Problem problem = api::problem_of(found.status());
      problem.param = "drift.bank";
      return problem;
    }
    bank = std::move(found).value();
  }
  LogitRules rules = request.rules;
  for (const auto& [text, bias] : request.text_bias) {
    const auto tokens = service.text.tokenize(text, /*add_special=*/false, /*parse_special=*/false);
    if (!tokens.is_ok()) return api::bad_field("logit_bias", tokens.status().message());
    for (const Token token : tokens.value()) {
      if (bias == api::kBanned) {
        rules.banned.push_back(token);
      } else {
        rules.bias.emplace_back(token, bias);
      }
    }
  }
  if (!request.seed) request.seed = random_seed();
  std::vector<GenerationConfig> out;
  for (std::vector<Token>& prompt : prompts) {
    for (int i = 0; i < request.n; ++i) {
      GenerationConfig config;
      config.prompt = prompt;
      config.mode = request.mode;
      config.rule = service.judge;
      config.draft_tokens = request.draft_tokens;
      config.copy = service.copy;
      config.sampler = request.sampler;
      config.seed = *request.seed;
      config.name = out.size();
      config.max_tokens = request.max_tokens;
      config.stops = request.stops;
      config.rules = rules;
      config.grammar = form.grammar;
      config.extras = form.extras;
      config.logprobs = request.logprobs;
      config.bank = bank;
      config.tenant = tenant;
      config.salt = salt;
      config.reuse_prefix = request.cache_prompt;
      config.origins = request.origins;
      out.push_back(std::move(config));
    }
  }
  return out;
}

}  // namespace drift::server
