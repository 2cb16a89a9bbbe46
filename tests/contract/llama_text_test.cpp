// Text and vocabularies of real models: round trips, refusals, chat formats, the vocabulary pre-flight; and that a hidden row is
// what the output matrix is applied to.
#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "engines/llama/engine.hpp"
#include "engines/llama/text.hpp"
#include "tests/contract/llama_models.hpp"

namespace drift::engine {
namespace {

class LlamaTexts : public testing::Test {
 protected:
  void SetUp() override {
    model_ = shared_model(kSmol);
    if (!model_) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(kSmol);
  }
  std::shared_ptr<LlamaModel> model_;
};

TEST_F(LlamaTexts, PiecesOfTokensAreTheText) {
  const LlamaText text(model_);
  const std::string nul_inside("a\0b", 3);
  for (const std::string& sample :
       {std::string("The quick brown fox."), std::string("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n\ttabs  and  spaces "),
        nul_inside, std::string()}) {
    const auto tokens = text.tokenize(sample, /*add_special=*/false, /*parse_special=*/false);
    ASSERT_TRUE(tokens.is_ok()) << tokens.status().message();
    std::string back;
    for (const Token token : tokens.value()) back += text.piece(token);
    EXPECT_EQ(back, sample);
  }
  EXPECT_EQ(text.piece(-1), "");
  EXPECT_EQ(text.piece(static_cast<Token>(model_->vocab())), "");
}

TEST_F(LlamaTexts, SpecialTokensAreReadOnlyWhenAsked) {
  const LlamaText text(model_);
  const auto as_one = text.tokenize("<|im_end|>", false, true);
  const auto as_text = text.tokenize("<|im_end|>", false, false);
  ASSERT_TRUE(as_one.is_ok() && as_text.is_ok());
  ASSERT_EQ(as_one.value().size(), 1U);
  EXPECT_GT(as_text.value().size(), 1U);
  EXPECT_TRUE(text.is_end(as_one.value()[0]));
  EXPECT_EQ(text.piece(as_one.value()[0]), "<|im_end|>");
  EXPECT_FALSE(text.is_end(as_text.value()[0]));
  EXPECT_FALSE(text.is_end(-1));
}

TEST_F(LlamaTexts, BadTextIsRefused) {
  const LlamaText text(model_);
  const auto bad = text.tokenize("good so far \xff", false, false);
  ASSERT_FALSE(bad.is_ok());
  EXPECT_EQ(bad.status().code(), Code::kInvalid);
  EXPECT_NE(bad.status().message().find("byte 12"), std::string::npos) << bad.status().message();
  EXPECT_EQ(text.tokenize(std::string(kTextBytesMax + 1, 'a'), false, false).status().code(), Code::kLimit);
  EXPECT_EQ(text.chat({}, true).status().code(), Code::kInvalid);
  EXPECT_EQ(text.chat({{"user", std::string("a\0b", 3)}}, true).status().code(), Code::kInvalid);
  EXPECT_EQ(text.chat({{"user", "\xff"}}, true).status().code(), Code::kInvalid);
}

TEST_F(LlamaTexts, ChatUsesTheModelsFormat) {
  const LlamaText text(model_);
  ASSERT_TRUE(text.has_chat_template());
  const auto prompt = text.chat({{"system", "Be brief."}, {"user", "Hello"}}, true);
  ASSERT_TRUE(prompt.is_ok()) << prompt.status().message();
  EXPECT_EQ(prompt.value(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  const auto closed = text.chat({{"user", std::string(100'000, 'x')}}, false);
  ASSERT_TRUE(closed.is_ok());
  EXPECT_GT(closed.value().size(), 100'000U);
}

TEST_F(LlamaTexts, AVocabularyFitsItself) {
  const auto same = check_same_vocabulary(*model_, *model_);
  ASSERT_TRUE(same.is_ok()) << same.status().message();
  EXPECT_EQ(same.value(), model_->vocab());
}

TEST(QwenVocabulary, PairFitsAndOtherFamilyIsRefusedByName) {
  const std::string draft_path = model_path(kQwenDraft), target_path = model_path(kQwenTarget), smol_path = model_path(kSmol);
  if (draft_path.empty() || target_path.empty() || smol_path.empty())
    GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(kQwenDraft) << " or its target, or " << kSmol;
  const auto draft = LlamaModel::load({draft_path});
  ASSERT_TRUE(draft.is_ok()) << draft.status().message();
  {
    const auto smol = LlamaModel::load({smol_path});
    ASSERT_TRUE(smol.is_ok());
    for (const bool swapped : {false, true}) {
      const auto other =
          swapped ? check_same_vocabulary(*smol.value(), *draft.value()) : check_same_vocabulary(*draft.value(), *smol.value());
      ASSERT_FALSE(other.is_ok());
      EXPECT_EQ(other.status().code(), Code::kForeign);
      EXPECT_NE(other.status().message().find("first at token 0: "), std::string::npos) << other.status().message();
      EXPECT_NE(other.status().message().find("\"!\""), std::string::npos) << other.status().message();
      EXPECT_NE(other.status().message().find("<|endoftext|>"), std::string::npos) << other.status().message();
    }
  }
  const auto target = LlamaModel::load({target_path});
  ASSERT_TRUE(target.is_ok()) << target.status().message();
  const auto same = check_same_vocabulary(*target.value(), *draft.value());
  ASSERT_TRUE(same.is_ok()) << same.status().message();
  EXPECT_EQ(same.value(), 151'936U);
}

TEST(BuiltInVocabulary, ThePairSharesItAndItsPiecesAreTheText) {
  const std::string target_path = model_path(kBuiltInTarget), draft_path = model_path(kBuiltInDraft);
  if (target_path.empty() || draft_path.empty())
    GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(kBuiltInTarget) << " or its draft";
  const auto target = LlamaModel::load({target_path}), draft = LlamaModel::load({draft_path});
  ASSERT_TRUE(target.is_ok()) << target.status().message();
  ASSERT_TRUE(draft.is_ok()) << draft.status().message();
  const auto same = check_same_vocabulary(*target.value(), *draft.value());
  ASSERT_TRUE(same.is_ok()) << same.status().message();
  EXPECT_EQ(same.value(), target.value()->vocab()) << "every token of the target can be drafted";
  const LlamaText text(target.value());
  for (const std::string& sample :
       {std::string("The parties agree:\n\t(a) caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80  and  spaces "),
        std::string("a\0b", 3)}) {
    const auto tokens = text.tokenize(sample, /*add_special=*/false, /*parse_special=*/false);
    ASSERT_TRUE(tokens.is_ok()) << tokens.status().message();
    std::string back;
    for (const Token token : tokens.value()) back += text.piece(token);
    EXPECT_EQ(back, sample);
  }
}

// The output matrix of a model file, dequantised: [vocab, width]. The token embeddings where the file ties them.
std::vector<float> output_matrix(const std::string& path, std::size_t vocab, std::size_t width, ggml_type& type) {
  gguf_context* header = gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, /*ctx=*/nullptr});
  if (header == nullptr) return {};
  std::int64_t tensor = gguf_find_tensor(header, "output.weight");
  if (tensor < 0) tensor = gguf_find_tensor(header, "token_embd.weight");
  std::vector<float> values;
  if (tensor >= 0) {
    type = gguf_get_tensor_type(header, tensor);
    std::vector<char> bytes(gguf_get_tensor_size(header, tensor));
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(gguf_get_data_offset(header) + gguf_get_tensor_offset(header, tensor)));
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    const std::size_t row_bytes = ggml_row_size(type, static_cast<std::int64_t>(width));
    const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
    if (file && to_float != nullptr && bytes.size() == row_bytes * vocab) {
      values.resize(vocab * width);
      for (std::size_t i = 0; i < vocab; ++i)
        to_float(bytes.data() + i * row_bytes, values.data() + i * width, static_cast<std::int64_t>(width));
    }
  }
  gguf_free(header);
  return values;
}

TEST_F(LlamaTexts, HiddenRowTimesOutputMatrixIsTheLogitsRow) {
  ggml_type type = GGML_TYPE_F32;
  const std::size_t vocab = model_->vocab(), width = model_->hidden_width();
  const std::vector<float> matrix = output_matrix(model_->path(), vocab, width, type);
  ASSERT_FALSE(matrix.empty()) << "the output matrix cannot be read";
  LlamaConfig config;
  config.context = 64;
  config.hidden = true;
  config.threads = 1;
  auto engine = LlamaEngine::make(model_, config);
  ASSERT_TRUE(engine.is_ok()) << engine.status().message();
  const SeqId seq = engine.value()->open().value();
  std::vector<Node> nodes;
  const auto tokens = LlamaText(model_).tokenize("The capital of France is", false, false).value();
  for (std::size_t i = 0; i < tokens.size(); ++i)
    nodes.push_back({seq, tokens[i], static_cast<Pos>(i), static_cast<NodeIndex>(i) - 1, true});
  Rows rows;
  ASSERT_TRUE(engine.value()->forward(nodes, rows).is_ok());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto hidden = rows.hidden_row(r);
    // llama.cpp rounds the hidden row to 8 bits in blocks of 32 before it multiplies: each component is off by at most half a
    // step, d/2 with d = largest of its block / 127. A logit is then off by at most sum |w| d/2; its root mean square, were the
    // errors independent and uniform, is sqrt(sum w^2 d^2 / 12). We allow six of these for each single logit.
    std::vector<double> step(width);
    for (std::size_t i = 0; i < width; ++i) {
      float largest = 0;
      for (std::size_t j = i / 32 * 32; j < std::min(width, i / 32 * 32 + 32); ++j)
        largest = std::max(largest, std::fabs(hidden[j]));
      step[i] = largest / 127.0;
    }
    double worst = 0, spread = 0, mean = 0;
    for (std::size_t v = 0; v < vocab; ++v) {
      double logit = 0, variance = 0;
      for (std::size_t i = 0; i < width; ++i) {
        const double w = matrix[v * width + i];
        logit += w * hidden[i];
        variance += w * w * step[i] * step[i] / 12;
      }
      worst = std::max(worst, std::fabs(logit - rows.logits_row(r)[v]) / (std::sqrt(variance) + 1e-6));
      mean += logit / static_cast<double>(vocab);
      spread += logit * logit / static_cast<double>(vocab);
    }
    EXPECT_LT(worst, 6.0) << "row " << r << ", output matrix of type " << ggml_type_name(type);
    EXPECT_GT(spread - mean * mean, 1.0) << "the logits of row " << r << " say nothing";
  }
}

}  // namespace
}  // namespace drift::engine
