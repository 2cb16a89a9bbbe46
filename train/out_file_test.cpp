#include "train/out_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "train/memory.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;

class OutFileFolder : public ::testing::Test {
 protected:
  OutFileFolder() : folder_(fs::temp_directory_path() / ("drift-out-file-test-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~OutFileFolder() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string put(const std::string& name) const {
    std::ofstream(path(name)) << "something";
    return path(name);
  }
  Code taken(const std::string& out, const std::vector<std::string>& inputs = {}) const {
    return take_out_file(out, inputs).status().code();
  }
  fs::path folder_;
};

TEST_F(OutFileFolder, OneRunAtATimeAndNoFileIsLeft) {
  std::optional<FileLock> first;
  {
    auto lock = take_out_file(path("x.gguf"), {});
    ASSERT_TRUE(lock.is_ok()) << lock.status().message();
    first.emplace(std::move(lock).value());
  }
  const Status second = take_out_file(path("x.gguf"), {}).status();
  EXPECT_EQ(second.code(), Code::kBusy);
  EXPECT_NE(second.message().find("x.gguf"), std::string::npos) << second.message();
  EXPECT_EQ(taken(path("y.gguf")), Code::kOk);
  first.reset();
  EXPECT_EQ(taken(path("x.gguf")), Code::kOk);
  EXPECT_TRUE(fs::is_empty(folder_));
  put("z.gguf.lock");  // somebody's file of that name
  EXPECT_EQ(taken(path("z.gguf")), Code::kOk);
  EXPECT_TRUE(fs::exists(path("z.gguf.lock")));
}

TEST_F(OutFileFolder, NothingThatIsReadAndNoDeviceIsReplaced) {
  for (const char* end : {"", ".checkpoint", ".lock"}) {
    const std::string input = put("x.gguf" + std::string(end));
    EXPECT_EQ(taken(path("x.gguf"), {input}), Code::kInvalid) << end;
    EXPECT_EQ(fs::file_size(input), 9u);
    fs::remove(input);
    ASSERT_EQ(::mkfifo(input.c_str(), 0600), 0);
    EXPECT_EQ(taken(path("x.gguf")), Code::kInvalid) << end;
    EXPECT_TRUE(fs::is_fifo(input));
    fs::remove(input);
    fs::create_directory(input);
    EXPECT_EQ(taken(path("x.gguf")), Code::kInvalid) << end;
    fs::remove(input);
  }
  EXPECT_EQ(taken(path("no/x.gguf")), Code::kNotFound);
}

TEST_F(OutFileFolder, OnlyHalvesOfKilledRunsGo) {
  for (const char* name : {"x.gguf.part-12-0", "x.gguf.checkpoint.part-7-3", "x.gguf.part1", "x.gguf.part-12", "x.gguf.parts",
                           "x.gguf.part-1-b", "y.gguf.part-12-0"})
    put(name);
  EXPECT_EQ(taken(path("x.gguf")), Code::kOk);
  EXPECT_FALSE(fs::exists(path("x.gguf.part-12-0")));
  EXPECT_FALSE(fs::exists(path("x.gguf.checkpoint.part-7-3")));
  for (const char* name : {"x.gguf.part1", "x.gguf.part-12", "x.gguf.parts", "x.gguf.part-1-b", "y.gguf.part-12-0"})
    EXPECT_TRUE(fs::exists(path(name))) << name;
}

TEST(Memory, WhatCannotFitIsRefused) {
  EXPECT_TRUE(check_memory(5'000'000).is_ok());
  const Status status = check_memory(2'000'000'000, std::uint64_t{24} << 30);
  EXPECT_EQ(status.code(), Code::kLimit);
  for (const char* words : {"2000 M", "40.0 GB", "25.8 GB"})
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

}  // namespace
}  // namespace drift::train
