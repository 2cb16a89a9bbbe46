#include <fmt/format.h>

#include "drift/base/version.hpp"
#include "drift/decode/mode_name.hpp"
#include "server/http/routes.hpp"

namespace drift::server {
namespace {

using api::Json;
using api::Problem;

const char* phase_word(Phase phase) {
  switch (phase) {
    case Phase::kIdle: return "idle";
    case Phase::kPrefill: return "prefill";
    case Phase::kDecode: return "decode";
  }
  return "?";
}

std::string build() {
  const std::string commit = drift::commit();
  return commit.empty() ? std::string(drift::version()) : fmt::format("{}-{}", drift::version(), commit);
}

Json model_json(const Service& service) {
  const ModelCard& card = service.card;
  return {{"id", service.defaults.model},
          {"object", "model"},
          {"created", card.created},
          {"owned_by", "drift"},
          {"max_model_len", service.context},
          {"meta",
           {{"name", card.name},
            {"arch", card.arch},
            {"n_vocab", card.vocab},
            {"n_embd", card.hidden_width},
            {"n_ctx_train", card.trained_context},
            {"size", card.weight_bytes}}}};
}

Json sampler_json(const api::Defaults& defaults) {
  const spec::SamplerConfig& s = defaults.sampler;
  return {{"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"n_predict", defaults.max_tokens}};
}

// Of another tenant's answer a tenant is told that it is there, and nothing else.
SlotState seen_by(const Identity& who, SlotState slot) {
  if (who.is_operator || slot.tenant == who.tenant) return slot;
  SlotState out;
  out.id = slot.id;
  out.phase = slot.phase;
  return out;
}

Json slot_json(const Exchange& exchange, const SlotState& any) {
  const std::size_t context = exchange.service->context;
  const SlotState slot = seen_by(exchange.identity, any);
  return {{"id", slot.id},
          {"n_ctx", context},
          {"speculative", slot.mode != decode::Mode::kOff},
          {"is_processing", slot.phase != Phase::kIdle},
          {"phase", phase_word(slot.phase)},
          {"mode", decode::mode_name(slot.mode)},
          {"n_prompt_tokens", slot.prompt_tokens},
          {"n_prompt_tokens_processed", slot.prefilled},
          {"n_decoded", slot.decoded}};
}

// Whole texts only: a body that is no JSON or has a wrong field is answered here.
template <class T, class Read>
std::optional<T> read_or_refuse(const HttpRequest& request, HttpResponse& response, Read read) {
  const auto body = api::parse_body(request.body);
  if (!body.is_ok()) {
    send(response, api::problem_of(body.status()));
    return std::nullopt;
  }
  std::variant<T, Problem> got = read(body.value());
  if (const auto* problem = std::get_if<Problem>(&got)) {
    send(response, *problem);
    return std::nullopt;
  }
  return std::get<T>(std::move(got));
}

}  // namespace

std::string fingerprint(const Service& service, const std::string& tenant) {
  std::uint64_t commits = 0;
  for (const BankState& bank : service.banks.states()) commits += bank.id.tenant == tenant ? bank.commits : 0;
  return fmt::format("drift-{}-b{}", build(), commits);
}

void list_models(HttpResponse& response, const Exchange& exchange) {
  send(response, {{"object", "list"}, {"data", Json::array({model_json(*exchange.service)})}});
}

void show_model(const std::string& id, HttpResponse& response, const Exchange& exchange) {
  if (exchange.service->defaults.is_served(id)) return send(response, model_json(*exchange.service));
  Problem problem = api::not_found(fmt::format("there is no model '{}'; this server has '{}'", id.substr(0, api::kNameBytesMax),
                                               exchange.service->defaults.model));
  problem.param = "model";
  problem.code = "model_not_found";
  send(response, problem);
}

void show_version(HttpResponse& response) { send(response, {{"version", drift::version()}, {"commit", drift::commit()}}); }

void show_props(HttpResponse& response, const Exchange& exchange) {
  const Service& service = *exchange.service;
  send(response, {{"default_generation_settings", {{"n_ctx", service.context}, {"params", sampler_json(service.defaults)}}},
                  {"total_slots", service.slots},
                  {"model_alias", service.defaults.model},
                  {"model_path", service.card.path},
                  {"draft_path", service.card.draft_path.empty() ? Json(nullptr) : Json(service.card.draft_path)},
                  {"chat_template_supported", service.text.has_chat_template()},
                  {"modalities", {{"vision", false}, {"audio", false}}},
                  {"endpoint_slots", exchange.config.show_slots},
                  {"endpoint_metrics", true},
                  {"mode", decode::mode_name(service.defaults.mode)},
                  {"draft_tokens", service.defaults.draft_tokens},
                  {"build_info", build()}});
}

void show_slots(HttpResponse& response, const Exchange& exchange) {
  if (!exchange.config.show_slots) {
    Problem problem;
    problem.http = 501;
    problem.type = "not_supported_error";
    problem.message = "this server was started with --no-slots";
    return send(response, problem);
  }
  Json out = Json::array();
  for (const SlotState& slot : exchange.service->scheduler.state().slots) out.push_back(slot_json(exchange, slot));
  send(response, out);
}

void show_state(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const Service& service = *exchange.service;
  const std::string range = request.get_param_value("history");
  if (!range.empty() && range != "recent" && range != "whole")
    return send(response, api::bad_field("history", fmt::format("is '{}'; it must be recent or whole", range.substr(0, 40))));
  // It tells of everybody's traffic, as /metrics does.
  if (!range.empty() && !exchange.identity.is_operator) return send(response, api::forbidden());
  const SchedulerState state = service.scheduler.state();
  Json slots = Json::array();
  for (const SlotState& slot : state.slots) slots.push_back(slot_json(exchange, slot));
  Json out = {{"version", build()},
              {"model", service.defaults.model},
              {"mode", decode::mode_name(service.defaults.mode)},
              {"draft", service.defaults.has_draft},
              {"draft_tokens", service.defaults.draft_tokens},
              {"chat_template", service.text.has_chat_template()},
              {"draining", state.draining},
              {"waiting", state.waiting},
              {"slots", slots},
              {"banks", banks_json(exchange)}};
  if (!range.empty())
    out["history"] =
        history_json(exchange.metrics.history(), range == "whole" ? History::Range::kWhole : History::Range::kRecent);
  send(response, out);
}

void tokenize(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const auto asked = read_or_refuse<api::TokenizeRequest>(request, response, api::read_tokenize);
  if (!asked) return;
  const TextModel& text = exchange.service->text;
  std::string what = asked->content ? *asked->content : asked->prompt.value_or("");
  bool parse_special = asked->parse_special;
  if (!asked->content && !asked->prompt) {
    auto framed = text.chat(asked->messages, asked->add_generation_prompt);
    if (!framed.is_ok()) return send(response, api::bad_field("messages", framed.status().message()));
    what = std::move(framed).value();
    parse_special = true;
  }
  const auto tokens = text.tokenize(what, asked->add_special || !asked->content, parse_special);
  if (!tokens.is_ok()) return send(response, api::problem_of(tokens.status()));
  Json list = Json::array();
  for (const Token token : tokens.value()) {
    if (asked->with_pieces) {
      list.push_back({{"id", token}, {"piece", text.piece(token)}});
    } else {
      list.push_back(token);
    }
  }
  if (asked->content) return send(response, {{"tokens", list}});
  send(response, {{"count", tokens.value().size()}, {"max_model_len", exchange.service->context}, {"tokens", list}});
}

void detokenize(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const TextModel& text = exchange.service->text;
  const auto tokens = read_or_refuse<std::vector<Token>>(
      request, response, [&](const api::Input& body) { return api::read_detokenize(body, text.vocab()); });
  if (!tokens) return;
  std::string content;
  for (const Token token : *tokens) content += text.piece(token);
  send(response, {{"content", content}, {"prompt", content}});  // llama-server's name, and vLLM's
}

void apply_template(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const auto messages = read_or_refuse<std::vector<Message>>(request, response, api::read_messages);
  if (!messages) return;
  const auto prompt = exchange.service->text.chat(*messages, /*add_assistant=*/true);
  if (!prompt.is_ok()) return send(response, api::bad_field("messages", prompt.status().message()));
  send(response, {{"prompt", prompt.value()}});
}

}  // namespace drift::server
