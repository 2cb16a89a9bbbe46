// fields.hpp - the fields of a JSON object, each read with its type and bounds. The first one at fault is kept, with its name.
//
// Unknown fields are nobody's business, null counts as left out (clients send "stop": null). Every reader leaves `out` alone when
// the field is not there or something is wrong already, so that a request is read from top to bottom without a branch.
// Threads: plain value; refers to the JSON and the problem.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json.hpp"
#include "server/api/problem.hpp"

namespace drift::server::api {

class Fields {
 public:
  // `path` goes before the names in messages ("stream_options.").
  Fields(const Input& object, std::optional<Problem>& problem, std::string path = "")
      : object_(object), problem_(problem), path_(std::move(path)) {}

  // The value, or null when it is left out, null or something is wrong already.
  const Input* find(const char* name) const;

  void boolean(const char* name, bool& out) const;
  void whole(const char* name, std::int64_t low, std::int64_t high, std::int64_t& out) const;
  void whole(const char* name, int low, int high, int& out) const;
  void real(const char* name, double low, double high, bool open_low, float& out) const;
  void text(const char* name, std::size_t bytes_max, std::string& out) const;
  // One string, or a list of at most `most`.
  void texts(const char* name, std::size_t most, std::size_t bytes_max, std::vector<std::string>& out) const;
  // An object's fields in their turn, or nothing.
  std::optional<Fields> object(const char* name) const;

  void refuse(const std::string& name, const std::string& why) const;
  bool ok() const { return !problem_; }
  std::string full(const std::string& name) const { return path_ + name; }

 private:
  void wrong_type(const char* name, const Input& value, const char* wanted) const;

  const Input& object_;
  std::optional<Problem>& problem_;
  std::string path_;
};

}  // namespace drift::server::api
