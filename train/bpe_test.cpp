#include "train/bpe.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>

#include "engines/llama/text.hpp"
#include "train/corpus.hpp"

namespace drift::train {
namespace {

using Pieces = std::vector<std::string_view>;

TEST(ByteLetter, IsGpt2s) {
  std::set<std::string> all;
  for (int byte = 0; byte < 256; ++byte) all.insert(byte_letter(static_cast<unsigned char>(byte)));
  EXPECT_EQ(all.size(), 256u);
  EXPECT_EQ(byte_letter('a'), "a");
  EXPECT_EQ(byte_letter(' '), "\xC4\xA0");   // U+0120
  EXPECT_EQ(byte_letter('\n'), "\xC4\x8A");  // U+010A
  EXPECT_EQ(byte_letter(0xFF), "\xC3\xBF");  // U+00FF
  EXPECT_EQ(byte_letter(0xAD), "\xC5\x83");  // the soft hyphen, the last one without a letter of its own: U+0143
}

TEST(Splitter, CutsAsGpt2Does) {
  const Splitter splitter;
  EXPECT_EQ(splitter.split("Hello world's  end"), (Pieces{"Hello", " world", "'s", " ", " end"}));
  EXPECT_EQ(splitter.split("x=12; y"), (Pieces{"x", "=", "12", ";", " y"}));
  EXPECT_EQ(splitter.split("a\n\n  b\n"), (Pieces{"a", "\n\n ", " b", "\n"}));
  EXPECT_EQ(splitter.split("\xC3\xA9t\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC"),
            (Pieces{"\xC3\xA9t\xC3\xA9", " \xE6\x97\xA5\xE6\x9C\xAC"}));
  EXPECT_TRUE(splitter.split("").empty());
}

TEST(Vocabulary, MergesTheMostFrequentPairFirst) {
  const PieceCounts counts{{" low", 5}, {" lower", 2}, {"new", 3}, {"newest", 6}, {"abcdefghijklmnopqrstuvwxyz", 2}};
  std::string alphabet;
  for (char a = 'a'; a <= 'z'; ++a) alphabet += a;
  PieceCounts wide = counts;
  for (char a = 'a'; a <= 'z'; ++a) wide[alphabet + a + "!"] = 2;  // enough different pairs for the smallest vocabulary
  auto vocabulary = make_vocabulary(wide, kVocabMin);
  ASSERT_TRUE(vocabulary.is_ok()) << vocabulary.status().message();
  EXPECT_EQ(vocabulary->tokens.size(), kVocabMin);
  EXPECT_EQ(vocabulary->merges.size(), kVocabMin - 257);
  EXPECT_EQ(vocabulary->tokens.back(), "<|endoftext|>");
  // "ab" and its like occur 54 times; "st" is in "newest" as well.
  EXPECT_EQ(vocabulary->merges[0], "s t");
  EXPECT_EQ(vocabulary->merges[1], "a b");  // of equals the one of lowest ids
  const std::set<std::string> distinct(vocabulary->tokens.begin(), vocabulary->tokens.end());
  EXPECT_EQ(distinct.size(), kVocabMin);
}

TEST(Vocabulary, RefusesWhatCannotBeMade) {
  EXPECT_EQ(make_vocabulary({{"aa", 2}}, kVocabMin).status().code(), Code::kInvalid);
  EXPECT_EQ(make_vocabulary({{"aa", 2}}, kVocabMin - 1).status().code(), Code::kLimit);
  EXPECT_EQ(make_vocabulary({{"aa", 2}}, kVocabMax + 1).status().code(), Code::kLimit);
}

// The obvious encoder: in each piece, again and again the merge of lowest rank, leftmost first.
std::vector<Token> encode_plainly(const Vocabulary& vocabulary, std::string_view text) {
  std::map<std::string, std::size_t> ranks;
  std::map<std::string, Token> ids;
  for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) ranks.emplace(vocabulary.merges[i], i);
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) ids.emplace(vocabulary.tokens[i], static_cast<Token>(i));
  const Splitter splitter;
  std::vector<Token> out;
  for (const std::string_view piece : splitter.split(text)) {
    std::vector<std::string> parts;
    for (const char byte : piece) parts.push_back(byte_letter(static_cast<unsigned char>(byte)));
    for (;;) {
      std::size_t best = ranks.size(), where = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks.find(parts[i] + " " + parts[i + 1]);
        if (found != ranks.end() && found->second < best) best = found->second, where = i;
      }
      if (best == ranks.size()) break;
      parts[where] += parts[where + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    for (const std::string& part : parts) out.push_back(ids.at(part));
  }
  return out;
}

TEST(Vocabulary, LlamaCppCutsTextAlike) {
  Domain domain;
  domain.name = "mixed";
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "The tenant shall pay $" + std::to_string(i * 37 % 100) + " to the landlord; it's due, they've agreed.\n\n";
    text += "\tif (x[" + std::to_string(i) + "] != 0) { return f(x, \"\xC3\xBC\"); }\n    // na\xC3\xAFve caf\xC3\xA9\n";
    text +=
        "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E  \xE2\x82\xAC \xF0\x9F\x98\x80 "
        "\xC2\xA0 \xC2\xBD\n";
  }
  domain.train.push_back(text);
  auto vocabulary = vocabulary_of({domain}, 360);
  ASSERT_TRUE(vocabulary.is_ok()) << vocabulary.status().message();
  auto meta = meta_of(*vocabulary, "test");
  ASSERT_TRUE(meta.is_ok()) << meta.status().message();
  const auto folder = std::filesystem::temp_directory_path() / ("drift-bpe-test-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  auto model = load_tokenizer(*meta, (folder / "tokenizer.gguf").string());
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(model.is_ok()) << model.status().message();
  const engine::LlamaText llama(*model);
  for (const std::string& sample :
       {text, std::string(" two  spaces\r\n\r\n  and tabs\t\tx"), std::string("don't 12345 _a__b ...---"),
        std::string("\xE1\x88\xB4\xE2\x80\x83z \xCC\x81\xE0\xA4\x95")}) {
    auto tokens = llama.tokenize(sample, false, false);
    ASSERT_TRUE(tokens.is_ok()) << tokens.status().message();
    EXPECT_EQ(*tokens, encode_plainly(*vocabulary, sample)) << sample.substr(0, 40);
    std::string back;
    for (const Token token : *tokens) back += llama.piece(token);
    EXPECT_EQ(back, sample);
  }
  EXPECT_TRUE(llama.is_end(vocabulary->end()));
  for (Token token = 0; token < vocabulary->end(); ++token) EXPECT_FALSE(llama.is_end(token));
}

}  // namespace
}  // namespace drift::train
