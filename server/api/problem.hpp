// problem.hpp - what goes wrong with a request, in the words of the OpenAI API:
// {"error": {"message", "type", "param", "code"}} with an HTTP status that clients act on (openai retries 408, 409, 429, >= 500).
#pragma once

#include <string>

#include "drift/base/status.hpp"
#include "server/api/json.hpp"

namespace drift::server::api {

struct Problem {
  int http = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param;  // the field at fault; empty: null
  std::string code;   // empty: null
  int retry_after_s = 0;
  Json extra;  // further fields of the error, or null
};

// A field of the request is at fault.
Problem bad_field(const std::string& param, const std::string& message);
Problem not_found(const std::string& message);
Problem unauthorized();
Problem forbidden();  // an operator's key is needed
// The prompt alone fills the context. Has n_prompt_tokens and n_ctx, as llama-server's.
Problem context_exceeded(std::size_t prompt_tokens, std::size_t context);
// A failure from below: kInvalid and the like are the client's fault, kBusy and kLimit pass (503), all else is the server's.
Problem problem_of(const Status& status);

Json body_of(const Problem& problem);

}  // namespace drift::server::api
