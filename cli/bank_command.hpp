// bank_command.hpp - `drift bank show | verify | export | import | reset`.
//
// Threads: one.
#pragma once

#include <iosfwd>
#include <string>

#include "drift/bank/store.hpp"

namespace CLI {
class App;
}

namespace drift::cli {

// What `show` prints: fingerprint, configuration, entries, bytes, a histogram of counts and the `top` most taught entries.
std::string describe_bank(const bank::StoredBank& bank, std::uint64_t file_bytes, std::size_t top);
std::string describe_bank_json(const bank::StoredBank& bank, std::uint64_t file_bytes, std::size_t top);

// Replaces the content of the bank at `path` by an export. A new file is made if there is none. Fails with kInvalid (a bad line;
// the bank holds entries and not `replace`), kForeign (the bank there belongs to another pair), and as BankFile::save.
Status import_into(const std::string& path, std::istream& in, bool replace);

// Removes entries and learned state, keeps fingerprint, names and configuration. Returns how many entries were removed.
Result<std::uint32_t> reset_bank(const std::string& path);

void add_bank_command(CLI::App& app, int& exit_code);

}  // namespace drift::cli
