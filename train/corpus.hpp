// corpus.hpp - text of all domains as tokens of one vocabulary.
//
// Tokens are always llama.cpp's: a new vocabulary is written to a file first and read back by it.
// Threads: plain values. Cost: about ten seconds for 12 MB.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engines/llama/model.hpp"
#include "engines/torch/gguf_meta.hpp"
#include "train/bpe.hpp"
#include "train/text.hpp"
#include "train/windows.hpp"

namespace drift::train {

// A vocabulary from the text to learn from (not the text held out) of all domains.
Result<Vocabulary> vocabulary_of(const std::vector<Domain>& domains, std::size_t size);
// As GGUF stores it.
Result<engine::GgufMeta> meta_of(const Vocabulary& vocabulary, const std::string& name);
// Writes a file with the vocabulary and the smallest network llama.cpp loads, and loads it: for its tokenizer.
Result<std::shared_ptr<engine::LlamaModel>> load_tokenizer(const engine::GgufMeta& meta, const std::string& path);

// Fails with kLimit (too little text for windows of `length` tokens), kCancelled, and as LlamaText::tokenize.
Result<Stream> tokenized(const Domain& domain, const std::shared_ptr<const engine::LlamaModel>& tokenizer, std::int64_t length,
                         double weight);

}  // namespace drift::train
