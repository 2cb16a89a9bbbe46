#include "train/checkpoint.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace drift::train {
namespace {

namespace fs = std::filesystem;

class CheckpointFile : public ::testing::Test {
 protected:
  CheckpointFile() : path_((fs::temp_directory_path() / ("drift-checkpoint-test-" + std::to_string(::getpid()))).string()) {
    const NamedTensors tensors{{"a", torch::arange(6, torch::kFloat).view({2, 3}).t()},
                               {"b", torch::tensor({1, -2}, torch::kInt)},
                               {"none", torch::empty({0})}};
    written_ = write_checkpoint(path_, {{"step", 7}, {"name", "x\"y"}}, tensors);
  }
  ~CheckpointFile() override { fs::remove(path_); }
  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  std::string path_;
  Status written_;
};

TEST_F(CheckpointFile, GivesBackWhatWasKept) {
  ASSERT_TRUE(written_.is_ok()) << written_.message();
  auto read = read_checkpoint(path_);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_EQ(read->facts["step"], 7);
  EXPECT_EQ(read->facts["name"], "x\"y");
  torch::Tensor a = torch::zeros({3, 2});
  EXPECT_TRUE(read->restore("a", a).is_ok());
  EXPECT_TRUE(torch::equal(a, torch::arange(6, torch::kFloat).view({2, 3}).t()));
  torch::Tensor b = torch::zeros({2}, torch::kInt);
  EXPECT_TRUE(read->restore("b", b).is_ok());
  EXPECT_EQ(b[1].item<int>(), -2);
  EXPECT_EQ(read->restore("c", a).code(), Code::kCorrupt);
  EXPECT_EQ(read->restore("b", a).code(), Code::kCorrupt);
}

TEST_F(CheckpointFile, ARecipeOfAnotherRunIsRefusedByName) {
  Checkpoint checkpoint;
  checkpoint.facts = {{"recipe", {{"seed", 1}, {"rows", 8}}}};
  EXPECT_TRUE(check_recipe(path_, checkpoint, {{"rows", 8}, {"seed", 1}}).is_ok());
  const Status other = check_recipe(path_, checkpoint, {{"rows", 8}, {"seed", 2}});
  EXPECT_EQ(other.code(), Code::kForeign);
  EXPECT_NE(other.message().find("seed"), std::string::npos) << other.message();
  EXPECT_EQ(check_recipe(path_, checkpoint, {{"rows", 8}}).code(), Code::kForeign);
  EXPECT_EQ(check_recipe(path_, Checkpoint{nlohmann::json::object(), {}}, {{"rows", 8}}).code(), Code::kForeign);
}

TEST_F(CheckpointFile, EveryCutAndEveryFlippedByteIsRefused) {
  const std::string whole = bytes();
  for (std::size_t size = 0; size < whole.size(); size += 3) {
    put(whole.substr(0, size));
    EXPECT_FALSE(read_checkpoint(path_).is_ok()) << size;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    put(changed);
    EXPECT_FALSE(read_checkpoint(path_).is_ok()) << "a flipped byte went unseen at " << i;
  }
  put("");
  EXPECT_EQ(read_checkpoint(path_).status().code(), Code::kCorrupt);
  fs::remove(path_);
  EXPECT_EQ(read_checkpoint(path_).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace drift::train
