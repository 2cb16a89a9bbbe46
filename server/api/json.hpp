// json.hpp - JSON from and to clients: read strictly within bounds, written so that it always is valid UTF-8.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "drift/base/status.hpp"

namespace drift::server::api {

using Json = nlohmann::ordered_json;  // answers: fields stay as they were put
using Input = nlohmann::json;         // requests: sorted, so that a million fields cost no more than their sorting

inline constexpr int kJsonDepthMax = 64;

// A request's body. Fails with kInvalid: not JSON (the byte is named), not UTF-8, not an object, nested deeper than kJsonDepthMax.
// Of equal names in one object the last counts.
Result<Input> parse_body(std::string_view body);

// On one line; bytes that are no UTF-8 come out as U+FFFD.
std::string dump(const Json& json);

}  // namespace drift::server::api
