#include "server/api/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace drift::server::api {
namespace {

// Every part of a schema is taken for a schema, be it a default or a name's: that errs on the safe side.
class SchemaCheck {
 public:
  explicit SchemaCheck(const Json& root) : root_(root) {}

  Status run() {
    if (!root_.is_object()) return bad("#", fmt::format("is a JSON {}; it must be an object", root_.type_name()));
    if (const std::size_t bytes = dump(root_).size(); bytes > kSchemaBytesMax)
      return bad("#", fmt::format("has {} bytes; at most {} are taken", bytes, kSchemaBytesMax));
    DRIFT_TRY(walk(root_, "#"));
    for (const auto& [ref, target] : targets_) levels_ += height(*target);
    levels_ += height(root_);
    if (levels_ > kSchemaLevelsMax)
      return bad("#",
                 fmt::format("is nested {} levels deep with what it refers to; at most {} are taken", levels_, kSchemaLevelsMax));
    std::size_t parts = 0;
    return expand(root_, "#", 0, parts);
  }

 private:
  static Status bad(const std::string& where, const std::string& why) {
    return {Code::kInvalid, fmt::format("{} {}", where.size() > 200 ? where.substr(0, 200) + "..." : where, why)};
  }
  // Everything that can be seen of a value by itself.
  Status walk(const Json& value, const std::string& where) {
    if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) DRIFT_TRY(walk(value[i], fmt::format("{}/{}", where, i)));
    }
    if (!value.is_object()) return Status::ok();
    for (const auto& [name, child] : value.items()) {
      const std::string place = where + "/" + name.substr(0, kSchemaNameBytesMax);
      if (name == "properties" && child.is_object()) {
        properties_ += child.size();
        if (properties_ > kSchemaPropertiesMax)
          return bad(place, fmt::format("makes more than {} properties in all", kSchemaPropertiesMax));
        for (const auto& [property, schema] : child.items()) {
          if (property.size() > kSchemaNameBytesMax)
            return bad(place, fmt::format("has a name of {} bytes; at most {} are taken", property.size(), kSchemaNameBytesMax));
        }
      }
      if (name == "pattern" && child.is_string()) {
        if (child.get_ref<const std::string&>().size() > kSchemaPatternBytesMax || ++patterns_ > kSchemaPatternsMax)
          return bad(place, fmt::format("is too much: at most {} patterns of {} bytes are taken", kSchemaPatternsMax,
                                        kSchemaPatternBytesMax));
      }
      if (name == "$ref" && child.is_string()) DRIFT_TRY(resolve(child.get_ref<const std::string&>(), place));
      DRIFT_TRY(walk(child, place));
    }
    return Status::ok();
  }

  Status resolve(const std::string& ref, const std::string& place) {
    if (ref.size() > kSchemaRefBytesMax)
      return bad(place, fmt::format("has {} bytes; at most {} are taken", ref.size(), kSchemaRefBytesMax));
    if (ref.rfind("#/", 0) != 0)
      return bad(place, "must begin with \"#/\": references lead into the schema itself, below its root");
    if (targets_.count(ref) != 0) return Status::ok();
    const Json* at = &root_;
    for (std::size_t from = 2; from <= ref.size();) {
      const std::size_t end = std::min(ref.find('/', from), ref.size());
      const std::string step = ref.substr(from, end - from);
      const bool number =
          !step.empty() && step.size() < 6 && std::all_of(step.begin(), step.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (at->is_object() && at->contains(step)) {
        at = &(*at)[step];
      } else if (at->is_array() && number && std::stoul(step) < at->size()) {
        at = &(*at)[std::stoul(step)];
      } else {
        return bad(place, fmt::format("is '{}', and there is no such place", ref));
      }
      from = end + 1;
    }
    if (!at->is_object()) return bad(place, fmt::format("is '{}', which is no schema", ref));
    targets_.emplace(ref, at);
    return Status::ok();
  }

  static std::size_t height(const Json& value) {
    std::size_t out = 0;
    if (value.is_array() || value.is_object()) {
      for (const auto& child : value) out = std::max(out, height(child));
    }
    return out + (value.is_object() ? 1 : 0);
  }

  // The parts that the converter makes of a schema. It writes out one for each word of a list of types, and what allOf refers to; other
  // references it follows once.
  Status expand(const Json& value, const std::string& where, std::size_t depth, std::size_t& parts) {
    if (depth > kSchemaLevelsMax) return bad(where, "is nested too deep with what it refers to");
    if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) DRIFT_TRY(add(value[i], fmt::format("{}/{}", where, i), depth, parts));
      return Status::ok();
    }
    if (!value.is_object()) return Status::ok();
    const auto known = expanded_.find(&value);
    if (known != expanded_.end()) {
      if (known->second == 0)
        return bad(where, "goes in a circle: allOf leads back to itself through a $ref; use the $ref alone");
      parts = known->second;
      return Status::ok();
    }
    expanded_[&value] = 0;
    parts = 1;
    for (const auto& [name, child] : value.items()) {
      const std::string place = where + "/" + name.substr(0, kSchemaNameBytesMax);
      DRIFT_TRY(add(child, place, depth, parts));
      for (std::size_t i = 0; name == "allOf" && child.is_array() && i < child.size(); ++i) {
        DRIFT_TRY(inline_refs(child[i], fmt::format("{}/{}", place, i), depth, parts));
      }
    }
    if (value.contains("properties") && value["properties"].is_object()) {
      std::size_t optional = value["properties"].size();
      if (value.contains("required") && value["required"].is_array()) optional -= std::min(optional, value["required"].size());
      parts += optional * optional / 8;
    }
    if (value.contains("type") && value["type"].is_array()) parts *= std::max<std::size_t>(value["type"].size(), 1);
    if (parts > kSchemaExpandedMax)
      return bad(where, fmt::format("is too large: written out, it has more than {} parts", kSchemaExpandedMax));
    expanded_[&value] = parts;
    return Status::ok();
  }
  Status add(const Json& value, const std::string& where, std::size_t depth, std::size_t& parts) {
    std::size_t more = 0;
    DRIFT_TRY(expand(value, where, depth + 1, more));
    parts += more;
    return parts > kSchemaExpandedMax
               ? bad(where, fmt::format("is too large: written out, it has more than {} parts", kSchemaExpandedMax))
               : Status::ok();
  }
  // A part of allOf stands for what it refers to, and for what the alternatives in it refer to.
  Status inline_refs(const Json& part, const std::string& where, std::size_t depth, std::size_t& parts) {
    DRIFT_TRY(inline_ref(part, where, depth, parts));
    for (const char* name : {"oneOf", "anyOf"}) {
      if (!part.is_object() || !part.contains(name) || !part[name].is_array()) continue;
      for (const Json& one : part[name]) DRIFT_TRY(inline_ref(one, where + "/" + name, depth, parts));
    }
    return Status::ok();
  }
  Status inline_ref(const Json& part, const std::string& where, std::size_t depth, std::size_t& parts) {
    constexpr int kHopsMax = 64;
    const Json* at = &part;
    for (int hop = 0; hop < kHopsMax; ++hop) {
      if (!at->is_object() || !at->contains("$ref") || !(*at)["$ref"].is_string()) return Status::ok();
      at = targets_.at((*at)["$ref"].get_ref<const std::string&>());
      DRIFT_TRY(add(*at, where + "/$ref", depth, parts));
    }
    return bad(where, "refers to references without end");
  }

  const Json& root_;
  std::map<std::string, const Json*> targets_;
  std::unordered_map<const Json*, std::size_t> expanded_;  // 0: being looked at
  std::size_t properties_ = 0, patterns_ = 0, levels_ = 0;
};

}  // namespace

std::size_t count_values(const Input& value) {
  std::size_t out = 1;
  if (value.is_structured()) {
    for (const Input& child : value) out += count_values(child);
  }
  return out;
}

Json in_order(std::string_view body, const std::vector<std::string>& fields) {
  std::size_t names = 0;
  const Json::parser_callback_t keep = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key) return true;
    if (depth == 1) return std::find(fields.begin(), fields.end(), parsed.get_ref<const std::string&>()) != fields.end();
    return ++names <= kSchemaValuesMax;
  };
  Json out = Json::parse(body, keep, /*allow_exceptions=*/false);
  return names > kSchemaValuesMax || !out.is_object() ? Json() : out;
}

Status check_schema(const Json& schema) { return SchemaCheck(schema).run(); }

}  // namespace drift::server::api
