#include "train/text.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "text/utf8.hpp"

namespace drift::train {
namespace {

namespace fs = std::filesystem;

class TextFolder : public ::testing::Test {
 protected:
  TextFolder() : folder_(fs::temp_directory_path() / ("drift-text-test-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~TextFolder() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / (name + ".txt"), std::ios::binary) << content;
  }
  Result<Domain> read(const std::string& name) { return read_domain(folder_.string(), name); }
  fs::path folder_;
};

std::string paragraphs(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += "Paragraph " + std::to_string(i) + " says something of its own, number " + std::to_string(i * i) + ".\n\n";
  return text;
}

TEST(Chunks, AreTheTextInOrderAndWholeCharacters) {
  std::string long_line;
  for (int i = 0; i < 20'000; ++i) long_line += "\xE2\x82\xAC";  // three bytes each, no line end
  for (const std::string& text : {paragraphs(400), long_line, std::string("short"), std::string(), std::string(9'000, '\n')}) {
    std::string joined;
    for (const std::string_view chunk : cut_into_chunks(text)) {
      EXPECT_FALSE(chunk.empty());
      EXPECT_LE(chunk.size(), kChunkBytesMax);
      EXPECT_EQ(text::valid_prefix(chunk), chunk.size());
      joined += chunk;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST_F(TextFolder, SplitsByHashOfTheChunk) {
  write("a", paragraphs(4'000));
  auto domain = read("a");
  ASSERT_TRUE(domain.is_ok()) << domain.status().message();
  const double all = static_cast<double>(domain->train.size() + domain->held_out.size());
  EXPECT_GT(all, 100);
  EXPECT_NEAR(static_cast<double>(domain->held_out.size()) / all, 1.0 / kHeldOutOneIn, 0.05);
  for (const std::string& chunk : domain->held_out) EXPECT_TRUE(is_held_out(chunk));
  for (const std::string& chunk : domain->train) EXPECT_FALSE(is_held_out(chunk));
}

TEST_F(TextFolder, RefusesWhatCannotBeLearnt) {
  EXPECT_EQ(read("missing").status().code(), Code::kNotFound);
  EXPECT_EQ(read_domain((folder_ / "nowhere").string(), "a").status().code(), Code::kNotFound);
  write("empty", "");
  EXPECT_EQ(read("empty").status().code(), Code::kInvalid);
  write("small", "too little");
  EXPECT_EQ(read("small").status().code(), Code::kLimit);
  write("latin1", paragraphs(300) + "caf\xE9 " + paragraphs(300));
  auto latin1 = read("latin1");
  EXPECT_EQ(latin1.status().code(), Code::kInvalid);
  EXPECT_NE(latin1.status().message().find("byte " + std::to_string(paragraphs(300).size() + 3)), std::string::npos)
      << latin1.status().message();
}

TEST_F(TextFolder, NamesTheTextsThereAre) {
  EXPECT_EQ(domains_in(folder_.string()).status().code(), Code::kInvalid);
  write("law", "x");
  write("code", "x");
  std::ofstream(folder_ / "README.md") << "x";
  auto names = domains_in(folder_.string());
  ASSERT_TRUE(names.is_ok());
  EXPECT_EQ(*names, (std::vector<std::string>{"code", "law"}));
  EXPECT_EQ(domains_in((folder_ / "nowhere").string()).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace drift::train
