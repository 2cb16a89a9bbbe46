// status.hpp - how everything that data or the world can cause is reported.
//
// A Status says what went wrong in words for a person: the thing, the limit, the remedy. A Result<T> is a value or such a
// Status. Both must be looked at ([[nodiscard]]). A programmer's mistake is not a Status: see check.hpp.
// Threads: plain values.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "drift/base/check.hpp"

namespace drift {

enum class Code {
  kOk = 0,
  kInvalid,      // an argument or input is malformed or outside its documented bounds
  kNotFound,     // a named thing is not there
  kCorrupt,      // stored data disagrees with its checksum or its bounds
  kForeign,      // well-formed, but belongs to something else: another model pair, another program, a newer version
  kBusy,         // someone else holds it (a second writer)
  kLimit,        // a documented limit would be exceeded (context length, size of a bank, sequences)
  kIo,           // the operating system refused: full disk, missing permission, no memory
  kUnsupported,  // this build or this model cannot do it
  kCancelled,    // stopped on request
  kInternal,     // a dependency failed in a way we cannot name better
};

// The code's short name, e.g. "corrupt".
constexpr const char* code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalid: return "invalid";
    case Code::kNotFound: return "not found";
    case Code::kCorrupt: return "corrupt";
    case Code::kForeign: return "foreign";
    case Code::kBusy: return "busy";
    case Code::kLimit: return "limit";
    case Code::kIo: return "io";
    case Code::kUnsupported: return "unsupported";
    case Code::kCancelled: return "cancelled";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  bool is_ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose, so `return value;` works
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    DRIFT_CHECK(!status_.is_ok(), "a Result without a value needs an error");
  }
  Result(Code code, std::string message) : Result(Status(code, std::move(message))) {}

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // Requires: is_ok().
  T& value() & { return checked(); }
  const T& value() const& {
    DRIFT_CHECK(value_.has_value(), "value() of a failed Result");
    return *value_;
  }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    DRIFT_CHECK(value_.has_value(), "value() of a failed Result");
    return *value_;
  }
  Status status_;
  std::optional<T> value_;
};

// Returns the Status from the enclosing function if `expr` failed.
#define DRIFT_TRY(expr)                                       \
  do {                                                        \
    ::drift::Status drift_try_status_ = (expr);               \
    if (!drift_try_status_.is_ok()) return drift_try_status_; \
  } while (false)

#define DRIFT_CONCAT_INNER(a, b) a##b
#define DRIFT_CONCAT(a, b) DRIFT_CONCAT_INNER(a, b)

// DRIFT_ASSIGN(auto x, make_x()): declares x from a Result, or returns its Status from the enclosing function.
#define DRIFT_ASSIGN(decl, expr) DRIFT_ASSIGN_INNER(DRIFT_CONCAT(drift_result_, __LINE__), decl, expr)
#define DRIFT_ASSIGN_INNER(tmp, decl, expr) \
  auto tmp = (expr);                        \
  if (!tmp.is_ok()) return tmp.status();    \
  decl = std::move(tmp).value()

}  // namespace drift
