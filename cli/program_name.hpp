// program_name.hpp - who speaks: what note() and fail() (console.hpp) put before a message on stderr.
//
// Threads: one.
#pragma once

#include <string_view>

namespace drift::cli {

// "drift" until it is said. Call before the first message.
void set_program_name(std::string_view name);

}  // namespace drift::cli
