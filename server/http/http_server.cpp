#include "server/http/http_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "server/http/openapi.hpp"
#include "server/http/page.hpp"
#include "server/http/routes.hpp"
#include "server/http/timed_server.hpp"

namespace drift::server {
namespace {

using Clock = std::chrono::steady_clock;
using api::Problem;

constexpr const char* kJson = "application/json; charset=utf-8";
constexpr std::size_t kRequestIdMax = 128;
// What is too large is read on and thrown away, up to so many times its limit: a client that is still sending would not see the answer.
constexpr std::size_t kReadAndThrown = 4;

std::string new_request_id() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("req-{:016x}", random());
}

// The client's own id where it can stand in a header and a log line.
std::string request_id_of(const HttpRequest& request) {
  const std::string given = request.get_header_value("X-Request-Id");
  const bool plain = std::all_of(given.begin(), given.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  return given.empty() || given.size() > kRequestIdMax || !plain ? new_request_id() : given;
}

std::string key_of(const HttpRequest& request) {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string authorization = request.get_header_value("Authorization");
  if (authorization.rfind(kBearer, 0) == 0) return authorization.substr(kBearer.size());
  return request.get_header_value("X-Api-Key");
}

Problem unavailable(const std::string& message) {
  Problem problem;
  problem.http = 503;
  problem.type = "unavailable_error";
  problem.message = message;
  problem.retry_after_s = 1;
  return problem;
}

// What the transport itself refused, in the API's words.
Problem problem_of_http(int status, const HttpRequest& request, const HttpConfig& config) {
  Problem problem;
  problem.http = status;
  switch (status) {
    case 404: problem = api::not_found(fmt::format("there is no {} {}", request.method, request.path.substr(0, 200))); break;
    case 408: problem.message = fmt::format("the body did not arrive within {} s", config.body_timeout.count()); break;
    case 413: problem.message = fmt::format("the body is larger than {} bytes", config.body_bytes_max); break;
    case 414: problem.message = "the address is too long"; break;
    default:
      problem.message = fmt::format("the request cannot be read ({})", httplib::status_message(status));
      if (status >= 500) problem.type = "server_error";
  }
  return problem;
}

}  // namespace

void send(HttpResponse& response, const api::Json& json, int status) {
  response.status = status;
  response.set_content(api::dump(json), kJson);
}

void send(HttpResponse& response, const Problem& problem) {
  if (problem.retry_after_s > 0) response.set_header("Retry-After", std::to_string(problem.retry_after_s));
  send(response, api::body_of(problem), problem.http);
}

struct HttpServer::Impl {
  HttpConfig config;
  std::mutex keys_mutex;
  std::shared_ptr<const ApiKeys> keys;  // replaced as a whole
  ServerMetrics& metrics;
  Log& log;
  TimedServer http;
  std::thread listener;
  int port = 0;
  std::atomic<Service*> service{nullptr};

  Impl(HttpConfig c, ApiKeys k, ServerMetrics& m, Log& l)
      : config(std::move(c)), keys(std::make_shared<const ApiKeys>(std::move(k))), metrics(m), log(l) {
    set_up();
    add_routes();
  }

  using Handler = std::function<void(const HttpRequest&, HttpResponse&, Exchange)>;
  // Whether a request needs the models, whether it may come without a key, whether any key will do, and whether it comes every second.
  enum Needs : unsigned { kNothing = 0, kKey = 1, kModels = 2, kOperator = 4, kPolled = 8 };

  void set_up();
  void add_routes();
  void get(const std::string& pattern, const std::string& name, unsigned needs, Handler handler);
  enum class Method { kPost, kPut, kDelete };
  void with_body(Method method, const std::string& pattern, const std::string& name, unsigned needs, std::size_t bytes_max,
                 Handler handler);
  void post(const std::string& pattern, const std::string& name, Handler handler) {
    with_body(Method::kPost, pattern, name, kKey | kModels, config.body_bytes_max, std::move(handler));
  }
  void serve(const std::string& name, unsigned needs, const Handler& handler, const HttpRequest& request, HttpResponse& response);
  bool allow_origin(const HttpRequest& request, HttpResponse& response) const;
  bool read_body(const HttpRequest& request, HttpResponse& response, const httplib::ContentReader& reader, std::size_t bytes_max,
                 std::string& out) const;
  std::optional<Identity> identify(const HttpRequest& request) {
    std::shared_ptr<const ApiKeys> now;
    {
      const std::lock_guard lock(keys_mutex);
      now = keys;
    }
    return now->find(key_of(request));
  }
  bool is_ready() const {
    const Service* s = service.load();
    return s != nullptr && !s->scheduler.state().draining;
  }
};

void HttpServer::Impl::set_up() {
  http.new_task_queue = [this] { return new ConnectionThreads(config.threads_max, config.connections_waiting_max); };
  http.set_payload_max_length(kReadAndThrown * std::max(config.body_bytes_max, config.bank_bytes_max));
  http.set_read_timeout(config.read_timeout.count());
  http.set_write_timeout(config.write_timeout.count());
  http.set_keep_alive_max_count(1'000'000);
  ReadTimes times;
  times.head = config.head_timeout;
  times.body = config.body_timeout + std::chrono::seconds(1);           // read_body's own answer comes first
  times.idle = std::min(config.read_timeout, std::chrono::seconds(5));  // a silent connection holds a thread
  times.crowd = config.threads_max;
  http.set_times(times);
  http.set_tcp_nodelay(true);
  // httplib's own choice lets two servers share a port, and each gets every second client.
  http.set_socket_options([](socket_t fd) { httplib::set_socket_opt(fd, SOL_SOCKET, SO_REUSEADDR, 1); });
  http.set_default_headers({{"Server", "drift"}});
  http.set_error_handler([this](const HttpRequest& request, HttpResponse& response) {
    if (!response.body.empty()) return httplib::Server::HandlerResponse::Unhandled;  // a route has said why
    send(response, problem_of_http(response.status, request, config));
    return httplib::Server::HandlerResponse::Handled;
  });
  http.set_exception_handler([this](const HttpRequest& request, HttpResponse& response, std::exception_ptr what) {
    std::string message = "unknown failure";
    try {
      std::rethrow_exception(what);
    } catch (const std::bad_alloc&) {
      message = "out of memory";
    } catch (const std::exception& error) {
      message = error.what();
    } catch (...) {
    }
    log.write(Log::Level::kError, "request failed", {{"path", request.path}, {"why", message}});
    Problem problem;
    problem.http = 500;
    problem.type = "server_error";
    problem.message = "the server failed: " + message;
    send(response, problem);
  });
  http.Options(".*", [this](const HttpRequest& request, HttpResponse& response) {
    response.status = 204;
    if (!allow_origin(request, response)) return;
    response.set_header("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE, OPTIONS");
    response.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, X-Request-Id");
    response.set_header("Access-Control-Max-Age", "600");
  });
}

bool HttpServer::Impl::allow_origin(const HttpRequest& request, HttpResponse& response) const {
  const std::string origin = request.get_header_value("Origin");
  if (origin.empty()) return false;
  const auto& list = config.cors_origins;
  const bool any = std::find(list.begin(), list.end(), "*") != list.end();
  if (!any && std::find(list.begin(), list.end(), origin) == list.end()) return false;
  response.set_header("Access-Control-Allow-Origin", any ? "*" : origin);
  if (!any) response.set_header("Vary", "Origin");
  return true;
}

// A body within its limit and its time: one that trickles in holds a thread no longer than that.
bool HttpServer::Impl::read_body(const HttpRequest& request, HttpResponse& response, const httplib::ContentReader& reader,
                                 std::size_t bytes_max, std::string& out) const {
  const Clock::time_point deadline = Clock::now() + config.body_timeout;
  bool late = false, large = false;
  std::size_t seen = 0;
  if (request.is_multipart_form_data()) {
    send(response, api::bad_field("", "the body is a form; it must be JSON"));
    response.status = 415;
    return false;
  }
  const bool read = reader([&](const char* data, std::size_t size) {
    seen += size;
    large = seen > bytes_max;
    late = Clock::now() > deadline;
    if (!large) out.append(data, size);
    return !late && seen <= kReadAndThrown * bytes_max;
  });
  if (read && !large) return true;
  late = late || Clock::now() > deadline;
  const int status = late ? 408 : large || response.status == 413 ? 413 : 400;
  Problem problem = problem_of_http(status, request, config);
  if (status == 413) problem.message = fmt::format("the body is larger than {} bytes", bytes_max);
  send(response, problem);
  response.set_header("Connection", "close");
  return false;
}

void HttpServer::Impl::serve(const std::string& name, unsigned needs, const Handler& handler, const HttpRequest& request,
                             HttpResponse& response) {
  const Clock::time_point from = Clock::now();
  const std::string id = request_id_of(request);
  response.set_header("X-Request-Id", id);
  static_cast<void>(allow_origin(request, response));
  Service* const loaded = service.load();
  const std::optional<Identity> identity = (needs & kKey) != 0 ? identify(request) : Identity{};
  if (!identity) {
    response.set_header("WWW-Authenticate", "Bearer");
    send(response, api::unauthorized());
  } else if ((needs & kOperator) != 0 && !identity->is_operator) {
    send(response, api::forbidden());
  } else if ((needs & kModels) != 0 && loaded == nullptr) {
    send(response, unavailable("the models are being loaded; try again in a moment"));
  } else {
    // Routes that need no models do not touch the service.
    handler(request, response, Exchange{config, loaded, metrics, log, id, *identity});
  }
  const auto took = Clock::now() - from;
  const int status = response.status == -1 ? 200 : response.status;  // httplib's "nothing was wrong"
  metrics.request(name, status, took);
  if (((needs & kModels) == 0 || (needs & kPolled) != 0) && status < 400) return;  // they would fill the log
  log.info("request",
           {{"id", id}, {"route", name}, {"status", status}, {"ms", std::chrono::duration<double, std::milli>(took).count()}});
}

void HttpServer::Impl::get(const std::string& pattern, const std::string& name, unsigned needs, Handler handler) {
  http.Get(pattern, [this, name, needs, handler = std::move(handler)](const HttpRequest& request, HttpResponse& response) {
    serve(name, needs, handler, request, response);
  });
}

void HttpServer::Impl::with_body(Method method, const std::string& pattern, const std::string& name, unsigned needs,
                                 std::size_t bytes_max, Handler handler) {
  const httplib::Server::HandlerWithContentReader route = [this, name, needs, bytes_max, handler = std::move(handler)](
                                                              const HttpRequest& request, HttpResponse& response,
                                                              const httplib::ContentReader& reader) {
    // The body is read after the key was looked at, so that nobody without one can make the server hold 8 MB.
    const Handler reading = [&](const HttpRequest& req, HttpResponse& res, Exchange exchange) {
      HttpRequest whole = req;
      whole.body.clear();
      if (read_body(req, res, reader, bytes_max, whole.body)) handler(whole, res, std::move(exchange));
    };
    serve(name, needs, reading, request, response);
  };
  switch (method) {
    case Method::kPost: http.Post(pattern, route); break;
    case Method::kPut: http.Put(pattern, route); break;
    case Method::kDelete: http.Delete(pattern, route); break;
  }
}

void HttpServer::Impl::add_routes() {
  const auto health = [this](const HttpRequest&, HttpResponse& response, const Exchange&) {
    if (service.load() != nullptr) return send(response, {{"status", "ok"}});
    send(response, unavailable("the models are being loaded"));
  };
  const auto ready = [this](const HttpRequest&, HttpResponse& response, const Exchange&) {
    if (is_ready()) return send(response, {{"status", "ready"}});
    send(response, unavailable(service.load() == nullptr ? "the models are being loaded" : "the server is shutting down"));
  };
  get("/health", "/health", kNothing, health);
  get("/v1/health", "/health", kNothing, health);
  get("/ready", "/ready", kNothing, ready);
  get("/version", "/version", kKey, [](const HttpRequest&, HttpResponse& response, const Exchange&) { show_version(response); });
  get("/openapi.json", "/openapi.json", kKey,
      [](const HttpRequest&, HttpResponse& response, const Exchange&) { response.set_content(openapi_json(), kJson); });
  get("/metrics", "/metrics", kKey | kOperator, [this](const HttpRequest&, HttpResponse& response, const Exchange&) {
    const Service* s = service.load();
    const std::vector<BankState> banks = s != nullptr ? s->banks.states() : std::vector<BankState>{};
    response.set_content(metrics.text(s != nullptr ? s->scheduler.state() : SchedulerState{}, banks),
                         "text/plain; version=0.0.4; charset=utf-8");
  });
  for (const char* path : {"/v1/models", "/models"}) {
    get(path, "/v1/models", kKey | kModels,
        [](const HttpRequest&, HttpResponse& response, const Exchange& exchange) { list_models(response, exchange); });
  }
  get("/v1/models/(.+)", "/v1/models/{id}", kKey | kModels,
      [](const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
        show_model(request.matches[1], response, exchange);
      });
  get("/props", "/props", kKey | kModels,
      [](const HttpRequest&, HttpResponse& response, const Exchange& exchange) { show_props(response, exchange); });
  get("/slots", "/slots", kKey | kModels,
      [](const HttpRequest&, HttpResponse& response, const Exchange& exchange) { show_slots(response, exchange); });
  get("/v1/drift/state", "/v1/drift/state", kKey | kModels | kPolled, show_state);
  const unsigned to_change = kKey | kModels | kOperator;
  get("/v1/drift/banks", "/v1/drift/banks", kKey | kModels, list_banks);
  const std::string bank = "/v1/drift/banks/([^/]+)", shown = "/v1/drift/banks/{name}";
  with_body(Method::kPost, bank + "/reset", shown + "/reset", to_change, config.body_bytes_max, reset_bank);
  with_body(Method::kPost, bank + "/freeze", shown + "/freeze", to_change, config.body_bytes_max, freeze_bank);
  get(bank + "/export", shown + "/export", to_change, export_bank);
  with_body(Method::kPut, bank, shown, to_change, config.bank_bytes_max, import_bank);
  with_body(Method::kDelete, bank, shown, to_change, config.body_bytes_max, remove_bank);
  with_body(Method::kDelete, "/v1/drift/tenants/([^/]+)", "/v1/drift/tenants/{tenant}", to_change, config.body_bytes_max,
            remove_tenant);
  for (const PageFile& file : page_files()) {  // anybody may see the page; what it shows comes by the route above, with the key
    get(file.path, file.path, kNothing,
        [&file](const HttpRequest&, HttpResponse& response, const Exchange&) { send(response, file); });
  }
  post("/tokenize", "/tokenize", tokenize);
  post("/detokenize", "/detokenize", detokenize);
  post("/apply-template", "/apply-template", apply_template);
  const auto answers = [this](const std::string& path, const std::string& name, api::Route route) {
    post(path, name, [route](const HttpRequest& request, HttpResponse& response, Exchange exchange) {
      generate(route, request, response, std::move(exchange));
    });
  };
  answers("/v1/completions", "/v1/completions", api::Route::kCompletions);
  answers("/v1/chat/completions", "/v1/chat/completions", api::Route::kChat);
  answers("/chat/completions", "/v1/chat/completions", api::Route::kChat);
  answers("/completion", "/completion", api::Route::kLlama);
  answers("/completions", "/completion", api::Route::kLlama);
}

HttpServer::HttpServer(HttpConfig config, ApiKeys keys, ServerMetrics& metrics, Log& log)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(keys), metrics, log)) {}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::start() {
  Impl& m = *impl_;
  const std::string where = fmt::format("{}:{}", m.config.host, m.config.port);
  if (m.config.port == 0) {
    m.port = m.http.bind_to_any_port(m.config.host);
    if (m.port <= 0) return {Code::kIo, fmt::format("cannot listen on {}", where)};
  } else if (m.http.bind_to_port(m.config.host, m.config.port)) {
    m.port = m.config.port;
  } else {
    return {Code::kIo, fmt::format("cannot listen on {}; is it in use, or no address of this machine?", where)};
  }
  m.listener = std::thread([&m] { m.http.listen_after_bind(); });
  m.http.wait_until_ready();
  return Status::ok();
}

int HttpServer::port() const { return impl_->port; }
void HttpServer::open(Service& service) { impl_->service = &service; }

void HttpServer::use(ApiKeys keys) {
  auto others = std::make_shared<const ApiKeys>(std::move(keys));
  const std::lock_guard lock(impl_->keys_mutex);
  impl_->keys.swap(others);
}

void HttpServer::stop() {
  impl_->http.stop();
  if (impl_->listener.joinable()) impl_->listener.join();
}

}  // namespace drift::server
