// Runs of the built-in pair are recorded and replayed from the file: step for step the same.
#include <gtest/gtest.h>

#include <memory>

#include "drift/decode/mode_name.hpp"
#include "engines/llama/text.hpp"
#include "tests/contract/llama_models.hpp"
#include "tests/contract/replay_runs.hpp"

namespace drift::engine {
namespace {

class BuiltInReplay : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {kBuiltInTarget, kBuiltInDraft}) {
      if (model_path(file).empty()) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(file);
    }
    target_ = load_engine(kBuiltInTarget, false, 128);
    draft_ = load_engine(kBuiltInDraft, true, 128);
    ASSERT_TRUE(target_ && draft_);
    const LlamaText text(*target_);
    std::uint64_t name = 1;
    for (const char* prompt : {"The court held that the", "def add(a, b):\n    return", "The patient was given"}) {
      auto tokens = text.tokenize(prompt, true, false);
      ASSERT_TRUE(tokens.is_ok());
      prompts_.push_back({prompt, "", "prefix", "", name++, *tokens});
    }
  }

  // A bank and choices as at the start of a run.
  decode::SequenceConfig config(decode::Mode mode, float temperature) {
    recal::RecalConfig r;
    r.bank.key_dim = static_cast<std::uint32_t>(draft_->describe().hidden_width);
    r.bank.vocab = static_cast<std::uint32_t>(draft_->describe().vocab);
    auto made = recal::Recalibrator::create(r);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    recal_ = std::move(made).value();
    decode::SequenceConfig config;
    config.mode = mode;
    config.sampler = {temperature, 40, 0.95f, 0.05f};
    config.max_tokens = 40;
    config.recal = recal_.get();
    config.choices = &stream_;
    return config;
  }

  std::unique_ptr<LlamaEngine> target_, draft_;
  std::unique_ptr<recal::Recalibrator> recal_;
  RngStream stream_{5};
  std::vector<trace::Prompt> prompts_;
};

TEST_F(BuiltInReplay, RecordedRunsAreRepeatedStepForStep) {
  const trace::test::Folder folder;
  for (const decode::Mode mode : {decode::Mode::kStatic, decode::Mode::kDrift}) {
    for (const float temperature : {0.0f, 0.8f}) {
      SCOPED_TRACE(std::string(decode::mode_name(mode)) + " at " + std::to_string(temperature));
      const decode::SequenceConfig live_config = config(mode, temperature);
      trace::Header header;
      header.program = "test";
      header.mode = decode::mode_name(mode);
      const spec::SamplerConfig& s = live_config.sampler;
      header.sampling = {s.temperature, s.top_k, s.top_p, s.min_p, 5, false};
      header.generate = live_config.max_tokens;
      const std::filesystem::path path = folder.empty("run.trace");
      const auto live = record_run(*target_, draft_.get(), header, prompts_, live_config, path);
      trace::Metrics m;
      for (const auto& steps : live) {
        for (const auto& e : steps) m.add(e);
      }
      EXPECT_GT(m.accepted, 0u);
      EXPECT_LT(m.accepted, m.tested);
      replay_and_compare(path, config(mode, temperature), live);
    }
  }
}

}  // namespace
}  // namespace drift::engine
