// modes.hpp - the list of modes `drift compare` runs: `off,static,seed=drift:gain=fixed,lambda=0.6,earned=drift`.
//
//   list    = variant { "," variant }
//   variant = [ label "=" ] mode [ ":" setting { "," setting } ]
//   mode    = "off" | "static" | "drift" | "online-kd" | "lookup" | "suffix" | "draft+suffix" | "drift+suffix"
//   setting = key "=" value            (keys and bounds: settings.hpp; the value of `levels` may hold commas between its names)
//   label   = 1 to 32 of A-Z a-z 0-9 . _ - +, not the name of a setting; the mode's name if left out
// After a comma a new variant begins unless the piece reads KEY=..., or NAME=VALUE without a ":" and with VALUE no mode.
// No other value holds a comma.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/settings.hpp"
#include "drift/base/status.hpp"
#include "drift/decode/stepper.hpp"

namespace drift::cli {

inline constexpr std::size_t kVariantsMax = 16;

struct Variant {
  std::string label;
  decode::Mode mode = decode::Mode::kOff;
  Settings settings;
};

// Every variant begins with `defaults`. Fails with kInvalid naming the piece that cannot be read, and why.
Result<std::vector<Variant>> parse_modes(std::string_view list, const Settings& defaults);

}  // namespace drift::cli
