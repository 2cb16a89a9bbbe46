// Files that are no model, or no longer one: each must come back as a Status that names the file, never as an abort.
#include <gguf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engines/llama/engine.hpp"
#include "tests/contract/llama_models.hpp"

namespace drift::engine {
namespace {

namespace fs = std::filesystem;

class LlamaFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("drift_llama_files_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  static Status load(const std::string& path) { return LlamaModel::load({path}).status(); }

  void expect_refused(const std::string& path, Code code, const std::string& said) {
    const Status status = load(path);
    EXPECT_EQ(status.code(), code) << path << ": " << code_name(status.code()) << ": " << status.message();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(said), std::string::npos) << status.message();
  }

  fs::path folder_;
};

TEST_F(LlamaFiles, MissingFolderEmptyAndForeignFilesAreRefused) {
  expect_refused((folder_ / "nothing.gguf").string(), Code::kNotFound, "no such file");
  expect_refused((folder_ / "no" / "folder" / "m.gguf").string(), Code::kNotFound, "no such file");
  expect_refused(folder_.string(), Code::kInvalid, "is a folder");
  expect_refused(write("empty.gguf", ""), Code::kInvalid, "is empty");
  expect_refused(write("text.gguf", "Dear model, please continue this text."), Code::kInvalid, "not a GGUF file");
  expect_refused(write("short.gguf", "GGU"), Code::kInvalid, "not a GGUF file");
  EXPECT_EQ(load("").code(), Code::kInvalid);
}

TEST_F(LlamaFiles, HeadersWithoutSenseAreRefused) {
  expect_refused(write("magic.gguf", "GGUF"), Code::kCorrupt, "cut or damaged");
  expect_refused(write("ones.gguf", "GGUF" + std::string(60, '\xff')), Code::kCorrupt, "cut or damaged");
  std::string huge("GGUF\x03\0\0\0", 8);  // version 3, then more tensors and keys than any file holds
  huge += std::string("\xff\xff\xff\xff\xff\xff\xff\x0f", 8) + std::string("\xff\xff\xff\xff\xff\xff\xff\x0f", 8);
  expect_refused(write("huge.gguf", huge), Code::kCorrupt, "cut or damaged");
  std::string nothing("GGUF\x03\0\0\0", 8);  // a well-formed file without keys and tensors is no model either
  nothing += std::string(16, '\0');
  const Status status = load(write("nothing.gguf", nothing));
  EXPECT_FALSE(status.is_ok());
  EXPECT_FALSE(status.message().empty());
}

// llama.cpp meets each of these with an assert that ends the process.
TEST_F(LlamaFiles, KeysOfTheWrongTypeAreRefused) {
  using Set = std::function<void(gguf_context*)>;
  const auto file = [&](const Set& set) {
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> header(gguf_init_empty(), &gguf_free);
    gguf_set_val_str(header.get(), "general.architecture", "llama");
    set(header.get());
    const std::string path = (folder_ / "keys.gguf").string();
    EXPECT_TRUE(gguf_write_to_file(header.get(), path.c_str(), /*only_meta=*/true));
    return path;
  };
  const auto refused = [&](const char* said, const Set& set) { expect_refused(file(set), Code::kCorrupt, said); };
  refused("general.architecture is not a text", [](gguf_context* h) { gguf_set_val_u32(h, "general.architecture", 7); });
  refused("general.type is not a text", [](gguf_context* h) { gguf_set_val_u32(h, "general.type", 7); });
  refused("names no architecture", [](gguf_context* h) { gguf_set_val_str(h, "general.architecture", ""); });
  refused("has 1000 bytes",
          [](gguf_context* h) { gguf_set_val_str(h, "general.architecture", std::string(1'000, 'a').c_str()); });
  refused("adapter.lora.alpha", [](gguf_context* h) { gguf_set_val_str(h, "adapter.lora.alpha", "16"); });
  refused("llama.block_count is 0", [](gguf_context* h) { gguf_set_val_u32(h, "llama.block_count", 0); });
  refused("llama.block_count is 4000000000", [](gguf_context* h) { gguf_set_val_u32(h, "llama.block_count", 4'000'000'000u); });
  refused("llama.block_count is not", [](gguf_context* h) { gguf_set_val_str(h, "llama.block_count", "4"); });
  refused("holds no tensors", [](gguf_context* h) { gguf_set_val_str(h, "adapter.type", "lora"); });
  // And what llama.cpp refuses by itself is said in its words, without its function names.
  const Status unknown = load(file([](gguf_context* h) { gguf_set_val_str(h, "general.architecture", "no-such-thing"); }));
  EXPECT_EQ(unknown.code(), Code::kCorrupt);
  EXPECT_NE(unknown.message().find("unknown model architecture"), std::string::npos) << unknown.message();
  EXPECT_EQ(unknown.message().find("llama_model_load"), std::string::npos) << unknown.message();
}

TEST_F(LlamaFiles, CutModelsAreRefusedAtEveryLength) {
  const std::string whole = model_path(kSmol);
  if (whole.empty()) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(kSmol);
  const std::uintmax_t size = fs::file_size(whole);
  const std::string cut = (folder_ / "cut.gguf").string();
  fs::copy_file(whole, cut);
  // From the last byte down through the tensors, the tensor table, the vocabulary and the first keys.
  std::vector<std::uintmax_t> lengths = {size - 1, size - 4096, size / 2, size / 4, 8u << 20};
  for (std::uintmax_t length = 3u << 20; length > 24; length = length * 3 / 5) lengths.push_back(length + length % 3);
  for (const std::uintmax_t length : {24, 23, 16, 9, 5}) lengths.push_back(length);
  for (const std::uintmax_t length : lengths) {
    ASSERT_LT(length, fs::file_size(cut)) << "lengths must fall";
    fs::resize_file(cut, length);
    const Status status = load(cut);
    EXPECT_EQ(status.code(), Code::kCorrupt)
        << "at " << length << " bytes: " << code_name(status.code()) << ": " << status.message();
    EXPECT_NE(status.message().find(cut), std::string::npos) << status.message();
  }
}

TEST_F(LlamaFiles, AdaptersAreCheckedBeforeTheModelIsRead) {
  LlamaConfig config;
  config.model = (folder_ / "no-model.gguf").string();
  config.loras = {{(folder_ / "no-adapter.gguf").string(), 1.0F}};
  const auto missing = LlamaEngine::load(config);
  ASSERT_FALSE(missing.is_ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("no-adapter.gguf"), std::string::npos) << missing.status().message();
  EXPECT_NE(missing.status().message().find("LoRA"), std::string::npos) << missing.status().message();
}

TEST_F(LlamaFiles, AModelIsNoAdapter) {
  const std::shared_ptr<LlamaModel> model = shared_model(kSmol);
  if (!model) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(kSmol);
  LlamaConfig config;
  config.context = 64;
  config.loras = {{model->path(), 1.0F}};
  const auto engine = LlamaEngine::make(model, config);
  ASSERT_FALSE(engine.is_ok());
  EXPECT_EQ(engine.status().code(), Code::kInvalid);
  config.loras[0].scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(LlamaEngine::make(model, config).status().code(), Code::kInvalid);
}

TEST_F(LlamaFiles, HashDependsOnBytesAndAdaptersOnly) {
  const std::string a = write("a", "some bytes"), b = write("b", "some bytes"), c = write("c", "some bytez"),
                    big = write("big", std::string(9 << 20, 'x'));
  EXPECT_EQ(file_hash(a).value(), file_hash(b).value());
  EXPECT_NE(file_hash(a).value(), file_hash(c).value());
  EXPECT_EQ(file_hash(a).value().size(), 32U);
  EXPECT_EQ(file_hash(big).value().size(), 32U);
  EXPECT_EQ(file_hash(write("none", "")).value(), "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing, as published
  EXPECT_EQ(file_hash((folder_ / "gone").string()).status().code(), Code::kNotFound);
  const std::string plain = content_hash(a, {}).value();
  EXPECT_EQ(plain, content_hash(b, {{c, 0.0F}}).value()) << "an adapter that is off changes nothing";
  const std::string with = content_hash(a, {{c, 1.0F}}).value();
  EXPECT_NE(with, plain);
  EXPECT_NE(with, content_hash(a, {{c, 0.5F}}).value());
  EXPECT_NE(with, content_hash(c, {{a, 1.0F}}).value());
}

}  // namespace
}  // namespace drift::engine
