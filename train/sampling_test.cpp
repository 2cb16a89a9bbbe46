#include "train/sampling.hpp"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <vector>

#include "drift/testing/toy_engine.hpp"

namespace drift::train {
namespace {

TEST(Sampling, IsAPureFunctionAndFollowsTheModel) {
  engine::use_threads(1);
  engine::ModelShape shape;
  shape.vocab = 50;
  shape.width = 32;
  shape.layers = shape.heads = shape.kv_heads = 2;
  shape.ffn = shape.context = 64;
  engine::LlamaNet net(shape);
  net->init_weights(1);
  const torch::Tensor prompts = torch::arange(15, torch::kLong).mul(31).remainder(49).view({3, 5});
  const torch::Tensor rows = sample_rows(net, prompts, 20, {1, 1, 1}, 9);
  EXPECT_TRUE(torch::equal(rows, sample_rows(net, prompts, 20, {1, 1, 1}, 9)));
  EXPECT_FALSE(torch::equal(rows, sample_rows(net, prompts, 20, {1, 1, 1}, 10)));
  EXPECT_TRUE(torch::equal(rows.narrow(1, 0, 5), prompts.to(torch::kInt)));
  {
    const torch::NoGradGuard no_grad;
    net->token_embd->weight.mul_(50);  // so that no two tokens are close
  }
  // As cold as this, every draw is the best token: the cache then continues texts as one pass over them would.
  const torch::Tensor cold = sample_rows(net, prompts, 20, {1e-4, 1e-4, 1e-4}, 9).to(torch::kLong);
  const torch::NoGradGuard no_grad;
  const torch::Tensor best = net->forward(cold).logits.argmax(-1);
  EXPECT_TRUE(torch::equal(best.narrow(1, 4, 15), cold.narrow(1, 5, 15)));
}

constexpr std::int64_t kRows = 4, kLength = 90, kTop = 5;

Writing some_writing(std::int64_t given, double temperature) {
  Writing writing;
  writing.prompts = torch::arange(kRows * given, torch::kLong).mul(7).remainder(11).view({kRows, given});
  writing.length = kLength;
  writing.temperatures.assign(kRows, temperature);
  writing.top = kTop;
  writing.seed = 5;
  return writing;
}

const auto kGoOn = [](std::int64_t) { return true; };

// What a model says after the first `count` tokens of a row.
torch::Tensor log_p_after(const testing::ToyModel& model, const torch::Tensor& row, std::int64_t count) {
  std::vector<Token> context;
  for (std::int64_t i = 0; i < count; ++i) context.push_back(row[i].item<int>());
  std::vector<float> logits(model.vocab);
  model.row(context, logits, {});
  return torch::log_softmax(torch::tensor(logits), 0);
}

// Prompts longer and shorter than what is asked for at once: every label is that of the text before it, and as cold as this every
// token is the best one.
TEST(WriteRows, LabelsWhatItWrites) {
  const testing::ToyModel model = testing::random_model(/*seed=*/3, /*vocab=*/12, /*hidden_width=*/0, /*order=*/3, /*spread=*/4);
  testing::ToyEngine engine(model);
  for (const std::int64_t given : {std::int64_t{1}, 2 * kWriteNodesMax / kRows + 3}) {
    const Writing writing = some_writing(given, 1e-4);
    auto written = write_rows(engine, writing, kGoOn);
    ASSERT_TRUE(written.is_ok()) << written.status().message();
    ASSERT_EQ(written->rows.sizes(), (torch::IntArrayRef{kRows, kLength + 1}));
    EXPECT_TRUE(torch::equal(written->rows.narrow(1, 0, given), writing.prompts.to(torch::kInt)));
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        const auto best = log_p_after(model, written->rows[row], i + 1).topk(kTop);
        ASSERT_TRUE(torch::equal(written->labels.tokens[row][i].to(torch::kLong), std::get<1>(best))) << row << " " << i;
        ASSERT_TRUE(torch::allclose(written->labels.log_p[row][i], std::get<0>(best), 0, 1e-5)) << row << " " << i;
        if (i + 1 < given) continue;
        ASSERT_EQ(written->rows[row][i + 1].item<int>(), written->labels.tokens[row][i][0].item<int>()) << row << " " << i;
      }
    }
  }
}

// Tokens come as often as the model says at the temperature, those that are never drawn left out.
TEST(WriteRows, DrawsAtTheTemperatureWhatIsAllowed) {
  const testing::ToyModel model = testing::random_model(/*seed=*/3, /*vocab=*/6, /*hidden_width=*/0, /*order=*/1, /*spread=*/3);
  testing::ToyEngine engine(model);
  Writing writing = some_writing(1, 0.5);
  writing.prompts.fill_(2);
  writing.length = 1;
  writing.never = {4};
  torch::Tensor seen = torch::zeros({6});
  constexpr int kRounds = 1'000;
  for (int round = 0; round < kRounds; ++round) {
    writing.seed = static_cast<std::uint64_t>(round);
    auto written = write_rows(engine, writing, kGoOn);
    ASSERT_TRUE(written.is_ok());
    for (std::int64_t row = 0; row < kRows; ++row) seen[written->rows[row][1].item<int>()] += 1;
  }
  torch::Tensor expected = log_p_after(model, torch::tensor({2}), 1) * 2;
  expected[4] = -1e9;
  expected = torch::softmax(expected, 0);
  EXPECT_EQ(seen[4].item<float>(), 0);
  EXPECT_LT((seen / (kRounds * kRows) - expected).abs().max().item<double>(), 0.03);  // four standard errors
}

TEST(WriteRows, IsAPureFunctionAndLeavesNothingOpen) {
  testing::ToyModel model = testing::random_model(3, 12, 0, 3, 1);
  model.max_sequences = kRows;
  testing::ToyEngine engine(model);
  const Writing writing = some_writing(4, 1);
  auto one = write_rows(engine, writing, kGoOn);
  ASSERT_TRUE(one.is_ok());
  EXPECT_EQ(write_rows(engine, writing, [](std::int64_t at) { return at < 20; }).status().code(), Code::kCancelled);
  auto again = write_rows(engine, writing, kGoOn);  // needs all sequences
  ASSERT_TRUE(again.is_ok()) << again.status().message();
  EXPECT_TRUE(torch::equal(one->rows, again->rows));
  Writing other = writing;
  other.seed = 6;
  EXPECT_FALSE(torch::equal(one->rows, write_rows(engine, other, kGoOn)->rows));
}

}  // namespace
}  // namespace drift::train
