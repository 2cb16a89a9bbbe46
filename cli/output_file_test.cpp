#include "cli/output_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>

namespace drift::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OutputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "drift-output-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ / name; }
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& item : fs::directory_iterator(folder_)) out.insert(item.path().filename().string());
    return out;
  }
  fs::path folder_;
};

using Names = std::set<std::string>;

TEST_F(OutputFileTest, ReplacesKeepsTheModeAndLeavesNothingBeside) {
  ASSERT_TRUE(write_file_atomically(at("out"), "one", {}).is_ok());
  ASSERT_EQ(::chmod(at("out").c_str(), 0640), 0);
  ASSERT_TRUE(write_file_atomically(at("out"), "two", {}).is_ok());
  EXPECT_EQ(read(at("out")), "two");
  EXPECT_EQ(fs::status(at("out")).permissions(), static_cast<fs::perms>(0640));
  EXPECT_EQ(names(), Names{"out"});
}

TEST_F(OutputFileTest, UnfinishedItLeavesTheOldFileAndNothingBeside) {
  put(at("out"), "old");
  put(at("out.part"), "somebody's");
  {
    auto file = OutputFile::open(at("out"), {});
    ASSERT_TRUE(file.is_ok());
    ASSERT_TRUE(file->write("half").is_ok());
    EXPECT_EQ(read(at("out")), "old");
  }
  EXPECT_EQ(read(at("out")), "old");
  EXPECT_EQ(read(at("out.part")), "somebody's");
  EXPECT_EQ(names(), (Names{"out", "out.part"}));
}

TEST_F(OutputFileTest, ALeftoverOfTheSameProcessNumberIsNotTouched) {
  const std::string left = at("out") + ".part-" + std::to_string(::getpid()) + "-0";
  put(left, "left");
  ASSERT_TRUE(write_file_atomically(at("out"), "new", {}).is_ok());
  EXPECT_EQ(read(left), "left");
  EXPECT_EQ(read(at("out")), "new");
}

TEST_F(OutputFileTest, FoldersAreNamedBeforeAndAfter) {
  const std::string path = at("no/out.json");
  for (const Status& status : {check_writable(path, {}), write_file_atomically(path, "x", {})}) {
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_THAT(status.message(), HasSubstr("out.json does not exist; make it first"));
  }
  EXPECT_EQ(check_writable(folder_, {}).code(), Code::kInvalid) << "a folder is no file";
  EXPECT_TRUE(check_writable(at("x"), {}).is_ok());
  EXPECT_TRUE(fs::is_empty(folder_)) << "asking leaves nothing behind";
}

TEST_F(OutputFileTest, AnInputIsNeverOverwritten) {
  put(at("in"), "input");
  fs::create_symlink("in", at("link"));
  fs::create_hard_link(at("in"), at("hard"));
  for (const std::string& path : {at("in"), at("link"), at("hard"), at("../" + folder_.filename().string() + "/in")}) {
    for (const Status& status : {check_writable(path, {at("none"), at("in")}), write_file_atomically(path, "x", {at("in")})}) {
      EXPECT_EQ(status.code(), Code::kInvalid) << path;
      EXPECT_THAT(status.message(), HasSubstr("same file"));
    }
  }
  EXPECT_EQ(read(at("in")), "input");
  EXPECT_TRUE(check_writable("/dev/null", {"/dev/null"}).is_ok()) << "a device is not destroyed by writing";
}

TEST_F(OutputFileTest, SymbolicLinksAreFollowed) {
  fs::create_directory(folder_ / "deep");
  put(at("deep/real"), "old");
  fs::create_symlink("deep/real", at("first"));
  fs::create_symlink(folder_ / "first", at("second"));
  ASSERT_TRUE(write_file_atomically(at("second"), "new", {}).is_ok());
  EXPECT_TRUE(fs::is_symlink(at("second")) && fs::is_symlink(at("first")));
  EXPECT_EQ(read(at("deep/real")), "new");

  fs::create_symlink("deep/later", at("dangling"));
  ASSERT_TRUE(write_file_atomically(at("dangling"), "made", {}).is_ok());
  EXPECT_TRUE(fs::is_symlink(at("dangling")));
  EXPECT_EQ(read(at("deep/later")), "made");

  fs::create_symlink("round", at("round"));
  EXPECT_EQ(check_writable(at("round"), {}).code(), Code::kIo);
}

TEST_F(OutputFileTest, DevicesAndPipesAreWrittenInto) {
  fs::create_symlink("/dev/null", at("null"));  // by links, so that a mistake here replaces no device
  fs::create_symlink("/dev/full", at("full"));
  ASSERT_TRUE(write_file_atomically(at("null"), "x", {}).is_ok());
  EXPECT_TRUE(fs::is_symlink(at("null")) && fs::is_character_file(at("null")));
  const Status full = write_file_atomically(at("full"), "x", {});
  EXPECT_EQ(full.code(), Code::kIo);
  EXPECT_THAT(full.message(), HasSubstr("full: No space left"));

  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(check_writable(at("pipe"), {}).is_ok()) << "asking does not wait for a reader";
  std::string got;
  std::thread reader([&] { got = read(at("pipe")); });
  EXPECT_TRUE(write_file_atomically(at("pipe"), "through", {}).is_ok());
  reader.join();
  EXPECT_EQ(got, "through");
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
}

}  // namespace
}  // namespace drift::cli
