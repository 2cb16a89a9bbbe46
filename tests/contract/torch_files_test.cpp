// GGUF files written and read back, read by llama.cpp's tokenizer, and files that are damaged: a Status, never an abort.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "engines/llama/text.hpp"
#include "tests/contract/torch_nets.hpp"

namespace drift::engine {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class TorchFiles : public testing::Test {
 protected:
  void SetUp() override {
    const Status status = write_gguf(path_, net_, small_meta(shape_.vocab), GgufType::kF32);
    ASSERT_TRUE(status.is_ok()) << status.message();
    good_ = bytes_of(path_);
  }
  std::string put(const std::string& bytes) {
    std::ofstream(folder_.file("bad.gguf"), std::ios::binary) << bytes;
    return folder_.file("bad.gguf");
  }
  // The good file with the 4 bytes of a number or float behind `key` (its length and a type lie between) replaced.
  template <class T>
  std::string with(const std::string& key, T value) {
    std::string bytes = good_;
    const std::size_t at = bytes.find(key);
    EXPECT_NE(at, std::string::npos) << key;
    std::memcpy(bytes.data() + at + key.size() + 4, &value, sizeof value);
    return bytes;
  }
  void expect_refused(const std::string& bytes, Code code, const std::string& said) {
    const std::string path = put(bytes);
    const Status status = read_gguf(path).status();
    EXPECT_EQ(status.code(), code) << code_name(status.code()) << ": " << status.message();
    EXPECT_NE(status.message().find(said), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  }

  Folder folder_;
  ModelShape shape_ = small_shape();
  LlamaNet net_ = lively_net(shape_, /*seed=*/21);
  std::string path_ = folder_.file("good.gguf");
  std::string good_;
};

TEST_F(TorchFiles, AFileReadBackIsTheSameNetwork) {
  for (const Rope rope : {Rope::kInterleaved, Rope::kHalves}) {
    const ModelShape shape = small_shape(rope);
    const LlamaNet net = lively_net(shape, /*seed=*/22);
    ASSERT_TRUE(write_gguf(path_, net, small_meta(shape.vocab, "a name"), GgufType::kF32).is_ok());
    Result<GgufModel> read = read_gguf(path_);
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    EXPECT_EQ(read->meta.name(), "a name");
    EXPECT_EQ(read->meta.vocab(), shape.vocab);
    const ModelShape& found = read->net->shape();
    EXPECT_EQ(found.rope, shape.rope);
    EXPECT_EQ(found.tied, shape.tied);
    EXPECT_EQ(found.qkv_bias, shape.qkv_bias);
    EXPECT_EQ(found.context, shape.context);
    EXPECT_FLOAT_EQ(static_cast<float>(found.rope_base), static_cast<float>(shape.rope_base));
    EXPECT_FLOAT_EQ(static_cast<float>(found.norm_eps), static_cast<float>(shape.norm_eps));
    const auto source = net->named_parameters();
    for (const auto& item : read->net->named_parameters())
      EXPECT_TRUE(torch::equal(item.value(), source[item.key()])) << item.key();
    // What was read is written again byte for byte.
    ASSERT_TRUE(write_gguf(folder_.file("again.gguf"), read->net, read->meta, GgufType::kF32).is_ok());
    EXPECT_EQ(bytes_of(folder_.file("again.gguf")), bytes_of(path_));
  }
}

TEST_F(TorchFiles, SmallerTypesRoundWithinTheirSteps) {
  const auto source = net_->named_parameters();
  for (const auto& [type, step] :
       {std::pair{GgufType::kF16, 1.0 / 2048}, {GgufType::kQ8_0, 1.0 / 127}, {GgufType::kQ4_0, 1.0 / 8}}) {
    ASSERT_TRUE(write_gguf(path_, net_, small_meta(shape_.vocab), type).is_ok());
    Result<GgufModel> read = read_gguf(path_);
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    for (const auto& item : read->net->named_parameters()) {
      const torch::Tensor& right = source[item.key()];
      const double largest = right.abs().max().item<double>();
      const double difference = (item.value() - right).abs().max().item<double>();
      EXPECT_LE(difference, step * largest) << item.key();
      if (item.value().dim() == 1)
        EXPECT_EQ(difference, 0) << item.key() << " stays float32";
      else
        EXPECT_GT(difference, 0) << item.key();
    }
    EXPECT_LT(std::filesystem::file_size(path_), good_.size() * (type == GgufType::kF16 ? 6 : 4) / 10);
  }
}

TEST_F(TorchFiles, TheEmbeddingAlone) {
  for (const auto& [type, step] : {std::pair{GgufType::kF32, 0.0}, {GgufType::kQ4_0, 1.0 / 8}}) {
    ASSERT_TRUE(write_gguf(path_, net_, small_meta(shape_.vocab, "a name"), type).is_ok());
    Result<GgufEmbedding> read = read_gguf_embedding(path_);
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    EXPECT_EQ(read->meta.name(), "a name");
    EXPECT_EQ(read->meta.vocab(), shape_.vocab);
    const torch::Tensor right = net_->token_embd->weight.detach();
    ASSERT_EQ(read->weight.sizes(), right.sizes());
    EXPECT_LE((read->weight - right).abs().max().item<double>(), step * right.abs().max().item<double>());
  }
  EXPECT_EQ(read_gguf_embedding(folder_.file("nowhere.gguf")).status().code(), Code::kNotFound);
  ASSERT_TRUE(write_adapter(
                  path_,
                  [&] {
                    LlamaNet adapted = copy_of(net_);
                    adapted->add_adapters(2, 4, 1);
                    return adapted;
                  }(),
                  "adapter")
                  .is_ok());
  EXPECT_EQ(read_gguf_embedding(path_).status().code(), Code::kInvalid);
}

TEST_F(TorchFiles, LlamaReadsTheTokenizer) {
  Result<std::shared_ptr<LlamaModel>> model = LlamaModel::load({path_});
  ASSERT_TRUE(model.is_ok()) << model.status().message();
  EXPECT_EQ(model.value()->vocab(), static_cast<std::size_t>(shape_.vocab));
  EXPECT_EQ(model.value()->name(), "random");
  const LlamaText text(model.value());
  const std::string sample = "A table of\nbytes: \xc3\xa9\xe2\x82\xac and\ttabs";
  Result<std::vector<Token>> tokens = text.tokenize(sample, /*add_special=*/true, /*parse_special=*/false);
  ASSERT_TRUE(tokens.is_ok()) << tokens.status().message();
  std::string back;
  for (const Token token : tokens.value()) back += text.piece(token);
  EXPECT_EQ(back, sample);
  EXPECT_LT(tokens->size(), sample.size() - 2) << "merges are used: 'ab', 'of', 'an'";
  EXPECT_TRUE(text.is_end(static_cast<Token>(shape_.vocab) - 1));
}

TEST_F(TorchFiles, WhatIsNoModelIsRefused) {
  EXPECT_EQ(read_gguf(folder_.file("none.gguf")).status().code(), Code::kNotFound);
  EXPECT_EQ(read_gguf(folder_.path().string()).status().code(), Code::kInvalid);
  EXPECT_EQ(read_gguf("").status().code(), Code::kInvalid);
  EXPECT_EQ(read_gguf(put("")).status().code(), Code::kInvalid);
  expect_refused("Dear model", Code::kInvalid, "not a GGUF file");
  net_->add_adapters(2, 2, 1);
  ASSERT_TRUE(write_adapter(path_, net_, "adapter").is_ok());
  expect_refused(bytes_of(path_), Code::kInvalid, "is a LoRA adapter");
}

TEST_F(TorchFiles, ContradictionsAreNamed) {
  expect_refused(with("llama.embedding_length", std::uint32_t{32}), Code::kUnsupported, "turning 16 dimensions of a head");
  expect_refused(with("llama.embedding_length", std::uint32_t{0}), Code::kInvalid, "width is 0");
  expect_refused(with("llama.block_count", std::uint32_t{3}), Code::kCorrupt, "blk.2.");
  expect_refused(with("llama.block_count", std::uint32_t{1}), Code::kUnsupported, "blk.1.");
  expect_refused(with("llama.feed_forward_length", std::uint32_t{64}), Code::kCorrupt, "its header says");
  expect_refused(with("llama.attention.head_count", std::uint32_t{3}), Code::kInvalid, "3 heads");
  expect_refused(with("llama.attention.head_count_kv", std::uint32_t{0}), Code::kInvalid, "kv heads is 0");
  expect_refused(with("llama.context_length", std::uint32_t{0xffffffff}), Code::kInvalid, "context is 4294967295");
  expect_refused(with("llama.rope.dimension_count", std::uint32_t{8}), Code::kUnsupported, "dimensions");
  expect_refused(with("llama.rope.freq_base", -1.0F), Code::kInvalid, "rope base");
  expect_refused(with("llama.attention.layer_norm_rms_epsilon", 0.0F), Code::kInvalid, "norm epsilon");
  const auto renamed = [&](const std::string& from, const std::string& to) {
    std::string bytes = good_;
    return bytes.replace(bytes.find(from), from.size(), to);
  };
  expect_refused(renamed("output_norm.weight", "output_nork.weight"), Code::kCorrupt, "output_norm.weight is missing");
  expect_refused(renamed("llama", "gemma"), Code::kUnsupported, "architecture 'gemma'");
  expect_refused(renamed("llama.context_length", "llama.kontext_length"), Code::kCorrupt, "no llama.context_length");
}

TEST_F(TorchFiles, WeightsThatAreNotFiniteAreRefused) {
  std::string bytes = good_;
  const std::uint32_t nan = 0x7fc00000;
  std::memcpy(bytes.data() + bytes.size() - 64, &nan, sizeof nan);
  expect_refused(bytes, Code::kCorrupt, "not finite");
}

// Cut anywhere, and with any byte of the header changed: a Status or a readable model, never an abort, never a huge allocation.
TEST_F(TorchFiles, CutAndScribbledFilesNeverAbort) {
  const std::size_t header = good_.find("output_norm.weight") + 64;
  for (std::size_t length = 0; length < good_.size(); length += length < 4096 ? 61 : 4099)
    EXPECT_FALSE(read_gguf(put(good_.substr(0, length))).is_ok()) << "cut to " << length;
  int refused = 0;
  std::uint64_t state = 7;
  for (int i = 0; i < 400; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::string bytes = good_;
    bytes[(state >> 33) % header] = static_cast<char>(state >> 24);
    const Status status = read_gguf(put(bytes)).status();
    if (status.is_ok()) continue;
    ++refused;
    EXPECT_FALSE(status.message().empty());
  }
  EXPECT_GT(refused, 40);
}

TEST_F(TorchFiles, BadWritesLeaveTheOldFile) {
  const GgufMeta meta = small_meta(shape_.vocab);
  EXPECT_EQ(write_gguf(folder_.file("no/such/folder.gguf"), net_, meta, GgufType::kF32).code(), Code::kIo);
  EXPECT_EQ(write_gguf(path_, net_, small_meta(shape_.vocab - 1), GgufType::kF32).code(), Code::kInvalid);
  const torch::NoGradGuard no_grad;
  net_->matrices()[1].matrix->weight[0][0] = 70000.0;
  const Status large = write_gguf(path_, net_, meta, GgufType::kF16);
  EXPECT_EQ(large.code(), Code::kInvalid);
  EXPECT_NE(large.message().find("blk.0.attn_k.weight is too large"), std::string::npos) << large.message();
  net_->matrices()[1].matrix->weight[0][0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(write_gguf(path_, net_, meta, GgufType::kF32).code(), Code::kInvalid);
  EXPECT_EQ(bytes_of(path_), good_);
  net_->matrices()[1].matrix->weight[0][0] = 0.5;
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(write_gguf(pipe, net_, meta, GgufType::kF32).code(), Code::kInvalid);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe)) << "a device is not replaced";
  std::filesystem::remove(pipe);
  const std::string link = folder_.file("link");
  std::filesystem::create_symlink(path_, link);
  EXPECT_TRUE(write_gguf(link, net_, meta, GgufType::kF32).is_ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_NE(bytes_of(path_), good_) << "what the link names was written";
  std::filesystem::remove(link);

  ModelShape narrow = shape_;
  narrow.width = 48;  // not a multiple of 32
  const Status blocks = write_gguf(path_, lively_net(narrow, 1), meta, GgufType::kQ8_0);
  EXPECT_EQ(blocks.code(), Code::kInvalid);
  EXPECT_NE(blocks.message().find("blocks of 32"), std::string::npos) << blocks.message();
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) files += entry.path() == path_ ? 1U : 100U;
  EXPECT_EQ(files, 1U) << "no temporary file is left";
}

TEST(TorchTokenizer, ContradictionsAreNamed) {
  const auto said = [](auto change) {
    BpeTokenizer tokenizer;
    tokenizer.tokens = {"a", "b", "ab"};
    tokenizer.merges = {"a b"};
    change(tokenizer);
    const Result<GgufMeta> meta = GgufMeta::of(tokenizer, "t");
    return meta.is_ok() ? std::string("ok") : meta.status().message();
  };
  EXPECT_EQ(said([](BpeTokenizer&) {}), "ok");
  EXPECT_NE(said([](BpeTokenizer& t) { t.tokens[1] = "a"; }).find("there twice"), std::string::npos);
  EXPECT_NE(said([](BpeTokenizer& t) { t.tokens[1] = ""; }).find("token 1 has 0 bytes"), std::string::npos);
  EXPECT_NE(said([](BpeTokenizer& t) { t.tokens = {"a"}; }).find("1 tokens"), std::string::npos);
  EXPECT_NE(said([](BpeTokenizer& t) { t.types = {TokenType::kNormal}; }).find("1 token types"), std::string::npos);
  EXPECT_NE(said([](BpeTokenizer& t) { t.merges = {"ab"}; }).find("not two tokens"), std::string::npos);
  EXPECT_NE(said([](BpeTokenizer& t) { t.merges = {"a c"}; }).find("'c' is not among"), std::string::npos);
  EXPECT_NE(said([](BpeTokenizer& t) { t.eos = 3; }).find("eos token is 3"), std::string::npos);
  EXPECT_NE(said([](BpeTokenizer& t) { t.add_bos = true; }).find("begin with bos"), std::string::npos);
  const std::vector<std::string> bytes = byte_tokens();
  EXPECT_EQ(bytes['A'], "A");
  EXPECT_EQ(bytes[' '], "\xc4\xa0");
  EXPECT_EQ(bytes['\n'], "\xc4\x8a");
}

}  // namespace
}  // namespace drift::engine
