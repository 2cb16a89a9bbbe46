#include "server/http/log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "text/printable.hpp"

namespace drift::server {
namespace {

const char* name_of(Log::Level level) {
  switch (level) {
    case Log::Level::kInfo: return "info";
    case Log::Level::kWarning: return "warning";
    case Log::Level::kError: return "error";
  }
  return "?";
}

std::string now_utc() {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1'000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms);
}

}  // namespace

std::string Log::line_of(Level level, std::string_view event, const api::Json& fields) const {
  if (format_ == Format::kJson) {
    api::Json json = {{"time", now_utc()}, {"level", name_of(level)}, {"event", event}};
    if (fields.is_object()) json.update(fields);
    return api::dump(json) + "\n";
  }
  std::string line = fmt::format("{} {}{}", now_utc(), level == Level::kInfo ? "" : fmt::format("{}: ", name_of(level)), event);
  if (fields.is_object()) {
    for (const auto& [name, value] : fields.items())
      line += fmt::format(" {}={}", name, value.is_string() ? value.get_ref<const std::string&>() : api::dump(value));
  }
  return text::printable(line) + "\n";
}

void Log::write(Level level, std::string_view event, const api::Json& fields) noexcept try {
  const std::string line = line_of(level, event, fields);
  const std::lock_guard lock(mutex_);
  sink_(line);
} catch (const std::exception&) {  // no memory for a line: what it would have said is lost
}

}  // namespace drift::server
