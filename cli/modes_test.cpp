#include "cli/modes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace drift::cli {
namespace {

using decode::Mode;
using testing::HasSubstr;

std::vector<Variant> parsed(std::string_view list) {
  auto variants = parse_modes(list, Settings{});
  EXPECT_TRUE(variants.is_ok()) << list << ": " << variants.status().message();
  return variants.is_ok() ? variants.value() : std::vector<Variant>{};
}

TEST(Modes, ThePlainList) {
  const auto v = parsed("off,static,drift");
  ASSERT_EQ(v.size(), 3u);
  EXPECT_EQ(v[0].mode, Mode::kOff);
  EXPECT_EQ(v[1].mode, Mode::kStatic);
  EXPECT_EQ(v[2].mode, Mode::kDrift);
  EXPECT_EQ(v[2].label, "drift");
}

TEST(Modes, LabelledVariantsWithSettings) {
  const auto v = parsed("off,static,seed=drift:gain=fixed,lambda=0.6,earned=drift:gain=earned");
  ASSERT_EQ(v.size(), 4u);
  EXPECT_EQ(v[2].label, "seed");
  EXPECT_EQ(v[2].settings.recal.gain, recal::GainRule::kFixed);
  EXPECT_FLOAT_EQ(v[2].settings.recal.lambda, 0.6f);
  EXPECT_EQ(v[3].label, "earned");
  EXPECT_EQ(v[3].settings.recal.gain, recal::GainRule::kEarned);
  EXPECT_FLOAT_EQ(v[3].settings.recal.lambda, recal::RecalConfig{}.lambda) << "settings do not leak into the next variant";
}

TEST(Modes, ASettingNamedLikeALabelStaysASetting) {
  const auto v = parsed("a=drift:int8-scan=off,standardise=on,renormalise=off,b=off");
  ASSERT_EQ(v.size(), 2u);
  EXPECT_TRUE(v[0].settings.recal.bank.standardise);
  EXPECT_EQ(v[1].label, "b");
  EXPECT_EQ(v[1].mode, Mode::kOff);
}

TEST(Modes, OnlineDistillationHasSettingsOfItsOwn) {
  const auto v = parsed("off,static,kd=online-kd:lr=3e-4,every=256,buffer=512,loss=js,hot=online-kd:lr=0.01");
  ASSERT_EQ(v.size(), 4u);
  EXPECT_EQ(v[2].mode, Mode::kOnlineKd);
  EXPECT_EQ(v[2].label, "kd");
  EXPECT_FLOAT_EQ(v[2].settings.kd.rate, 3e-4f);
  EXPECT_EQ(v[2].settings.kd.every, 256u);
  EXPECT_EQ(v[2].settings.kd.loss, engine::KdLoss::kJs);
  EXPECT_FLOAT_EQ(v[3].settings.kd.rate, 0.01f);
  EXPECT_EQ(v[3].settings.kd.every, engine::KdConfig{}.every) << "settings do not leak into the next variant";
}

TEST(Modes, AModeMayHaveAnotherDraft) {
  const auto v =
      parsed("off,static,law=static:model-draft=a/b=c:d.gguf,draft=5,code=online-kd:lr=0.01,model-draft=x:y.gguf,drift");
  ASSERT_EQ(v.size(), 5u);
  EXPECT_EQ(v[1].settings.model_draft, "");
  EXPECT_EQ(v[2].settings.model_draft, "a/b=c:d.gguf") << "a path may hold anything but a comma";
  EXPECT_EQ(v[2].settings.draft_tokens, 5);
  EXPECT_EQ(v[3].settings.model_draft, "x:y.gguf");
  EXPECT_EQ(v[4].settings.model_draft, "");
}

TEST(Modes, ThePresetIsTheSeedsRuleAndCanBeOverridden) {
  const auto v = parsed("drift:preset=seed,lambda=0.7");
  const recal::RecalConfig seed = recal::RecalConfig::seed();
  EXPECT_EQ(v[0].settings.recal.gain, seed.gain);
  EXPECT_EQ(v[0].settings.recal.weights, seed.weights);
  EXPECT_EQ(v[0].settings.recal.support, seed.support);
  EXPECT_FLOAT_EQ(v[0].settings.recal.lambda, 0.7f);
}

TEST(Modes, JudgeAndDraftForModesThatDraft) {
  const auto v = parsed("off,k7=static:draft=7,judge=rejection,off2=off");
  ASSERT_EQ(v.size(), 3u);
  EXPECT_EQ(v[1].settings.draft_tokens, 7);
  EXPECT_EQ(v[1].settings.judge, spec::JudgeRule::kRejection);
}

TEST(Modes, ThoseThatCopy) {
  const auto v = parsed(
      "lookup,suffix,draft+suffix,drift+suffix,s3=draft+suffix:min-match=3,copy-q=counts,suffix-tokens=100,d=drift+suffix:tau=0."
      "5");
  ASSERT_EQ(v.size(), 6u);
  EXPECT_EQ(v[0].mode, Mode::kLookup);
  EXPECT_EQ(v[1].mode, Mode::kSuffix);
  EXPECT_EQ(v[2].mode, Mode::kDraftSuffix);
  EXPECT_EQ(v[2].label, "draft+suffix");
  EXPECT_EQ(v[2].settings.copy.min_match, 2);
  EXPECT_EQ(v[3].mode, Mode::kDriftSuffix);
  EXPECT_EQ(v[4].settings.copy.min_match, 3);
  EXPECT_EQ(v[4].settings.copy.q, propose::QRule::kCounts);
  EXPECT_EQ(v[4].settings.suffix_tokens, 100u);
  EXPECT_FLOAT_EQ(v[5].settings.recal.bank.tau, 0.5f);
}

TEST(Modes, LevelsMayBeJoinedByCommas) {
  const auto v =
      parsed("off,c=drift:levels=global,hidden,ngram1,tau=0.5,n=drift:tau=0.4,levels=ngram1+ngram2,a=drift:levels=all,static");
  ASSERT_EQ(v.size(), 5u);
  EXPECT_EQ(recal::level_names(v[1].settings.recal.levels, "+"), "global+hidden+ngram1");
  EXPECT_FLOAT_EQ(v[1].settings.recal.bank.tau, 0.5f);
  EXPECT_EQ(recal::level_names(v[2].settings.recal.levels, "+"), "ngram1+ngram2");
  EXPECT_EQ(v[3].settings.recal.levels, recal::parse_levels("all").value());
  EXPECT_EQ(v[4].label, "static");
  EXPECT_EQ(parsed("drift")[0].settings.recal.levels, recal::RecalConfig::standard().levels);
}

TEST(Modes, BadListsNameThePiece) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "empty piece"},
      {"off,,drift", "empty piece"},
      {"off,", "empty piece"},
      {"fast", "no mode 'fast'"},
      {"x=fast", "no mode 'fast'"},
      {"off,off", "there twice"},
      {"a=drift:lambda=0.5,preset=seed", "put it first"},
      {"off,drift:lamda=1", "no setting 'lamda'"},
      {"drift:lambda=nan", "lambda in mode 'drift' is 'nan'"},
      {"drift:lambda=11", "from 0 to 10"},
      {"drift:", "key=value"},
      {"static:gain=fixed", "belongs to drift modes"},
      {"off:draft=3", "modes that draft or copy"},
      {"static:min-match=3", "modes that copy"},
      {"lookup:suffix-tokens=100", "suffix memory"},
      {"suffix:min-match=1", "from 2 to 32"},
      {"draft+lookup", "no mode 'draft+lookup'"},
      {"drift:lr=0.1", "belongs to online-kd"},
      {"online-kd:lambda=1", "belongs to drift modes"},
      {"online-kd:lr=0", "above 0"},
      {"static:model-draft=", "model-draft in mode 'static' is empty"},
      {"lookup:model-draft=a.gguf", "belongs to modes with a draft"},
      {"static:draft=3,lambda=drift:tau=0", "'lambda' belongs to drift modes"},
      {"drift:levels=global,ngram9", "no mode 'ngram9'"},
      {"drift:levels=ngram9", "'ngram9' is no level"},
      {"drift:tau=0.5,ngram1", "no mode 'ngram1'"},
      {"tau=drift", "may not be the name of a setting"},
      {"a b=drift", "a label is"},
      {"=drift", "a label is"},
      {"lambda=0.5,drift", "no mode '0.5'"},
  };
  for (const auto& [list, why] : cases) {
    const auto variants = parse_modes(list, Settings{});
    ASSERT_FALSE(variants.is_ok()) << list;
    EXPECT_EQ(variants.status().code(), Code::kInvalid);
    EXPECT_THAT(variants.status().message(), HasSubstr(why)) << list;
  }
  std::string many = "a0=off";
  for (std::size_t i = 1; i <= kVariantsMax; ++i) many += ",a" + std::to_string(i) + "=off";
  EXPECT_FALSE(parse_modes(many, Settings{}).is_ok());
}

}  // namespace
}  // namespace drift::cli
