#include "cli/serve.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "cli/bank_session.hpp"
#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/input.hpp"
#include "cli/machine.hpp"
#include "cli/modes.hpp"
#include "cli/options.hpp"
#include "cli/serve_keys.hpp"
#include "engines/llama/chat.hpp"
#include "text/grammar.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

using decode::Mode;
using std::chrono::milliseconds;

constexpr const char* kExamples =
    "Examples:\n"
    "  drift serve -m target.gguf -md draft.gguf                          (http://127.0.0.1:8080/v1)\n"
    "  drift serve -m T -md D -np 8 -c 32768 --bank law.bank --api-key-file keys.txt --host 0.0.0.0\n"
    "  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
    "Flags of llama-server are understood: docs/llama-server-flags.md says what becomes of each. Every flag is also a key of the "
    "file\n"
    "--config names (TOML, without dashes) and a variable (DRIFT_ and the name in capitals, _ for -); flags go before variables, "
    "and\n"
    "variables before the file. -c is the size of all slots together when -np says how many, as in llama-server, else of each.\n"
    "SIGTERM or Ctrl-C lets requests finish (--shutdown-timeout) and saves the banks; a second one ends at once.";

std::vector<engine::ToolMessage> messages_of(const std::vector<server::Message>& messages) {
  std::vector<engine::ToolMessage> out;
  for (const server::Message& message : messages) {
    engine::ToolMessage& one =
        out.emplace_back(engine::ToolMessage{message.role, message.content, {}, message.call_id, message.name});
    for (const server::ToolCall& call : message.calls) one.calls.push_back({call.id, call.name, call.arguments});
  }
  return out;
}

class ServeToolReader final : public server::ToolReader {
 public:
  explicit ServeToolReader(std::shared_ptr<const engine::ToolReader> reader) : reader_(std::move(reader)) {}
  Result<server::ToolAnswer> read(const std::string& text, bool complete) const override {
    DRIFT_ASSIGN(const engine::ToolAnswer answer, reader_->read(text, complete));
    server::ToolAnswer out{answer.content, {}};
    for (const engine::ToolCall& call : answer.calls) out.calls.push_back({call.id, call.name, call.arguments});
    return out;
  }

 private:
  std::shared_ptr<const engine::ToolReader> reader_;
};

// The target's text as the server sees it. Without a template that is executed, chats have the format that llama.cpp recognises.
class ServeText final : public server::TextModel {
 public:
  ServeText(const engine::LlamaText& text, std::shared_ptr<const engine::ChatTemplate> chat, std::size_t vocab, bool special)
      : text_(text), chat_(std::move(chat)), vocab_(vocab), special_(special) {}
  Result<std::vector<Token>> tokenize(std::string_view text, bool add_special, bool parse_special) const override {
    return text_.tokenize(text, add_special, parse_special);
  }
  std::string piece(Token token) const override { return text_.piece(token, special_); }
  bool is_end(Token token) const override { return text_.is_end(token); }
  bool has_chat_template() const override { return chat_ != nullptr || text_.has_chat_template(); }
  Result<std::string> chat(const std::vector<server::Message>& messages, bool add_assistant) const override {
    if (chat_) return chat_->apply(messages_of(messages), add_assistant);
    std::vector<engine::ChatMessage> views;
    for (const server::Message& message : messages) {
      if (message.role == "tool" || !message.calls.empty())
        return Status(Code::kUnsupported, "calls of tools need a chat template that is executed (--jinja)");
      views.push_back({message.role, message.content});
    }
    return text_.chat(views, add_assistant);
  }
  Result<server::ToolPrompt> chat_with_tools(const std::vector<server::Message>& messages,
                                             const server::ToolRequest& tools) const override {
    if (!chat_) return Status(Code::kUnsupported, "tools need a chat template that is executed (--jinja)");
    engine::ToolRequest request;
    request.messages = messages_of(messages);
    for (const server::Tool& tool : tools.tools) request.tools.push_back({tool.name, tool.description, tool.parameters});
    request.choice = tools.choice == server::ToolChoice::kRequired ? engine::ToolChoice::kRequired
                     : tools.choice == server::ToolChoice::kNone   ? engine::ToolChoice::kNone
                                                                   : engine::ToolChoice::kAuto;
    request.parallel = tools.parallel;
    DRIFT_ASSIGN(engine::ToolPrompt prompt, chat_->apply_tools(request));
    return server::ToolPrompt{std::move(prompt.prompt),   std::move(prompt.grammar),
                              std::move(prompt.triggers), prompt.required,
                              std::move(prompt.read),     std::move(prompt.stops),
                              std::move(prompt.shown),    std::make_shared<const ServeToolReader>(std::move(prompt.reader))};
  }
  Result<std::string> schema_grammar(const std::string& schema) const override { return engine::schema_grammar(schema); }
  std::size_t vocab() const override { return vocab_; }

 private:
  const engine::LlamaText& text_;
  const std::shared_ptr<const engine::ChatTemplate> chat_;
  std::size_t vocab_;
  bool special_;
};

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    if (end > from) out.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return out;
}

// Where the log goes: stderr, or the end of a file.
Result<server::Log::Sink> log_sink(const ServeOptions& options) {
  if (options.log_file.empty()) return server::Log::Sink([](std::string_view line) { write_err(line); });
  const int fd = ::open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (fd < 0) return Status(Code::kIo, fmt::format("--log-file {}: {}", options.log_file, std::strerror(errno)));
  const std::shared_ptr<const int> open(new int(fd), [](const int* p) {
    ::close(*p);
    delete p;
  });
  return server::Log::Sink([open](std::string_view line) { static_cast<void>(!::write(*open, line.data(), line.size())); });
}

// Everything that can be refused before a model is read.
Status check(ServeOptions& options, Mode& mode) {
  DRIFT_TRY(options.sampler.validate());
  if (options.http.host.find(',') != std::string::npos || options.http.host.ends_with(".sock"))
    return {Code::kInvalid, fmt::format("--host is '{}'; it must be one address", options.http.host)};
  if (options.slots == -1) {
    options.slots = kDefaultSlots;
  } else if (options.pair.context > 0) {
    // llama-server's -c is that of all slots together.
    options.pair.context = std::max(1, options.pair.context / options.slots);
  }
  options.pair.sequences = options.scheduler.slots = options.slots;
  options.scheduler.queue_per_tenant_max = std::min(options.scheduler.queue_per_tenant_max, options.scheduler.queue_max);
  mode = options.pair.draft.empty() ? Mode::kOff : Mode::kDrift;
  if (options.spec_type == "none") {
    mode = Mode::kOff;
  } else if (!options.spec_type.empty() && options.spec_type != "draft-simple") {
    return {Code::kInvalid,
            fmt::format("--spec-type is '{}'; it must be none or draft-simple: there is no other way to draft yet",
                        options.spec_type)};
  }
  if (!options.mode.empty()) {
    DRIFT_ASSIGN(mode, parse_mode("--mode", options.mode));
  }
  if (decode::learns(mode))
    return {Code::kInvalid, "--mode online-kd trains a draft for one stream; compare it with drift compare --modes online-kd"};
  if ((decode::drafts(mode) || options.spec_type == "draft-simple") && options.pair.draft.empty())
    return {Code::kInvalid, "drafting needs a draft model: give one with -md, or leave --mode and --spec-type out"};
  if (options.pair.draft.empty() && !(options.bank.empty() && options.bank_dir.empty()))
    return {Code::kInvalid, "--bank and --bank-dir need a draft model: give one with -md"};
  if (options.bank_read_only && options.bank.empty()) return {Code::kInvalid, "--bank-ro needs --bank FILE"};
  if (!options.bank_dir.empty() && !std::filesystem::is_directory(options.bank_dir))
    return {Code::kNotFound, fmt::format("--bank-dir {} is no folder", options.bank_dir)};
  if (!options.log_format.empty() && options.log_format != "text" && options.log_format != "json")
    return {Code::kInvalid, fmt::format("--log-format is '{}'; it must be text or json", options.log_format)};
  for (const std::string& name : split_list(options.metrics_compat)) {
    if (name != "vllm" && name != "llamacpp")
      return {Code::kInvalid, fmt::format("--metrics-compat has '{}'; it must be vllm, llamacpp or both", name)};
  }
  return Status::ok();
}

// The default tenant's banks lie in --bank-dir itself, another tenant's in a folder of its name; --bank names the file of default/default.
std::filesystem::path folder_of(const ServeOptions& options, const std::string& tenant) {
  const std::filesystem::path dir = options.bank_dir;
  return tenant == server::kDefaultTenant ? dir : dir / "tenants" / tenant;
}

constexpr const char* kBankSuffix = ".bank";

bool only_read(const ServeOptions& options, const server::BankId& id) { return id == server::BankId{} && options.bank_read_only; }

Result<std::string> file_of(const ServeOptions& options, const server::BankId& id) {
  if (id == server::BankId{} && (!options.bank.empty() || options.bank_dir.empty())) return options.bank;
  if (!options.bank_dir.empty()) return (folder_of(options, id.tenant) / (id.name + kBankSuffix)).string();
  // Without a folder each tenant has one, in memory; a salt may divide it.
  if (id.name.substr(0, id.name.find(server::kSaltMark)) == server::kDefaultBank) return std::string();
  return Status(Code::kInvalid,
                fmt::format("there is no bank '{}'; this server has one per tenant, '{}' (--bank-dir gives room for more)",
                            id.name, server::kDefaultBank));
}

// The tenants that have a folder, and the default one.
std::vector<std::string> tenants_on_disk(const ServeOptions& options) {
  std::vector<std::string> out{server::kDefaultTenant};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options.bank_dir + "/tenants", error)) {
    const std::string name = entry.path().filename().string();
    if (name != server::kDefaultTenant && server::check_plain_name("", name).is_ok()) out.push_back(name);
  }
  return out;
}

std::vector<server::BankId> banks_on_disk(const ServeOptions& options) {
  std::vector<server::BankId> out;
  std::error_code error;
  if (!options.bank.empty() && std::filesystem::exists(options.bank, error)) out.push_back(server::BankId{});
  if (options.bank_dir.empty()) return out;
  for (const std::string& tenant : tenants_on_disk(options)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_of(options, tenant), error)) {
      const server::BankId id{tenant, entry.path().stem().string()};
      const bool hidden = id == server::BankId{} && !options.bank.empty();  // --bank stands for it
      if (entry.path().extension() == kBankSuffix && server::check_bank_name(id.name).is_ok() && !hidden) out.push_back(id);
    }
  }
  return out;
}

// Whether a file that cannot be used is a whole bank, but another pair's.
bool is_another_pairs(const std::string& file, const Pair& pair) {
  const auto opened = bank::BankFile::open(file, bank::Access::kReadOnly);
  if (!opened.is_ok()) return false;
  const auto stored = opened->get()->load();
  return stored.is_ok() && !(stored->fingerprint == pair.fingerprint());
}

Result<std::optional<recal::BankSession>> open_for_serving(const ServeOptions& options, const Pair& pair,
                                                           const server::BankId& id, const std::string& file) {
  if (!pair.draft) return std::optional<recal::BankSession>();
  if (id.tenant != server::kDefaultTenant && !file.empty()) {
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return Status(Code::kIo, fmt::format("{}: {}", folder.string(), error.message()));
  }
  auto session = open_bank(file, only_read(options, id) && !file.empty(), options.settings, pair);
  if (session.is_ok()) return std::optional(std::move(session).value());
  const Status& why = session.status();
  if (why.code() == Code::kForeign && !is_another_pairs(file, pair)) return Status(Code::kInvalid, why.message());
  return why;
}

server::BankSource bank_source(const ServeOptions& options, const Pair& pair) {
  server::BankSource source;
  source.open = [&options, &pair](const server::BankId& id, const std::string& file) {
    return open_for_serving(options, pair, id, file);
  };
  source.file = [&options, &pair](const server::BankId& id) -> Result<std::string> {
    return pair.draft ? file_of(options, id) : std::string();
  };
  source.only_read = [&options](const server::BankId& id) { return only_read(options, id); };
  source.stored = [&options] { return banks_on_disk(options); };
  return source;
}

server::ModelCard card_of(const ServeOptions& options, const Pair& pair) {
  const engine::ModelInfo info = pair.target->describe();
  server::ModelCard card;
  card.path = options.pair.target;
  card.name = info.name;
  card.arch = info.arch;
  card.created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  card.vocab = info.vocab;
  card.hidden_width = info.hidden_width;
  card.trained_context = pair.target->model()->trained_context();
  card.weight_bytes = info.weight_bytes;
  if (pair.draft) {
    card.draft_path = options.pair.draft;
    card.draft_name = pair.draft_info.name;
  }
  return card;
}

server::api::Defaults defaults_of(const ServeOptions& options, const Pair& pair, Mode mode) {
  server::api::Defaults out;
  const std::vector<std::string> names = split_list(options.alias);
  out.model = names.empty()
                  ? text::printable(std::filesystem::path(options.pair.target).stem().string(), server::api::kNameBytesMax)
                  : names.front();
  if (names.size() > 1) out.aliases.assign(names.begin() + 1, names.end());
  out.sampler = options.sampler;
  out.max_tokens = options.generate;
  out.mode = mode;
  out.has_draft = pair.draft != nullptr;
  out.draft_tokens = options.settings.draft_tokens;
  out.vocab = pair.target->describe().vocab;
  out.cache_prompt = options.cache_prompt;
  out.rules = options.rules;
  out.shape = options.shape;
  if (options.seed >= 0) out.seed = static_cast<std::uint64_t>(options.seed);
  return out;
}

// The template chats are framed with, or null: then llama.cpp recognises one. One that was given must be usable; the model's own need not.
Result<std::shared_ptr<const engine::ChatTemplate>> chat_template(const ServeOptions& options, const Pair& pair,
                                                                  server::Log& log) {
  const bool given = !options.chat_template.empty();
  if (!options.jinja || (!given && !pair.text->has_chat_template())) return std::shared_ptr<const engine::ChatTemplate>();
  auto made = engine::ChatTemplate::make(pair.target->model(), options.chat_template);
  if (made.is_ok() || given) return made;
  log.warning("the model's chat template is not executed, but one that looks like it is used",
              {{"why", made.status().message()}});
  return std::shared_ptr<const engine::ChatTemplate>();
}

// Whatever way serving is left: nothing decodes and nobody is answered any more when the service goes.
struct Stopping {
  server::Scheduler& scheduler;
  std::thread& decoding;
  server::HttpServer& http;
  ~Stopping() {
    scheduler.stop();
    decoding.join();
    http.stop();
  }
};

// The keys that a server began with, and what it shares by them.
struct Keys {
  KeyFile& file;
  std::set<std::string> sharing;
};

// Takes other keys where the file has any, as a whole; keeps those there are where they cannot be read.
void look_at_keys(KeyFile& file, bool asked, server::HttpServer& http, server::Banks& banks, server::Log& log) {
  if (!file.has_file() || (!asked && !file.changed())) return;
  auto keys = file.read();
  if (!keys.is_ok()) return log.warning("the API keys stay as they are", {{"why", keys.status().message()}});
  log.info("API keys were read again", {{"keys", keys->size()}});
  banks.share(keys->sharing());
  http.use(std::move(keys).value());
}

// Serves until a signal comes, or decoding breaks down. The order of the end: no new work, what is there finishes, banks are saved, connections close.
Result<int> serve_until_signal(const ServeOptions& options, const Pair& pair, Mode mode, Keys keys, server::HttpServer& http,
                               server::ServerMetrics& metrics, server::Log& log) {
  DRIFT_ASSIGN(std::shared_ptr<const engine::ChatTemplate> chat, chat_template(options, pair, log));
  const ServeText text(*pair.text, std::move(chat), pair.target->describe().vocab, options.special);
  server::BanksConfig config = options.banks;
  config.suffix_tokens = options.settings.suffix_tokens;
  server::Banks banks(config, bank_source(options, pair), [&log](const server::BankId& id, const Status& why) {
    log.warning("a bank is not saved", {{"bank", id.text()}, {"why", why.message()}});
  });
  const recal::LevelSet& levels = options.settings.recal.levels;
  if (!keys.sharing.empty() && (!levels.has(recal::Level::kHidden) || levels.has(recal::Level::kGlobal)))
    log.warning("banks are not shared: that needs the level 'hidden' and goes not with 'global' (--levels)", {});
  banks.share(std::move(keys.sharing));
  // A bank that cannot be used is said at the start.
  if (decode::recalibrates(mode) || decode::remembers(mode)) DRIFT_TRY(banks.get(server::BankId{}, mode).status());
  server::Scheduler scheduler(*pair.target, pair.draft.get(), text, &banks, options.scheduler, &metrics);
  server::Service service{scheduler,
                          text,
                          banks,
                          defaults_of(options, pair, mode),
                          card_of(options, pair),
                          pair.context,
                          options.slots,
                          options.settings.judge,
                          options.settings.copy};
  std::promise<Status> ended;
  std::future<Status> ended_as = ended.get_future();
  std::thread decoding([&] { ended.set_value(scheduler.run()); });
  const Stopping stopping{scheduler, decoding, http};
  http.open(service);
  log.info("ready", {{"model", service.defaults.model},
                     {"draft", pair.draft ? server::api::Json(service.card.draft_name) : server::api::Json(nullptr)},
                     {"mode", mode_name(mode)},
                     {"slots", options.slots},
                     {"context", pair.context},
                     {"load_s", pair.load_s}});
  const auto ends_within = [&ended_as](milliseconds most) { return ended_as.wait_for(most) == std::future_status::ready; };
  constexpr auto kLookAtKeys = std::chrono::seconds(1);
  auto looked = std::chrono::steady_clock::now();
  while (!interrupted() && !ends_within(milliseconds(50))) {
    const bool asked = take_hangup();
    if (!asked && std::chrono::steady_clock::now() - looked < kLookAtKeys) continue;
    looked = std::chrono::steady_clock::now();
    look_at_keys(keys.file, asked, http, banks, log);
  }
  if (interrupted()) {
    scheduler.drain();  // before it is told: who reads the log finds /ready refusing
    log.info("draining", {{"timeout_s", options.shutdown_timeout_s}});
    if (!ends_within(std::chrono::seconds(options.shutdown_timeout_s))) {
      log.warning("requests were cut off: --shutdown-timeout is over");
      scheduler.stop();
    }
  }
  DRIFT_TRY(ended_as.get());  // a bank whose decoding broke down is not saved: the file holds what was saved before
  const Status saved = banks.save_all();
  http.stop();
  log.info("ended");
  DRIFT_TRY(saved);
  return kExitOk;
}

// What files say of templates and of the form of answers, and whether it can be used.
Status read_forms(ServeOptions& options) {
  constexpr std::size_t kBytesMax = std::size_t{1} << 20;
  const auto from_file = [](const std::string& file, std::string& out) -> Status {
    if (file.empty()) return Status::ok();
    DRIFT_ASSIGN(out, read_text_file(file, kBytesMax));
    return Status::ok();
  };
  DRIFT_TRY(from_file(options.chat_template_file, options.chat_template));
  DRIFT_TRY(from_file(options.grammar_file, options.grammar));
  DRIFT_TRY(from_file(options.schema_file, options.schema));
  if (!options.chat_template.empty() && !options.jinja)
    return {Code::kInvalid,
            "--chat-template and --chat-template-file need --jinja: templates are executed, or recognised by llama.cpp"};
  if (!options.grammar.empty() && !options.schema.empty()) return {Code::kInvalid, "give --grammar or --json-schema, not both"};
  if (!options.grammar.empty()) {
    const auto parsed = text::Grammar::parse(options.grammar, [](std::string_view) { return std::optional(Token{0}); });
    if (!parsed.is_ok()) return {Code::kInvalid, "--grammar: " + parsed.status().message()};
    options.shape = {options.grammar, "", "grammar"};
  }
  if (options.schema.empty()) return Status::ok();
  // Read as a request would be.
  const std::string body = "{\"json_schema\": " + options.schema + "}";
  DRIFT_ASSIGN(const server::api::Input input, server::api::parse_body(body));
  std::optional<server::api::Problem> problem;
  server::api::read_shape(server::api::Fields(input, problem), body, options.shape);
  if (problem) return {Code::kInvalid, "--" + problem->message};
  const auto gbnf = engine::schema_grammar(options.shape.schema);
  if (!gbnf.is_ok()) return {Code::kInvalid, "--json-schema: " + gbnf.status().message()};
  const auto parsed = text::Grammar::parse(gbnf.value());
  return parsed.is_ok() ? Status::ok() : Status(Code::kInvalid, "--json-schema: " + parsed.status().message());
}

Result<int> serve(ServeOptions options) {
  Mode mode = Mode::kOff;
  DRIFT_TRY(check(options, mode));
  DRIFT_TRY(read_forms(options));
  std::vector<std::string> given;
  for (const std::string& list : options.api_keys) {
    for (std::string& key : split_list(list)) given.push_back(std::move(key));
  }
  KeyFile key_file(std::move(given), options.api_key_file);
  DRIFT_ASSIGN(server::ApiKeys keys, key_file.read());
  if (key_file.has_file()) hangup_is_a_wish();
  if (keys.empty() && !is_loopback(options.http.host)) {
    return Status(Code::kInvalid,
                  fmt::format("--host {} can be reached by others, and there is no API key: give --api-key-file FILE, or "
                              "listen on 127.0.0.1",
                              options.http.host));
  }
  DRIFT_ASSIGN(server::Log::Sink sink, log_sink(options));
  server::Log log(options.log_format == "json" ? server::Log::Format::kJson : server::Log::Format::kText, std::move(sink));
  const std::vector<std::string> compat = split_list(options.metrics_compat);
  const auto has = [&](const char* name) { return std::find(compat.begin(), compat.end(), name) != compat.end(); };
  const std::string model =
      options.alias.empty() ? std::filesystem::path(options.pair.target).stem().string() : split_list(options.alias)[0];
  server::ServerMetrics metrics({text::printable(model, server::api::kNameBytesMax), has("vllm"), has("llamacpp"),
                                 [&log](const std::string& tenant, double now, double before) {
                                   log.warning("drafts are accepted less than before: the traffic may have shifted",
                                               {{"tenant", tenant}, {"acceptance_now", now}, {"acceptance_before", before}});
                                 }});
  options.http.cors_origins = split_list(options.cors_origins);
  options.http.threads_max =
      std::max<std::size_t>(options.http.threads_max, static_cast<std::size_t>(options.slots) + options.scheduler.queue_max + 16);
  Keys of_file{key_file, keys.sharing()};
  server::HttpServer http(options.http, std::move(keys), metrics, log);
  DRIFT_TRY(http.start());  // before the models: an address in use is said at once
  log.info("listening", {{"url", fmt::format("http://{}:{}", options.http.host, http.port())}, {"version", program_version()}});
  DRIFT_ASSIGN(const Pair pair, load_pair(options.pair));
  return serve_until_signal(options, pair, mode, std::move(of_file), http, metrics, log);
}

void add_server_options(CLI::App& command, ServeOptions& o) {
  const auto whole = [&command](const std::string& flags, std::int64_t low, std::int64_t high, const std::string& help,
                                const char* group, std::function<void(std::int64_t)> use) {
    add_int(command, flags, low, high, help, std::move(use))->group(group);
  };
  const char* kServing = "Serving";
  add_text(command, "--config", "FILE", "a TOML file with settings: the flags' names without dashes", o.config)->group(kServing);
  add_text(command, "--host", "ADDRESS", "where to listen; other addresses than loopback need API keys [127.0.0.1]", o.http.host)
      ->group(kServing);
  whole("--port", 0, 65'535, "port; 0: any free one [8080]", kServing,
        [&o](std::int64_t v) { o.http.port = static_cast<int>(v); });
  add_text(command, "-a,--alias", "NAMES", "what the model is called, with other names after commas [the file's name]", o.alias)
      ->group(kServing);
  command
      .add_flag("--strict-model", o.http.strict_model, "404 for requests that name another model, instead of ignoring the name")
      ->group(kServing);
  command
      .add_option("--api-key", o.api_keys,
                  "an API key, or several with commas; may be repeated (others can see it: prefer a file)")
      ->type_name("KEY")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(kServing);
  add_text(command, "--api-key-file", "FILE",
           "API keys, one a line: KEY [TENANT [operator] [share]]; # begins a comment; read again when it changes",
           o.api_key_file)
      ->group(kServing);
  add_text(command, "--cors-origins", "LIST", "origins whose pages may use the server, with commas; *: all [none]",
           o.cors_origins)
      ->group(kServing);
  whole("--parallel", -1, 64, "(-np) slots: answers decoded at once; -1: 4 [-1]", kServing, [&o](std::int64_t v) {
    if (v == 0) throw CLI::ValidationError("--parallel is '0'; it must be 1 to 64, or -1 for 4");
    o.slots = static_cast<int>(v);
  });
  whole("-b,--batch-size", 1, 1 << 16, "most tokens in one decode [2048]", kServing,
        [&o](std::int64_t v) { o.pair.batch = static_cast<int>(v); });
  whole("--ubatch-size", 1, 1 << 16, "(-ub) most tokens computed at once, and of a prompt between two looks around [512]",
        kServing, [&o](std::int64_t v) {
          o.pair.ubatch = static_cast<int>(v);
          o.scheduler.chunk_alone = static_cast<std::size_t>(v);
        });
  whole("--prefill-chunk", 1, 1 << 16, "tokens of a prompt between two steps of the answers in work [128]", kServing,
        [&o](std::int64_t v) { o.scheduler.chunk_shared = static_cast<std::size_t>(v); });
  whole("--queue-max", 1, 100'000, "answers that may wait for a slot [256]", kServing,
        [&o](std::int64_t v) { o.scheduler.queue_max = static_cast<std::size_t>(v); });
  whole("--queue-per-tenant", 1, 100'000, "... of one tenant; beyond: 429 [256]", kServing,
        [&o](std::int64_t v) { o.scheduler.queue_per_tenant_max = static_cast<std::size_t>(v); });
  whole("--body-max", 1'024, 1 << 30, "bytes of a request's body [8388608]", kServing,
        [&o](std::int64_t v) { o.http.body_bytes_max = static_cast<std::size_t>(v); });
  whole("--timeout", 1, 86'400,
        "seconds a client may take for a body, or take nothing of its answer; less than 10: also for headers [60, 30]", kServing,
        [&o](std::int64_t v) {
          o.http.body_timeout = o.http.write_timeout = std::chrono::seconds(v);
          o.http.head_timeout = std::min(o.http.head_timeout, std::chrono::seconds(v));
        });
  whole("--sse-ping-interval", -1, 86'400, "seconds between signs of life of a silent stream; -1: none [15]", kServing,
        [&o](std::int64_t v) {
          o.http.ping_every =
              v < 0 ? std::chrono::hours(24 * 365) : std::chrono::duration_cast<milliseconds>(std::chrono::seconds(v));
        });
  whole("--threads-http", -1, 10'000, "connections served at once; at least one per slot and place in the queue [-1: those]",
        kServing, [&o](std::int64_t v) { o.http.threads_max = v < 1 ? 0 : static_cast<std::size_t>(v); });
  whole("--shutdown-timeout", 0, 86'400, "seconds that requests may take to finish after SIGTERM [30]", kServing,
        [&o](std::int64_t v) { o.shutdown_timeout_s = v; });
  command.add_flag("--cache-prompt,!--no-cache-prompt", o.cache_prompt, "go on in a slot whose text begins like the prompt [on]")
      ->group(kServing);
  command.add_flag("--slots,!--no-slots", o.http.show_slots, "answer /slots [on]")->group(kServing);
  command.add_flag("--special", o.special, "show control tokens in answers")->group(kServing);
  const char* kForms = "Chat templates, and the form of answers";
  command
      .add_flag("--jinja,!--no-jinja", o.jinja,
                "execute the model's chat template, instead of one llama.cpp knows that looks alike [on]")
      ->group(kForms);
  add_text(command, "--chat-template", "JINJA", "another chat template than the model's own, or chatml", o.chat_template)
      ->group(kForms);
  add_text(command, "--chat-template-file", "FILE", "... from a file", o.chat_template_file)->group(kForms);
  add_text(command, "--grammar", "GBNF", "a grammar for answers whose request has none", o.grammar)->group(kForms);
  add_text(command, "--grammar-file", "FILE", "... from a file", o.grammar_file)->group(kForms);
  add_text(command, "-j,--json-schema", "SCHEMA", "a JSON schema for answers whose request has none", o.schema)->group(kForms);
  add_text(command, "--json-schema-file", "FILE", "(-jf) ... from a file", o.schema_file)->group(kForms);
  add_text(command, "--metrics-compat", "LIST", "names of other servers in /metrics as well: vllm, llamacpp", o.metrics_compat)
      ->group(kServing);
  add_text(command, "--log-format", "FORMAT", "text or json [text]", o.log_format)->group(kServing);
  add_text(command, "--log-file", "FILE", "append the log to a file instead of stderr", o.log_file)->group(kServing);
}

void add_answer_options(CLI::App& command, ServeOptions& o) {
  add_int(command, "-n,--predict", -1, 1 << 20,
          "tokens of an answer unless the request says; -1: until the model ends or the context is full [-1]",
          [&o](std::int64_t v) {
            if (v == 0) throw CLI::ValidationError("-n is '0'; it must be 1 to 1048576, or -1 for no limit");
            o.generate = v;
          });
  add_text(command, "--mode", "MODE", mode_names() + ", unless the request says [drift with -md, else off]", o.mode);
  add_text(command, "--spec-type", "TYPE", "llama-server's name: none (--mode off) or draft-simple", o.spec_type);
  add_text(command, "--bank", "FILE", "the file of the bank 'default': loaded if it exists, saved while serving and at the end",
           o.bank);
  command.add_flag("--bank-ro", o.bank_read_only, "only read --bank FILE");
  add_text(command, "--bank-dir", "FOLDER", "where requests' banks of other names live: FOLDER/NAME.bank", o.bank_dir);
  add_int(command, "--bank-save-interval", 0, 86'400, "seconds between saves of a bank that has learned; 0: only at the end [60]",
          [&o](std::int64_t v) { o.banks.save_every = std::chrono::seconds(v); });
  add_int(command, "--banks-per-tenant", 1, 10'000, "banks of one tenant that may be open [16]",
          [&o](std::int64_t v) { o.banks.most_per_tenant = static_cast<std::size_t>(v); });
  add_int(command, "--banks-max", 1, 10'000, "banks that may be open; the one not used longest is written out for another [64]",
          [&o](std::int64_t v) { o.banks.most = static_cast<std::size_t>(v); });
  add_int(command, "--shared-banks", 0, 64,
          "banks of tenants who share (--api-key-file) that are looked up besides one's own, at most; 0: none [4]",
          [&o](std::int64_t v) { o.banks.most_lent = static_cast<std::size_t>(v); });
  add_int(command, "--bank-files-per-tenant", 0, 1'000'000,
          "bank files of one tenant; beyond, its new banks live in memory only [256]",
          [&o](std::int64_t v) { o.banks.most_files_per_tenant = static_cast<std::size_t>(v); });
  add_int(command, "--bank-files-max", 0, 1'000'000, "bank files of all tenants; beyond, new banks live in memory only [4096]",
          [&o](std::int64_t v) { o.banks.most_files = static_cast<std::size_t>(v); });
}

// What requests may change about logits, as defaults. Names and meaning as llama-server's.
void add_rule_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Sampling";
  add_int(command, "-s,--seed", -1, std::numeric_limits<std::int64_t>::max(),
          "seed of every request that has none; -1: a random one each [-1]", [&o](std::int64_t v) { o.seed = v; })
      ->group(group);
  add_real(command, "--repeat-penalty", 0, 100, true, "repetition penalty, above 0; 1: none", o.rules.repetition);
  add_int(command, "--repeat-last-n", -1, 1 << 20, "tokens it looks back; -1: all [64]", [&o](std::int64_t v) {
    o.rules.repeat_last_n = v;
  })->group(group);
  add_real(command, "--presence-penalty", -100, 100, false, "presence penalty", o.rules.presence);
  add_real(command, "--frequency-penalty", -100, 100, false, "frequency penalty", o.rules.frequency);
  command.add_flag("--ignore-eos", o.rules.ignore_end, "answers do not end before their length, unless the request says")
      ->group(group);
}

}  // namespace

bool is_loopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return host == "localhost";
}

void add_serve_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  options->http.threads_max = 0;
  options->rules.repeat_last_n = 64;
  CLI::App* command = app.add_subcommand("serve", "Serve the OpenAI API over HTTP");
  command->footer(kExamples);
  add_pair_options(*command, options->pair);
  add_server_options(*command, *options);
  add_answer_options(*command, *options);
  add_sampler_options(*command, options->sampler);
  add_rule_options(*command, *options);
  add_setting_options(*command, options->settings);
  command->callback([options, &exit_code] {
    const Result<int> code = serve(*options);
    exit_code = code.is_ok() ? code.value() : fail(code.status());
  });
}

}  // namespace drift::cli
