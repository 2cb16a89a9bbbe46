#include "cli/bank_command.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <istream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/bank_export.hpp"
#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/input.hpp"
#include "cli/json_fields.hpp"
#include "cli/options.hpp"
#include "cli/output_file.hpp"
#include "drift/bank/store_format.hpp"
#include "drift/recal/recalibrator.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

using bank::Access;
using bank::BankFile;
using bank::BankImage;
using bank::StoredBank;

constexpr const char* kRates[] = {"fixed", "count", "error"};

struct CountBin {
  std::uint32_t low, high;  // counts in [low, high]
  std::uint32_t entries = 0;
};

// Bins of doubling width: 0, 1, 2-3, 4-7, ...; empty ones at the end are left out.
std::vector<CountBin> histogram(const BankImage& image) {
  std::vector<CountBin> bins{{0, 0}};
  for (std::uint32_t i = 0; i < 32; ++i) bins.push_back({1u << i, static_cast<std::uint32_t>((2ull << i) - 1)});
  for (const std::uint32_t count : image.counts) {
    for (CountBin& bin : bins) {
      if (count >= bin.low && count <= bin.high) ++bin.entries;
    }
  }
  while (bins.size() > 1 && bins.back().entries == 0) bins.pop_back();
  if (bins.front().entries == 0) bins.erase(bins.begin());
  return bins;
}

std::vector<std::size_t> most_taught(const BankImage& image, std::size_t top) {
  std::vector<std::size_t> ids(image.size);
  std::iota(ids.begin(), ids.end(), std::size_t{0});
  const std::size_t n = std::min(top, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(), [&](std::size_t a, std::size_t b) {
    return image.counts[a] != image.counts[b] ? image.counts[a] > image.counts[b] : a < b;
  });
  ids.resize(n);
  return ids;
}

// The entry's tokens by size of residual, largest first, at most `limit`.
std::vector<std::pair<Token, float>> strongest(const BankImage& image, std::size_t id, std::size_t limit) {
  std::vector<std::pair<Token, float>> pairs;
  for (std::size_t i = 0; i < image.lengths[id]; ++i) {
    pairs.emplace_back(image.tokens[id * image.config.support + i], image.values[id * image.config.support + i]);
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const auto& a, const auto& b) { return std::fabs(a.second) > std::fabs(b.second); });
  pairs.resize(std::min(limit, pairs.size()));
  return pairs;
}

std::string json_line(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Result<StoredBank> load(const std::string& path) {
  DRIFT_ASSIGN(auto file, BankFile::open(path, Access::kReadOnly));
  return file->load();
}

Status show(const std::string& path, bool json, std::size_t top) {
  DRIFT_ASSIGN(const StoredBank stored, load(path));
  std::error_code error;
  const std::uint64_t bytes = std::filesystem::file_size(path, error);
  write_out(json ? describe_bank_json(stored, error ? 0 : bytes, top) : describe_bank(stored, error ? 0 : bytes, top));
  return Status::ok();
}

Status verify(const std::string& path) {
  DRIFT_TRY(bank::verify_bank_file(path));
  write_out(fmt::format("{}: sound\n", text::printable(path)));
  return Status::ok();
}

Status export_to(const std::string& path, const std::string& out) {
  DRIFT_ASSIGN(const StoredBank stored, load(path));
  if (out.empty() || out == "-") {
    export_bank(stored, [](const std::string& line) { return write_out(line); });
    return Status::ok();  // main() tells of a closed or full output
  }
  // As private as the bank: it tells of the same texts.
  DRIFT_ASSIGN(OutputFile file, OutputFile::open(out, {path}, 0600));
  Status status;
  const bool whole = export_bank(stored, [&](const std::string& line) {
    status = interrupted() ? Status(Code::kCancelled, "interrupted; the export was not written") : file.write(line);
    return status.is_ok();
  });
  return whole ? file.finish() : status;
}

Status import_from(const std::string& path, const std::string& in, bool replace) {
  DRIFT_ASSIGN(Input input, in == "-" ? Result<Input>(Input::standard()) : Input::open(in));
  InputBuffer buffer(std::move(input));
  std::istream stream(&buffer);
  const Status status = import_into(path, stream, replace);
  if (status.is_ok()) {
    write_out(fmt::format("{}: filled from {}\n", text::printable(path), in == "-" ? "the standard input" : text::printable(in)));
    return status;
  }
  // What ended the reading explains more than "the export was cut".
  return buffer.status().is_ok() ? status : buffer.status();
}

struct Choices {
  std::string file, other;
  bool json = false, replace = false;
  std::size_t top = 10;
};

}  // namespace

std::string describe_bank(const StoredBank& stored, std::uint64_t file_bytes, std::size_t top) {
  const BankImage& image = stored.image;
  const bank::BankConfig& c = image.config;
  std::string text;
  const auto row = [&](const char* name, const std::string& value) { text += fmt::format("{:<14} {}\n", name, value); };
  row("target", fmt::format("{}  {}", text::printable(stored.target_name), stored.fingerprint.target_hash));
  row("draft", fmt::format("{}  {}", text::printable(stored.draft_name), stored.fingerprint.draft_hash));
  row("vocabulary", fmt::format("{}", stored.fingerprint.vocab));
  row("hidden width", fmt::format("{}", stored.fingerprint.hidden_width));
  row("entries", fmt::format("{} of {}", image.size, c.capacity));
  row("keys", fmt::format("{} x {}{}{}", c.key_dim, c.key_type == bank::KeyType::kF16 ? "f16" : "f32",
                          c.int8_scan ? ", int8 scan" : "", c.standardise ? ", standardised" : ""));
  row("support", fmt::format("{} tokens an entry", c.support));
  row("updates", fmt::format("tau {}, eta {}, rate {}", c.tau, c.eta, kRates[static_cast<int>(c.rate)]));
  row("use counter", fmt::format("{}", image.use_counter));
  row("file", fmt::format("{} bytes", file_bytes));
  row("in memory", fmt::format("{} bytes", c.bytes()));
  std::string extras;
  for (const auto& [name, content] : stored.extras)
    extras += fmt::format("{}{} ({} bytes)", extras.empty() ? "" : ", ", name, content.size());
  if (!extras.empty()) row("extras", extras);
  if (image.size == 0) return text;
  text += "\nresiduals taught    entries\n";
  for (const CountBin& bin : histogram(image)) {
    const std::string range = bin.low == bin.high ? fmt::format("{}", bin.low) : fmt::format("{} - {}", bin.low, bin.high);
    const std::size_t stars = (std::size_t{bin.entries} * 40 + image.size - 1) / image.size;
    text += fmt::format("{:>16} {:>10}  {}\n", range, bin.entries, std::string(stars, '*'));
  }
  if (top == 0) return text;
  text += "\nmost taught: entry, residuals, last use, strongest tokens (id:residual)\n";
  for (const std::size_t id : most_taught(image, top)) {
    text += fmt::format("{:>8} {:>8} {:>10} ", id, image.counts[id], image.last_used[id]);
    for (const auto& [token, value] : strongest(image, id, 4)) text += fmt::format(" {}:{:+.2f}", token, value);
    text += "\n";
  }
  return text;
}

std::string describe_bank_json(const StoredBank& stored, std::uint64_t file_bytes, std::size_t top) {
  const BankImage& image = stored.image;
  const bank::BankConfig& c = image.config;
  Json json{{"target_name", stored.target_name},
            {"draft_name", stored.draft_name},
            {"fingerprint",
             {{"target_hash", stored.fingerprint.target_hash},
              {"draft_hash", stored.fingerprint.draft_hash},
              {"vocab", stored.fingerprint.vocab},
              {"hidden_width", stored.fingerprint.hidden_width}}},
            {"config",
             {{"capacity", c.capacity},
              {"key_dim", c.key_dim},
              {"support", c.support},
              {"vocab", c.vocab},
              {"key_type", c.key_type == bank::KeyType::kF16 ? "f16" : "f32"},
              {"int8_scan", c.int8_scan},
              {"standardise", c.standardise},
              {"tau", decimal(c.tau)},
              {"eta", decimal(c.eta)},
              {"rate", kRates[static_cast<int>(c.rate)]}}},
            {"entries", image.size},
            {"use_counter", image.use_counter},
            {"file_bytes", file_bytes},
            {"bank_bytes", c.bytes()},
            {"extras", Json::object()},
            {"counts", Json::array()},
            {"most_taught", Json::array()}};
  for (const auto& [name, content] : stored.extras) json["extras"][name] = content.size();
  if (image.size != 0) {
    for (const CountBin& bin : histogram(image))
      json["counts"].push_back({{"low", bin.low}, {"high", bin.high}, {"entries", bin.entries}});
  }
  for (const std::size_t id : most_taught(image, top)) {
    Json tokens = Json::array();
    for (const auto& [token, value] : strongest(image, id, 4)) tokens.push_back({{"token", token}, {"residual", value}});
    json["most_taught"].push_back(
        {{"entry", id}, {"count", image.counts[id]}, {"last_used", image.last_used[id]}, {"strongest", tokens}});
  }
  return json_line(json);
}

// Whether a run could go on with it: the very call that a run makes.
Status check_restorable(const StoredBank& stored) {
  if (stored.image.config.vocab != stored.fingerprint.vocab || stored.image.config.key_dim != stored.fingerprint.hidden_width) {
    return {Code::kInvalid, fmt::format("its config is for a vocabulary of {} and keys of {}, its fingerprint names {} and {}",
                                        stored.image.config.vocab, stored.image.config.key_dim, stored.fingerprint.vocab,
                                        stored.fingerprint.hidden_width)};
  }
  constexpr std::uint64_t kUsesMax = std::uint64_t{1} << 62;  // of the file's 2^63 - 1: room for what a run adds
  if (stored.image.use_counter > kUsesMax) {
    return {Code::kInvalid, fmt::format("its use_counter is {}; it must be at most {}", stored.image.use_counter, kUsesMax)};
  }
  recal::RecalConfig config;
  config.bank = stored.image.config;
  DRIFT_ASSIGN(config.levels, recal::parse_levels("all"));  // so that what it holds of other levels is looked at too
  DRIFT_ASSIGN(const auto recal, recal::Recalibrator::create(config));
  return recal->restore(stored);
}

Status import_into(const std::string& path, std::istream& in, bool replace) {
  DRIFT_ASSIGN(const StoredBank imported, import_bank(in));
  // Before any file is made or touched: what the store asks for, then keys of unit length and all else only a bank can tell.
  DRIFT_TRY(bank::format::check_bank(imported));
  if (const Status sound = check_restorable(imported); !sound.is_ok()) {
    return {sound.code(), "the export is no sound bank: " + sound.message()};
  }
  DRIFT_ASSIGN(auto file, BankFile::open(path, Access::kReadWrite));
  if (!file->empty()) {
    DRIFT_ASSIGN(const StoredBank old, file->load(imported.fingerprint));
    if (old.image.size != 0 && !replace) {
      return {Code::kInvalid, fmt::format("bank '{}' holds {} entries; --replace overwrites them", path, old.image.size)};
    }
  }
  return file->save(imported);
}

Result<std::uint32_t> reset_bank(const std::string& path) {
  if (std::error_code error; !std::filesystem::exists(path, error))
    return Status(Code::kNotFound, fmt::format("bank '{}' does not exist", path));
  DRIFT_ASSIGN(auto file, BankFile::open(path, Access::kReadWrite));
  if (file->empty()) return std::uint32_t{0};
  DRIFT_ASSIGN(StoredBank stored, file->load());
  const std::uint32_t removed = stored.image.size;
  BankImage none;
  none.config = stored.image.config;
  stored.image = std::move(none);
  stored.extras.clear();
  DRIFT_TRY(file->save(stored));
  return removed;
}

void add_bank_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bank", "Look at, check, move or empty a bank file");
  command->require_subcommand(1);
  const auto choices = std::make_shared<Choices>();
  const auto add = [&](const char* name, const char* help, std::function<Status(const Choices&)> action) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("FILE", choices->file, "The bank file")->required();
    sub->callback([choices, action, &exit_code] {
      const Status status = action(*choices);
      exit_code = status.is_ok() ? kExitOk : fail(status);
    });
    return sub;
  };
  CLI::App* show_command = add("show", "Fingerprint, settings, size, most taught entries",
                               [](const Choices& c) { return show(c.file, c.json, c.top); });
  show_command->add_flag("--json", choices->json, "As JSON");
  add_int(*show_command, "--top", 0, 65'536, "Most taught entries to print, 0 to 65536 [10]",
          [choices](std::int64_t v) { choices->top = static_cast<std::size_t>(v); });
  add("verify", "Check everything; changes nothing", [](const Choices& c) { return verify(c.file); });
  CLI::App* export_command = add("export", "Write as JSON lines", [](const Choices& c) { return export_to(c.file, c.other); });
  add_text(*export_command, "-o,--out", "FILE", "File to write; without it, or with -, the standard output", choices->other);
  CLI::App* import_command = add("import", "Fill a bank file, a new one or another's place, from an export",
                                 [](const Choices& c) { return import_from(c.file, c.other, c.replace); });
  import_command->add_option("EXPORT", choices->other, "The export, or - for the standard input")->required();
  import_command->add_flag("--replace", choices->replace, "Overwrite a bank that holds entries");
  add("reset", "Remove all entries; the bank stays bound to its pair of models", [](const Choices& c) -> Status {
    DRIFT_ASSIGN(const std::uint32_t removed, reset_bank(c.file));
    write_out(fmt::format("{}: {} entries removed\n", text::printable(c.file), removed));
    return Status::ok();
  });
}

}  // namespace drift::cli
