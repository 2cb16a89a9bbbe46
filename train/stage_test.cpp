#include "train/stage.hpp"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <limits>
#include <memory>

namespace drift::train {
namespace {

class StageTest : public ::testing::Test {
 protected:
  StageTest() {
    engine::use_threads(1);
    engine::ModelShape shape;
    shape.vocab = 30;
    shape.width = shape.ffn = 32;
    shape.layers = shape.heads = shape.kv_heads = 1;
    shape.context = 32;
    net_ = engine::LlamaNet(shape);
    net_->init_weights(1);
    optimiser_ = std::make_unique<Optimiser>(net_, Rates{});
    stage_.name = "test";
    stage_.net = net_;
    stage_.optimiser = optimiser_.get();
    stage_.rows = [](std::int64_t step) { return torch::arange(step, step + 18, torch::kLong).remainder(30).view({2, 9}); };
    stage_.loss = [this](const torch::Tensor& rows) { return next_token_loss(net_, rows); };
    stage_.budget.steps = 40;
  }
  Status run(StageState& state, double keep_seconds = 1e9) {
    return run_stage(stage_, state, {}, keep_seconds, [this](const NamedTensors&) {
      ++kept_;
      return keep_;
    });
  }
  engine::LlamaNet net_{nullptr};
  std::unique_ptr<Optimiser> optimiser_;
  Stage stage_;
  Status keep_;
  int kept_ = 0;
};

TEST_F(StageTest, EvaluatesEvenlyAndEndsWithItsBudget) {
  double score = 100;
  stage_.evaluate = [&] { return Evaluation{score -= 1, {{"x", score}}}; };
  StageState state;
  ASSERT_TRUE(run(state).is_ok());
  EXPECT_EQ(state.step, 40);
  EXPECT_EQ(state.evaluations.size(), 20u);
  EXPECT_EQ(state.score, 80);
  EXPECT_TRUE(state.done);
  EXPECT_EQ(kept_, 1);  // at the end
  ASSERT_TRUE(run(state).is_ok());
  EXPECT_EQ(state.step, 40);  // done is done
}

TEST_F(StageTest, StopsWhenTextHeldOutGetsWorseAndTakesTheBestWeights) {
  int evaluations = 0;
  torch::Tensor best;
  stage_.evaluate = [&] {
    if (++evaluations == 3) best = net_->token_embd->weight.detach().clone();
    return Evaluation{evaluations <= 3 ? 10.0 - evaluations : 20.0, nlohmann::json::object()};
  };
  StageState state;
  ASSERT_TRUE(run(state).is_ok());
  EXPECT_EQ(evaluations, 3 + kPatience);
  EXPECT_EQ(state.step, 2 * (3 + kPatience));
  EXPECT_TRUE(torch::equal(net_->token_embd->weight.detach(), best));
}

TEST_F(StageTest, KeepsBetweenSteps) {
  stage_.evaluate = [] { return Evaluation{0, nlohmann::json::object()}; };
  stage_.evaluations = 1;
  StageState state;
  ASSERT_TRUE(run(state, /*keep_seconds=*/0).is_ok());
  EXPECT_EQ(kept_, 41);
}

TEST_F(StageTest, EndsWithWhatKeepingFailedOf) {
  stage_.evaluate = [] { return Evaluation{0, nlohmann::json::object()}; };
  keep_ = {Code::kIo, "full"};
  StageState state;
  EXPECT_EQ(run(state, 0).code(), Code::kIo);
  EXPECT_EQ(state.step, 1);
}

TEST_F(StageTest, SaysWhenTheLossIsNoNumber) {
  stage_.evaluate = [] { return Evaluation{0, nlohmann::json::object()}; };
  stage_.loss = [this](const torch::Tensor& rows) {
    return next_token_loss(net_, rows) * std::numeric_limits<float>::infinity();
  };
  StageState state;
  const Status status = run(state);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("smaller rates"), std::string::npos);
}

TEST_F(StageTest, TrainingComesBackFromACheckpoint) {
  stage_.evaluate = [] { return Evaluation{0, nlohmann::json::object()}; };
  StageState state;
  ASSERT_TRUE(run(state).is_ok());
  Checkpoint checkpoint;
  for (const auto& [name, tensor] : training_tensors(net_, *optimiser_, weights_of(net_, "best.")))
    checkpoint.tensors.emplace(name, tensor.clone());
  engine::LlamaNet other(net_->shape());
  Optimiser optimiser(other, Rates{});
  NamedTensors best;
  ASSERT_TRUE(restore_training(checkpoint, other, optimiser, state.step, best).is_ok());
  EXPECT_EQ(optimiser.steps(), state.step);
  EXPECT_EQ(best.size(), weights_of(other, "").size());
  for (const auto& item : net_->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), other->named_parameters()[item.key()])) << item.key();
  checkpoint.tensors.erase("optimiser.output_norm.weight.second");
  EXPECT_EQ(restore_training(checkpoint, other, optimiser, state.step, best).code(), Code::kCorrupt);
}

class RoundsTest : public ::testing::Test {
 protected:
  RoundsTest() {
    rounds_.write = [this](std::int64_t first, int count) {
      written_.emplace_back(first, count);
      return result_;
    };
    rounds_.least = 2, rounds_.most = 9;
    rounds_.workers = 2;
  }
  Status run(StageState& state) {
    return run_rounds(rounds_, state, /*keep_seconds=*/1e9, [this](const NamedTensors&) {
      ++kept_;
      return Status::ok();
    });
  }
  Rounds rounds_;
  Status result_;
  std::vector<std::pair<std::int64_t, int>> written_;
  int kept_ = 0;
};

TEST_F(RoundsTest, WritesEachRoundOnce) {
  for (const auto& [asked, given] : {std::pair<std::int64_t, std::int64_t>{1, 2}, {5, 5}, {100, 9}}) {
    rounds_.budget = {.steps = asked};
    written_.clear();
    StageState state;
    ASSERT_TRUE(run(state).is_ok());
    EXPECT_EQ(state.step, given);
    EXPECT_TRUE(state.done);
    std::int64_t next = 0;
    for (const auto& [first, count] : written_) {
      EXPECT_EQ(first, next);
      next += count;
    }
    EXPECT_EQ(next, given);
    const std::size_t calls = written_.size();
    ASSERT_TRUE(run(state).is_ok());
    EXPECT_EQ(written_.size(), calls);  // done is done
  }
}

TEST_F(RoundsTest, GoesOnByTheClockFromWhereItStood) {
  rounds_.budget = {.seconds = 60};
  StageState state;
  state.step = 4, state.seconds = 59.9999;
  rounds_.write = [&](std::int64_t first, int count) {
    written_.emplace_back(first, count);
    state.seconds = 61;
    return Status::ok();
  };
  ASSERT_TRUE(run(state).is_ok());
  ASSERT_EQ(written_.size(), 1u);
  EXPECT_EQ(written_.front().first, 4);
}

TEST_F(RoundsTest, KeepsWhatItHasWhenInterrupted) {
  rounds_.budget = {.steps = 5};
  result_ = {Code::kCancelled, "stop"};
  StageState state;
  const Status status = run(state);
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_NE(status.message().find("goes on"), std::string::npos);
  EXPECT_EQ(kept_, 1);
  EXPECT_EQ(state.step, 0);
  result_ = {Code::kInternal, "broken"};
  EXPECT_EQ(run(state).code(), Code::kInternal);
  EXPECT_EQ(kept_, 1);
}

TEST_F(StageTest, StateComesBackFromJson) {
  StageState state;
  state.step = 7, state.seconds = 1.25, state.score = 3.5, state.worse = 2, state.done = true;
  state.evaluations.push_back({{"law", 4.5}});
  auto back = StageState::from(nlohmann::json::parse(state.json().dump()));
  ASSERT_TRUE(back.is_ok());
  EXPECT_EQ(back->json(), state.json());
  EXPECT_EQ(StageState::from(nlohmann::json::object()).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace drift::train
