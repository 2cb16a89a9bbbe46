// sha256.hpp - the hash of secrets that are compared but never kept: API keys, salts.
//
// Threads: pure.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace drift::server {

using Sha256 = std::array<unsigned char, 32>;

Sha256 sha256(std::string_view bytes);
// 64 of 0-9 a-f.
std::string hex_of(const Sha256& hash);

}  // namespace drift::server
