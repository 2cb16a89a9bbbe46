#include "cli/llama_flags.hpp"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "cli/serve.hpp"

namespace drift::cli {
namespace {

using Words = std::vector<std::string>;

Words good(const Words& given, std::size_t warnings = 0) {
  const auto translated = translate_llama_flags(given);
  EXPECT_TRUE(translated.is_ok()) << translated.status().message();
  if (!translated.is_ok()) return {};
  EXPECT_EQ(translated.value().warnings.size(), warnings);
  return translated.value().arguments;
}

TEST(LlamaFlags, WhatMeansTheSameGetsOurName) {
  EXPECT_EQ(good({"-m", "t.gguf", "-md", "d.gguf", "-c", "4096", "-np", "8", "-ub", "256", "--spec-draft-n-max", "7"}),
            (Words{"--model", "t.gguf", "--model-draft", "d.gguf", "--ctx-size", "4096", "--parallel", "8", "--ubatch-size",
                   "256", "--draft", "7"}));
  EXPECT_EQ(good({"--n-predict=5", "--ctx_size", "7", "--no-slots", "--temperature", "0"}),
            (Words{"--predict", "5", "--ctx-size", "7", "--no-slots", "--temp", "0"}));
  EXPECT_EQ(good({"--lora", "a,b", "--lora-scaled", "c:0.5,d:2"}),
            (Words{"--lora", "a", "--lora", "b", "--lora", "c=0.5", "--lora", "d=2"}));
  EXPECT_EQ(good({"-ngl", "all", "-ngld", "auto"}), (Words{"--gpu-layers", "-1"}));
}

TEST(LlamaFlags, WhatHasNoEffectIsTakenOutWithItsValues) {
  EXPECT_EQ(good({"-fa", "on", "--mlock_", "--metrics", "-tb", "4", "-m", "x", "--reasoning-format", "none"}, 4),
            (Words{"--mlock_", "--model", "x"}));
  const auto translated = translate_llama_flags({"-fa", "on"});
  EXPECT_EQ(translated.value().warnings[0], "-fa has no effect: llama.cpp decides");
}

TEST(LlamaFlags, WhatWouldChangeAnswersIsRefusedWithTheAlternative) {
  for (const Words& words : {Words{"--chat-template-kwargs", "{}"}, Words{"-hf", "a/b"}, Words{"--mirostat", "2"},
                             Words{"--embedding"}, Words{"--mirostat=2"}}) {
    const auto refused = translate_llama_flags(words);
    EXPECT_EQ(refused.status().code(), Code::kInvalid);
    EXPECT_NE(refused.status().message().find("cannot be used here: "), std::string::npos) << refused.status().message();
  }
  EXPECT_NE(translate_llama_flags({"-c"}).status().message().find("-c needs a value"), std::string::npos);
}

TEST(LlamaFlags, OurOwnFlagsPassAndValuesAreNotFlags) {
  EXPECT_EQ(good({"--bank", "b", "--mode", "off", "-a", "--metrics"}),
            (Words{"--bank", "b", "--mode", "off", "--alias", "--metrics"}));
}

// Every flag has a sound row, and what a kSame row names exists here and takes as many values.
TEST(LlamaFlags, TheTableIsSound) {
  CLI::App app;
  int code = 0;
  add_serve_command(app, code);
  const CLI::App& serve = *app.get_subcommand("serve");
  EXPECT_GT(llama_flags().size(), 250u);
  std::set<std::string> seen;
  for (const LlamaFlag& flag : llama_flags()) {
    std::istringstream names(flag.names);
    for (std::string name; names >> name;) EXPECT_TRUE(seen.insert(name).second) << name << " is there twice";
    EXPECT_GE(flag.values, 0);
    EXPECT_LE(flag.values, 2);
    ASSERT_FALSE(std::string(flag.text).empty()) << flag.names;
    if (flag.rule != FlagRule::kSame || std::string(flag.text) == "--version") continue;
    const CLI::Option* option = serve.get_option_no_throw(flag.text);
    ASSERT_NE(option, nullptr) << flag.text << " of " << flag.names << " does not exist";
    EXPECT_EQ(option->get_expected_max() == 0, flag.values == 0) << flag.text;
  }
}

}  // namespace
}  // namespace drift::cli
