// The engine contract through LibTorch, its rows against llama.cpp's on the same file, and what only a trainable engine promises.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/contract/contract.hpp"
#include "tests/contract/llama_models.hpp"
#include "tests/contract/torch_nets.hpp"

namespace drift::engine {
namespace {

constexpr double kLogitTolerance = 2e-2;

TorchConfig small_config(bool hidden) {
  TorchConfig config;
  config.context = 96;
  config.max_sequences = 4;
  config.hidden = hidden;
  return config;
}

template <class E>
std::unique_ptr<E> or_abort(Result<std::unique_ptr<E>> engine) {
  if (engine.is_ok()) return std::move(engine).value();
  std::fprintf(stderr, "cannot make an engine: %s\n", engine.status().message().c_str());
  std::abort();
}

ContractCase random_case(const char* name, Rope rope, bool hidden) {
  ContractCase contract;
  contract.name = name;
  contract.bitwise = false;
  contract.make = [rope, hidden]() -> std::unique_ptr<Engine> {
    const ModelShape shape = small_shape(rope);
    return or_abort(TorchEngine::make(lively_net(shape, /*seed=*/9), small_meta(shape.vocab), small_config(hidden)));
  };
  return contract;
}

// The network is read once: its engines share it and do not train it.
ContractCase file_case(const char* name, const std::string& file) {
  ContractCase contract;
  contract.name = name;
  contract.bitwise = false;
  contract.missing = missing_model(file);
  contract.make = [file, model = std::make_shared<std::optional<GgufModel>>()]() -> std::unique_ptr<Engine> {
    const std::string path = model_path(file);
    if (path.empty()) return nullptr;
    if (!*model) {
      Result<GgufModel> read = read_gguf(path);
      if (!read.is_ok()) std::fprintf(stderr, "cannot read %s: %s\n", path.c_str(), read.status().message().c_str());
      *model = std::move(read).value();
    }
    return or_abort(TorchEngine::make((*model)->net, (*model)->meta, small_config(true)));
  };
  return contract;
}

INSTANTIATE_TEST_SUITE_P(Torch, EngineContract,
                         testing::Values(random_case("llama_target", Rope::kInterleaved, false),
                                         random_case("llama_draft", Rope::kInterleaved, true),
                                         random_case("qwen2_draft", Rope::kHalves, true)),
                         contract_case_name);
INSTANTIATE_TEST_SUITE_P(FileTorch, EngineContract,
                         testing::Values(file_case("smol", kSmol), file_case("built_in_draft", kBuiltInDraft)),
                         contract_case_name);

std::vector<Node> line(SeqId seq, const std::vector<Token>& tokens, Pos kept = 0) {
  std::vector<Node> nodes;
  for (const Token token : tokens) {
    const auto i = static_cast<Pos>(nodes.size());
    nodes.push_back({seq, token, kept + i, i > 0 ? i - 1 : kPrefix, /*wants_row=*/true});
  }
  return nodes;
}

struct AllRows {
  std::vector<std::vector<float>> logits, hidden;
};

AllRows rows_of(Engine& engine, const std::vector<Token>& tokens) {
  const SeqId seq = engine.open().value();
  Rows rows;
  const Status status = engine.forward(line(seq, tokens), rows);
  EXPECT_TRUE(status.is_ok()) << status.message();
  AllRows copy;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy.logits.emplace_back(rows.logits_row(i).begin(), rows.logits_row(i).end());
    copy.hidden.emplace_back(rows.hidden_row(i).begin(), rows.hidden_row(i).end());
  }
  engine.close(seq);
  return copy;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return a.size() == b.size() ? largest : std::numeric_limits<double>::infinity();
}

// Largest difference of logits and of hidden states; top-1 must be equal unless the two tokens are nearer than the tolerance.
Distance compare(const AllRows& ours, const AllRows& theirs, double tie) {
  EXPECT_EQ(ours.logits.size(), theirs.logits.size());
  Distance worst;
  for (std::size_t i = 0; i < std::min(ours.logits.size(), theirs.logits.size()); ++i) {
    const auto &a = ours.logits[i], &b = theirs.logits[i];
    worst.logits = std::max(worst.logits, largest_difference(a, b));
    worst.hidden = std::max(worst.hidden, largest_difference(ours.hidden[i], theirs.hidden[i]));
    const auto top_a = std::max_element(a.begin(), a.end()) - a.begin(), top_b = std::max_element(b.begin(), b.end()) - b.begin();
    EXPECT_LE(b[top_b] - b[top_a], tie) << "row " << i << ": top-1 " << top_a << " here, " << top_b << " in llama.cpp";
  }
  return worst;
}

std::unique_ptr<LlamaEngine> llama_engine(const std::string& path, std::vector<LoraAdapter> loras = {}) {
  LlamaConfig config;
  config.model = path;
  config.context = 96;
  config.threads = 1;
  config.hidden = true;
  config.loras = std::move(loras);
  return or_abort(LlamaEngine::load(config));
}

class TorchAgainstLlama : public testing::TestWithParam<Rope> {
 protected:
  // A network of `shape` whose file, written as `type`, llama.cpp reads too.
  AllRows llama_rows(const std::string& path, std::vector<LoraAdapter> loras = {}) {
    return rows_of(*llama_engine(path, std::move(loras)), tokens_);
  }
  AllRows torch_rows(const std::string& path) {
    TorchConfig config = small_config(true);
    config.model = path;
    return rows_of(*or_abort(TorchEngine::load(config)), tokens_);
  }
  void write(const std::string& path, const LlamaNet& net, GgufType type = GgufType::kF32) {
    const Status status = write_gguf(path, net, small_meta(shape_.vocab), type);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }

  Folder folder_;
  ModelShape shape_ = small_shape(GetParam());
  std::vector<Token> tokens_ = some_tokens(64, shape_.vocab, 3);
};

INSTANTIATE_TEST_SUITE_P(Both, TorchAgainstLlama, testing::Values(Rope::kInterleaved, Rope::kHalves),
                         [](const auto& tested) { return tested.param == Rope::kInterleaved ? "llama" : "qwen2"; });

TEST_P(TorchAgainstLlama, F32LogitsAgree) {
  const std::string path = folder_.file("f32.gguf");
  write(path, lively_net(shape_, /*seed=*/11));
  const AllRows ours = torch_rows(path), theirs = llama_rows(path);
  const Distance worst = compare(ours, theirs, kLogitTolerance);
  std::printf("[ measured ] f32, largest difference: logits %.3g, hidden %.3g\n", worst.logits, worst.hidden);
  EXPECT_LE(worst.logits, kLogitTolerance);
  EXPECT_LE(worst.hidden, kLogitTolerance);
  // The tolerance means something: logits are spread, and the other rope convention would be seen.
  const auto [low, high] = std::minmax_element(ours.logits.back().begin(), ours.logits.back().end());
  EXPECT_GT(*high - *low, 6.0);
  ModelShape other = shape_;
  other.rope = shape_.rope == Rope::kHalves ? Rope::kInterleaved : Rope::kHalves;
  LlamaNet wrong(other);
  {
    const torch::NoGradGuard no_grad;
    const GgufModel right = read_gguf(path).value();
    const auto source = right.net->named_parameters();
    for (auto& item : wrong->named_parameters()) item.value().copy_(source[item.key()]);
  }
  const AllRows wrong_rows = rows_of(*or_abort(TorchEngine::make(wrong, small_meta(shape_.vocab), small_config(true))), tokens_);
  EXPECT_GT(largest_difference(wrong_rows.logits.back(), theirs.logits.back()), 10 * kLogitTolerance);
}

// Stored in fewer bits, both engines still compute from the same numbers; llama.cpp also rounds activations then.
TEST_P(TorchAgainstLlama, HalfAndEightBitsAgreeRoughly) {
  for (const auto& [type, tolerance] : {std::pair{GgufType::kF16, 0.05}, {GgufType::kQ8_0, 0.5}}) {
    const std::string path = folder_.file("small.gguf");
    write(path, lively_net(shape_, /*seed=*/11), type);
    const Distance worst = compare(torch_rows(path), llama_rows(path), tolerance);
    std::printf("[ measured ] type %d, largest difference: logits %.3g\n", static_cast<int>(type), worst.logits);
    EXPECT_LE(worst.logits, tolerance);
  }
}

TEST_P(TorchAgainstLlama, AnAdapterWorksInLlamaAsHereAndMerged) {
  const std::string base = folder_.file("base.gguf"), lora = folder_.file("lora.gguf"), merged = folder_.file("merged.gguf");
  LlamaNet net = lively_net(shape_, /*seed=*/12);
  write(base, net);
  const AllRows plain = llama_rows(base);
  net->add_adapters(/*rank=*/4, /*alpha=*/6, /*seed=*/2);
  fill_adapters(net, /*seed=*/3);
  const Status status = write_adapter(lora, net, "random adapter");
  ASSERT_TRUE(status.is_ok()) << status.message();
  const AllRows ours = rows_of(*or_abort(TorchEngine::make(net, small_meta(shape_.vocab), small_config(true))), tokens_);
  const AllRows theirs = llama_rows(base, {{lora, 1.0F}});
  EXPECT_GT(largest_difference(theirs.logits.back(), plain.logits.back()), 0.5) << "the adapter does something";
  EXPECT_LE(compare(ours, theirs, 0.05).logits, 0.05) << "A and B are stored in half precision";

  EXPECT_EQ(write_gguf(merged, net, small_meta(shape_.vocab), GgufType::kF32).code(), Code::kInvalid) << "adapters first";
  net->merge_adapters();
  write(merged, net);
  EXPECT_LE(compare(ours, llama_rows(merged), kLogitTolerance).logits, kLogitTolerance);
  EXPECT_EQ(write_adapter(lora, net, "none").code(), Code::kInvalid) << "no adapters any more";
}

// `tolerance`: llama.cpp keeps keys and values in half precision, so depth adds up.
void expect_agreement(const std::string& file, double tolerance) {
  const std::string path = model_path(file);
  if (path.empty()) GTEST_SKIP() << "SKIPPED ALOUD: " << missing_model(file);
  Folder folder;
  Result<GgufModel> model = read_gguf(path);
  ASSERT_TRUE(model.is_ok()) << model.status().message();
  // As F32: llama.cpp rounds activations to 8 bits where weights are quantised, which is its noise and not ours.
  const std::string f32 = folder.file("f32.gguf");
  const Status status = write_gguf(f32, model->net, model->meta, GgufType::kF32);
  ASSERT_TRUE(status.is_ok()) << status.message();
  const std::vector<Token> tokens = some_tokens(48, model->net->shape().vocab, 4);
  const AllRows ours = rows_of(*or_abort(TorchEngine::make(model->net, model->meta, small_config(true))), tokens);
  const Distance worst = compare(ours, rows_of(*llama_engine(f32), tokens), tolerance);
  std::printf("[ measured ] %s as f32, largest difference: logits %.3g, hidden %.3g\n", file.c_str(), worst.logits, worst.hidden);
  EXPECT_LE(worst.logits, tolerance);
}

TEST(TorchFile, TheBuiltInDraftsLogitsAreLlamas) { expect_agreement(kBuiltInDraft, kLogitTolerance); }
TEST(TorchFile, TheBuiltInTargetsLogitsAreLlamas) { expect_agreement(kBuiltInTarget, kLogitTolerance); }
TEST(TorchFile, SmolLogitsAreLlamas) { expect_agreement(kSmol, 0.1); }  // 30 layers: measured 0.044

// What only a trainable engine promises.
class TorchTraining : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = or_abort(TorchEngine::make(net_, small_meta(shape_.vocab), small_config(true)));
    seq_ = engine_->open().value();
  }
  void train() {
    torch::optim::AdamW optimiser(net_->parameters(), torch::optim::AdamWOptions(1e-2));
    net_->forward(as_tensor(some_tokens(12, shape_.vocab, 9))).logits.select(-1, 3).mean().neg().backward();
    optimiser.step();
  }
  std::vector<float> row(const std::vector<Token>& tokens, Pos kept) {
    Rows rows;
    const Status status = engine_->forward(line(seq_, tokens, kept), rows);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return rows.size() == 0
               ? std::vector<float>()
               : std::vector<float>(rows.logits_row(rows.size() - 1).begin(), rows.logits_row(rows.size() - 1).end());
  }

  ModelShape shape_ = small_shape();
  LlamaNet net_ = lively_net(shape_, /*seed=*/13);
  std::unique_ptr<TorchEngine> engine_;
  SeqId seq_ = -1;
  std::vector<Token> prompt_ = some_tokens(20, shape_.vocab, 5);
};

TEST_F(TorchTraining, AfterAnUpdateRowsAreThoseOfAFreshDecode) {
  row(prompt_, 0);
  std::vector<NodeIndex> path(prompt_.size());
  for (std::size_t i = 0; i < path.size(); ++i) path[i] = static_cast<NodeIndex>(i);
  ASSERT_TRUE(engine_->keep(seq_, path).is_ok());
  const std::uint64_t version = engine_->weights_version();
  const std::vector<float> before = row({7}, 20);
  ASSERT_TRUE(engine_->keep(seq_, {}).is_ok());
  EXPECT_EQ(engine_->weights_version(), version) << "decoding is no update";
  train();
  EXPECT_NE(engine_->weights_version(), version);
  EXPECT_EQ(engine_->refreshed_tokens(), 0U);
  const std::vector<float> after = row({7}, 20);
  EXPECT_EQ(engine_->refreshed_tokens(), 20U);
  EXPECT_EQ(engine_->length(seq_), 20);
  std::vector<Token> all = prompt_;
  all.push_back(7);
  const std::vector<float> fresh = rows_of(*engine_, all).logits.back();
  EXPECT_LE(largest_difference(after, fresh), 1e-4);
  EXPECT_GT(largest_difference(after, before), 0.1) << "the update changed the rows";
}

TEST_F(TorchTraining, WeightsMayNotChangeWithinAStep) {
  row(prompt_, 0);
  train();
  Rows rows;
  const Status status = engine_->forward(std::vector<Node>{Node{seq_, 7, 20, 19, true}}, rows);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("pending nodes"), std::string::npos) << status.message();
  const SeqId other = engine_->open().value();  // a sequence without pending nodes is free
  EXPECT_TRUE(engine_->forward(std::vector<Node>{Node{other, 7, 0, kPrefix, true}}, rows).is_ok());
  ASSERT_TRUE(engine_->keep(seq_, {}).is_ok());
  EXPECT_TRUE(engine_->forward(std::vector<Node>{Node{seq_, 7, 0, kPrefix, true}}, rows).is_ok());
}

TEST_F(TorchTraining, TheContentHashFollowsTheWeights) {
  Folder folder;
  TorchConfig config = small_config(true);
  config.model = folder.file("net.gguf");
  ASSERT_TRUE(write_gguf(config.model, net_, small_meta(shape_.vocab), GgufType::kF32).is_ok());
  auto read = or_abort(TorchEngine::load(config));
  EXPECT_EQ(read->info().content_hash, llama_engine(config.model)->info().content_hash) << "of the file, as for llama.cpp";
  const std::string before = engine_->info().content_hash;
  EXPECT_EQ(before, engine_->info().content_hash);
  train();
  EXPECT_NE(engine_->info().content_hash, before);
  {
    const torch::NoGradGuard no_grad;
    read->net()->output_norm->weight.mul_(1.5);
  }
  const std::string changed = read->info().content_hash;
  EXPECT_EQ(changed.size(), 32U);
  EXPECT_NE(changed, file_hash(config.model).value()) << "a bank of the file's model must not fit the trained one";
}

TEST_F(TorchTraining, WeightsThatAreNotFiniteAreReportedAndNothingIsKept) {
  row(prompt_, 0);
  ASSERT_TRUE(engine_->keep(seq_, std::vector<NodeIndex>{0, 1}).is_ok());
  const torch::NoGradGuard no_grad;
  const torch::Tensor saved = net_->output_norm->weight.clone();
  net_->output_norm->weight.fill_(std::numeric_limits<float>::quiet_NaN());
  Rows rows;
  const Status status = engine_->forward(std::vector<Node>{Node{seq_, 7, 2, kPrefix, true}}, rows);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("not finite"), std::string::npos) << status.message();
  EXPECT_EQ(rows.size(), 0U);
  EXPECT_EQ(engine_->length(seq_), 2);
  net_->output_norm->weight.copy_(saved);
  const std::vector<float> again = row({7}, 2);
  EXPECT_LE(largest_difference(again, rows_of(*engine_, {prompt_[0], prompt_[1], 7}).logits.back()), 1e-4);
}

TEST(TorchEngineSettings, OutOfBoundsAreNamed) {
  const ModelShape shape = small_shape();
  const LlamaNet net = lively_net(shape, 1);
  const auto refused = [&](auto change) {
    TorchConfig config = small_config(false);
    change(config);
    return TorchEngine::make(net, small_meta(shape.vocab), config).status();
  };
  EXPECT_EQ(refused([](TorchConfig& c) { c.threads = 3; }).code(), Code::kInvalid);
  EXPECT_EQ(refused([](TorchConfig& c) { c.threads = 0; }).code(), Code::kInvalid);
  EXPECT_EQ(refused([](TorchConfig& c) { c.max_sequences = 0; }).code(), Code::kInvalid);
  EXPECT_EQ(refused([](TorchConfig& c) { c.max_sequences = 257; }).code(), Code::kInvalid);
  EXPECT_EQ(refused([](TorchConfig& c) { c.context = -1; }).code(), Code::kInvalid);
  const Status context = refused([](TorchConfig& c) { c.context = 129; });
  EXPECT_EQ(context.code(), Code::kLimit);
  EXPECT_NE(context.message().find("128"), std::string::npos) << context.message();
  EXPECT_EQ(TorchEngine::make(LlamaNet(nullptr), small_meta(shape.vocab), small_config(false)).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace drift::engine
