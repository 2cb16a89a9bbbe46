#include "train/show.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/console.hpp"
#include "cli/input.hpp"
#include "cli/options.hpp"
#include "text/printable.hpp"
#include "train/checkpoint.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kRecipeBytesMax = std::size_t{16} << 20;
constexpr const char* kStages[] = {"target", "draft", "samples", "distil"};

std::string shape_line(const char* name, const json& shape) {
  return fmt::format("{}: {:.2f} M parameters, {} layers, width {}, {} heads, feed-forward {}, {} tokens\n", name,
                     shape.at("parameters").get<double>() / 1e6, shape.at("layers").get<int>(), shape.at("width").get<int>(),
                     shape.at("heads").get<int>(), shape.at("ffn").get<int>(), shape.at("vocab").get<int>());
}

std::string stage_line(const char* name, const json& stage) {
  std::string line =
      fmt::format("{}: {} {}, {:.1f} min", name, stage.at("steps").get<std::int64_t>(),
                  std::string_view(name) == "samples" ? "rounds" : "steps", stage.at("seconds").get<double>() / 60);
  if (const json& evaluations = stage.at("evaluations"); !evaluations.empty()) {
    line += "; text held out at the end:";
    for (const auto& [key, value] : evaluations.back().items())
      if (key != "step") line += fmt::format(" {} {:.3f}", text::printable(key, text::kQuoteMax), value.get<double>());
  }
  return line + "\n";
}

std::string texts_line(const json& recipe) {
  std::string line = "texts:";
  for (const auto& [name, entry] : recipe.at("texts").items())
    line += fmt::format(" {} {:.2f} MB", text::printable(name, text::kQuoteMax), entry.at("bytes").get<double>() / 1e6);
  return line + fmt::format("; the draft learns {}\n", text::printable(recipe.at("general").get<std::string>(), text::kQuoteMax));
}

template <class F>
Result<std::string> described(const char* what, F describe) {
  try {
    return describe();
  } catch (const json::exception& error) {
    const std::string_view why = error.what();  // "[json.exception.out_of_range.403] key 'texts' not found"
    const std::size_t end = why.find("] ");
    return Status(Code::kCorrupt, fmt::format("{} is not what drift-train writes: {}", what,
                                              end == std::string_view::npos ? why : why.substr(end + 2)));
  }
}

Result<std::string> describe_folder(const std::string& folder) {
  const fs::path recipe_path = fs::path(folder) / "recipe.json", checkpoint_path = fs::path(folder) / "checkpoint.safetensors";
  std::error_code error;
  if (fs::exists(recipe_path, error)) {
    DRIFT_ASSIGN(const std::string text, cli::read_text_file(recipe_path.string(), kRecipeBytesMax));
    const json recipe = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!recipe.is_object())
      return Status(Code::kCorrupt, fmt::format("{} is no JSON object: it is cut or damaged", recipe_path.string()));
    return describe_recipe(recipe);
  }
  if (!fs::exists(checkpoint_path, error))
    return Status(Code::kNotFound,
                  fmt::format("{} holds neither recipe.json nor checkpoint.safetensors; name the --out of a pair", folder));
  DRIFT_ASSIGN(const Checkpoint checkpoint, read_checkpoint(checkpoint_path.string()));
  return describe_checkpoint(checkpoint.facts);
}

}  // namespace

Result<std::string> describe_recipe(const json& all) {
  return described("recipe.json", [&] {
    const json& recipe = all.at("recipe");
    std::string out = shape_line("target", recipe.at("target")) + shape_line("draft", recipe.at("draft")) + texts_line(recipe);
    for (const char* name : kStages) out += stage_line(name, all.at("stages").at(name));
    out += fmt::format("{:<14} {:>12} {:>18} {:>17}\n", "text held out", "tokens", "target perplexity", "draft perplexity");
    for (const auto& [domain, target] : all.at("held_out").at("target").items())
      out += fmt::format("{:<14} {:>12} {:>18.2f} {:>17.2f}\n", text::printable(domain, text::kQuoteMax),
                         target.at("tokens").get<std::int64_t>(), target.at("perplexity").get<double>(),
                         all.at("held_out").at("draft").at(domain).at("perplexity").get<double>());
    for (const auto& [name, file] : all.at("files").items())
      out +=
          fmt::format("{}: {:.2f} MB, sha256 {}\n", text::printable(name, text::kQuoteMax), file.at("bytes").get<double>() / 1e6,
                      text::printable(file.at("sha256").get<std::string>(), text::kQuoteMax));
    return out;
  });
}

Result<std::string> describe_checkpoint(const json& facts) {
  return described("the checkpoint", [&] {
    const json& recipe = facts.at("recipe");
    std::string out = "not finished; the same command goes on\n" + shape_line("target", recipe.at("target")) +
                      shape_line("draft", recipe.at("draft")) + texts_line(recipe);
    for (const char* name : kStages) {
      json stage = facts.at(name);
      stage["steps"] = stage.at("step");
      out += (stage.at("done").get<bool>() ? "done    " : "so far  ") + stage_line(name, stage);
    }
    return out;
  });
}

void add_show_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("show", "shapes, losses, perplexity and sizes of a pair, finished or under way");
  const auto folder = std::make_shared<std::string>();
  cli::add_text(*command, "FOLDER", "FOLDER", "what --out named", *folder)->required();
  command->callback([folder, &exit_code] {
    Result<std::string> text = describe_folder(*folder);
    if (!text.is_ok()) {
      exit_code = cli::fail(text.status());
      return;
    }
    cli::write_out(*text);
  });
}

}  // namespace drift::train
