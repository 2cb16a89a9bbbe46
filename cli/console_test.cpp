#include "cli/console.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace drift::cli {
namespace {

namespace fs = std::filesystem;

class AtomicFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("drift-console-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path folder_;
};

TEST_F(AtomicFile, ReplacesAndLeavesNothingBeside) {
  const fs::path path = folder_ / "out.json";
  ASSERT_TRUE(write_file_atomically(path, "one").is_ok());
  ASSERT_TRUE(write_file_atomically(path, "two").is_ok());
  EXPECT_EQ(read(path), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(AtomicFile, AMissingParentIsNamedBeforeAndAfter) {
  const std::string path = folder_ / "no" / "out.json";
  for (const Status& status : {check_writable(path), write_file_atomically(path, "x")}) {
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_NE(status.message().find("does not exist"), std::string::npos);
  }
  EXPECT_EQ(check_writable(folder_).code(), Code::kInvalid) << "a folder is no file";
  EXPECT_TRUE(check_writable(folder_ / "x").is_ok());
  EXPECT_TRUE(fs::is_empty(folder_)) << "asking leaves nothing behind";
}

}  // namespace
}  // namespace drift::cli
