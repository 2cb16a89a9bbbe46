// bank_export.hpp - a bank as JSON lines, for other programs and for moving banks by hand. Format: docs/bank-format.md.
//
// The first line holds the header, then one line per extra, then one line per entry in order of id. Export and import give the
// same bank bit for bit: floats are written so that they read back exactly, keys and extras as hex of their bytes.
// Threads: pure over the streams.
// Limits:  a line of at most kMaxLineBytes; everything else as the bank's own bounds, checked line by line.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "drift/bank/store.hpp"

namespace drift::cli {

inline constexpr std::size_t kMaxLineBytes = 40u << 20;

// Calls `write` with each line, newline included; stops at once when it returns false. True if all was written.
bool export_bank(const bank::StoredBank& bank, const std::function<bool(const std::string&)>& write);

// Fails with kInvalid naming the line. Whether the image is a sound bank is left to the store, which checks it on saving.
Result<bank::StoredBank> import_bank(std::istream& in);

}  // namespace drift::cli
