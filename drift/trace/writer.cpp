#include <algorithm>
#include <bit>
#include <optional>
#include <system_error>

#include "drift/base/check.hpp"
#include "drift/trace/file_impl.hpp"

static_assert(std::endian::native == std::endian::little, "blobs of a trace are little-endian");

namespace drift::trace {
namespace {

constexpr const char* kInsertStep = "INSERT INTO steps VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
constexpr const char* kInsertProposal = "INSERT INTO proposals VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

std::int64_t whole(std::uint64_t value) { return static_cast<std::int64_t>(value); }

// Prepared once; gone before the database is closed.
struct Inserts {
  explicit Inserts(sqlite3* db)
      : prompt(db, "INSERT INTO prompts VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
        step(db, kInsertStep),
        proposal(db, kInsertProposal),
        token(db, "INSERT INTO tokens VALUES(?, ?, ?, ?, ?)"),
        target_row(db, "INSERT INTO target_rows VALUES(?, ?, ?, ?, ?, ?)"),
        draft_row(db, "INSERT INTO draft_rows VALUES(?, ?, ?, ?, ?, ?, ?)") {}
  sqlite::Statement prompt, step, proposal, token, target_row, draft_row;
};

}  // namespace

struct Writer::Impl {
  std::filesystem::path path;
  Header header;
  sqlite::Database file;
  std::optional<Inserts> inserts;
  std::uint64_t prompts = 0;

  // The running prompt.
  bool running = false;
  Prompt prompt;
  Place place;
  std::uint64_t rows[2] = {0, 0};  // by side

  Status failed() const { return {Code::kIo, sqlite::error_of(file.get(), "cannot write", path).message()}; }
  Status insert(sqlite::Statement& statement) const { return statement.insert() ? Status::ok() : failed(); }
  Status run(const char* sql) const { return sqlite::run(file.get(), sql) ? Status::ok() : failed(); }
  Status add_proposals(const StepEvent& event);
  Status add_tokens(const StepEvent& event);
};

Writer::Writer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Writer::~Writer() = default;
std::size_t Writer::prompts() const { return impl_->prompts; }

Result<std::unique_ptr<Writer>> Writer::create(const std::filesystem::path& path, const Header& header) {
  DRIFT_TRY(header.validate());
  auto impl = std::make_unique<Impl>();
  std::error_code error;
  impl->path = std::filesystem::canonical(path, error);  // SQLite follows no links here
  if (error) return Status(Code::kIo, "cannot write '" + path.string() + "': " + error.message());
  impl->header = header;
  // A prompt that is dropped is rolled back; nothing else needs a journal, for an unfinished file is thrown away.
  DRIFT_ASSIGN(impl->file, sqlite::Database::create(impl->path, kTrace, "PRAGMA page_size=4096; PRAGMA journal_mode=MEMORY"));
  DRIFT_TRY(impl->run("COMMIT"));
  impl->inserts.emplace(impl->file.get());
  return std::unique_ptr<Writer>(new Writer(std::move(impl)));
}

Status Writer::begin_prompt(const Prompt& prompt) {
  Impl& m = *impl_;
  DRIFT_CHECK(!m.running && m.inserts, "one prompt is written at a time, before finish()");
  DRIFT_TRY(check_prompt(prompt, m.header));
  if (m.prompts == kMaxPrompts) return {Code::kInvalid, "a trace holds at most " + std::to_string(kMaxPrompts) + " prompts"};
  DRIFT_TRY(m.run("BEGIN"));
  m.running = true;
  m.prompt = prompt;
  m.place = {0, static_cast<Pos>(prompt.tokens.size())};
  m.rows[0] = m.rows[1] = 0;
  return Status::ok();
}

Status Writer::Impl::add_proposals(const StepEvent& event) {
  sqlite::Statement& s = inserts->proposal;
  for (std::size_t i = 0; i < event.proposed.size(); ++i) {
    const ProposedToken& p = event.proposed[i];
    s.bind(1, whole(prompts));
    s.bind(2, whole(event.step));
    s.bind(3, whole(i));
    s.bind(4, std::int64_t{p.token});
    s.bind(5, double{p.q});
    s.bind(6, std::int64_t{p.accepted});
    s.bind(7, std::int64_t{p.from_bank});
    s.bind(8, double{p.gain});
    s.bind(9, double{p.similarity});
    s.bind(10, double{p.overlap});
    s.bind(11, std::int64_t{p.match});
    DRIFT_TRY(insert(s));
  }
  return Status::ok();
}

Status Writer::Impl::add_tokens(const StepEvent& event) {
  sqlite::Statement& s = inserts->token;
  for (std::size_t i = 0; i < event.emitted.size(); ++i) {
    const std::string origin = origin_name(event.emitted[i].origin);
    s.bind(1, whole(prompts));
    s.bind(2, std::int64_t{event.first} + whole(i));
    s.bind(3, whole(event.step));
    s.bind(4, std::int64_t{event.emitted[i].token});
    s.bind(5, origin);
    DRIFT_TRY(insert(s));
  }
  return Status::ok();
}

Status Writer::add_step(const StepEvent& event) {
  Impl& m = *impl_;
  DRIFT_CHECK(m.running, "a step belongs to a prompt");
  DRIFT_TRY(check_step(event, m.place, m.header.target.vocab));
  const std::size_t end = static_cast<std::size_t>(event.first) + event.emitted.size();
  if (end > m.header.context) return {Code::kInvalid, "an answer goes beyond the context"};
  sqlite::Statement& s = m.inserts->step;
  const StepTimes& t = event.times;
  int column = 0;
  for (const std::int64_t value :
       {whole(m.prompts), whole(event.step), std::int64_t{event.first}, whole(event.proposed.size()), whole(accepted_of(event)),
        whole(event.emitted.size()), std::int64_t{event.sequences}, t.draft_ns, t.verify_ns, t.sample_ns, t.lookup_ns, t.bias_ns,
        t.residual_ns, t.commit_ns, t.total_ns}) {
    s.bind(++column, value);
  }
  DRIFT_TRY(m.insert(s));
  DRIFT_TRY(m.add_proposals(event));
  DRIFT_TRY(m.add_tokens(event));
  m.place = {event.step + 1, static_cast<Pos>(end)};
  return Status::ok();
}

Status Writer::add_row(Side side, Pos position, const Row& row) {
  Impl& m = *impl_;
  DRIFT_CHECK(m.running, "a row belongs to a prompt");
  const bool draft = side == Side::kDraft;
  if (draft && !m.header.has_draft()) return {Code::kInvalid, "a trace without a draft has no rows of one"};
  if (position < static_cast<Pos>(m.prompt.tokens.size()) || position >= m.place.first)
    return {Code::kInvalid, "a row belongs to an emitted position"};
  const Status sound = check_row(row, m.header.vocab(side), m.header.row_tokens, draft ? m.header.hidden_width : 0);
  if (!sound.is_ok()) return {Code::kInvalid, "a row cannot be kept: " + sound.message()};
  sqlite::Statement& s = draft ? m.inserts->draft_row : m.inserts->target_row;
  s.bind(1, whole(m.prompts));
  s.bind(2, std::int64_t{position});
  s.bind(3, std::int64_t{row.seen});
  if (row.tokens.size() == m.header.vocab(side))
    s.bind_null(4);
  else
    s.bind(4, row.rest);
  s.bind_blob(5, row.tokens.data(), row.tokens.size() * sizeof(Token));
  s.bind_blob(6, row.logits.data(), row.logits.size() * sizeof(float));
  if (draft) s.bind_blob(7, row.hidden.data(), row.hidden.size() * sizeof(std::uint16_t));
  DRIFT_TRY(m.insert(s));
  ++m.rows[draft ? 1 : 0];
  return Status::ok();
}

Status Writer::end_prompt(const std::string& ending, std::int64_t prefill_ns) {
  Impl& m = *impl_;
  DRIFT_CHECK(m.running, "a prompt is ended once");
  DRIFT_TRY(check_ending(ending));
  const std::uint64_t emitted = static_cast<std::uint64_t>(m.place.first) - m.prompt.tokens.size();
  if (emitted == 0) return {Code::kInvalid, "an answer is empty"};
  if (m.rows[0] != emitted || (m.header.has_draft() && m.rows[1] != emitted))
    return {Code::kInvalid, "an emitted position has no row"};
  if (prefill_ns < 0) return {Code::kInvalid, "a prefill took a negative time"};
  sqlite::Statement& s = m.inserts->prompt;
  s.bind(1, whole(m.prompts));
  s.bind(2, m.prompt.id);
  s.bind(3, m.prompt.domain);
  s.bind(4, m.prompt.kind);
  s.bind(5, m.prompt.split);
  s.bind(6, whole(m.prompt.sequence));
  s.bind_blob(7, m.prompt.tokens.data(), m.prompt.tokens.size() * sizeof(Token));
  s.bind(8, ending);
  s.bind(9, prefill_ns);
  s.bind(10, whole(m.place.step));
  s.bind(11, whole(emitted));
  DRIFT_TRY(m.insert(s));
  DRIFT_TRY(m.run("COMMIT"));
  m.running = false;
  ++m.prompts;
  return Status::ok();
}

Status Writer::drop_prompt() {
  if (!impl_->running) return Status::ok();
  impl_->running = false;
  return impl_->run("ROLLBACK");
}

Status Writer::finish(bool partial) {
  Impl& m = *impl_;
  DRIFT_CHECK(!m.running && m.inserts, "a trace is finished once, between prompts");
  m.inserts.reset();
  DRIFT_TRY(m.run("BEGIN"));
  {
    sqlite::Statement s(m.file.get(), "INSERT INTO meta VALUES(?, ?)");
    for (const auto& [key, value] : make_meta(m.header, {partial, m.prompts})) {
      s.bind(1, key);
      s.bind(2, value);
      DRIFT_TRY(m.insert(s));
    }
  }
  DRIFT_TRY(m.run("COMMIT"));
  if (!m.file.close()) return {Code::kIo, "cannot finish writing '" + m.path.string() + "'"};
  return Status::ok();
}

}  // namespace drift::trace
