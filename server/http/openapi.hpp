// openapi.hpp - the description of the API that /openapi.json serves.
#pragma once

namespace drift::server {
const char* openapi_json();
}  // namespace drift::server
