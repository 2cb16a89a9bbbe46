// names.hpp - names of tenants and banks: they become parts of paths, labels and log lines, so they are plain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "drift/base/status.hpp"

namespace drift::server {

inline constexpr std::size_t kNameMax = 64;
inline constexpr const char* kDefaultTenant = "default";
inline constexpr const char* kDefaultBank = "default";

// 1 to kNameMax of A-Z a-z 0-9 . _ - and no point in front. Fails with kInvalid; `what` begins the message.
inline Status check_plain_name(const std::string& what, std::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
  if (plain && !name.empty() && name.size() <= kNameMax && name.front() != '.') return Status::ok();
  return {Code::kInvalid,
          what + " is 1 to " + std::to_string(kNameMax) + " of A-Z a-z 0-9 . _ - and does not begin with a point"};
}

// A private part of a bank is named NAME~SALT: no request can name it, only a cache_salt leads there.
inline constexpr char kSaltMark = '~';
inline constexpr std::size_t kSaltDigits = 32;  // of the salt's hash, hexadecimal

// A plain name, or one with a salt behind it. Fails with kInvalid.
inline Status check_bank_name(std::string_view name) {
  const std::size_t mark = std::min(name.find(kSaltMark), name.size());
  const std::string_view salt = name.substr(std::min(mark + 1, name.size()));
  const bool digits =
      std::all_of(salt.begin(), salt.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (mark < name.size() && (salt.size() != kSaltDigits || !digits)) {
    return {Code::kInvalid, "behind the ~ of a bank's name stand " + std::to_string(kSaltDigits) + " of 0-9 a-f"};
  }
  return check_plain_name("the name of a bank", name.substr(0, mark));
}

}  // namespace drift::server
