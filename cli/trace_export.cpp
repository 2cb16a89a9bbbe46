// Tables of a trace as CSV or JSON lines: what docs/trace-format.md calls them, checked as they are read.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "cli/json_fields.hpp"
#include "cli/trace_command.hpp"

namespace drift::cli {
namespace {

using trace::Reader;
using trace::Side;
using Sink = std::function<bool(const std::string&)>;

// A cell of CSV (RFC 4180): texts in quotes where they need them, nothing for null.
std::string cell(const Json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

// Gives records to the sink, line by line.
class Lines {
 public:
  Lines(ExportFormat format, const Sink& sink) : csv_(format == ExportFormat::kCsv), sink_(sink) {}
  bool csv() const { return csv_; }
  // False once the sink wants no more.
  bool put(const Json& record) {
    if (!csv_) return sink_(record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    std::string names, values;
    const char* separator = "";
    for (const auto& [name, value] : record.items()) {
      names += separator + name;
      values += separator + cell(value);
      separator = ",";
    }
    if (!std::exchange(named_, true) && !sink_(names + "\n")) return false;
    return sink_(values + "\n");
  }

 private:
  bool csv_, named_ = false;
  const Sink& sink_;
};

Result<bool> put_prompt(const Reader& reader, std::size_t p, Lines& lines) {
  DRIFT_ASSIGN(const trace::PromptRecord record, reader.prompt(p));
  Json out{{"prompt", p},
           {"id", record.prompt.id},
           {"domain", record.prompt.domain},
           {"kind", record.prompt.kind},
           {"split", record.prompt.split},
           {"sequence", record.prompt.sequence},
           {"prompt_tokens", record.prompt.tokens.size()},
           {"emitted", record.emitted.size()},
           {"steps", record.steps},
           {"ending", record.ending},
           {"prefill_ns", record.prefill_ns}};
  if (!lines.csv()) out["tokens"] = record.prompt.tokens;
  return lines.put(out);
}

Result<bool> put_steps(const Reader& reader, std::size_t p, Lines& lines) {
  DRIFT_ASSIGN(const std::vector<trace::StepEvent> steps, reader.steps(p));
  for (const trace::StepEvent& e : steps) {
    std::size_t accepted = 0;
    for (const trace::ProposedToken& proposed : e.proposed) accepted += proposed.accepted ? 1 : 0;
    const trace::StepTimes& t = e.times;
    if (!lines.put({{"prompt", p},
                    {"step", e.step},
                    {"first", e.first},
                    {"proposed", e.proposed.size()},
                    {"accepted", accepted},
                    {"emitted", e.emitted.size()},
                    {"sequences", e.sequences},
                    {"draft_ns", t.draft_ns},
                    {"verify_ns", t.verify_ns},
                    {"sample_ns", t.sample_ns},
                    {"lookup_ns", t.lookup_ns},
                    {"bias_ns", t.bias_ns},
                    {"residual_ns", t.residual_ns},
                    {"commit_ns", t.commit_ns},
                    {"total_ns", t.total_ns}})) {
      return false;
    }
  }
  return true;
}

Result<bool> put_proposals(const Reader& reader, std::size_t p, Lines& lines) {
  DRIFT_ASSIGN(const std::vector<trace::StepEvent> steps, reader.steps(p));
  for (const trace::StepEvent& e : steps) {
    for (std::size_t i = 0; i < e.proposed.size(); ++i) {
      const trace::ProposedToken& x = e.proposed[i];
      if (!lines.put({{"prompt", p},
                      {"step", e.step},
                      {"place", i},
                      {"token", x.token},
                      {"q", decimal(x.q)},
                      {"accepted", x.accepted ? 1 : 0},
                      {"from_bank", x.from_bank ? 1 : 0},
                      {"gain", decimal(x.gain)},
                      {"similarity", decimal(x.similarity)},
                      {"overlap", decimal(x.overlap)},
                      {"match", x.match}})) {
        return false;
      }
    }
  }
  return true;
}

Result<bool> put_tokens(const Reader& reader, std::size_t p, Lines& lines) {
  DRIFT_ASSIGN(const std::vector<trace::StepEvent> steps, reader.steps(p));
  for (const trace::StepEvent& e : steps) {
    for (std::size_t i = 0; i < e.emitted.size(); ++i) {
      const auto position = static_cast<std::size_t>(e.first) + i;
      if (!lines.put({{"prompt", p},
                      {"position", position},
                      {"step", e.step},
                      {"token", e.emitted[i].token},
                      {"origin", trace::origin_name(e.emitted[i].origin)}})) {
        return false;
      }
    }
  }
  return true;
}

// JSON: a row a line. CSV: a logit a line, best first; rest and hidden state are left out.
bool put_row(std::size_t p, Pos position, const trace::Row& row, bool draft, Lines& lines) {
  if (lines.csv()) {
    for (std::size_t i = 0; i < row.tokens.size(); ++i) {
      if (!lines.put(
              {{"prompt", p}, {"position", position}, {"rank", i}, {"token", row.tokens[i]}, {"logit", decimal(row.logits[i])}}))
        return false;
    }
    return true;
  }
  Json logits = Json::array(), hidden = Json::array();
  for (const float logit : row.logits) logits.push_back(decimal(logit));
  Json out{{"prompt", p},
           {"position", position},
           {"seen", row.seen ? 1 : 0},
           {"rest", std::isfinite(row.rest) ? Json(row.rest) : Json(nullptr)},
           {"tokens", row.tokens},
           {"logits", std::move(logits)}};
  if (draft) {
    std::vector<float> state(row.hidden.size());
    trace::expand_hidden(row, state);
    for (const float x : state) hidden.push_back(decimal(x));
    out["hidden"] = std::move(hidden);
  }
  return lines.put(out);
}

Result<bool> put_rows(const Reader& reader, std::size_t p, Side side, Lines& lines) {
  DRIFT_ASSIGN(const trace::PromptRecord record, reader.prompt(p));
  trace::Row row;
  for (std::size_t i = 0; i < record.emitted.size(); ++i) {
    const auto position = static_cast<Pos>(record.prompt.tokens.size() + i);
    DRIFT_TRY(reader.row(p, side, position, row));
    if (!put_row(p, position, row, side == Side::kDraft, lines)) return false;
  }
  return true;
}

struct Table {
  const char* name;
  Result<bool> (*put)(const Reader&, std::size_t, Lines&);
};

constexpr std::array<Table, 6> kTables{{
    {"prompts", put_prompt},
    {"steps", put_steps},
    {"proposals", put_proposals},
    {"tokens", put_tokens},
    {"target_rows", [](const Reader& r, std::size_t p, Lines& lines) { return put_rows(r, p, Side::kTarget, lines); }},
    {"draft_rows", [](const Reader& r, std::size_t p, Lines& lines) { return put_rows(r, p, Side::kDraft, lines); }},
}};

}  // namespace

std::string trace_tables() {
  std::string names;
  for (const Table& table : kTables) names += (names.empty() ? "" : ", ") + std::string(table.name);
  return names;
}

Result<bool> export_trace(const Reader& reader, const std::string& table, ExportFormat format, const Sink& sink) {
  for (const Table& known : kTables) {
    if (table != known.name) continue;
    if (table == "draft_rows" && !reader.header().has_draft())
      return Status(Code::kInvalid, "this trace was recorded without a draft; it has no draft_rows");
    Lines lines(format, sink);
    for (std::size_t p = 0; p < reader.prompts(); ++p) {
      DRIFT_ASSIGN(const bool on, known.put(reader, p, lines));
      if (!on) return false;
    }
    return true;
  }
  return Status(Code::kInvalid, fmt::format("there is no table '{}'; it must be one of {}", table, trace_tables()));
}

}  // namespace drift::cli
