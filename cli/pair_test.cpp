#include "cli/pair.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace drift::cli {
namespace {

namespace fs = std::filesystem;

TEST(Pair, AnAdapterMayHaveAnEqualsSignInItsName) {
  std::string pattern = (fs::temp_directory_path() / "drift-pair-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const std::string plain = pattern + "/rank=8.gguf", number = pattern + "/rank=8";
  EXPECT_FALSE(parse_lora("--lora", plain).is_ok()) << "'8.gguf' is no scale";
  EXPECT_EQ(parse_lora("--lora", number).value().path, pattern + "/rank");
  for (const std::string& path : {plain, number}) {
    std::ofstream(path) << "x";
    EXPECT_EQ(parse_lora("--lora", path).value().path, path);
    EXPECT_FLOAT_EQ(parse_lora("--lora", path).value().scale, 1.0f);
    EXPECT_EQ(parse_lora("--lora", path + "=0.5").value().path, path);
    EXPECT_FLOAT_EQ(parse_lora("--lora", path + "=0.5").value().scale, 0.5f);
  }
  fs::remove_all(pattern);
}

TEST(Pair, AnAdapterForADraftThatIsNotThere) {
  PairOptions options;
  options.target = "x";
  options.loras_draft.push_back({});
  const Status status = load_pair(options).status();
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("--lora-draft"), std::string::npos);
}

}  // namespace
}  // namespace drift::cli
