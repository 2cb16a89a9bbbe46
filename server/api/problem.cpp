#include "server/api/problem.hpp"

namespace drift::server::api {

Problem bad_field(const std::string& param, const std::string& message) {
  Problem problem;
  problem.param = param;
  problem.message = message;
  return problem;
}

Problem not_found(const std::string& message) {
  Problem problem;
  problem.http = 404;
  problem.type = "not_found_error";
  problem.message = message;
  return problem;
}

Problem unauthorized() {
  Problem problem;
  problem.http = 401;
  problem.type = "authentication_error";
  problem.code = "invalid_api_key";
  problem.message = "an API key is needed: send 'Authorization: Bearer KEY' (or 'X-Api-Key: KEY') with a key of this server";
  return problem;
}

Problem forbidden() {
  Problem problem;
  problem.http = 403;
  problem.type = "permission_error";
  problem.code = "insufficient_permissions";
  problem.message = "this is for operators: the key belongs to a tenant";
  return problem;
}

Problem context_exceeded(std::size_t prompt_tokens, std::size_t context) {
  Problem problem;
  problem.type = "exceed_context_size_error";
  problem.code = "context_length_exceeded";
  problem.message = "the prompt has " + std::to_string(prompt_tokens) + " tokens; a slot's context holds " +
                    std::to_string(context) +
                    ", at least one of them for the answer. Shorten it, or start the server with a larger -c";
  problem.extra = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", context}};
  return problem;
}

Problem problem_of(const Status& status) {
  Problem problem;
  problem.message = status.message();
  switch (status.code()) {
    case Code::kOk:
    case Code::kInvalid:
    case Code::kForeign:
    case Code::kUnsupported: break;
    case Code::kNotFound:
      problem.http = 404;
      problem.type = "not_found_error";
      break;
    case Code::kLimit:
    case Code::kBusy:
    case Code::kCancelled:
      problem.http = 503;
      problem.type = "unavailable_error";
      problem.retry_after_s = 1;
      break;
    case Code::kCorrupt:
    case Code::kIo:
    case Code::kInternal:
      problem.http = 500;
      problem.type = "server_error";
      break;
  }
  return problem;
}

Json body_of(const Problem& problem) {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  Json error = {{"message", problem.message},
                {"type", problem.type},
                {"param", text_or_null(problem.param)},
                {"code", text_or_null(problem.code)}};
  if (problem.extra.is_object()) error.update(problem.extra);
  return {{"error", error}};
}

}  // namespace drift::server::api
