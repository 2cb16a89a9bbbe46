#include "cli/bank_command.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/bank_export.hpp"
#include "drift/bank/store_sample.hpp"
#include "drift/recal/recalibrator.hpp"

namespace drift::cli {
namespace {

namespace fs = std::filesystem;
namespace sample = bank::sample;

std::string exported(const bank::StoredBank& stored) {
  std::string text;
  EXPECT_TRUE(export_bank(stored, [&](const std::string& line) { return text += line, true; }));
  return text;
}

Result<bank::StoredBank> imported(const std::string& text) {
  std::istringstream in(text);
  return import_bank(in);
}

// A sample with what a run keeps beside the entries: gains (line 2 of an export), key statistics (3), and the sample's own (4).
bank::StoredBank runnable(std::uint64_t seed) {
  bank::StoredBank stored = sample::bank(seed);
  recal::RecalConfig config;
  config.bank = stored.image.config;
  const auto recal = recal::Recalibrator::create(config);
  EXPECT_TRUE(recal.is_ok()) << recal.status().message();
  for (auto& [name, content] : recal.value()->save({}).extras) stored.extras[name] = content;
  return stored;
}

class BankCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "drift-bank-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = (folder_ / "x.bank").string();
  }
  void TearDown() override { fs::remove_all(folder_); }
  void save(const bank::StoredBank& stored) {
    auto file = bank::BankFile::open(path_, bank::Access::kReadWrite);
    ASSERT_TRUE(file.is_ok()) << file.status().message();
    ASSERT_TRUE((*file)->save(stored).is_ok());
  }
  bank::StoredBank load() {
    auto file = bank::BankFile::open(path_, bank::Access::kReadOnly);
    EXPECT_TRUE(file.is_ok());
    auto stored = (*file)->load();
    EXPECT_TRUE(stored.is_ok()) << stored.status().message();
    return stored.is_ok() ? *stored : bank::StoredBank();
  }
  Status import_text(const std::string& text, bool replace = false) {
    std::istringstream in(text);
    return import_into(path_, in, replace);
  }
  fs::path folder_;
  std::string path_;
};

TEST_F(BankCommandTest, ExportAndImportKeepEveryBit) {
  for (const sample::Shape& shape : {sample::Shape{}, sample::Shape{0}, sample::Shape{8, 8, 5, 1, 9, bank::KeyType::kF16},
                                     sample::Shape{1'500, 2'048, 16, 8, 1'000}}) {
    bank::StoredBank stored = sample::bank(shape.entries + 5, shape);
    stored.image.config.rate = bank::RateRule::kError;
    stored.image.config.eta = std::nextafter(0.3f, 1.0f);
    auto back = imported(exported(stored));
    ASSERT_TRUE(back.is_ok()) << back.status().message();
    EXPECT_TRUE(sample::same(stored, *back));
  }
}

TEST_F(BankCommandTest, ImportMakesReplacesOrRefuses) {
  const bank::StoredBank first = runnable(1), same_pair = runnable(8), other_pair = runnable(2);
  ASSERT_EQ(first.fingerprint, same_pair.fingerprint);
  const Status made = import_text(exported(first));
  ASSERT_TRUE(made.is_ok()) << made.message();
  EXPECT_TRUE(sample::same(load(), first));
  EXPECT_EQ(import_text(exported(same_pair)).code(), Code::kInvalid);
  EXPECT_EQ(import_text(exported(other_pair), true).code(), Code::kForeign);
  EXPECT_TRUE(sample::same(load(), first));
  ASSERT_TRUE(import_text(exported(same_pair), true).is_ok());
  EXPECT_TRUE(sample::same(load(), same_pair));
}

TEST_F(BankCommandTest, EveryCutOfAnExportIsRefusedAndMakesNoFile) {
  const std::string good = exported(runnable(3));
  for (std::size_t length = 0; length + 1 < good.size(); ++length) {
    ASSERT_FALSE(import_text(good.substr(0, length)).is_ok()) << length;
  }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(import_text(good + "{}").is_ok());
  EXPECT_TRUE(import_text(good + "\n").is_ok());
}

TEST_F(BankCommandTest, BadFieldsAreRefusedNamingTheLine) {
  using Json = nlohmann::ordered_json;
  std::vector<Json> good;
  std::istringstream in(exported(runnable(3)));
  for (std::string line; std::getline(in, line);) good.push_back(Json::parse(line));
  const auto refuse = [&](std::size_t line, auto change) {
    std::vector<Json> bad = good;
    change(bad[line]);
    std::string text;
    for (const Json& json : bad) text += json.dump() + "\n";
    const Status status = import_text(text);
    EXPECT_FALSE(status.is_ok()) << text;
    EXPECT_FALSE(status.message().empty());
    EXPECT_FALSE(fs::exists(path_));
    return status.message();
  };
  EXPECT_NE(refuse(0, [](Json& j) { j["format"] = "x"; }).find("line 1"), std::string::npos);
  refuse(0, [](Json& j) { j["version"] = 2; });
  refuse(0, [](Json& j) { j["size"] = 4'000'000'000u; });
  refuse(0, [](Json& j) { j["size"] = -1; });
  refuse(0, [](Json& j) { j["size"] = 8; });
  refuse(0, [](Json& j) { j["config"]["capacity"] = 1'000'000; });
  EXPECT_NE(refuse(0, [](Json& j) { j["config"]["vocab"] = 101; }).find("101"), std::string::npos);
  EXPECT_NE(refuse(0, [](Json& j) { j["use_counter"] = (std::uint64_t{1} << 62) + 1; }).find("use_counter"), std::string::npos);
  refuse(0, [](Json& j) { j["config"]["tau"] = nullptr; });
  refuse(0, [](Json& j) { j["config"]["eta"] = 1e300; });
  refuse(0, [](Json& j) { j["config"]["rate"] = "x"; });
  refuse(0, [](Json& j) { j["config"] = Json::array(); });
  refuse(0, [](Json& j) { j["fingerprint"].erase("vocab"); });
  refuse(0, [](Json& j) { j["fingerprint"]["draft_hash"] = ""; });
  refuse(1, [](Json& j) { j["content"] = "0"; });
  EXPECT_NE(refuse(1, [](Json& j) { j["content"] = "00"; }).find("gain"), std::string::npos);
  EXPECT_NE(refuse(2, [](Json& j) { j["content"] = "00"; }).find("key statistics"), std::string::npos);
  EXPECT_NE(refuse(1, [](Json& j) { j["content"] = "0g"; }).find("line 2"), std::string::npos);
  EXPECT_NE(refuse(4, [](Json& j) { j["id"] = 1; }).find("line 5"), std::string::npos);
  refuse(4, [](Json& j) { j["key"] = "00"; });
  refuse(4, [](Json& j) { j["key"] = std::string(32, '0'); });
  refuse(4, [](Json& j) { j["tokens"] = Json::array({1, 2, 3, 4}), j["residuals"] = Json::array({1, 2, 3, 4}); });
  refuse(4, [](Json& j) { j["tokens"] = Json::array({1}), j["residuals"] = Json::array({}); });
  refuse(4, [](Json& j) { j["tokens"] = Json::array({100}), j["residuals"] = Json::array({1}); });
  refuse(4, [](Json& j) { j["tokens"] = Json::array({5, 5}), j["residuals"] = Json::array({1, 1}); });
  refuse(4, [](Json& j) { j["tokens"] = Json::array({5}), j["residuals"] = Json::array({1e39}); });
  refuse(4, [](Json& j) { j["tokens"] = Json::array({5}), j["residuals"] = Json::array({"x"}); });
  refuse(4, [](Json& j) { j["error"] = -1; });
  refuse(4, [](Json& j) { j["last_used"] = 1e9; });
  refuse(4, [](Json& j) { j = Json::array(); });
  EXPECT_FALSE(import_text(std::string(100'000, '[')).is_ok());
}

TEST_F(BankCommandTest, OtherLevelsAreCheckedToo) {
  bank::StoredBank stored = runnable(3);
  recal::RecalConfig config;
  config.bank = stored.image.config;
  config.levels = {recal::Level::kNgram2};
  config.ngram_capacity = 4;
  const auto recal = recal::Recalibrator::create(config);
  ASSERT_TRUE(recal.is_ok()) << recal.status().message();
  for (const auto& [name, content] : recal.value()->save({}).extras) {
    if (name.find("ngram2") != std::string::npos) stored.extras[name] = content;
  }
  bank::StoredBank cut = stored, half = stored;
  cut.extras["level.ngram2"].pop_back();
  half.extras.erase("scores.ngram2");
  EXPECT_NE(import_text(exported(cut)).message().find("level"), std::string::npos);
  EXPECT_NE(import_text(exported(half)).message().find("ngram2"), std::string::npos);
  EXPECT_FALSE(fs::exists(path_));
  ASSERT_TRUE(import_text(exported(stored)).is_ok());
  EXPECT_TRUE(sample::same(load(), stored));
}

TEST_F(BankCommandTest, ResetKeepsTheBinding) {
  const bank::StoredBank stored = sample::bank(3);
  save(stored);
  auto removed = reset_bank(path_);
  ASSERT_TRUE(removed.is_ok()) << removed.status().message();
  EXPECT_EQ(*removed, stored.image.size);
  const bank::StoredBank left = load();
  EXPECT_EQ(left.fingerprint, stored.fingerprint);
  EXPECT_EQ(left.target_name, stored.target_name);
  EXPECT_EQ(left.image.config, stored.image.config);
  EXPECT_EQ(left.image.size, 0u);
  EXPECT_EQ(left.image.use_counter, 0u);
  EXPECT_TRUE(left.extras.empty());
  EXPECT_EQ(reset_bank((folder_ / "none").string()).status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

TEST_F(BankCommandTest, ShowSaysWhatIsInIt) {
  bank::StoredBank stored = sample::bank(3);
  stored.image.counts = {1, 2, 900, 3, 3};
  const std::string text = describe_bank(stored, 5'120, 2);
  for (const char* words : {"bb22", "5 of 8", "5120 bytes", "number (8 bytes)", "512 - 1023", "most taught"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " in\n" << text;
  }
  const auto json = nlohmann::json::parse(describe_bank_json(stored, 5'120, 2));
  EXPECT_EQ(json["entries"], 5);
  EXPECT_EQ(json["most_taught"].size(), 2u);
  EXPECT_EQ(json["most_taught"][0]["entry"], 2);
  std::uint32_t entries = 0;
  for (const auto& bin : json["counts"]) entries += bin["entries"].get<std::uint32_t>();
  EXPECT_EQ(entries, 5u);
  bank::StoredBank empty = sample::bank(3, sample::Shape{0});
  EXPECT_NE(describe_bank(empty, 1, 10).find("0 of 8"), std::string::npos);
}

}  // namespace
}  // namespace drift::cli
