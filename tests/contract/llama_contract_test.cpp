// The engine contract on real models through llama.cpp, and what only this engine promises.
#include <cstdio>
#include <cstdlib>

#include "tests/contract/contract.hpp"
#include "tests/contract/llama_models.hpp"

namespace drift::engine {
namespace {

LlamaConfig small_config(bool hidden) {
  LlamaConfig config;
  config.context = 96;
  config.max_sequences = 4;
  config.threads = 1;  // a test must stay quick beside others on few cores: waiting threads spin
  config.hidden = hidden;
  return config;
}

ContractCase llama_case(std::string name, const char* file, LlamaConfig config) {
  ContractCase contract;
  contract.name = std::move(name);
  contract.bitwise = false;
  contract.missing = missing_model(file);
  contract.make = [file, config]() -> std::unique_ptr<Engine> {
    const std::shared_ptr<LlamaModel> model = shared_model(file);
    if (!model) return nullptr;
    Result<std::unique_ptr<LlamaEngine>> engine = LlamaEngine::make(model, config);
    if (engine.is_ok()) return std::move(engine).value();
    std::fprintf(stderr, "cannot make an engine: %s\n", engine.status().message().c_str());
    std::abort();
  };
  return contract;
}

std::vector<ContractCase> smol_cases() {
  LlamaConfig cut = small_config(true);
  cut.n_batch = 8;  // forwards are cut into several decodes
  LlamaConfig single = small_config(true);
  single.one_row_at_a_time = true;
  LlamaConfig apart = small_config(true);
  apart.shared_cells = false;
  return {llama_case("smol_target", kSmol, small_config(false)), llama_case("smol_draft", kSmol, small_config(true)),
          llama_case("smol_cut", kSmol, cut), llama_case("smol_one_row", kSmol, single),
          llama_case("smol_cells_apart", kSmol, apart)};
}

std::vector<ContractCase> built_in_cases() {
  LlamaConfig cut = small_config(true);
  cut.n_batch = 8;
  return {llama_case("built_in_target", kBuiltInTarget, small_config(false)),
          llama_case("built_in_draft", kBuiltInDraft, small_config(true)), llama_case("built_in_cut", kBuiltInDraft, cut)};
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, EngineContract, testing::ValuesIn(built_in_cases()), contract_case_name);
INSTANTIATE_TEST_SUITE_P(Llama, EngineContract, testing::ValuesIn(smol_cases()), contract_case_name);
INSTANTIATE_TEST_SUITE_P(QwenTarget, EngineContract, testing::Values(llama_case("qwen_target", kQwenTarget, small_config(false))),
                         contract_case_name);
INSTANTIATE_TEST_SUITE_P(QwenDraft, EngineContract, testing::Values(llama_case("qwen_draft", kQwenDraft, small_config(true))),
                         contract_case_name);

class LlamaOnly : public testing::Test {
 protected:
  void SetUp() override {
    model_ = shared_model(kSmol);
    if (!model_) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(kSmol);
  }
  std::unique_ptr<LlamaEngine> make(const LlamaConfig& config) {
    Result<std::unique_ptr<LlamaEngine>> engine = LlamaEngine::make(model_, config);
    EXPECT_TRUE(engine.is_ok()) << engine.status().message();
    return engine.is_ok() ? std::move(engine).value() : nullptr;
  }
  static std::vector<Node> line(SeqId seq, Pos kept, std::size_t count, std::size_t without_row) {
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < count; ++i) {
      nodes.push_back({seq, static_cast<Token>(1000 + 37 * (kept + static_cast<Pos>(i))), kept + static_cast<Pos>(i),
                       i > 0 ? static_cast<NodeIndex>(i) - 1 : kPrefix, i >= without_row});
    }
    return nodes;
  }
  std::shared_ptr<LlamaModel> model_;
};

// The same prompt, then 6 rows: one forward of six nodes with one_row_at_a_time against six forwards of one node, bit for bit.
TEST_F(LlamaOnly, OneRowAtATimeEqualsOneTokenForwardsBitForBit) {
  for (const bool hidden : {false, true}) {
    auto together = make(small_config(hidden));
    auto apart = make(small_config(hidden));
    together->set_one_row_at_a_time(true);
    for (LlamaEngine* engine : {together.get(), apart.get()}) {
      ASSERT_EQ(engine->open().value(), 0);
      Rows none;
      ASSERT_TRUE(engine->forward(line(0, 0, 20, 20), none).is_ok());
      std::vector<NodeIndex> path(20);
      for (int i = 0; i < 20; ++i) path[i] = i;
      ASSERT_TRUE(engine->keep(0, path).is_ok());
    }
    const auto nodes = line(0, 20, 6, 0);
    const std::uint64_t decodes = together->decodes();
    Rows all;
    ASSERT_TRUE(together->forward(nodes, all).is_ok());
    EXPECT_EQ(together->decodes() - decodes, 6U);
    ASSERT_EQ(all.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
      Rows one;
      ASSERT_TRUE(apart->forward({&nodes[i], 1}, one).is_ok());
      ASSERT_EQ(one.size(), 1U);
      EXPECT_TRUE(std::equal(one.logits_row(0).begin(), one.logits_row(0).end(), all.logits_row(i).begin()))
          << "row " << i << ", hidden " << hidden;
      if (!hidden) continue;
      EXPECT_TRUE(std::equal(one.hidden_row(0).begin(), one.hidden_row(0).end(), all.hidden_row(i).begin())) << "row " << i;
    }
  }
}

TEST_F(LlamaOnly, PrefillAndRowsShareADecodeOnlyWhereItIsCheaper) {
  auto target = make(small_config(false));
  auto draft = make(small_config(true));
  Rows rows;
  for (LlamaEngine* engine : {target.get(), draft.get()}) ASSERT_EQ(engine->open().value(), 0);
  ASSERT_TRUE(target->forward(line(0, 0, 40, 39), rows).is_ok());
  EXPECT_EQ(target->decodes(), 1U);
  ASSERT_TRUE(draft->forward(line(0, 0, 40, 39), rows).is_ok());
  EXPECT_EQ(draft->decodes(), 2U) << "a long prefill is decoded without hidden states";
  ASSERT_EQ(rows.size(), 1U);
  ASSERT_TRUE(draft->truncate(0, 0).is_ok());
  ASSERT_TRUE(draft->forward(line(0, 0, 3, 1), rows).is_ok());
  EXPECT_EQ(draft->decodes(), 3U) << "a few catch-up tokens ride along";
  EXPECT_EQ(rows.size(), 2U);
}

TEST_F(LlamaOnly, RefusesSettingsOutOfBounds) {
  const auto code_of = [&](auto change) {
    LlamaConfig config = small_config(false);
    change(config);
    const auto engine = LlamaEngine::make(model_, config);
    return engine.is_ok() ? Code::kOk : engine.status().code();
  };
  EXPECT_EQ(code_of([](LlamaConfig&) {}), Code::kOk);
  EXPECT_EQ(code_of([](LlamaConfig& c) { c.context = -1; }), Code::kInvalid);
  EXPECT_EQ(code_of([](LlamaConfig& c) { c.context = 1 << 24; }), Code::kLimit);
  EXPECT_EQ(code_of([](LlamaConfig& c) { c.max_sequences = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](LlamaConfig& c) { c.max_sequences = 100000; }), Code::kInvalid);
  EXPECT_EQ(code_of([](LlamaConfig& c) { c.threads = -3; }), Code::kInvalid);
  EXPECT_EQ(code_of([](LlamaConfig& c) { c.n_batch = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](LlamaConfig& c) { c.loras = {{"no-such-adapter.gguf", 1.0F}}; }), Code::kNotFound);
}

}  // namespace
}  // namespace drift::engine
