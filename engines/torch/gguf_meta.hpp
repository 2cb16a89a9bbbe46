// gguf_meta.hpp - what a GGUF file says besides shape and weights: the model's name and its tokenizer.
//
// A model read from a file keeps its tokenizer fields whatever they are; a new model gets a byte-level BPE ("gpt2" in GGUF).
// Threads: immutable after construction, cheap to copy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "drift/base/status.hpp"

struct gguf_context;

namespace drift::engine {

// GGUF's token types that a byte-level BPE needs.
enum class TokenType : std::int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

// A byte-level BPE as GGUF stores it. Bytes are written as GPT-2's printable characters (byte 0x20 is U+0120, "\n" is U+010A).
struct BpeTokenizer {
  std::string pre = "gpt-2";                            // the rule that cuts text into words before merging, by llama.cpp's name
  std::vector<std::string> tokens;                      // by id; different from each other, none empty
  std::vector<TokenType> types;                         // by id; empty: all normal
  std::vector<std::string> merges;                      // "left right", best first
  std::int32_t bos = -1, eos = -1, eot = -1, pad = -1;  // ids, -1: none
  bool add_bos = false;                                 // a text begins with bos
  std::string chat_template;                            // empty: none
};

// The 256 tokens that stand for single bytes, by byte: what every byte-level BPE begins with.
std::vector<std::string> byte_tokens();

class GgufMeta {
 public:
  // Fails with kInvalid: a token empty, twice or too long, a merge that is not two words, an id outside the tokens, sizes that differ.
  static Result<GgufMeta> of(const BpeTokenizer& tokenizer, const std::string& name);
  // The name and the tokenizer fields of an open file; `file` is not kept.
  static GgufMeta from(const gguf_context* file, const std::string& name);

  const std::string& name() const { return name_; }
  std::int64_t vocab() const;  // number of tokens; 0 without a tokenizer
  // Holds keys beginning with "tokenizer." only.
  const gguf_context* fields() const { return fields_.get(); }

 private:
  std::string name_;
  std::shared_ptr<const gguf_context> fields_;
};

}  // namespace drift::engine
