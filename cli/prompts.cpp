#include "cli/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/input.hpp"
#include "text/printable.hpp"
#include "text/utf8.hpp"

namespace drift::cli {
namespace {

using Json = nlohmann::json;

Status bad_line(const std::string& name, std::size_t line, const std::string& why) {
  return {Code::kInvalid, fmt::format("{}:{}: {}", name, line, why)};
}

// What the library says, without its own names and without the text it quotes (which may be of any length).
Status bad_json(const std::string& name, std::size_t line, const Json::parse_error& error) {
  std::string why = error.what();
  if (const std::size_t dash = why.find(" - "); dash != std::string::npos) why = why.substr(dash + 3);
  why = why.substr(0, why.find("; last read"));
  return bad_line(name, line, fmt::format("column {}: not valid JSON: {}", error.byte, text::printable(why, text::kQuoteMax)));
}

// An optional text field; false if it is there and no string.
bool take_text(const Json& row, const char* field, std::string& out) {
  const auto it = row.find(field);
  if (it == row.end() || it->is_null()) return true;
  if (!it->is_string()) return false;
  out = it->get<std::string>();
  return true;
}

// For ids made from it.
std::string short_name(const std::string& path) {
  return text::printable(std::filesystem::path(path).filename().string(), text::kQuoteMax);
}

Result<Prompt> read_row(const std::string& name, std::size_t line, std::string_view text) {
  const std::size_t valid = text::valid_prefix(text);
  if (valid != text.size()) return bad_line(name, line, fmt::format("byte {} is not valid UTF-8", valid + 1));
  Json row;
  try {
    row = Json::parse(text);
  } catch (const Json::parse_error& error) {
    return bad_json(name, line, error);
  } catch (const Json::exception&) {
    return bad_line(name, line, "not valid JSON: a number is too large");
  }
  if (!row.is_object()) return bad_line(name, line, "a row must be a JSON object with a \"prompt\"");
  Prompt prompt;
  std::string kind;
  for (const auto& [field, out] : {std::pair<const char*, std::string*>{"id", &prompt.id},
                                   {"domain", &prompt.domain},
                                   {"split", &prompt.split},
                                   {"kind", &kind},
                                   {"prompt", &prompt.text}}) {
    if (!take_text(row, field, *out)) return bad_line(name, line, fmt::format("\"{}\" must be a string", field));
    if (out != &prompt.text && (out->size() > kFieldBytesMax || text::printable(*out) != *out))
      return bad_line(name, line,
                      fmt::format("\"{}\" must be at most {} bytes without control characters", field, kFieldBytesMax));
  }
  if (prompt.text.empty()) return bad_line(name, line, "\"prompt\" is missing or empty");
  if (prompt.text.size() > kPromptBytesMax)
    return bad_line(name, line, fmt::format("the prompt is larger than {} bytes", kPromptBytesMax));
  if (kind == "instruction") {
    prompt.kind = PromptKind::kInstruction;
  } else if (!kind.empty() && kind != "prefix") {
    return bad_line(name, line,
                    fmt::format("\"kind\" is '{}'; it must be prefix or instruction", text::printable(kind, text::kQuoteMax)));
  }
  if (prompt.id.empty()) prompt.id = fmt::format("{}:{}", short_name(name), line);
  return prompt;
}

bool is_json_lines(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

}  // namespace

const char* kind_name(PromptKind kind) { return kind == PromptKind::kPrefix ? "prefix" : "instruction"; }

std::uint64_t fixed_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ull;
  }
  return hash;
}

Result<std::vector<Prompt>> parse_prompts(const std::string& name, std::string_view text) {
  std::vector<Prompt> prompts;
  std::size_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t end = text.find('\n');
    const std::string_view row = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (prompts.size() == kPromptsMax) return Status(Code::kLimit, fmt::format("{} has more than {} prompts", name, kPromptsMax));
    DRIFT_ASSIGN(Prompt prompt, read_row(name, line, row));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return Status(Code::kInvalid, name + " holds no prompts");
  return prompts;
}

Result<std::vector<Prompt>> load_prompts(const std::string& path) {
  DRIFT_ASSIGN(std::string text, read_text_file(path, kPromptFileMax));
  if (is_json_lines(path)) return parse_prompts(path, text);
  if (text.empty()) return Status(Code::kInvalid, path + " is empty; a prompt needs text");
  if (text.size() > kPromptBytesMax)
    return Status(Code::kLimit, fmt::format("{} is larger than {} bytes", path, kPromptBytesMax));
  const std::size_t valid = text::valid_prefix(text);
  if (valid != text.size()) return Status(Code::kInvalid, fmt::format("{}: byte {} is not valid UTF-8", path, valid + 1));
  Prompt prompt;
  prompt.id = short_name(path);
  prompt.text = std::move(text);
  return std::vector<Prompt>{std::move(prompt)};
}

Result<std::vector<Prompt>> select_prompts(std::vector<Prompt> prompts, const std::string& split, std::size_t limit) {
  if (!split.empty()) {
    std::erase_if(prompts, [&](const Prompt& p) { return p.split != split; });
    if (prompts.empty())
      return Status(Code::kInvalid, fmt::format("no prompt has \"split\": \"{}\"; leave --split out to take all rows", split));
  }
  if (prompts.empty()) return Status(Code::kInvalid, "there are no prompts");
  if (limit == 0 || limit >= prompts.size()) return prompts;

  // kind -> domain -> rows by rising hash, the given order on ties.
  std::map<PromptKind, std::map<std::string, std::vector<std::size_t>>> groups;
  for (std::size_t i = 0; i < prompts.size(); ++i) groups[prompts[i].kind][prompts[i].domain].push_back(i);
  std::vector<std::vector<std::size_t>> kinds;  // per kind, in the order they will be taken
  for (auto& [kind, domains] : groups) {
    std::size_t deepest = 0;
    for (auto& [domain, rows] : domains) {
      std::stable_sort(rows.begin(), rows.end(),
                       [&](std::size_t a, std::size_t b) { return fixed_hash(prompts[a].id) < fixed_hash(prompts[b].id); });
      deepest = std::max(deepest, rows.size());
    }
    std::vector<std::size_t> order;
    for (std::size_t depth = 0; depth < deepest; ++depth) {
      for (const auto& [domain, rows] : domains) {
        if (depth < rows.size()) order.push_back(rows[depth]);
      }
    }
    kinds.push_back(std::move(order));
  }
  std::vector<std::size_t> taken;
  for (std::size_t depth = 0; taken.size() < limit; ++depth) {
    for (const auto& order : kinds) {
      if (depth < order.size() && taken.size() < limit) taken.push_back(order[depth]);
    }
  }
  std::sort(taken.begin(), taken.end());
  std::vector<Prompt> out;
  for (const std::size_t i : taken) out.push_back(std::move(prompts[i]));
  return out;
}

Result<std::vector<Prompt>> chosen_prompts(const PromptOptions& options) {
  std::vector<Prompt> all;
  for (const std::string& file : options.files) {
    if (file.empty()) return Status(Code::kInvalid, "--prompts is empty; it needs a FILE");
    DRIFT_ASSIGN(std::vector<Prompt> some, load_prompts(file));
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  return select_prompts(std::move(all), options.split, options.limit);
}

}  // namespace drift::cli
