#include "cli/bank_session.hpp"

#include <fmt/format.h>

#include "text/printable.hpp"

namespace drift::cli {
namespace {

constexpr std::size_t kNameMax = 200;  // characters: at most 803 bytes of the store's 1,024
constexpr const char* kBankKeys[] = {"capacity",    "support",        "tau",          "eta", "rate", "key-type", "int8-scan",
                                     "standardise", "ngram-capacity", "ngram-support"};

}  // namespace

recal::BankOwner bank_owner(const Pair& pair) {
  // A model file may be called anything; the store takes names that are short and can be printed.
  return {pair.fingerprint(), text::printable(pair.target->describe().name, kNameMax),
          text::printable(pair.draft_info.name, kNameMax)};
}

Status check_agrees(const Settings& settings, const recal::RecalConfig& stored, const std::string& path) {
  Settings kept = settings;
  kept.recal = stored;
  for (const char* key : kBankKeys) {
    if (!settings.given.contains(key)) continue;
    const std::string wanted = setting_value(settings, key), there = setting_value(kept, key);
    if (wanted != there) {
      return {Code::kForeign,
              fmt::format("the bank {} was made with {} {}, but --{} is {}; leave the flag out, or use another file", path, key,
                          there, key, wanted)};
    }
  }
  return Status::ok();
}

Result<recal::BankSession> open_bank(const std::string& path, bool read_only, const Settings& settings, const Pair& pair) {
  DRIFT_ASSIGN(const recal::RecalConfig config, complete(settings.recal, pair));
  const recal::BankOwner owner = bank_owner(pair);  // also of one in memory only: it may be exported
  return recal::BankSession::open(path, read_only, config, owner,
                                  [&](const recal::RecalConfig& stored) { return check_agrees(settings, stored, path); });
}

}  // namespace drift::cli
