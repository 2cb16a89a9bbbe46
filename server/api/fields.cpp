#include "server/api/fields.hpp"

#include <fmt/format.h>

#include <cmath>

namespace drift::server::api {

const Input* Fields::find(const char* name) const {
  if (problem_) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::refuse(const std::string& name, const std::string& why) const {
  if (!problem_) problem_ = bad_field(full(name), fmt::format("{} {}", full(name), why));
}

void Fields::wrong_type(const char* name, const Input& value, const char* wanted) const {
  refuse(name, fmt::format("is a JSON {}; it must be {}", value.type_name(), wanted));
}

void Fields::boolean(const char* name, bool& out) const {
  const Input* value = find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return wrong_type(name, *value, "true or false");
  out = value->get<bool>();
}

void Fields::whole(const char* name, std::int64_t low, std::int64_t high, std::int64_t& out) const {
  const Input* value = find(name);
  if (value == nullptr) return;
  const std::string wanted = fmt::format("a whole number from {} to {}", low, high);
  if (!value->is_number()) return wrong_type(name, *value, wanted.c_str());
  // 16.0 is a whole number too: some clients have no other.
  const double real = value->get<double>();
  const bool fits = value->is_number_integer()
                        ? (value->is_number_unsigned() ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(high) &&
                                                             static_cast<std::int64_t>(value->get<std::uint64_t>()) >= low
                                                       : value->get<std::int64_t>() >= low && value->get<std::int64_t>() <= high)
                        : std::floor(real) == real && std::fabs(real) < 9e15 && real >= static_cast<double>(low) &&
                              real <= static_cast<double>(high);
  if (!fits) return refuse(name, fmt::format("is {}; it must be {}", value->dump(), wanted));
  out = value->is_number_integer() ? value->get<std::int64_t>() : static_cast<std::int64_t>(real);
}

void Fields::whole(const char* name, int low, int high, int& out) const {
  std::int64_t value = out;
  whole(name, std::int64_t{low}, std::int64_t{high}, value);
  out = static_cast<int>(value);
}

void Fields::real(const char* name, double low, double high, bool open_low, float& out) const {
  const Input* value = find(name);
  if (value == nullptr) return;
  const std::string wanted = fmt::format("a number {} {} to {}", open_low ? "above" : "from", low, high);
  if (!value->is_number()) return wrong_type(name, *value, wanted.c_str());
  const double real = value->get<double>();
  const auto narrow = static_cast<float>(real);
  const bool fits = std::isfinite(real) && real >= low && real <= high && (!open_low || narrow > static_cast<float>(low));
  if (!fits) return refuse(name, fmt::format("is {}; it must be {}", value->dump(), wanted));
  out = narrow;
}

void Fields::text(const char* name, std::size_t bytes_max, std::string& out) const {
  const Input* value = find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return wrong_type(name, *value, "a string");
  const std::string& text = value->get_ref<const std::string&>();
  if (text.size() > bytes_max) return refuse(name, fmt::format("has {} bytes; at most {} are taken", text.size(), bytes_max));
  out = text;
}

void Fields::texts(const char* name, std::size_t most, std::size_t bytes_max, std::vector<std::string>& out) const {
  const Input* value = find(name);
  if (value == nullptr) return;
  if (value->is_string()) {
    std::string one;
    text(name, bytes_max, one);
    if (ok()) out = {one};
    return;
  }
  if (!value->is_array()) return wrong_type(name, *value, "a string or a list of strings");
  if (value->size() > most) return refuse(name, fmt::format("has {} strings; at most {} are taken", value->size(), most));
  std::vector<std::string> all;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Input& element = (*value)[i];
    const std::string place = fmt::format("{}[{}]", name, i);
    if (!element.is_string()) return wrong_type(place.c_str(), element, "a string");
    const std::string& text = element.get_ref<const std::string&>();
    if (text.size() > bytes_max) return refuse(place, fmt::format("has {} bytes; at most {} are taken", text.size(), bytes_max));
    all.push_back(text);
  }
  out = std::move(all);
}

std::optional<Fields> Fields::object(const char* name) const {
  const Input* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    wrong_type(name, *value, "an object");
    return std::nullopt;
  }
  return Fields(*value, problem_, full(name) + ".");
}

}  // namespace drift::server::api
