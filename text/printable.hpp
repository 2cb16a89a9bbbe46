// printable.hpp - text from files and models for a person's eyes: nothing in it can steer a terminal.
//
// Threads: pure. Cost: linear in what is kept.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace drift::text {

inline constexpr std::size_t kQuoteMax = 80;  // characters of a file's content that a message quotes

// `text` with control characters (C0, DEL, C1) and bytes that are no UTF-8 written as \n, \r, \t or \xNN; after `most`
// characters of output it ends with "...". What comes out is well-formed UTF-8 of at most 4 * most + 3 bytes.
std::string printable(std::string_view text, std::size_t most = std::string_view::npos);

}  // namespace drift::text
