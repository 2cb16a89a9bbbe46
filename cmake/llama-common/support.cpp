// What the chosen files of llama-common need of those that were left out: nine functions of common.h and log.h, written anew.
#include <climits>
#include <sstream>
#include <stdexcept>

#include "common.h"
#include "log.h"

// Nothing of it is logged: its lines hold prompts and answers.
int common_log_get_verbosity_thold() { return INT_MIN; }
common_log* common_log_main() { return nullptr; }
void common_log_add(common_log*, ggml_log_level, const char*, ...) {}

std::string string_join(const std::vector<std::string>& values, const std::string& separator) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) out += (i > 0 ? separator : std::string()) + values[i];
  return out;
}

std::vector<std::string> string_split(const std::string& text, const std::string& delimiter) {
  std::vector<std::string> out;
  size_t from = 0;
  for (size_t end; (end = text.find(delimiter, from)) != std::string::npos; from = end + delimiter.size())
    out.push_back(text.substr(from, end - from));
  out.push_back(text.substr(from));
  return out;
}

std::string string_repeat(const std::string& text, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

void string_replace_all(std::string& text, const std::string& search, const std::string& replace) {
  if (search.empty()) return;
  std::string out;
  size_t from = 0;
  for (size_t at; (at = text.find(search, from)) != std::string::npos; from = at + search.size())
    out.append(text, from, at - from).append(replace);
  text = out.append(text, from, std::string::npos);
}

std::vector<llama_token> common_tokenize(const llama_vocab* vocab, const std::string& text, bool add_special,
                                         bool parse_special) {
  std::vector<llama_token> out(text.size() + 8);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), out.data(), static_cast<int>(out.size()),
                                 add_special, parse_special);
    if (n == INT_MIN) break;
    out.resize(static_cast<size_t>(n < 0 ? -n : n));
    if (n >= 0) return out;
  }
  throw std::runtime_error("the text cannot be tokenized");
}

std::string common_token_to_piece(const llama_vocab* vocab, llama_token token, bool special) {
  std::string out(32, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int n = llama_token_to_piece(vocab, token, &out[0], static_cast<int>(out.size()), 0, special);
    out.resize(static_cast<size_t>(n < 0 ? -n : n));
    if (n >= 0) break;
  }
  return out;
}
