// grammar.hpp - a GBNF grammar (llama.cpp's notation), read and checked: what a text may be, as rules over bytes.
//
// Everything that could make reading a text endless is refused here: rules that call themselves at their own beginning, rules that
// match nothing. Parts of rules that can match nothing are left out. Characters become sequences of bytes, for tokens may end inside one.
// Threads: immutable, share freely. Limits: the constants below. Cost: linear in the text and its repetitions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "drift/base/ids.hpp"
#include "drift/base/status.hpp"

namespace drift::text {

inline constexpr std::size_t kGrammarBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kGrammarElementsMax = std::size_t{1} << 18;  // with all repetitions written out
inline constexpr std::size_t kGrammarDepthMax = 512;                      // of brackets
inline constexpr std::uint64_t kRepetitionsMax = std::uint64_t{1} << 16;

// The token that "<think>" names, if there is one.
using TokenOfName = std::function<std::optional<Token>(std::string_view)>;

class Grammar {
 public:
  // Fails with kInvalid (what is wrong, and where), kLimit.
  static Result<std::shared_ptr<const Grammar>> parse(std::string_view gbnf, const TokenOfName& token_of_name = {});

  enum class Kind : std::uint8_t {
    kEnd,       // of an alternative
    kRule,      // value: a rule
    kChar,      // value: the node its first byte is looked up in
    kToken,     // value: this token and no other
    kNotToken,  // value: any token but this
  };
  struct Element {
    Kind kind = Kind::kEnd;
    std::uint32_t value = 0;
  };
  // Where a byte leads: to the node of the next one, or to the end of the character.
  static constexpr std::uint32_t kWhole = UINT32_MAX;
  struct Arc {
    std::uint8_t low, high;
    std::uint32_t to;
    friend auto operator<=>(const Arc&, const Arc&) = default;
  };

  std::uint32_t root() const { return root_; }
  // The first elements of a rule's alternatives. Every alternative runs to its kEnd.
  const std::vector<std::uint32_t>& alternatives(std::uint32_t rule) const { return rules_[rule]; }
  const Element& element(std::uint32_t at) const { return elements_[at]; }
  const std::vector<Arc>& node(std::uint32_t node) const { return nodes_[node]; }
  bool has_tokens() const { return has_tokens_; }
  // Bytes that no rule tells apart have one class.
  std::uint8_t byte_class(std::uint8_t byte) const { return class_of_[byte]; }
  std::uint8_t byte_of(std::size_t byte_class) const { return byte_of_[byte_class]; }
  std::size_t byte_classes() const { return byte_of_.size(); }

 private:
  friend class GrammarReader;
  Grammar() = default;
  void classify_bytes();

  std::uint32_t root_ = 0;
  std::vector<std::vector<std::uint32_t>> rules_;
  std::vector<Element> elements_;
  std::vector<std::vector<Arc>> nodes_;
  bool has_tokens_ = false;
  std::array<std::uint8_t, 256> class_of_{};
  std::vector<std::uint8_t> byte_of_;
};

}  // namespace drift::text
