// mode_name.hpp - the modes of the stepper by name, as flags, requests and reports spell them.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "drift/decode/stepper.hpp"

namespace drift::decode {

struct NamedMode {
  const char* name;
  Mode mode;
};

inline constexpr std::array<NamedMode, 8> kModeNames{{{"off", Mode::kOff},
                                                      {"static", Mode::kStatic},
                                                      {"drift", Mode::kDrift},
                                                      {"lookup", Mode::kLookup},
                                                      {"suffix", Mode::kSuffix},
                                                      {"draft+suffix", Mode::kDraftSuffix},
                                                      {"drift+suffix", Mode::kDriftSuffix},
                                                      {"online-kd", Mode::kOnlineKd}}};

constexpr const char* mode_name(Mode mode) {
  for (const NamedMode& named : kModeNames) {
    if (named.mode == mode) return named.name;
  }
  return "?";
}

constexpr std::optional<Mode> find_mode(std::string_view name) {
  for (const NamedMode& named : kModeNames) {
    if (name == named.name) return named.mode;
  }
  return std::nullopt;
}

}  // namespace drift::decode
