// Banks over HTTP: listing for their tenant, everything else for operators.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "server/api/fields.hpp"
#include "server/http/routes.hpp"

namespace drift::server {
namespace {

namespace fs = std::filesystem;
using api::Json;
using api::Problem;

Json state_json(const BankState& bank) {
  return {{"tenant", bank.id.tenant},
          {"name", bank.id.name},
          {"open", true},
          {"file", bank.saved_to_file},
          {"memory_only", bank.memory_only.empty() ? Json(nullptr) : Json(bank.memory_only)},
          {"frozen", bank.frozen},
          {"shared", bank.shared},
          {"entries", bank.entries},
          {"capacity", bank.capacity},
          {"bytes", bank.bytes},
          {"commits", bank.commits},
          {"allocated", bank.allocated},
          {"updated", bank.updated},
          {"evicted", bank.evicted},
          {"suffix_tokens", bank.suffix_tokens},
          {"saves", bank.saves},
          {"save_failures", bank.save_failures},
          {"last_save_error", bank.last_save_error.empty() ? Json(nullptr) : Json(bank.last_save_error)}};
}

Problem problem_of_change(const Status& status) {
  Problem problem = api::problem_of(status);
  if (status.code() == Code::kBusy) {  // answers are in work: another time, but no fault of the server's
    problem.http = 409;
    problem.type = "conflict_error";
  }
  return problem;
}

// Which bank a request speaks of: the path's name, the query's tenant or the key's own.
BankId bank_of(const HttpRequest& request, const Exchange& exchange) {
  const std::string tenant = request.get_param_value("tenant");
  return {tenant.empty() ? exchange.identity.tenant : tenant, request.matches[1]};
}

// The bank, opened if it was not. Fails with kNotFound, and as Banks::get.
Result<std::shared_ptr<Bank>> there(const BankId& id, const Exchange& exchange) {
  if (exchange.service->banks.exists(id)) return exchange.service->banks.get(id, decode::Mode::kOff);
  return Status(Code::kNotFound,
                "tenant '" + id.tenant.substr(0, kNameMax) + "' has no bank '" + id.name.substr(0, kNameMax) + "'");
}

// Makes a change between two steps. The bank stays open until it is done.
void change(const BankId& id, const Result<std::shared_ptr<Bank>>& bank, HttpResponse& response, const Exchange& exchange,
            const std::function<Status()>& what) {
  if (!bank.is_ok()) return send(response, problem_of_change(bank.status()));
  const Status done = exchange.service->scheduler.between_steps(what);
  if (!done.is_ok()) return send(response, problem_of_change(done));
  exchange.log.info("a bank was changed", {{"id", exchange.request_id}, {"bank", id.text()}});
  send(response, {{"ok", true}});
}

// A file for a bank on its way through HTTP, in a folder of its own that nobody else can read; gone at the end.
class PassingFile {
 public:
  PassingFile() {
    std::string made = (fs::temp_directory_path() / "drift-XXXXXX").string();
    if (::mkdtemp(made.data()) != nullptr) folder_ = made;
  }
  ~PassingFile() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  PassingFile(const PassingFile&) = delete;
  PassingFile& operator=(const PassingFile&) = delete;
  Result<fs::path> path() const {
    if (folder_.empty()) return Status(Code::kIo, "no folder can be made for temporary files");
    return folder_ / "passing.bank";
  }

 private:
  fs::path folder_;
};

Result<std::string> file_of(const bank::StoredBank& stored) {
  const PassingFile file;
  DRIFT_ASSIGN(const fs::path path, file.path());
  {
    DRIFT_ASSIGN(auto out, bank::BankFile::open(path, bank::Access::kReadWrite));
    DRIFT_TRY(out->save(stored));
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in || bytes.empty()) return Status(Code::kIo, "the bank's copy cannot be read back");
  return bytes;
}

Result<bank::StoredBank> bank_of_file(const std::string& bytes) {
  const PassingFile file;
  DRIFT_ASSIGN(const fs::path path, file.path());
  {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) return Status(Code::kIo, "no room for the bank that was sent");
  }
  DRIFT_ASSIGN(const auto in, bank::BankFile::open(path, bank::Access::kReadOnly));
  return in->load();
}

}  // namespace

void list_banks(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const bool all = exchange.identity.is_operator && !request.has_param("tenant");
  const std::string tenant = request.has_param("tenant") ? request.get_param_value("tenant") : exchange.identity.tenant;
  if (!all && !exchange.identity.is_operator && tenant != exchange.identity.tenant) return send(response, api::forbidden());
  Json list = Json::array();
  std::set<BankId> open;
  for (const BankState& state : exchange.service->banks.states()) {
    open.insert(state.id);
    if (all || state.id.tenant == tenant) list.push_back(state_json(state));
  }
  for (const BankId& id : exchange.service->banks.stored()) {
    if (open.contains(id) || (!all && id.tenant != tenant)) continue;
    list.push_back({{"tenant", id.tenant}, {"name", id.name}, {"open", false}, {"file", true}});
  }
  send(response, {{"object", "list"}, {"data", list}});
}

void reset_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const BankId id = bank_of(request, exchange);
  change(id, there(id, exchange), response, exchange, [&] { return exchange.service->banks.reset(id); });
}

void freeze_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  bool on = true;
  if (!request.body.empty()) {
    const auto body = api::parse_body(request.body);
    if (!body.is_ok()) return send(response, api::problem_of(body.status()));
    std::optional<Problem> problem;
    api::Fields(body.value(), problem).boolean("on", on);
    if (problem) return send(response, *problem);
  }
  const BankId id = bank_of(request, exchange);
  change(id, there(id, exchange), response, exchange, [&] { return exchange.service->banks.freeze(id, on); });
}

void export_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const BankId id = bank_of(request, exchange);
  const auto bank = there(id, exchange);
  if (!bank.is_ok()) return send(response, problem_of_change(bank.status()));
  bank::StoredBank stored;
  const Status copied = exchange.service->scheduler.between_steps([&]() -> Status {
    DRIFT_ASSIGN(stored, exchange.service->banks.copy(id));
    return Status::ok();
  });
  if (!copied.is_ok()) return send(response, problem_of_change(copied));
  auto bytes = file_of(stored);
  if (!bytes.is_ok()) return send(response, api::problem_of(bytes.status()));
  response.set_header("Content-Disposition", fmt::format("attachment; filename=\"{}.bank\"", id.name));
  response.status = 200;
  response.set_content(std::move(bytes).value(), "application/vnd.sqlite3");
}

void import_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  auto stored = bank_of_file(request.body);
  if (!stored.is_ok()) {
    Problem problem = api::problem_of(stored.status());
    if (stored.status().code() != Code::kIo) problem.http = 400;
    return send(response, problem);
  }
  const BankId id = bank_of(request, exchange);
  change(id, exchange.service->banks.get(id), response, exchange, [&]() -> Status {
    DRIFT_ASSIGN(const bank::StoredBank own, exchange.service->banks.copy(id));
    if (!(own.fingerprint == stored.value().fingerprint))
      return {Code::kForeign, "the bank that was sent belongs to another pair of models"};
    return exchange.service->banks.replace(id, stored.value());
  });
}

void remove_bank(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const BankId id = bank_of(request, exchange);
  if (!exchange.service->banks.exists(id)) return send(response, problem_of_change(there(id, exchange).status()));
  const Status done = exchange.service->scheduler.between_steps([&]() -> Status {
    DRIFT_TRY(exchange.service->scheduler.forget(id.tenant));
    return exchange.service->banks.remove(id);
  });
  if (!done.is_ok()) return send(response, problem_of_change(done));
  exchange.metrics.forget(id);
  exchange.log.info("a bank was deleted", {{"id", exchange.request_id}, {"bank", id.text()}});
  send(response, {{"ok", true}});
}

void remove_tenant(const HttpRequest& request, HttpResponse& response, const Exchange& exchange) {
  const std::string tenant = request.matches[1];
  const Status plain = check_plain_name("the name of a tenant", tenant);
  if (!plain.is_ok()) return send(response, api::problem_of(plain));
  std::size_t removed = 0;
  const Status done = exchange.service->scheduler.between_steps([&]() -> Status {
    DRIFT_TRY(exchange.service->scheduler.forget(tenant));
    for (const BankId& id : exchange.service->banks.of_tenant(tenant)) {
      DRIFT_TRY(exchange.service->banks.remove(id));
      ++removed;
    }
    return Status::ok();
  });
  if (!done.is_ok()) return send(response, problem_of_change(done));
  exchange.metrics.forget(tenant);
  exchange.log.info("a tenant was deleted", {{"id", exchange.request_id}, {"tenant", tenant}, {"banks", removed}});
  send(response, {{"ok", true}, {"banks", removed}});
}

Json banks_json(const Exchange& exchange) {
  Json out = Json::array();
  for (const BankState& state : exchange.service->banks.states()) {
    if (exchange.identity.is_operator || state.id.tenant == exchange.identity.tenant) out.push_back(state_json(state));
  }
  return out;
}

}  // namespace drift::server
