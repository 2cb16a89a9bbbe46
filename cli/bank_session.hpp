// bank_session.hpp - the bank of a program: from its file if there is one, with the flags that were given.
//
// Threads: one.
#pragma once

#include <string>

#include "cli/pair.hpp"
#include "cli/settings.hpp"
#include "drift/recal/bank_session.hpp"

namespace drift::cli {

// Whose banks a pair's are. Reads the model files once. Requires: a draft.
recal::BankOwner bank_owner(const Pair& pair);

// Fails with kForeign, naming the flag, where a setting given on purpose is not what the stored bank was made with.
Status check_agrees(const Settings& settings, const recal::RecalConfig& stored, const std::string& path);

// As recal::BankSession::open and check_agrees.
Result<recal::BankSession> open_bank(const std::string& path, bool read_only, const Settings& settings, const Pair& pair);

}  // namespace drift::cli
