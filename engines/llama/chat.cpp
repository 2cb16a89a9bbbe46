#include "engines/llama/chat.hpp"

#include <llama.h>

#include <algorithm>
#include <exception>
#include <map>

#include "text/utf8.hpp"

#if DRIFT_LLAMA_COMMON
#include <chat.h>
#include <json-schema-to-grammar.h>
#endif

namespace drift::engine {
namespace {

const char* const kMissing = "this build has no llama-common (./dev setup builds it)";

}  // namespace

#if !DRIFT_LLAMA_COMMON

bool has_llama_common() { return false; }
Result<std::string> schema_grammar(const std::string& /*schema*/) { return Status(Code::kUnsupported, kMissing); }
Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::make(std::shared_ptr<const LlamaModel> /*model*/,
                                                               const std::string& /*source*/) {
  return Status(Code::kUnsupported, kMissing);
}

#else

bool has_llama_common() { return true; }

namespace {

constexpr std::size_t kWhyBytesMax = 500;  // of a message from llama-common, which may quote the request

Status invalid(const std::string& what, const std::exception& error) {
  const std::string why = error.what();
  const std::size_t cut = std::min(why.size(), kWhyBytesMax);
  return {Code::kInvalid, what + ": " + why.substr(0, text::valid_prefix(std::string_view(why).substr(0, cut)))};
}

Status check_part(const std::string& text, const char* what) {
  if (text.size() > kTextBytesMax) return {Code::kLimit, std::string(what) + " is too long"};
  if (text::valid_prefix(text) < text.size()) return {Code::kInvalid, std::string(what) + " is not valid UTF-8"};
  if (text.find('\0') != std::string::npos) return {Code::kInvalid, std::string(what) + " holds a NUL byte; remove it"};
  return Status::ok();
}

Result<std::vector<common_chat_msg>> messages_of(const std::vector<ToolMessage>& messages) {
  if (messages.empty()) return Status(Code::kInvalid, "a chat needs at least one message");
  std::vector<common_chat_msg> out;
  for (const ToolMessage& message : messages) {
    DRIFT_TRY(check_part(message.role, "a message's role"));
    DRIFT_TRY(check_part(message.content, "a message"));
    common_chat_msg one;
    one.role = message.role;
    one.content = message.content;
    one.tool_call_id = message.call_id;
    one.tool_name = message.name;
    for (const ToolCall& call : message.calls) {
      common_chat_tool_call called;
      called.id = call.id;
      called.name = call.name;
      called.arguments = call.arguments;
      one.tool_calls.push_back(std::move(called));
    }
    out.push_back(std::move(one));
  }
  return out;
}

class PegReader final : public ToolReader {
 public:
  explicit PegReader(const common_chat_params& params) : params_(params) { params_.parser.load(params.parser); }

  Result<ToolAnswer> read(const std::string& text, bool complete) const override {
    ToolAnswer out;
    try {
      const common_chat_msg message = common_chat_parse(text, !complete, params_);
      out.content = message.content;
      for (const common_chat_tool_call& call : message.tool_calls) out.calls.push_back({call.id, call.name, call.arguments});
    } catch (const std::exception& error) {
      return Status(Code::kInvalid, "the answer is not of the form the chat template wants");
    }
    return out;
  }

 private:
  common_chat_parser_params params_;
};

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(std::shared_ptr<const LlamaModel> model, common_chat_templates_ptr templates)
      : model_(std::move(model)), templates_(std::move(templates)), source_(common_chat_templates_source(templates_.get())) {
    const std::map<std::string, bool> caps = common_chat_templates_get_caps(templates_.get());
    const auto has = [&](const char* name) { return caps.count(name) != 0 && caps.at(name); };
    knows_tools_ = has("supports_tools") && has("supports_tool_calls");
  }

  Result<std::string> apply(const std::vector<ToolMessage>& messages, bool add_assistant) const override {
    try {
      common_chat_templates_inputs inputs;
      DRIFT_ASSIGN(inputs.messages, messages_of(messages));
      inputs.add_generation_prompt = add_assistant;
      inputs.force_pure_content = true;  // nothing is to be read back from the answer
      return common_chat_templates_apply(templates_.get(), inputs).prompt;
    } catch (const std::exception& error) {
      return invalid("the chat template refuses the messages", error);
    }
  }

  bool knows_tools() const override { return knows_tools_; }
  const std::string& source() const override { return source_; }

  Result<ToolPrompt> apply_tools(const ToolRequest& request) const override {
    if (!knows_tools_)
      return Status(Code::kUnsupported, "the chat template knows no tools; give one that does (--chat-template-file)");
    try {
      common_chat_templates_inputs inputs;
      DRIFT_ASSIGN(inputs.messages, messages_of(request.messages));
      for (const Tool& tool : request.tools) inputs.tools.push_back({tool.name, tool.description, tool.parameters});
      inputs.parallel_tool_calls = request.parallel;
      inputs.tool_choice = request.choice == ToolChoice::kNone ? COMMON_CHAT_TOOL_CHOICE_NONE : COMMON_CHAT_TOOL_CHOICE_AUTO;
      common_chat_params params = common_chat_templates_apply(templates_.get(), inputs);
      // The grammar of calls that may come begins with a word. Where a call must come the answer is to begin with it: llama-common's own
      // grammar for that lets a model talk before it, and small ones never stop. A few formats begin with a pattern instead: there calls
      // that may come are read, but not held to their schemas.
      const bool words =
          params.grammar_lazy && !params.grammar_triggers.empty() &&
          std::all_of(params.grammar_triggers.begin(), params.grammar_triggers.end(), [](const common_grammar_trigger& t) {
            return t.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD && !t.value.empty();
          });
      ToolPrompt out;
      if (request.choice == ToolChoice::kRequired && !words) {
        inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        params = common_chat_templates_apply(templates_.get(), inputs);
        if (params.grammar.empty()) return Status(Code::kUnsupported, "the chat template cannot be made to call a tool");
        out.read = params.generation_prompt;
      }
      if (words) {
        for (const common_grammar_trigger& trigger : params.grammar_triggers) out.triggers.push_back(trigger.value);
      }
      out.required = words && request.choice == ToolChoice::kRequired;
      if (words || request.choice == ToolChoice::kRequired) out.grammar = params.grammar;
      out.prompt = params.prompt;
      out.stops = params.additional_stops;
      out.shown = params.preserved_tokens;
      out.reader = std::make_shared<const PegReader>(params);
      return out;
    } catch (const std::exception& error) {
      return invalid("the chat template cannot be used with these tools", error);
    }
  }

 private:
  std::shared_ptr<const LlamaModel> model_;
  common_chat_templates_ptr templates_;
  std::string source_;
  bool knows_tools_ = false;
};

}  // namespace

Result<std::string> schema_grammar(const std::string& schema) {
  try {
    return json_schema_to_grammar(common_json::parse(schema));
  } catch (const std::exception& error) {
    return invalid("the schema cannot be used", error);
  }
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::make(std::shared_ptr<const LlamaModel> model,
                                                               const std::string& source) {
  try {
    const char* own = llama_model_chat_template(model->handle(), nullptr);
    if (source.empty() && own == nullptr) return Status(Code::kUnsupported, model->name() + " has no chat template");
    if (source != "chatml") {  // the call below keeps the reason to itself
      const common_chat_template readable(source.empty() ? own : source, "", "");
    }
    auto made = std::make_shared<const JinjaTemplate>(model, common_chat_templates_init(model->handle(), source));
    const auto tried = made->apply({{"user", "Hello", {}, "", ""}}, true);
    if (!tried.is_ok()) return tried.status();
    return std::shared_ptr<const ChatTemplate>(std::move(made));
  } catch (const std::exception& error) {
    return invalid("the chat template cannot be read", error);
  }
}

#endif

}  // namespace drift::engine
