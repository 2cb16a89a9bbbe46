#include "cli/settings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace drift::cli {
namespace {

TEST(Settings, EveryValueCanBeReadBack) {
  Settings settings;
  settings.model_draft = "x";
  for (const SettingInfo& info : setting_table()) {
    const std::string key = info.key;
    if (key == "preset") continue;
    Settings again;
    const Status status = set_setting(again, key, setting_value(settings, key), "--" + key);
    EXPECT_TRUE(status.is_ok()) << status.message();
    EXPECT_EQ(setting_value(again, key), setting_value(settings, key));
    EXPECT_TRUE(again.given.contains(key));
  }
}

// The bounds of the table are those of RecalConfig: what is accepted validates, what lies just outside does not.
TEST(Settings, BoundsAreTheCores) {
  struct Case {
    const char* key;
    std::vector<const char*> good, bad;
  };
  const std::vector<Case> cases{
      {"capacity", {"1", "65536"}, {"0", "65537"}},
      {"support", {"1", "1024"}, {"0", "1025"}},
      {"neighbors", {"1", "256"}, {"0", "257"}},
      {"sigma", {"0.001", "10"}, {"0", "10.1", "1e-60"}},
      {"tau", {"-1", "1"}, {"-1.1", "1.1"}},
      {"eta", {"0.001", "1"}, {"0", "1.1"}},
      {"lambda", {"0", "10"}, {"-1", "11", "nan"}},
      {"clip", {"0.1", "100"}, {"0", "101"}},
      {"draft", {"1", "32"}, {"0", "33"}},
      {"gain", {"fixed", "earned"}, {"best", ""}},
      {"ngram-capacity", {"1", "32768"}, {"0", "32769"}},
      {"ngram-support", {"1", "32"}, {"0", "33"}},
      {"min-match", {"2", "32"}, {"1", "33"}},
      {"suffix-tokens", {"64", "16777216"}, {"63", "16777217"}},
      {"lr", {"1e-7", "1"}, {"0", "1.1", "nan"}},
      {"every", {"1", "256"}, {"0", "65537"}},
      {"buffer", {"64", "65536"}, {"0", "65537"}},
      {"passes", {"1", "64"}, {"0", "65"}},
      {"labels", {"0", "4096"}, {"-1", "4097"}},
      {"window", {"1", "8192"}, {"0", "8193"}},
      {"lora-rank", {"0", "256"}, {"-1", "257"}},
      {"loss", {"forward", "reverse", "js"}, {"kl", ""}},
      {"learn-from", {"verified", "rejected"}, {"all"}},
  };
  for (const Case& c : cases) {
    for (const char* value : c.good) {
      Settings s;
      s.recal.bank.key_dim = 8;
      s.recal.bank.vocab = 100;
      const Status status = set_setting(s, c.key, value, c.key);
      ASSERT_TRUE(status.is_ok()) << status.message();
      const Status valid = s.recal.validate();
      EXPECT_TRUE(valid.is_ok()) << c.key << "=" << value << ": " << valid.message();
      s.kd.buffer = engine::kKdPositionsMax;
      EXPECT_TRUE(s.kd.validate(100).is_ok()) << c.key << "=" << value;
      EXPECT_TRUE(s.copy.validate().is_ok());
    }
    for (const char* value : c.bad) {
      Settings s;
      const Status status = set_setting(s, c.key, value, std::string("--") + c.key);
      EXPECT_FALSE(status.is_ok()) << c.key << "=" << value;
      EXPECT_EQ(status.message().rfind(std::string("--") + c.key + " is '", 0), 0u) << status.message();
      EXPECT_FALSE(s.given.contains(c.key));
    }
  }
}

TEST(Settings, EffectiveOnesDependOnTheMode) {
  const Settings settings;
  EXPECT_TRUE(effective_settings(settings, decode::Mode::kOff).empty());
  EXPECT_EQ(effective_settings(settings, decode::Mode::kStatic).size(), 2u);
  const auto learning =
      static_cast<std::size_t>(std::count_if(setting_table().begin(), setting_table().end(),
                                             [](const SettingInfo& info) { return info.scope == SettingScope::kLearning; }));
  EXPECT_EQ(effective_settings(settings, decode::Mode::kOnlineKd).size(), 2 + learning);
  EXPECT_EQ(effective_settings(settings, decode::Mode::kLookup).size(), 4u);
  EXPECT_EQ(effective_settings(settings, decode::Mode::kSuffix).size(), 5u);
  EXPECT_EQ(effective_settings(settings, decode::Mode::kDrift).size(), setting_table().size() - 5 - learning);
  EXPECT_EQ(effective_settings(settings, decode::Mode::kDriftSuffix).size(), setting_table().size() - 2 - learning);
  Settings other;
  ASSERT_TRUE(set_setting(other, "model-draft", "law.gguf", "x").is_ok());
  EXPECT_EQ(effective_settings(other, decode::Mode::kStatic).size(), 3u) << "told where it is not -md's";
  EXPECT_EQ(effective_settings(other, decode::Mode::kLookup).size(), 4u);
}

}  // namespace
}  // namespace drift::cli
