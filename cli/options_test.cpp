#include "cli/options.hpp"

#include <gtest/gtest.h>

namespace drift::cli {
namespace {

TEST(Options, ShortFlagsOfSeveralLetters) {
  using List = std::vector<std::string>;
  EXPECT_EQ(expand_short_flags({"-md", "a", "-ngl", "3", "-ngld=2", "-m", "b"}),
            (List{"--model-draft", "a", "--gpu-layers", "3", "--gpu-layers-draft=2", "-m", "b"}));
  EXPECT_EQ(expand_short_flags({"-p", "-md", "--", "-md"}), (List{"-p", "-md", "--", "-md"}));
  EXPECT_EQ(expand_short_flags({"-mdx"}), (List{"-mdx"}));
}

// Parses a command line with the shared flags; gives the error's text, or "".
std::string parse(std::vector<std::string> arguments, PairOptions& pair, spec::SamplerConfig& sampler, Settings& settings) {
  std::uint64_t seed = 1;
  CLI::App app("test");
  add_pair_options(app, pair);
  add_sampler_options(app, sampler, seed);
  add_setting_options(app, settings);
  arguments = expand_short_flags(arguments);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(Options, EverySettingIsAFlag) {
  PairOptions pair;
  spec::SamplerConfig sampler;
  Settings settings;
  EXPECT_EQ(parse({"-m", "t", "-md", "d", "--lambda", "0.5", "--preset", "seed", "--tau", "-0.5", "--lora", "a=0.5", "--lora",
                   "b", "--temp", "0"},
                  pair, sampler, settings),
            "");
  EXPECT_EQ(pair.draft, "d");
  ASSERT_EQ(pair.loras.size(), 2u);
  EXPECT_FLOAT_EQ(pair.loras[0].scale, 0.5f);
  EXPECT_EQ(pair.loras[1].path, "b");
  EXPECT_EQ(settings.recal.gain, recal::GainRule::kFixed);
  EXPECT_FLOAT_EQ(settings.recal.lambda, 0.5f) << "the preset comes first, wherever it stands";
  EXPECT_FLOAT_EQ(settings.recal.bank.tau, -0.5f);
  EXPECT_TRUE(sampler.greedy());
}

TEST(Options, ErrorsNameFlagValueAndBounds) {
  PairOptions pair;
  spec::SamplerConfig sampler;
  Settings settings;
  EXPECT_EQ(parse({"-m", "t", "--lambda", "nan"}, pair, sampler, settings),
            "--lambda is 'nan'; it must be a number from 0 to 10");
  EXPECT_EQ(parse({"-m", "t", "-t", "4x"}, pair, sampler, settings), "-t is '4x'; it must be a whole number from 0 to 1024");
  EXPECT_EQ(parse({"-m", "t", "--lora", "a=big"}, pair, sampler, settings),
            "--lora scale is 'big'; it must be a number from -100 to 100");
  EXPECT_NE(parse({"-m", "t", "--lamda", "1"}, pair, sampler, settings), "");
}

}  // namespace
}  // namespace drift::cli
