#include <cstring>
#include <limits>
#include <system_error>

#include "drift/base/check.hpp"
#include "drift/trace/file_impl.hpp"

namespace drift::trace {
namespace {

using sqlite::Statement;

std::int64_t whole(std::uint64_t value) { return static_cast<std::int64_t>(value); }

template <class T>
bool copy_blob(std::span<const std::byte> from, std::vector<T>& to) {
  if (from.size() % sizeof(T) != 0) return false;
  to.resize(from.size() / sizeof(T));
  if (!to.empty()) std::memcpy(to.data(), from.data(), from.size());
  return true;
}

bool read_origin(const std::string& text, Origin& out) {
  for (const Origin origin : {Origin::kTarget, Origin::kAccepted, Origin::kAcceptedBank}) {
    if (text != origin_name(origin)) continue;
    out = origin;
    return true;
  }
  return false;
}

// A float as it was written: NaN where the column holds no number, which no check lets through.
float real(const Statement& row, int column) {
  const int type = row.type(column);
  if (type != SQLITE_FLOAT && type != SQLITE_INTEGER) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(row.real(column));
}

// A column within [low, high]; false if it is no such whole number.
template <class T>
bool within(const Statement& row, int column, std::int64_t low, std::int64_t high, T& out) {
  const std::int64_t value = row.integer(column);
  if (row.type(column) != SQLITE_INTEGER || value < low || value > high) return false;
  out = static_cast<T>(value);
  return true;
}

constexpr std::int64_t kTokenMax = std::numeric_limits<Token>::max();
constexpr std::int64_t kLongest = static_cast<std::int64_t>(kMaxPromptTokens);

}  // namespace

struct Reader::Impl {
  std::filesystem::path path;
  std::uint64_t file_bytes = 0;
  sqlite::Database file;
  Header header;
  Totals totals;
  std::unique_ptr<Statement> rows[2];  // by side, prepared at the first use

  Status corrupt(const std::string& what) const { return sqlite::corrupt(kTrace, path, what); }
  Status unreadable() const { return sqlite::error_of(file.get(), "cannot read trace", path); }
  Status read_meta();
  Status read_proposals(Statement& rows, std::size_t count, const StepEvent& at, std::vector<ProposedToken>& out) const;
  Status read_tokens(Statement& rows, std::size_t count, const StepEvent& at, std::vector<EmittedToken>& out) const;
  bool read_step(const Statement& row, StepEvent& event, std::size_t& proposed, std::size_t& emitted) const;
  Status count_is(const char* sql, std::uint64_t expected, const char* what) const;
};

Reader::Reader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reader::~Reader() = default;
const Header& Reader::header() const { return impl_->header; }
bool Reader::partial() const { return impl_->totals.partial; }
std::uint64_t Reader::file_bytes() const { return impl_->file_bytes; }
std::size_t Reader::prompts() const { return impl_->totals.prompts; }

Result<std::unique_ptr<Reader>> Reader::open(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  auto impl = std::make_unique<Impl>();
  std::error_code error;
  impl->path = fs::canonical(path, error);
  if (error == std::errc::no_such_file_or_directory)
    return Status(Code::kNotFound, "trace '" + path.string() + "' does not exist");
  if (error) return Status(Code::kIo, "cannot look at trace '" + path.string() + "': " + error.message());
  if (!fs::is_regular_file(impl->path, error))
    return Status(Code::kForeign, "'" + path.string() + "' is not a regular file, so it is no trace");
  impl->file_bytes = fs::file_size(impl->path, error);
  if (error) return Status(Code::kIo, "cannot look at trace '" + path.string() + "': " + error.message());
  if (impl->file_bytes == 0) return Status(Code::kForeign, "'" + path.string() + "' is an empty file, not a trace");
  DRIFT_ASSIGN(impl->file, sqlite::Database::open_read_only(impl->path, impl->file_bytes, kTrace));
  DRIFT_TRY(impl->read_meta());
  DRIFT_TRY(impl->count_is("SELECT count(*) FROM prompts", impl->totals.prompts, "prompts"));
  return std::unique_ptr<Reader>(new Reader(std::move(impl)));
}

Status Reader::Impl::read_meta() {
  Statement found(file.get(), "SELECT key, value FROM meta");
  Meta meta;
  int rc;
  while ((rc = found.step()) == SQLITE_ROW) {
    if (meta.size() >= 128 || found.bytes(0).size() > 128 || found.bytes(1).size() > kMaxTextBytes)
      return corrupt("its meta table is larger than a trace's");
    meta.emplace(found.text(0), found.text(1));
  }
  if (rc != SQLITE_DONE) return unreadable();
  if (meta.empty()) return corrupt("it was not finished");
  const Status sound = parse_meta(meta, header, totals);
  return sound.is_ok() ? sound : corrupt(sound.message());
}

Status Reader::Impl::count_is(const char* sql, std::uint64_t expected, const char* what) const {
  std::int64_t count = 0;
  if (!sqlite::read_integer(file.get(), sql, count)) return unreadable();
  if (static_cast<std::uint64_t>(count) == expected) return Status::ok();
  return corrupt("it has " + std::to_string(count) + " of " + std::to_string(expected) + " " + what);
}

Result<PromptRecord> Reader::prompt(std::size_t index) const {
  const Impl& m = *impl_;
  DRIFT_CHECK(index < prompts(), "a prompt that is there is read");
  const std::string name = "prompt " + std::to_string(index);
  Statement found(
      m.file.get(),
      "SELECT id, domain, kind, split, sequence, tokens, ending, prefill_ns, steps, emitted FROM prompts WHERE prompt = ?");
  found.bind(1, whole(index));
  const int rc = found.step();
  if (rc != SQLITE_ROW) return rc == SQLITE_DONE ? m.corrupt(name + " is missing") : m.unreadable();
  for (const int column : {0, 1, 2, 3, 6}) {
    if (found.bytes(column).size() > kMaxTextBytes) return m.corrupt(name + " has a text that is too long");
  }
  PromptRecord out;
  out.prompt = {found.text(0), found.text(1), found.text(2), found.text(3), 0, {}};
  std::int64_t sequence = 0, emitted = 0;
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min(), kMax = std::numeric_limits<std::int64_t>::max();
  const bool sane = within(found, 4, kMin, kMax, sequence) && copy_blob(found.bytes(5), out.prompt.tokens) &&
                    within(found, 7, 0, kMax, out.prefill_ns) && within(found, 8, 1, kLongest, out.steps) &&
                    within(found, 9, 1, kLongest, emitted);
  if (!sane) return m.corrupt(name + " has a field out of bounds");
  out.prompt.sequence = static_cast<std::uint64_t>(sequence);
  out.ending = found.text(6);
  for (const Status& status : {check_prompt(out.prompt, m.header), check_ending(out.ending)}) {
    if (!status.is_ok()) return m.corrupt(name + ": " + status.message());
  }
  Statement tokens(m.file.get(), "SELECT position, token FROM tokens WHERE prompt = ? ORDER BY position");
  tokens.bind(1, whole(index));
  int next;
  while ((next = tokens.step()) == SQLITE_ROW) {
    Token token = 0;
    const auto position = whole(out.prompt.tokens.size() + out.emitted.size());
    if (whole(out.emitted.size()) >= emitted || tokens.integer(0) != position ||
        !within(tokens, 1, 0, std::int64_t{m.header.target.vocab} - 1, token)) {
      return m.corrupt(name + " has a token out of place");
    }
    out.emitted.push_back(token);
  }
  if (next != SQLITE_DONE) return m.unreadable();
  if (whole(out.emitted.size()) != emitted) return m.corrupt(name + " lacks tokens");
  return out;
}

bool Reader::Impl::read_step(const Statement& row, StepEvent& event, std::size_t& proposed, std::size_t& emitted) const {
  StepTimes& t = event.times;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  bool sane = within(row, 0, 0, kLongest, event.step) && within(row, 1, 0, kLongest, event.first) &&
              within(row, 2, 0, static_cast<std::int64_t>(kMaxProposals), proposed) &&
              within(row, 4, 1, whole(proposed) + 1, emitted) && within(row, 5, 1, 1 << 20, event.sequences);
  int column = 6;
  for (std::int64_t* ns :
       {&t.draft_ns, &t.verify_ns, &t.sample_ns, &t.lookup_ns, &t.bias_ns, &t.residual_ns, &t.commit_ns, &t.total_ns})
    sane = sane && within(row, column++, 0, kMax, *ns);
  return sane;
}

Status Reader::Impl::read_proposals(Statement& found, std::size_t count, const StepEvent& at,
                                    std::vector<ProposedToken>& out) const {
  for (std::size_t i = 0; i < count; ++i) {
    const int rc = found.step();
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) return unreadable();
    ProposedToken p;
    const bool sane = rc == SQLITE_ROW && found.integer(0) == whole(at.step) && found.integer(1) == whole(i) &&
                      within(found, 2, -1, kTokenMax, p.token) && within(found, 4, 0, 1, p.accepted) &&
                      within(found, 5, 0, 1, p.from_bank) && within(found, 9, 0, kTokenMax, p.match);
    if (!sane) return corrupt("step " + std::to_string(at.step) + " has a proposal missing or out of bounds");
    p.q = real(found, 3);
    p.gain = real(found, 6);
    p.similarity = real(found, 7);
    p.overlap = real(found, 8);
    out.push_back(p);
  }
  return Status::ok();
}

Status Reader::Impl::read_tokens(Statement& found, std::size_t count, const StepEvent& at, std::vector<EmittedToken>& out) const {
  for (std::size_t i = 0; i < count; ++i) {
    const int rc = found.step();
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) return unreadable();
    EmittedToken e;
    const bool sane = rc == SQLITE_ROW && found.integer(0) == std::int64_t{at.first} + whole(i) &&
                      found.integer(1) == whole(at.step) && within(found, 2, 0, kTokenMax, e.token) &&
                      read_origin(found.text(3), e.origin);
    if (!sane) return corrupt("step " + std::to_string(at.step) + " has a token missing or out of bounds");
    out.push_back(e);
  }
  return Status::ok();
}

Result<std::vector<StepEvent>> Reader::steps(std::size_t index) const {
  const Impl& m = *impl_;
  DRIFT_ASSIGN(const PromptRecord record, prompt(index));
  Statement steps(
      m.file.get(),
      "SELECT step, first, proposed, accepted, emitted, sequences, draft_ns, verify_ns, sample_ns, lookup_ns, bias_ns, "
      "residual_ns, commit_ns, total_ns FROM steps WHERE prompt = ? ORDER BY step");
  Statement proposals(m.file.get(),
                      "SELECT step, place, token, q, accepted, from_bank, gain, similarity, overlap, match FROM proposals WHERE "
                      "prompt = ? ORDER BY step, place");
  Statement tokens(m.file.get(), "SELECT position, step, token, origin FROM tokens WHERE prompt = ? ORDER BY position");
  for (Statement* s : {&steps, &proposals, &tokens}) s->bind(1, whole(index));
  std::vector<StepEvent> out;
  Place place{0, static_cast<Pos>(record.prompt.tokens.size())};
  int rc;
  while ((rc = steps.step()) == SQLITE_ROW) {
    StepEvent event;
    event.sequence = record.prompt.sequence;
    std::size_t proposed = 0, emitted = 0;
    if (!m.read_step(steps, event, proposed, emitted)) return m.corrupt("a step has a field out of bounds");
    DRIFT_TRY(m.read_proposals(proposals, proposed, event, event.proposed));
    DRIFT_TRY(m.read_tokens(tokens, emitted, event, event.emitted));
    const Status sound = check_step(event, place, m.header.target.vocab);
    if (!sound.is_ok()) return m.corrupt("prompt " + std::to_string(index) + ": " + sound.message());
    if (steps.integer(3) != whole(accepted_of(event))) return m.corrupt("a step counts its accepted proposals wrongly");
    place = {event.step + 1, event.first + static_cast<Pos>(emitted)};
    out.push_back(std::move(event));
  }
  if (rc != SQLITE_DONE) return m.unreadable();
  if (out.size() != record.steps || proposals.step() != SQLITE_DONE || tokens.step() != SQLITE_DONE)
    return m.corrupt("prompt " + std::to_string(index) + " has steps, proposals or tokens too many or too few");
  return out;
}

Status Reader::row(std::size_t index, Side side, Pos position, Row& out) const {
  Impl& m = *impl_;
  DRIFT_CHECK(index < prompts(), "a prompt that is there is read");
  const bool draft = side == Side::kDraft;
  std::unique_ptr<Statement>& found = m.rows[draft ? 1 : 0];
  if (!found) {
    found = std::make_unique<Statement>(
        m.file.get(), draft ? "SELECT tokens, logits, rest, seen, hidden FROM draft_rows WHERE prompt = ? AND position = ?"
                            : "SELECT tokens, logits, rest, seen FROM target_rows WHERE prompt = ? AND position = ?");
  }
  found->bind(1, whole(index));
  found->bind(2, std::int64_t{position});
  const int rc = found->step();
  Status status;
  const std::string name = std::string(draft ? "the draft's" : "the target's") + " row of prompt " + std::to_string(index) +
                           ", position " + std::to_string(position);
  if (rc == SQLITE_DONE) {
    status = {Code::kNotFound, name + " was not recorded"};
  } else if (rc != SQLITE_ROW) {
    status = m.unreadable();
  } else {
    out.rest = found->type(2) == SQLITE_NULL ? -std::numeric_limits<double>::infinity() : found->real(2);
    out.hidden.clear();
    const bool whole_blobs = copy_blob(found->bytes(0), out.tokens) && copy_blob(found->bytes(1), out.logits) &&
                             within(*found, 3, 0, 1, out.seen) && (!draft || copy_blob(found->bytes(4), out.hidden));
    const Status sound = whole_blobs
                             ? check_row(out, m.header.vocab(side), m.header.row_tokens, draft ? m.header.hidden_width : 0)
                             : Status(Code::kCorrupt, "a blob has a wrong size");
    if (!sound.is_ok()) status = m.corrupt(name + ": " + sound.message());
  }
  found->reset();
  return status;
}

Status Reader::verify() const {
  const Impl& m = *impl_;
  DRIFT_TRY(m.file.quick_check(m.path, kTrace));
  std::uint64_t emitted = 0;
  Row unused;
  for (std::size_t p = 0; p < prompts(); ++p) {
    DRIFT_ASSIGN(const PromptRecord record, prompt(p));
    DRIFT_TRY(steps(p).status());
    for (std::size_t i = 0; i < record.emitted.size(); ++i) {
      const auto position = static_cast<Pos>(record.prompt.tokens.size() + i);
      for (const Side side : {Side::kTarget, Side::kDraft}) {
        if (side == Side::kDraft && !m.header.has_draft()) continue;
        const Status there = row(p, side, position, unused);
        if (!there.is_ok()) return there.code() == Code::kNotFound ? m.corrupt(there.message()) : there;
      }
    }
    emitted += record.emitted.size();
  }
  DRIFT_TRY(m.count_is("SELECT count(*) FROM target_rows", emitted, "rows of the target"));
  return m.count_is("SELECT count(*) FROM draft_rows", m.header.has_draft() ? emitted : 0, "rows of the draft");
}

}  // namespace drift::trace
