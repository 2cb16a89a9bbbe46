#include "engines/torch/gguf_meta.hpp"

#include <gguf.h>

#include <algorithm>
#include <unordered_set>

namespace drift::engine {
namespace {

constexpr std::size_t kTokensMax = std::size_t{1} << 20;
constexpr std::size_t kTokenBytesMax = 512;
constexpr const char* kTokens = "tokenizer.ggml.tokens";

std::shared_ptr<gguf_context> empty_fields() { return {gguf_init_empty(), &gguf_free}; }

Status invalid(const std::string& why) { return {Code::kInvalid, "tokenizer: " + why}; }

Status check_tokens(const BpeTokenizer& tokenizer) {
  const std::size_t count = tokenizer.tokens.size();
  if (count < 2 || count > kTokensMax)
    return invalid(std::to_string(count) + " tokens; there must be between 2 and " + std::to_string(kTokensMax));
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& token = tokenizer.tokens[i];
    if (token.empty() || token.size() > kTokenBytesMax) {
      return invalid("token " + std::to_string(i) + " has " + std::to_string(token.size()) +
                     " bytes; it must have between 1 and " + std::to_string(kTokenBytesMax));
    }
    if (token.find('\0') != std::string::npos) return invalid("token " + std::to_string(i) + " holds a zero byte");
    if (!seen.insert(token).second) return invalid("token " + std::to_string(i) + " '" + token + "' is there twice");
  }
  if (!tokenizer.types.empty() && tokenizer.types.size() != count) {
    return invalid(std::to_string(tokenizer.types.size()) + " token types for " + std::to_string(count) + " tokens");
  }
  for (std::size_t i = 0; i < tokenizer.merges.size(); ++i) {
    const std::string& merge = tokenizer.merges[i];
    const std::size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos)
      return invalid("merge " + std::to_string(i) + " '" + merge + "' is not two tokens with a space between them");
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    for (const std::string& part : {left, right, left + right}) {
      if (!seen.contains(part))
        return invalid("merge " + std::to_string(i) + " '" + merge + "': '" + part + "' is not among the tokens");
    }
  }
  return Status::ok();
}

Status check_ids(const BpeTokenizer& tokenizer) {
  const auto count = static_cast<std::int64_t>(tokenizer.tokens.size());
  for (const auto& [what, id] :
       {std::pair{"bos", tokenizer.bos}, {"eos", tokenizer.eos}, {"eot", tokenizer.eot}, {"padding", tokenizer.pad}}) {
    if (id < -1 || id >= count)
      return invalid("the " + std::string(what) + " token is " + std::to_string(id) + "; there are " + std::to_string(count));
  }
  if (tokenizer.add_bos && tokenizer.bos < 0) return invalid("a text shall begin with bos, but there is none");
  if (tokenizer.pre.empty()) return invalid("no rule for cutting text into words is named");
  return Status::ok();
}

void set_texts(gguf_context* fields, const char* key, const std::vector<std::string>& texts) {
  std::vector<const char*> pointers(texts.size());
  std::transform(texts.begin(), texts.end(), pointers.begin(), [](const std::string& text) { return text.c_str(); });
  gguf_set_arr_str(fields, key, pointers.data(), pointers.size());
}

}  // namespace

// GPT-2's table: bytes that print in Latin-1 stand for themselves, the others follow from U+0100 on in order.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens(256);
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const unsigned point = prints ? byte : next++;
    std::string& token = tokens[byte];  // the code point in UTF-8; all are below U+0800
    if (point < 0x80) {
      token = {static_cast<char>(point)};
    } else {
      token = {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3f))};
    }
  }
  return tokens;
}

Result<GgufMeta> GgufMeta::of(const BpeTokenizer& tokenizer, const std::string& name) {
  DRIFT_TRY(check_tokens(tokenizer));
  DRIFT_TRY(check_ids(tokenizer));
  const std::shared_ptr<gguf_context> fields = empty_fields();
  gguf_set_val_str(fields.get(), "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(fields.get(), "tokenizer.ggml.pre", tokenizer.pre.c_str());
  set_texts(fields.get(), kTokens, tokenizer.tokens);
  std::vector<TokenType> types = tokenizer.types;
  types.resize(tokenizer.tokens.size(), TokenType::kNormal);
  gguf_set_arr_data(fields.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  set_texts(fields.get(), "tokenizer.ggml.merges", tokenizer.merges);
  for (const auto& [key, id] : {std::pair{"tokenizer.ggml.bos_token_id", tokenizer.bos},
                                {"tokenizer.ggml.eos_token_id", tokenizer.eos},
                                {"tokenizer.ggml.eot_token_id", tokenizer.eot},
                                {"tokenizer.ggml.padding_token_id", tokenizer.pad}}) {
    if (id >= 0) gguf_set_val_u32(fields.get(), key, static_cast<std::uint32_t>(id));
  }
  gguf_set_val_bool(fields.get(), "tokenizer.ggml.add_bos_token", tokenizer.add_bos);
  if (!tokenizer.chat_template.empty())
    gguf_set_val_str(fields.get(), "tokenizer.chat_template", tokenizer.chat_template.c_str());
  GgufMeta meta;
  meta.name_ = name;
  meta.fields_ = fields;
  return meta;
}

GgufMeta GgufMeta::from(const gguf_context* file, const std::string& name) {
  const std::shared_ptr<gguf_context> fields = empty_fields();
  gguf_set_kv(fields.get(), file);
  std::vector<std::string> others;
  for (std::int64_t i = 0; i < gguf_get_n_kv(fields.get()); ++i) {
    const std::string key = gguf_get_key(fields.get(), i);
    if (!key.starts_with("tokenizer.")) others.push_back(key);
  }
  for (const std::string& key : others) gguf_remove_key(fields.get(), key.c_str());
  GgufMeta meta;
  meta.name_ = name;
  meta.fields_ = fields;
  return meta;
}

std::int64_t GgufMeta::vocab() const {
  if (!fields_) return 0;
  const std::int64_t id = gguf_find_key(fields_.get(), kTokens);
  if (id < 0 || gguf_get_kv_type(fields_.get(), id) != GGUF_TYPE_ARRAY) return 0;
  return static_cast<std::int64_t>(gguf_get_arr_n(fields_.get(), id));
}

}  // namespace drift::engine
