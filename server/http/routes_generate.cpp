#include <fmt/format.h>

#include <memory>
#include <random>
#include <utility>

#include "server/api/answer.hpp"
#include "server/http/routes.hpp"

namespace drift::server {
namespace {

using Clock = std::chrono::steady_clock;
using api::Problem;
using std::chrono::milliseconds;

constexpr milliseconds kLook{100};  // between two looks at whether the client is still there

std::string random_id(const char* prefix) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, random(), random() & 0xFFFFFFFF);
}

// Everything one request needs until its last byte is sent.
struct Generation {
  Generation(api::GenerateRequest asked, Exchange around) : request(std::move(asked)), exchange(std::move(around)) {}

  api::GenerateRequest request;
  Exchange exchange;
  std::shared_ptr<Job> job;
  api::Head head;
  // Of a stream.
  std::unique_ptr<api::AnswerStream> stream;
  std::string ahead;  // to be sent before anything else
  Clock::time_point last_sent = Clock::now();
  // For the log.
  Clock::time_point from = Clock::now();
  std::uint64_t prompt_tokens = 0, tokens = 0, drafted = 0, accepted = 0;
  std::size_t ended = 0;

  // The next event. Whatever way it takes to the client, it is counted here.
  Job::Got next(Job::Event& event) {
    const Job::Got got = job->next(kLook, event);
    const Ended* end = got == Job::Got::kEvent ? std::get_if<Ended>(&event.what) : nullptr;
    if (end != nullptr) {
      ++ended;
      prompt_tokens += end->prompt_tokens;
      tokens += end->tokens;
      drafted += end->metrics.drafted;
      accepted += end->metrics.accepted;
    }
    return got;
  }

  ~Generation() {
    if (!job) return;
    job->cancel();  // without effect where it has ended
    exchange.log.info(ended == job->choices() ? "answered" : "not answered",
                      {{"id", exchange.request_id},
                       {"answers", ended},
                       {"prompt_tokens", prompt_tokens},
                       {"tokens", tokens},
                       {"drafted", drafted},
                       {"accepted", accepted},
                       {"ms", std::chrono::duration<double, std::milli>(Clock::now() - from).count()}});
  }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
};

Problem problem_of_failure(const Job& job) {
  Problem problem = api::problem_of(job.failure());
  if (problem.http >= 500 && problem.http != 503) problem.code = "generation_failed";
  return problem;
}

Problem problem_of_submit(const Status& refused) {
  Problem problem = api::problem_of(refused);
  const bool own_share = refused.message().rfind("your share", 0) == 0;
  if (own_share) {  // the tenant's own doing: 429, all else 503
    problem.http = 429;
    problem.type = "rate_limit_error";
    problem.code = "rate_limit_exceeded";
  }
  return problem;
}

// The client has gone.
void give_up(Generation& g, HttpResponse& response) {
  g.job->cancel();
  response.status = 499;  // nobody reads it; for the log
}

void answer_whole(Generation& g, const HttpRequest& request, HttpResponse& response) {
  api::AnswerBody body(g.request, g.head, g.job->choices());
  for (Clock::time_point looked = Clock::now();;) {
    if (Clock::now() - looked >= kLook) {  // also while events keep coming: nothing is written that could fail
      if (request.is_connection_closed()) return give_up(g, response);
      looked = Clock::now();
    }
    Job::Event event;
    switch (g.next(event)) {
      case Job::Got::kEvent: {
        const std::size_t choice = event.choice;
        body.add(std::move(event));
        if (body.enough(choice)) g.job->finish(choice);
        break;
      }
      case Job::Got::kDone: return send(response, body.json());
      case Job::Got::kFailed: return send(response, problem_of_failure(*g.job));
      case Job::Got::kNothing: break;
    }
  }
}

std::string stream_event(Generation& g, Job::Event event) {
  const std::size_t choice = event.choice;
  std::string out = g.stream->event(std::move(event));
  if (g.stream->enough(choice)) g.job->finish(choice);
  return out;
}

bool stream_next(Generation& g, httplib::DataSink& sink) {
  const auto write = [&](const std::string& text) {
    g.last_sent = Clock::now();
    if (text.empty() || sink.write(text.data(), text.size())) return true;
    g.job->cancel();
    return false;
  };
  if (!g.ahead.empty()) return write(std::exchange(g.ahead, {}));
  Job::Event event;
  switch (g.next(event)) {
    case Job::Got::kEvent: return write(stream_event(g, std::move(event)));
    case Job::Got::kDone:
      if (!write(g.stream->end())) return false;
      sink.done();
      return true;
    case Job::Got::kFailed:
      static_cast<void>(write(api::sse_error(problem_of_failure(*g.job))));
      sink.done();
      return true;
    case Job::Got::kNothing:
      if (!sink.is_writable()) {
        g.job->cancel();
        return false;
      }
      if (Clock::now() - g.last_sent >= g.exchange.config.ping_every) return write(": keep-alive\n\n");
      return true;
  }
  return false;
}

// Sends the next piece of a stream; false ends the connection. httplib catches nothing here.
bool stream_piece(Generation& g, httplib::DataSink& sink) {
  try {
    return stream_next(g, sink);
  } catch (const std::exception& error) {
    g.job->cancel();
    g.exchange.log.write(Log::Level::kError, "a stream was broken off", {{"id", g.exchange.request_id}, {"why", error.what()}});
    return false;
  }
}

// The 200 is sent when there is a first result, or when that takes too long for whoever waits.
void answer_stream(const std::shared_ptr<Generation>& g, const HttpRequest& request, HttpResponse& response) {
  g->stream = std::make_unique<api::AnswerStream>(g->request, g->head, g->job->choices());
  const Clock::time_point from = Clock::now();
  for (bool first = false; !first && Clock::now() - from < g->exchange.config.status_patience;) {
    Job::Event event;
    switch (g->next(event)) {
      case Job::Got::kEvent:
        g->ahead = g->stream->begin() + stream_event(*g, std::move(event));
        first = true;
        break;
      case Job::Got::kFailed: return send(response, problem_of_failure(*g->job));
      case Job::Got::kDone: first = true; break;
      case Job::Got::kNothing:
        if (request.is_connection_closed()) return give_up(*g, response);
    }
  }
  if (g->ahead.empty()) g->ahead = g->stream->begin() + ": keep-alive\n\n";
  response.status = 200;
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  response.set_chunked_content_provider("text/event-stream",
                                        [g](std::size_t /*offset*/, httplib::DataSink& sink) { return stream_piece(*g, sink); });
}

}  // namespace

void generate(api::Route route, const HttpRequest& request, HttpResponse& response, Exchange exchange) {
  const auto body = api::parse_body(request.body);
  if (!body.is_ok()) return send(response, api::problem_of(body.status()));
  auto read = api::read_generate(route, body.value(), exchange.service->defaults, request.body);
  if (const auto* problem = std::get_if<Problem>(&read)) return send(response, *problem);
  auto g = std::make_shared<Generation>(std::get<api::GenerateRequest>(std::move(read)), std::move(exchange));
  Service& service = *g->exchange.service;
  if (g->exchange.config.strict_model && !g->request.model.empty() && !service.defaults.is_served(g->request.model)) {
    Problem problem =
        api::not_found(fmt::format("there is no model '{}'; this server has '{}'", g->request.model, service.defaults.model));
    problem.param = "model";
    problem.code = "model_not_found";
    return send(response, problem);
  }
  auto prepared = prepare(g->request, service, g->exchange.identity.tenant);
  if (const auto* problem = std::get_if<Problem>(&prepared)) return send(response, *problem);
  g->job = std::make_shared<Job>(std::get<std::vector<GenerationConfig>>(std::move(prepared)));
  g->head.id = random_id(route == api::Route::kChat ? "chatcmpl-" : "cmpl-");
  g->head.created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  g->head.model = service.defaults.model;
  g->head.fingerprint = fingerprint(service, g->exchange.identity.tenant);
  if (const Status submitted = service.scheduler.submit(g->job); !submitted.is_ok()) {
    g->job.reset();
    return send(response, problem_of_submit(submitted));
  }
  if (g->request.stream) {
    answer_stream(g, request, response);
  } else {
    answer_whole(*g, request, response);
  }
}

}  // namespace drift::server
