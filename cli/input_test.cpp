#include "cli/input.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <istream>

#include "cli/console.hpp"

namespace drift::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ExitedWithCode;

class InputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "drift-input-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string file(const std::string& content) {
    const std::string path = folder_ / "file";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  fs::path folder_;
};

TEST_F(InputTest, WholeFiles) {
  const std::string path = file(std::string(70'000, 'x'));
  ASSERT_TRUE(read_text_file(path, 70'000).is_ok());
  EXPECT_EQ(read_text_file(path, 70'000).value(), std::string(70'000, 'x'));
  EXPECT_EQ(read_text_file(path, 69'999).status().code(), Code::kLimit);
  EXPECT_EQ(read_text_file(folder_ / "none", 1).status().code(), Code::kNotFound);
  EXPECT_EQ(read_text_file(folder_, 1).status().code(), Code::kInvalid);
}

// One line a string; "!" for one that was too long.
std::vector<std::string> lines_of(const std::string& path, std::size_t bytes_max) {
  std::vector<std::string> out;
  auto input = Input::open(path);
  EXPECT_TRUE(input.is_ok());
  LineReader lines(std::move(input).value(), bytes_max);
  for (;;) {
    auto line = lines.next();
    EXPECT_TRUE(line.is_ok());
    if (!line.is_ok() || !line.value().has_value()) return out;
    out.push_back(line.value()->too_long ? "!" + line.value()->text : line.value()->text);
  }
}

TEST_F(InputTest, Lines) {
  using List = std::vector<std::string>;
  EXPECT_EQ(lines_of(file(""), 9), List{});
  EXPECT_EQ(lines_of(file("a\n\nbc"), 9), (List{"a", "", "bc"}));
  EXPECT_EQ(lines_of(file("a\n"), 9), List{"a"});
  EXPECT_EQ(lines_of(file("123\n1234\n123\n12345"), 3), (List{"123", "!", "123", "!"}));
  const std::string longer_than_a_buffer(100'000, 'x');
  EXPECT_EQ(lines_of(file("a\n" + longer_than_a_buffer + "\nb\n"), 100'000), (List{"a", longer_than_a_buffer, "b"}));
  EXPECT_EQ(lines_of(file("a\n" + longer_than_a_buffer + "\nb\n"), 99'999), (List{"a", "!", "b"}));
}

TEST_F(InputTest, ALineWithoutEndIsGivenUp) {
  auto zero = Input::open("/dev/zero");
  ASSERT_TRUE(zero.is_ok());
  LineReader lines(std::move(zero).value(), 1'000);
  EXPECT_EQ(lines.next().status().code(), Code::kLimit);
}

TEST_F(InputTest, AsAStream) {
  const std::string content(200'000, 'y');
  auto input = Input::open(file(content));
  ASSERT_TRUE(input.is_ok());
  InputBuffer buffer(std::move(input).value());
  std::istream in(&buffer);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), content);
  EXPECT_TRUE(buffer.status().is_ok());
}

[[noreturn]] void open_a_pipe_and_be_interrupted(const std::string& path) {
  install_signal_handlers();
  const pid_t waiting = ::getpid();
  if (::fork() == 0) {
    ::usleep(300'000);  // until the other one waits for a writer
    ::kill(waiting, SIGINT);
    ::_exit(0);
  }
  const auto text = read_text_file(path, 100);
  ::_exit(text.is_ok() || text.status().code() != Code::kCancelled ? 8 : fail(text.status()));
}

TEST_F(InputTest, AnInterruptionEndsTheWaitForAPipe) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EXIT(open_a_pipe_and_be_interrupted(path), ExitedWithCode(130), "drift: interrupted while reading ");
}

}  // namespace
}  // namespace drift::cli
