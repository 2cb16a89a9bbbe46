// routes.hpp - what the files of this folder share: one request being answered.
#pragma once

#include <cpp-httplib/httplib.h>

#include <chrono>
#include <functional>
#include <string>
#include <variant>

#include "server/api/json.hpp"
#include "server/api/problem.hpp"
#include "server/http/http_server.hpp"

namespace drift::server {

using HttpRequest = httplib::Request;
using HttpResponse = httplib::Response;

// What a route is given besides the request.
struct Exchange {
  const HttpConfig& config;
  Service* service;  // null in routes that need no models
  ServerMetrics& metrics;
  Log& log;
  std::string request_id;
  Identity identity;
};

void send(HttpResponse& response, const api::Json& json, int status = 200);
void send(HttpResponse& response, const api::Problem& problem);

// ---- routes_generate.cpp: /v1/completions, /v1/chat/completions, /completion ----
void generate(api::Route route, const HttpRequest& request, HttpResponse& response, Exchange exchange);

// ---- routes_info.cpp ----
void list_models(HttpResponse& response, const Exchange& exchange);
void show_model(const std::string& id, HttpResponse& response, const Exchange& exchange);
void show_props(HttpResponse& response, const Exchange& exchange);
void show_slots(HttpResponse& response, const Exchange& exchange);
void show_state(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void show_version(HttpResponse& response);
void tokenize(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void detokenize(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void apply_template(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);

// ---- routes_banks.cpp ----
void list_banks(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void reset_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void freeze_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void export_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void import_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void remove_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
void remove_tenant(const HttpRequest& request, HttpResponse& response, const Exchange& exchange);
api::Json banks_json(const Exchange& exchange);  // of everything the key may see

// ---- routes_history.cpp ----
// By time; `range` is "recent" or "whole".
api::Json history_json(const History& history, History::Range range);
// A build, and how much the tenant's banks have learned: answers with one fingerprint came of one state.
std::string fingerprint(const Service& service, const std::string& tenant);

}  // namespace drift::server
