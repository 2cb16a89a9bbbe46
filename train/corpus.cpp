#include "train/corpus.hpp"

#include <fmt/format.h>

#include <utility>

#include "cli/console.hpp"
#include "engines/llama/text.hpp"
#include "engines/torch/gguf_write.hpp"

namespace drift::train {
namespace {

Result<std::vector<std::int32_t>> tokens_of(const std::vector<std::string>& chunks, const engine::LlamaText& text) {
  std::vector<std::int32_t> all;
  for (const std::string& chunk : chunks) {
    if (cli::interrupted()) return Status(Code::kCancelled, "interrupted while cutting text into tokens");
    DRIFT_ASSIGN(const std::vector<Token> tokens, text.tokenize(chunk, /*add_special=*/false, /*parse_special=*/false));
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  return all;
}

}  // namespace

Result<Vocabulary> vocabulary_of(const std::vector<Domain>& domains, std::size_t size) {
  const Splitter splitter;
  PieceCounts counts;
  for (const Domain& domain : domains)
    for (const std::string& chunk : domain.train) count_pieces(splitter, chunk, counts);
  return make_vocabulary(counts, size);
}

Result<engine::GgufMeta> meta_of(const Vocabulary& vocabulary, const std::string& name) {
  engine::BpeTokenizer tokenizer;
  tokenizer.tokens = vocabulary.tokens;
  tokenizer.types.assign(vocabulary.tokens.size(), engine::TokenType::kNormal);
  tokenizer.types.back() = engine::TokenType::kControl;
  tokenizer.merges = vocabulary.merges;
  // llama.cpp takes token 11 for the end of a text where a file names none.
  tokenizer.bos = tokenizer.eos = tokenizer.eot = tokenizer.pad = vocabulary.end();
  return engine::GgufMeta::of(tokenizer, name);
}

Result<std::shared_ptr<engine::LlamaModel>> load_tokenizer(const engine::GgufMeta& meta, const std::string& path) {
  engine::ModelShape shape;
  shape.vocab = meta.vocab();
  shape.width = shape.ffn = 32;
  shape.layers = shape.heads = shape.kv_heads = 1;
  shape.context = 64;
  DRIFT_TRY(engine::check_shape(shape));
  DRIFT_TRY(engine::write_gguf(path, engine::LlamaNet(shape), meta, engine::GgufType::kF32));
  return engine::LlamaModel::load({.path = path});
}

Result<Stream> tokenized(const Domain& domain, const std::shared_ptr<const engine::LlamaModel>& tokenizer, std::int64_t length,
                         double weight) {
  const engine::LlamaText text(tokenizer);
  Stream stream;
  stream.domain = domain.name;
  stream.weight = weight;
  DRIFT_ASSIGN(stream.train, tokens_of(domain.train, text));
  DRIFT_ASSIGN(stream.held_out, tokens_of(domain.held_out, text));
  DRIFT_TRY(Windows::check(stream, length));
  if (stream.held_out.size() < 2)
    return Status(Code::kLimit, fmt::format("the text held out of {} is a single token; give more text", domain.name));
  return stream;
}

}  // namespace drift::train
