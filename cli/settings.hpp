// settings.hpp - everything that may differ between the modes of a comparison: one table of names, bounds and help.
//
// The same table makes the flags of `run` and `compare` (--sigma 0.2) and the keys of a mode list (drift:sigma=0.2).
// Threads: plain values.
#pragma once

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drift/base/status.hpp"
#include "drift/decode/mode_name.hpp"
#include "drift/decode/stepper.hpp"
#include "drift/propose/suffix_memory.hpp"
#include "drift/recal/config.hpp"
#include "drift/spec/judge.hpp"
#include "engines/torch/kd_config.hpp"

namespace drift::cli {

struct Settings {
  spec::JudgeRule judge = spec::JudgeRule::kMatch;
  int draft_tokens = 3;
  std::string model_draft;  // a .gguf file; empty: the draft that -md names
  recal::RecalConfig recal = recal::RecalConfig::standard();
  engine::KdConfig kd;
  propose::CopyConfig copy;
  std::uint32_t suffix_tokens = propose::kDefaultMemoryTokens;
  std::set<std::string> given;  // keys set on purpose, not by default
};

// The modes a setting matters in.
enum class SettingScope {
  kDrafting,   // those that propose
  kDraftFile,  // those with a draft; a key of a mode only: the flag of that name is one of the pair's
  kCopy,
  kSuffix,  // those that remember answers
  kRecal,
  kLearning,  // those that train their draft
};

struct SettingInfo {
  const char* key;     // "sigma"; the flag is --sigma
  const char* values;  // bounds, in words
  const char* help;
  SettingScope scope;
};

// In the order they are listed and applied on the command line (`preset` first, so that others override it).
std::span<const SettingInfo> setting_table();
const SettingInfo* find_setting(const std::string& key);

// Sets one value. `shown` is how errors name it ("--sigma", "sigma in mode 'seed'").
// Fails with kInvalid on an unknown key or a value outside its bounds; settings are then unchanged.
Status set_setting(Settings& settings, const std::string& key, const std::string& value, const std::string& shown);
// The effective value, in the words set_setting() reads. Requires: find_setting(key), not "preset".
std::string setting_value(const Settings& settings, const std::string& key);
// All effective (key, value) that matter in a mode, in table order; no model-draft where -md's is used.
std::vector<std::pair<std::string, std::string>> effective_settings(const Settings& settings, decode::Mode mode);

// Whether a setting of this scope matters in a mode.
bool applies(SettingScope scope, decode::Mode mode);
// The modes that settings of this scope belong to, in words.
const char* scope_modes(SettingScope scope);

// Fails with kInvalid naming `shown` and the modes there are.
Result<decode::Mode> parse_mode(const std::string& shown, const std::string& text);
bool is_mode(const std::string& text);
// "off, static, ..." for messages and help.
std::string mode_names();
const char* judge_name(spec::JudgeRule rule);

}  // namespace drift::cli
