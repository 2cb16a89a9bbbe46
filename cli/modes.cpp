#include "cli/modes.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace drift::cli {
namespace {

constexpr std::size_t kLabelMax = 32;

bool label_ok(std::string_view label) {
  if (label.empty() || label.size() > kLabelMax) return false;
  return std::all_of(label.begin(), label.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-' ||
           c == '+';
  });
}

bool begins_variant(std::string_view piece) {
  const std::size_t equals = piece.find('=');
  if (equals == std::string_view::npos) return true;
  if (find_setting(std::string(piece.substr(0, equals))) != nullptr) return false;  // no label is called so
  return piece.find(':') != std::string_view::npos || is_mode(std::string(piece.substr(equals + 1)));
}

Status refuse(std::string_view piece, const std::string& why) {
  return {Code::kInvalid, fmt::format("--modes: cannot read '{}': {}", piece, why)};
}

Status add_setting(Variant& variant, std::string_view piece) {
  const std::size_t equals = piece.find('=');
  if (equals == std::string_view::npos) return refuse(piece, "a setting is written key=value");
  const std::string key(piece.substr(0, equals)), value(piece.substr(equals + 1));
  const SettingInfo* info = find_setting(key);
  if (info == nullptr) return refuse(piece, fmt::format("there is no setting '{}'; see drift compare --help", key));
  if (!applies(info->scope, variant.mode)) {
    return refuse(piece, fmt::format("'{}' belongs to {}, and '{}' is {}", key, scope_modes(info->scope), variant.label,
                                     mode_name(variant.mode)));
  }
  return set_setting(variant.settings, key, value, fmt::format("{} in mode '{}'", key, variant.label));
}

// `head` is what stands before the colon: [label=]mode.
Result<Variant> begin_variant(std::string_view head, const Settings& defaults) {
  Variant variant;
  variant.settings = defaults;
  const std::size_t equals = head.find('=');
  const std::string mode(equals == std::string_view::npos ? head : head.substr(equals + 1));
  variant.label = std::string(equals == std::string_view::npos ? head : head.substr(0, equals));
  if (!is_mode(mode)) return refuse(head, fmt::format("there is no mode '{}'; it must be one of {}", mode, mode_names()));
  if (!label_ok(variant.label)) return refuse(head, "a label is 1 to 32 of A-Z a-z 0-9 . _ - +");
  if (equals != std::string_view::npos && find_setting(variant.label) != nullptr)
    return refuse(head, "a label may not be the name of a setting");
  DRIFT_ASSIGN(variant.mode, parse_mode("mode", mode));
  return variant;
}

}  // namespace

Result<std::vector<Variant>> parse_modes(std::string_view list, const Settings& defaults) {
  std::vector<Variant> variants;
  std::string_view rest = list;
  int settings = 0;    // of the last variant
  std::string levels;  // the last setting, if it was `levels=...`: names of levels go on with its list
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    std::string_view piece = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    if (piece.empty())
      return Status(Code::kInvalid, fmt::format("--modes '{}' has an empty piece; write e.g. off,static,drift", list));
    if (!levels.empty() && recal::find_level(piece)) {
      levels += "+" + std::string(piece);
      DRIFT_TRY(add_setting(variants.back(), levels));
      continue;
    }
    levels.clear();
    if (variants.empty() || begins_variant(piece)) {
      if (variants.size() == kVariantsMax)
        return Status(Code::kInvalid, fmt::format("--modes names more than {} modes", kVariantsMax));
      const std::size_t colon = piece.find(':');
      DRIFT_ASSIGN(Variant variant, begin_variant(piece.substr(0, colon), defaults));
      const bool twice =
          std::any_of(variants.begin(), variants.end(), [&](const Variant& v) { return v.label == variant.label; });
      if (twice)
        return refuse(piece, fmt::format("'{}' is there twice; give it a label of its own: name={}", variant.label,
                                         mode_name(variant.mode)));
      variants.push_back(std::move(variant));
      settings = 0;
      if (colon == std::string_view::npos) continue;
      piece = piece.substr(colon + 1);
    }
    if (settings++ > 0 && piece.starts_with("preset="))
      return refuse(piece, "a preset replaces what was set before it: put it first");
    DRIFT_TRY(add_setting(variants.back(), piece));
    if (piece.rfind("levels=", 0) == 0) levels = std::string(piece);
  }
  return variants;
}

}  // namespace drift::cli
