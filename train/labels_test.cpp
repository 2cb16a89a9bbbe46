#include "train/labels.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <vector>

#include "drift/testing/toy_engine.hpp"

namespace drift::train {
namespace {

// Against the whole distribution, where everything is labelled.
TEST(LabelledLoss, IsTheKlWhenAllTokensAreLabelled) {
  torch::manual_seed(1);
  const torch::Tensor teacher = torch::randn({2, 3, 10}) * 2, student = torch::randn({2, 3, 10});
  const torch::Tensor log_p = torch::log_softmax(teacher, -1), log_q = torch::log_softmax(student, -1);
  const auto sorted = log_p.sort(-1, /*descending=*/true);
  const Labels labels{std::get<1>(sorted).to(torch::kInt), std::get<0>(sorted)};
  const double expected = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item<double>();
  EXPECT_NEAR(labelled_loss(student, labels).item<double>(), expected, 1e-4);
  EXPECT_NEAR(labelled_loss(teacher, labels).item<double>(), 0, 1e-4);
}

// Tokens that are not labelled are one event: their share counts, how it is divided among them does not.
TEST(LabelledLoss, TakesTheRestAsOneEvent) {
  const torch::Tensor p = torch::tensor({0.6, 0.2, 0.1, 0.1}), q = torch::tensor({0.3, 0.3, 0.39, 0.01});
  const Labels labels{torch::tensor({0, 1}, torch::kInt).view({1, 1, 2}), p.slice(0, 0, 2).log().view({1, 1, 2})};
  const double expected = 0.6 * std::log(0.6 / 0.3) + 0.2 * std::log(0.2 / 0.3) + 0.2 * std::log(0.2 / 0.4);
  EXPECT_NEAR(labelled_loss(q.log().view({1, 1, 4}), labels).item<double>(), expected, 1e-5);

  torch::Tensor logits = q.log().view({1, 1, 4}).clone().set_requires_grad(true);
  const torch::Tensor gradient = torch::autograd::grad({labelled_loss(logits, labels)}, {logits})[0];
  EXPECT_LT(gradient[0][0][0].item<double>(), 0);  // more of the token that is said too rarely
  EXPECT_GT(gradient[0][0][2].item<double>(), 0);  // less of the ones that are said too often
}

// Rows longer than what is labelled at once: each position's labels are those of the engine's row there.
TEST(LabelRows, AreTheBestTokensOfEachRow) {
  constexpr std::int64_t kLength = 150, kTop = 5;
  const testing::ToyModel model = testing::random_model(/*seed=*/3, /*vocab=*/12, /*hidden_width=*/0, /*order=*/3, /*spread=*/4);
  testing::ToyEngine engine(model);
  const torch::Tensor rows = torch::arange(2 * (kLength + 1), torch::kLong).mul(7).remainder(11).view({2, kLength + 1});
  auto labels = label_rows(engine, rows, kTop, [](std::int64_t) { return true; });
  ASSERT_TRUE(labels.is_ok()) << labels.status().message();
  for (std::int64_t row = 0; row < 2; ++row) {
    std::vector<Token> context;
    for (std::int64_t i = 0; i < kLength; ++i) {
      context.push_back(static_cast<Token>(rows[row][i].item<std::int64_t>()));
      std::vector<float> logits(model.vocab);
      model.row(context, logits, {});
      const torch::Tensor log_p = torch::log_softmax(torch::tensor(logits), 0);
      const auto best = log_p.topk(kTop);
      ASSERT_TRUE(torch::equal(labels->tokens[row][i].to(torch::kLong), std::get<1>(best))) << i;
      ASSERT_TRUE(torch::allclose(labels->log_p[row][i], std::get<0>(best), 0, 1e-5)) << i;
    }
  }
  EXPECT_EQ(label_rows(engine, rows, kTop, [](std::int64_t row) { return row < 1; }).status().code(), Code::kCancelled);
}

TEST(Labels, FollowTheNumbersOfRows) {
  const torch::Tensor rows = torch::arange(12, torch::kLong).view({4, 3});
  const torch::Tensor some = numbered(rows, 0).index_select(0, torch::tensor({2, 0}, torch::kLong));
  EXPECT_TRUE(torch::equal(some.narrow(1, 1, 3), rows.index_select(0, torch::tensor({2, 0}, torch::kLong))));
  const Labels labels{torch::arange(8, torch::kInt).view({4, 2, 1}), torch::arange(8, torch::kFloat).view({4, 2, 1})};
  const Labels found = labels.of(some.select(1, 0));
  EXPECT_TRUE(torch::equal(found.tokens.flatten(), torch::tensor({4, 5, 0, 1}, torch::kInt)));
  EXPECT_TRUE(torch::equal(found.log_p.flatten(), torch::tensor({4.0F, 5.0F, 0.0F, 1.0F})));
  EXPECT_EQ(numbered(rows, 7)[3][0].item<int>(), 10);
}

}  // namespace
}  // namespace drift::train
