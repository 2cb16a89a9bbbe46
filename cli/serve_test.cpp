#include "cli/serve.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace drift::cli {
namespace {

using Words = std::vector<std::string>;

class ServeConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    add_serve_command(app_, code_);
    file_ = (std::filesystem::temp_directory_path() / ("drift-serve-" + std::to_string(::getpid()) + ".toml")).string();
  }
  void TearDown() override {
    std::filesystem::remove(file_);
    for (const std::string& name : variables_) ::unsetenv(name.c_str());
  }
  void variable(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    variables_.push_back(name);
  }
  void write(const std::string& text) { std::ofstream(file_) << text; }
  Result<Words> all(Words given) {
    given.insert(given.begin(), "serve");
    return serve_arguments(app_, given);
  }
  Words good(const Words& given) {
    auto words = all(given);
    EXPECT_TRUE(words.is_ok()) << words.status().message();
    if (!words.is_ok()) return {};
    return {words.value().begin() + 1, words.value().end()};
  }
  std::string bad(const Words& given) {
    const auto words = all(given);
    EXPECT_FALSE(words.is_ok());
    return words.status().message();
  }

  CLI::App app_;
  int code_ = 0;
  std::string file_;
  Words variables_;
};

TEST_F(ServeConfigTest, FlagsGoBeforeVariablesAndTheseBeforeTheFile) {
  write("port = 1\nctx-size = 2\nmode = 'static'\nlora = ['a', 'b']\nmin-p = 0.25\nspecial = true\n");
  variable("DRIFT_PORT", "10");
  variable("DRIFT_CTX_SIZE", "20");
  variable("DRIFT_API_KEY", "k");
  EXPECT_EQ(good({"--port", "100", "--config", file_}),
            (Words{"--ctx-size", "20", "--api-key", "k", "--lora", "a", "--lora", "b", "--min-p", "0.25", "--mode", "static",
                   "--special", "--port", "100", "--config", file_}));
}

TEST_F(ServeConfigTest, AShortNameIsTheSameSetting) {
  variable("DRIFT_CTX_SIZE", "20");
  variable("DRIFT_PARALLEL", "2");
  EXPECT_EQ(good({"-c", "5", "-np", "3"}), (Words{"--ctx-size", "5", "--parallel", "3"}));
}

TEST_F(ServeConfigTest, SwitchesAreTrueOrFalse) {
  write("cache-prompt = false\nstrict-model = false\nslots = true\n");
  EXPECT_EQ(good({"--config=" + file_}), (Words{"--no-cache-prompt", "--slots", "--config=" + file_}));
  write("strict-model = 'yes'\n");
  EXPECT_NE(bad({"--config", file_}).find("strict-model must be true or false"), std::string::npos);
  variable("DRIFT_SPECIAL", "1");
  EXPECT_NE(bad({}).find("the environment's DRIFT_SPECIAL must be true or false"), std::string::npos);
}

TEST_F(ServeConfigTest, TheFileIsReadStrictly) {
  write("port = 1\nprot = 2\n");
  EXPECT_NE(bad({"--config", file_}).find(file_ + ":2: prot: there is no such setting"), std::string::npos)
      << bad({"--config", file_});
  write("port = \n");
  EXPECT_NE(bad({"--config", file_}).find(file_ + ":1:"), std::string::npos);
  write("[port]\nx = 1\n");
  EXPECT_NE(bad({"--config", file_}).find("must be a text, a number"), std::string::npos);
  write("port = [1, 2]\n");
  EXPECT_NE(bad({"--config", file_}).find("takes one value"), std::string::npos);
  write("bank = ''\n");
  EXPECT_NE(bad({"--config", file_}).find("bank is empty"), std::string::npos);
  EXPECT_NE(bad({"--config", file_ + ".none"}).find(".none"), std::string::npos);
}

TEST(ServeAddress, OnlyThisMachinesOwnAreLoopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1"}) EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.168.1.1", "example.com", "1127.0.0.1"}) EXPECT_FALSE(is_loopback(host)) << host;
}

}  // namespace
}  // namespace drift::cli
