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
  EXPECT_EQ(parse({"-m", "t", "-t", "4x"}, pair, sampler, settings), "-t is '4x'; it must be a whole number from 0 to 512");
  EXPECT_EQ(parse({"-m", "t", "--lora", "a=big"}, pair, sampler, settings),
            "--lora scale is 'big'; it must be a number from -100 to 100");
  EXPECT_NE(parse({"-m", "t", "--lamda", "1"}, pair, sampler, settings), "");
}

TEST(Options, AnEmptyTextIsRefusedNamingTheFlag) {
  PairOptions pair;
  spec::SamplerConfig sampler;
  Settings settings;
  EXPECT_EQ(parse({"-m", ""}, pair, sampler, settings), "-m is empty; it needs a FILE, or leave it out");
  EXPECT_EQ(parse({"-m", "t", "-md", ""}, pair, sampler, settings), "-md is empty; it needs a FILE, or leave it out");
  EXPECT_NE(parse({"-m", "t", "--lora", ""}, pair, sampler, settings), "");
}

TEST(Options, AFloatTooSmallToBeToldFromZeroNamesTheFlag) {
  PairOptions pair;
  spec::SamplerConfig sampler;
  Settings settings;
  EXPECT_EQ(parse({"-m", "t", "--top-p", "1e-50"}, pair, sampler, settings), "--top-p is '1e-50', too small to be told from 0");
}

TEST(Options, UnknownCommandsAreNamed) {
  CLI::App app("test");
  app.add_subcommand("run", "");
  app.add_subcommand("bank", "")->add_subcommand("show", "")->add_option("FILE");
  EXPECT_TRUE(check_arguments(app, {}).is_ok());
  EXPECT_TRUE(check_arguments(app, {"--help"}).is_ok());
  EXPECT_TRUE(check_arguments(app, {"run", "anything"}).is_ok());
  EXPECT_TRUE(check_arguments(app, {"bank", "show", "x"}).is_ok());
  EXPECT_EQ(check_arguments(app, {"frobnicate"}).message(), "unknown command 'frobnicate'; there are: run, bank");
  EXPECT_EQ(check_arguments(app, {""}).message(), "unknown command ''; there are: run, bank");
  EXPECT_EQ(check_arguments(app, {"bank", "burn", "x"}).message(), "unknown command 'burn'; there are: show");
}

TEST(Options, AFlagWithNothingAfterItsEqualsSignTakesNoOtherArgument) {
  CLI::App app("test");
  EXPECT_EQ(check_arguments(app, {"--bank=", "-n"}).message(), "--bank is empty; give it a value, or leave it out");
  EXPECT_EQ(check_arguments(app, expand_short_flags({"-md="})).message(),
            "--model-draft is empty; give it a value, or leave it out");
  EXPECT_TRUE(check_arguments(app, {"--bank=x", "-p", "--bank=", "--stop", "--x=", "--", "--bank="}).is_ok());
}

}  // namespace
}  // namespace drift::cli
