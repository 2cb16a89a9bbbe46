#include "text/grammar.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "text/grammar_matcher.hpp"

namespace drift::text {
namespace {

// One token per byte, 0x80 two bytes at once, the end, and a token whose name is <think>.
constexpr Token kAccented = 256, kEnd = 257, kThink = 258, kTwo = 259;

std::shared_ptr<const Pieces> bytes_as_tokens() {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  bytes.resize(260);
  bytes[kAccented] = "\xC3\xA9";
  bytes[kTwo] = "ab";
  return std::make_shared<const Pieces>(bytes, std::vector<Token>{kEnd});
}

std::optional<Token> token_of(std::string_view name) { return name == "<think>" ? std::optional(kThink) : std::nullopt; }

std::shared_ptr<const Grammar> grammar(std::string_view text) {
  auto read = Grammar::parse(text, token_of);
  EXPECT_TRUE(read.is_ok()) << text.substr(0, 200) << ": " << read.status().message();
  return read.is_ok() ? std::move(read).value() : nullptr;
}
std::string refusal(std::string_view text) {
  const auto read = Grammar::parse(text, token_of);
  return read.is_ok() ? "" : read.status().message();
}

// Whether the grammar's texts hold this one, byte by byte as the masks say.
bool matches(const std::shared_ptr<const Grammar>& of, std::string_view text) {
  GrammarMatcher matcher(of, bytes_as_tokens());
  auto state = matcher.start();
  for (const char c : text) {
    const Token token = static_cast<unsigned char>(c);
    if (!matcher.allows(state, token)) return false;
    state = matcher.after(state, token);
  }
  return matcher.complete(state);
}
bool matches(std::string_view rules, std::string_view text) { return matches(grammar(rules), text); }

TEST(Grammar, ReadsTheNotation) {
  EXPECT_TRUE(matches("root ::= \"yes\" | \"no\"", "yes"));
  EXPECT_FALSE(matches("root ::= \"yes\" | \"no\"", "ye"));
  EXPECT_FALSE(matches("root ::= \"yes\" | \"no\"", "yn"));
  const char* list =
      "# a list\r\nroot ::= \"[\" (item (\",\" item)*)? \"]\"  # of items\n\nitem ::=\n  [a-c] |\n  [^\\x00-z\\]]{2,3}\n";
  for (const char* good : {"[]", "[a]", "[a,b,c]", "[{}]", "[{|}]", "[a,{{{]"}) EXPECT_TRUE(matches(list, good)) << good;
  for (const char* bad : {"", "[", "[d]", "[{]", "[{{{{]", "[a,]", "[a]]", "[ab]"}) EXPECT_FALSE(matches(list, bad)) << bad;
  EXPECT_TRUE(matches("root ::= \"a\\n\\\"\\\\\\x41\\u00e9\\U0001F600\" .", "a\n\"\\A\u00e9\U0001F600\u20ac"));
  EXPECT_TRUE(matches("root ::= [-a\\-\\]]+", "-]a-"));
  EXPECT_TRUE(matches("root ::= [a-]+", "a-"));
}

TEST(Grammar, CountsRepetitions) {
  for (int least = 0; least < 4; ++least) {
    for (int most = least; most < 6; ++most) {
      const std::string rules = "root ::= \"ab\"{" + std::to_string(least) + "," + std::to_string(most) + "} \".\"";
      const auto read = grammar(rules);
      for (int n = 0; n < 8; ++n) {
        std::string text;
        for (int i = 0; i < n; ++i) text += "ab";
        EXPECT_EQ(matches(read, text + "."), n >= least && n <= most) << rules << " " << n;
      }
    }
  }
  EXPECT_TRUE(matches("root ::= [a]{3}", "aaa"));
  EXPECT_TRUE(matches("root ::= [a]{2,} [b]+", "aaaaab"));
  EXPECT_FALSE(matches("root ::= [a]{2,} [b]+", "ab"));
  EXPECT_TRUE(matches("root ::= [a]{0} [b]", "b"));
  const std::string long_text(30'000, 'x');
  EXPECT_TRUE(matches("root ::= [x]{29999,30000}", long_text));
  EXPECT_FALSE(matches("root ::= [x]{0,29999}", long_text));
}

TEST(Grammar, EveryByteSequenceOfACharacterSetAndNoOther) {
  // Against UTF-8 as the standard has it: all code points around the borders, within and outside ranges.
  const auto encoded = [](std::uint32_t c) {
    std::string out;
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += static_cast<char>(0xC0 | c >> 6);
      out += static_cast<char>(0x80 | (c & 63));
    } else if (c < 0x10000) {
      out += static_cast<char>(0xE0 | c >> 12);
      out += static_cast<char>(0x80 | (c >> 6 & 63));
      out += static_cast<char>(0x80 | (c & 63));
    } else {
      out += static_cast<char>(0xF0 | c >> 18);
      out += static_cast<char>(0x80 | (c >> 12 & 63));
      out += static_cast<char>(0x80 | (c >> 6 & 63));
      out += static_cast<char>(0x80 | (c & 63));
    }
    return out;
  };
  struct Case {
    const char* set;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> in;
  };
  const Case cases[] = {
      {"[\\x41-\\U0001F600]", {{0x41, 0x1F600}}},
      {"[^a]", {{1, 0x60}, {0x62, 0x10FFFF}}},
      {"[\\u07FF-\\u0801\\uD7FF-\\uE000\\U0010FFFF]", {{0x7FF, 0x801}, {0xD7FF, 0xE000}, {0x10FFFF, 0x10FFFF}}},
      {".", {{1, 0x10FFFF}}},
  };
  for (const Case& one : cases) {
    const auto read = grammar(std::string("root ::= ") + one.set);
    for (const std::uint32_t border : {1u, 0x41u, 0x61u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFu, 0x1000u, 0xD7FFu, 0xE000u, 0xFFFFu,
                                       0x10000u, 0x1F600u, 0xFFFFFu, 0x100000u, 0x10FFFFu}) {
      for (std::uint32_t c = border - 1; c <= border + 1 && c <= 0x10FFFF; ++c) {
        if (c == 0 || (c >= 0xD800 && c <= 0xDFFF)) continue;
        bool in = false;
        for (const auto& [low, high] : one.in) in = in || (c >= low && c <= high);
        EXPECT_EQ(matches(read, encoded(c)), in) << one.set << " U+" << std::hex << c;
      }
    }
    for (const char* bad :
         {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\xE2\x82"})
      EXPECT_FALSE(matches(read, bad)) << one.set;
  }
}

TEST(Grammar, TokensOfSeveralBytesAndByName) {
  GrammarMatcher matcher(grammar("root ::= <think> (\"ab\" | [\\u00e9])+ !<[97]> <[98]>?"), bytes_as_tokens());
  auto state = matcher.start();
  EXPECT_TRUE(matcher.allows(state, kThink));
  EXPECT_FALSE(matcher.allows(state, 'a'));
  EXPECT_FALSE(matcher.allows(state, kEnd));
  state = matcher.after(state, kThink);
  EXPECT_TRUE(matcher.allows(state, kTwo));
  EXPECT_TRUE(matcher.allows(state, kAccented));
  EXPECT_TRUE(matcher.allows(state, 0xC3));
  EXPECT_FALSE(matcher.allows(state, 0xA9));
  EXPECT_TRUE(matcher.allows(matcher.after(state, 0xC3), 0xA9));
  state = matcher.after(state, kAccented);
  EXPECT_TRUE(matcher.allows(state, 'a')) << "of ab, though not as the token that may not come";
  EXPECT_TRUE(matcher.allows(state, 'z'));
  EXPECT_FALSE(matcher.allows(state, kThink)) << "has no text";
  state = matcher.after(state, 'z');
  EXPECT_TRUE(matcher.allows(state, kEnd));
  EXPECT_TRUE(matcher.allows(state, 'b'));
  EXPECT_FALSE(matcher.allows(state, 'c'));
  state = matcher.after(state, 'b');
  EXPECT_TRUE(matcher.allows(state, kEnd));
  EXPECT_FALSE(matcher.allows(state, 'b'));
}

TEST(Grammar, WaitsForItsTrigger) {
  // The word may come in pieces; a token that holds it and goes on wrongly may not come.
  std::vector<std::string> bytes{"a", "<", "<t", "t>", ">1", ">2", "1", "x<t>", "", ""};
  const auto pieces = std::make_shared<const Pieces>(bytes, std::vector<Token>{8});
  const auto read = grammar("root ::= \"<t>\" \"1\"+");
  for (const std::vector<Token>& way : {std::vector<Token>{0, 1, 3, 6}, {1, 2, 4}, {7, 6}, {9, 6}, {0, 1, 1, 3, 6, 6}}) {
    GrammarMatcher matcher(read, pieces, {{"<t>", "[never]"}, false, "", {{9, "<t>"}}});
    auto state = matcher.start();
    for (const Token token : way) {
      EXPECT_TRUE(matcher.allows(state, token)) << token;
      state = matcher.settle(matcher.after(state, token));
    }
    EXPECT_TRUE(matcher.allows(state, 6));
    EXPECT_TRUE(matcher.allows(state, 8));
    EXPECT_FALSE(matcher.allows(state, 0)) << "it holds now";
  }
  GrammarMatcher matcher(read, pieces, {{"<t>"}, false, "", {}});
  auto state = matcher.after(matcher.start(), 2);
  EXPECT_TRUE(matcher.allows(state, 4));
  EXPECT_FALSE(matcher.allows(state, 5)) << "a trigger, and then what the grammar does not have";
  EXPECT_TRUE(matcher.allows(matcher.start(), 5)) << "no trigger";
  EXPECT_TRUE(matcher.allows(state, 8)) << "the end";
  EXPECT_TRUE(matcher.allows(matcher.after(state, 0), 5));
}

TEST(Grammar, OrBeginsWithItsTrigger) {
  std::vector<std::string> bytes{"a", "<", "<t", "t>", ">1", ">2", "1", "<t>1", ""};
  GrammarMatcher matcher(grammar("root ::= (\"<t>\" \"1\"+)*"), std::make_shared<const Pieces>(bytes, std::vector<Token>{8}),
                         {{"<t>"}, true, "", {}});
  const auto allowed = [&](spec::Constraint::State state) {
    std::vector<Token> out;
    for (Token token = 0; token < 9; ++token) {
      if (matcher.allows(state, token)) out.push_back(token);
    }
    return out;
  };
  EXPECT_EQ(allowed(matcher.start()), (std::vector<Token>{1, 2, 7})) << "and not the end, though the grammar has the empty text";
  const auto half = matcher.after(matcher.start(), 2);
  EXPECT_EQ(allowed(half), (std::vector<Token>{4}));
  EXPECT_EQ(allowed(matcher.after(half, 4)), (std::vector<Token>{1, 2, 6, 7, 8}));
}

TEST(Grammar, GoesOnFromWhatWasRead) {
  GrammarMatcher matcher(grammar("root ::= \"go: \" [ab]"), bytes_as_tokens(), {{}, false, "go: ", {}});
  EXPECT_TRUE(matcher.allows(matcher.start(), 'a'));
  EXPECT_FALSE(matcher.allows(matcher.start(), 'g'));
  GrammarMatcher other(grammar("root ::= \"go: \" [ab]"), bytes_as_tokens(), {{}, false, "no", {}});
  EXPECT_TRUE(other.allows(other.start(), kEnd)) << "it does not begin like this";
  EXPECT_FALSE(other.allows(other.start(), 'a'));
}

TEST(Grammar, SomethingMayAlwaysCome) {
  // Nothing of the vocabulary goes on: the end does, whether the text is whole or cannot become so.
  std::vector<std::string> bytes{"a", "b", "", ""};
  GrammarMatcher matcher(grammar("root ::= \"a\" \"c\""), std::make_shared<const Pieces>(bytes, std::vector<Token>{2}));
  const auto state = matcher.after(matcher.start(), 0);
  for (const auto at : {state, matcher.after(state, 1), matcher.after(state, 2)}) {
    std::vector<float> logits{1, 2, 3, 4};
    matcher.mask(at, logits);
    EXPECT_EQ(logits, (std::vector<float>{spec::kForbidden, spec::kForbidden, 3, spec::kForbidden}));
  }
}

TEST(Grammar, RefusesWhatIsWrongWithWords) {
  EXPECT_NE(refusal("root ::= a").find("'a' is not defined"), std::string::npos);
  EXPECT_NE(refusal("main ::= \"a\"").find("no rule 'root'"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\nb").find("line 2"), std::string::npos) << refusal("root ::= \"a\nb");
  EXPECT_NE(refusal("root ::= [a").find("end of the text"), std::string::npos);
  EXPECT_NE(refusal("root ::= (\"a\"").find("')'"), std::string::npos);
  EXPECT_NE(refusal("root ::= * \"a\"").find("to repeat"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\"{3,2}").find("less than the least"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"\\q\"").find("escape"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"\\u12\"").find("4 hexadecimal"), std::string::npos);
  EXPECT_NE(refusal("root ::= <tool>").find("not one token"), std::string::npos);
  EXPECT_NE(refusal("root = \"a\"").find("::="), std::string::npos);
  EXPECT_NE(refusal("").find("no rule 'root'"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"\xFF\"").find("UTF-8"), std::string::npos);
  EXPECT_NE(refusal(std::string_view("root ::= \"\0\"", 12)).find("NUL"), std::string::npos);
  EXPECT_NE(refusal("root ::= root \"a\" | \"b\"").find("left recursion"), std::string::npos);
  EXPECT_NE(refusal("root ::= a \"x\"\na ::= b? c\nb ::= \"b\"\nc ::= a \"c\" | \"d\"").find("left recursion"),
            std::string::npos);
  EXPECT_NE(refusal("root ::= root").find("matches no text"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\" root").find("matches no text"), std::string::npos);
  EXPECT_NE(refusal("root ::= []").find("matches no text"), std::string::npos);
}

TEST(Grammar, CirclesThatReadNothingAreHarmless) {
  EXPECT_TRUE(matches("root ::= (\"a\"?)* \"b\"", "aab"));
  EXPECT_TRUE(matches("root ::= (\"a\"* \"c\"*)* \"b\"", "acacaab"));
  EXPECT_TRUE(matches("root ::= a | \"x\"\na ::= root", "x"));
  EXPECT_FALSE(matches("root ::= (\"a\" dead)? \"b\"\ndead ::= dead", "a"));
}

// Hostile grammars are refused or read, within bounded time and memory; none ends the process.
TEST(Grammar, HostileOnesAreBounded) {
  const auto repeated = [](const std::string& part, std::size_t n) {
    std::string out;
    for (std::size_t i = 0; i < n; ++i) out += part;
    return out;
  };
  const auto from = std::chrono::steady_clock::now();
  EXPECT_NE(refusal("root ::= " + repeated("(", 500'000)).find("nested"), std::string::npos);
  EXPECT_NE(refusal("root ::= " + repeated("(", 400'000) + "\"a\"" + repeated(")", 400'000)).find("nested"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\"{99999999999999999999}").find("times"), std::string::npos);
  EXPECT_EQ(refusal("root ::= ((((\"a\"{1000}){1000}){1000}){1000}){1000}"), "") << "written out once each";
  EXPECT_NE(refusal("root ::= " + repeated("[a]{60000} ", 10)).find("too large"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"" + repeated("a", 200'000) + "\"{60000,65000} [b]{0,65000}").find("too large"),
            std::string::npos);
  EXPECT_NE(refusal(repeated("x", 2'000'000)).find("bytes"), std::string::npos);
  // The chains that make a search for left recursion double with every rule.
  std::string chain = "root ::= a0 \"x\"\n";
  for (int i = 0; i < 2'000; ++i)
    chain += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + " a" + std::to_string(i + 1) + " | \"\"\n";
  chain += "a2000 ::= \"a\" | \"\"\n";
  const auto doubling = grammar(chain);  // may be read in 2^2000 ways
  GrammarMatcher matcher(doubling, bytes_as_tokens());
  std::vector<float> logits(260);
  matcher.mask(matcher.start(), logits);
  EXPECT_NE(matcher.failure().find("too many ways"), std::string::npos);
  EXPECT_EQ(logits[kEnd], 0.0f);
  EXPECT_EQ(logits['a'], spec::kForbidden);
  // Ambiguity that grows with the text.
  GrammarMatcher growing(grammar("root ::= (\"a\" | \"a\" root | \"aa\" root){0,3} \"b\"?"), bytes_as_tokens());
  auto state = growing.start();
  for (int i = 0; i < 2'000; ++i) state = growing.settle(growing.after(state, 'a'));
  growing.mask(state, logits);
  // A text that opens ever more brackets.
  GrammarMatcher deep(grammar("root ::= \"(\" root \")\" | \"x\""), bytes_as_tokens());
  state = deep.start();
  for (int i = 0; i < 100'000; ++i) state = deep.settle(deep.after(state, '('));
  EXPECT_TRUE(deep.allows(state, 'x'));
  state = deep.after(state, 'x');
  for (int i = 0; i < 100'000; ++i) state = deep.settle(deep.after(state, ')'));
  EXPECT_TRUE(deep.complete(state)) << deep.failure();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
  EXPECT_LT(took.count(), 30.0);  // a second; the rest is for sanitizers and a busy machine
}

TEST(Grammar, WhatHasGrownLargeIsMadeAnewFromWhereTheTextStands) {
  // A counted string: every length has its own states.
  GrammarMatcher matcher(grammar("root ::= \"<\" (.{1,50000}) \">\" \"!\"{3}"), bytes_as_tokens());
  auto state = matcher.after(matcher.start(), '<');
  std::size_t most = 0;
  for (int i = 0; i < 40'000; ++i) {
    ASSERT_TRUE(matcher.allows(state, 'x'));
    state = matcher.settle(matcher.after(state, 'x'));
    most = std::max(most, matcher.states());
  }
  EXPECT_LT(matcher.states(), most);
  for (const char c : {'>', '!', '!', '!'}) {
    EXPECT_FALSE(matcher.complete(state));
    ASSERT_TRUE(matcher.allows(state, c));
    state = matcher.after(state, c);
  }
  EXPECT_TRUE(matcher.complete(state));
}

}  // namespace
}  // namespace drift::text
