#include "server/api/json.hpp"

namespace drift::server::api {

Result<Input> parse_body(std::string_view body) {
  bool too_deep = false;
  // Returning false drops a value before it is built, so a body nested a million deep costs no more than its bytes.
  const auto shallow = [&](int depth, Input::parse_event_t /*event*/, Input& /*parsed*/) {
    too_deep = too_deep || depth > kJsonDepthMax;
    return !too_deep;
  };
  Input json;
  try {
    json = Input::parse(body.begin(), body.end(), shallow);
  } catch (const Input::parse_error& error) {
    return Status(Code::kInvalid, "the body is not valid JSON at byte " + std::to_string(error.byte));
  } catch (const Input::exception&) {
    return Status(Code::kInvalid, "the body holds a number that is too large");
  }
  if (too_deep) {
    return Status(Code::kInvalid, "the body is nested deeper than " + std::to_string(kJsonDepthMax) + " levels");
  }
  if (!json.is_object())
    return Status(Code::kInvalid, std::string("the body is a JSON ") + json.type_name() + "; it must be an object");
  return json;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace drift::server::api
