// log.hpp - what a running server says: one line an event, for people or as JSON.
//
// Never a prompt, an answer or a key. Threads: any. Cost: one write; what cannot be written is lost, and nothing is thrown.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "server/api/json.hpp"

namespace drift::server {

class Log {
 public:
  enum class Format { kText, kJson };
  enum class Level { kInfo, kWarning, kError };
  using Sink = std::function<void(std::string_view line)>;  // gets the line with its end

  Log(Format format, Sink sink) : format_(format), sink_(std::move(sink)) {}

  // `fields` is an object or null.
  void write(Level level, std::string_view event, const api::Json& fields = nullptr) noexcept;
  void info(std::string_view event, const api::Json& fields = nullptr) { write(Level::kInfo, event, fields); }
  void warning(std::string_view event, const api::Json& fields = nullptr) { write(Level::kWarning, event, fields); }

 private:
  std::string line_of(Level level, std::string_view event, const api::Json& fields) const;

  const Format format_;
  const Sink sink_;
  std::mutex mutex_;
};

}  // namespace drift::server
