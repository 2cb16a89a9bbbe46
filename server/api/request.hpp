// request.hpp - the bodies that clients send, read into plain structs: OpenAI's, vLLM's and llama-server's field names.
//
// Unknown fields are ignored; a wrong type or a value out of bounds is refused with the field's name; what this server cannot do
// (images, echo, other samplers) is refused by name rather than ignored, for the answer would not be what was asked for.
// Threads: pure. Limits: the constants below, Defaults.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/decode/stepper.hpp"
#include "drift/spec/distribution.hpp"
#include "server/api/json.hpp"
#include "server/api/problem.hpp"
#include "server/api/shape.hpp"
#include "server/schedule/logit_rules.hpp"
#include "server/text_model.hpp"

namespace drift::server::api {

inline constexpr int kChoicesMax = 64;  // prompts times n
inline constexpr std::size_t kMessagesMax = 4'096;
inline constexpr std::size_t kPartsMax = 1'024;  // of one message's content
inline constexpr std::size_t kRoleBytesMax = 64;
inline constexpr std::size_t kNameBytesMax = 256;  // of a model
inline constexpr std::size_t kSaltBytesMax = 1'024;
inline constexpr std::int64_t kTokensMax = std::int64_t{1} << 20;
inline constexpr std::size_t kLogitBiasMax = 1'024;
inline constexpr float kBiasMax = 1'000.0f;  // +- added to a logit
inline constexpr float kBanned = -std::numeric_limits<float>::infinity();
inline constexpr std::size_t kBiasTextBytesMax = 128;  // of a text whose tokens are biased
inline constexpr int kTopLogprobsMax = 20;

// What a request leaves open is taken from the server's flags.
struct Defaults {
  std::string model;                 // the served name
  std::vector<std::string> aliases;  // other names of it
  spec::SamplerConfig sampler;
  std::int64_t max_tokens = -1;
  decode::Mode mode = decode::Mode::kOff;
  bool has_draft = false;
  int draft_tokens = 3;  // also the most a request may ask for
  std::size_t vocab = 0;
  bool cache_prompt = true;
  LogitRules rules;
  Shape shape;                        // of answers whose request says nothing of it
  std::optional<std::uint64_t> seed;  // none: a random one for each request
  bool is_served(const std::string& name) const {
    return name == model || std::find(aliases.begin(), aliases.end(), name) != aliases.end();
  }
};

enum class Route { kCompletions, kChat, kLlama };  // /v1/completions, /v1/chat/completions, /completion

using Prompt = std::variant<std::string, std::vector<Token>>;

struct GenerateRequest {
  Route route = Route::kCompletions;
  std::string model;              // as asked for; empty: not said
  std::vector<Prompt> prompts;    // kCompletions, kLlama
  std::vector<Message> messages;  // kChat
  int n = 1;                      // answers per prompt
  bool stream = false, include_usage = false;
  spec::SamplerConfig sampler;
  std::optional<std::uint64_t> seed;  // none: a random one
  std::int64_t max_tokens = -1;
  std::vector<std::string> stops;
  LogitRules rules;
  Shape shape;
  ToolRequest tools;                                     // kChat
  std::shared_ptr<const ToolReader> reader;              // of its answers, where they may call tools; set when it is made ready
  std::vector<std::pair<std::string, float>> text_bias;  // for every token of a text; a float of kBanned: never
  int logprobs = -1;                                     // so many best of each token; -1: none
  bool cache_prompt = true, return_tokens = false;
  decode::Mode mode = decode::Mode::kOff;
  int draft_tokens = 3;
  std::string bank = "default";
  std::string cache_salt;  // vLLM's: answers of another salt share neither bank nor text with this one; empty: none
  bool origins = false;    // the answer says of each token where it came from
};

// Requires: `body` is an object. `text` is what it was read from: schemas keep the order their properties are written in. Empty: that of
// their names.
std::variant<GenerateRequest, Problem> read_generate(Route route, const Input& body, const Defaults& defaults,
                                                     std::string_view text = {});

// Texts of another kind: /tokenize takes {"content"} (llama-server), {"prompt"} or {"messages"} (vLLM).
struct TokenizeRequest {
  std::optional<std::string> content, prompt;
  std::vector<Message> messages;  // if neither
  bool add_special = false;
  bool parse_special = true;
  bool with_pieces = false;
  bool add_generation_prompt = true;
};
std::variant<TokenizeRequest, Problem> read_tokenize(const Input& body);
// {"tokens": [...]}
std::variant<std::vector<Token>, Problem> read_detokenize(const Input& body, std::size_t vocab);
// {"messages": [...]}
std::variant<std::vector<Message>, Problem> read_messages(const Input& body);

}  // namespace drift::server::api
