#include "drift/recal/level.hpp"

#include <algorithm>

namespace drift::recal {

std::optional<Level> find_level(std::string_view name) {
  const auto at = std::find(kLevelNames.begin(), kLevelNames.end(), name);
  if (at == kLevelNames.end()) return std::nullopt;
  return static_cast<Level>(at - kLevelNames.begin());
}

std::string level_names(LevelSet levels, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < kLevels; ++i) {
    if (!levels.has(static_cast<Level>(i))) continue;
    if (!out.empty()) out += separator;
    out += kLevelNames[i];
  }
  return out;
}

Result<LevelSet> parse_levels(std::string_view text) {
  LevelSet out;
  for (bool more = true; more;) {
    const std::size_t end = text.find_first_of("+,");
    const std::string_view piece = text.substr(0, end);
    more = end != std::string_view::npos;
    if (more) text.remove_prefix(end + 1);
    if (piece == "all") {
      for (std::size_t i = 0; i < kLevels; ++i) out.add(static_cast<Level>(i));
      continue;
    }
    const std::optional<Level> level = find_level(piece);
    if (!level) {
      return Status(Code::kInvalid, "'" + std::string(piece) + "' is no level; there are all, " +
                                        level_names({Level::kGlobal, Level::kHidden, Level::kNgram1, Level::kNgram2,
                                                     Level::kNgram3, Level::kNgram4},
                                                    ", "));
    }
    out.add(*level);
  }
  return out;
}

}  // namespace drift::recal
