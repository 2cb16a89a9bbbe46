// schema.hpp - JSON schemas of requests, looked at before they are made into grammars.
//
// The converter (llama-common's) goes down a schema by recursion, writes parts of it out several times and follows references; what
// would send it in circles, or take it more than a moment, is refused here. What it does not know (not, if, uniqueItems, bounds of
// numbers that are no integers, ...) is not enforced, as in llama-server.
// Threads: pure. Cost: linear in the schema.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "drift/base/status.hpp"
#include "server/api/json.hpp"

namespace drift::server::api {

inline constexpr std::size_t kSchemaBytesMax = std::size_t{256} << 10;
inline constexpr std::size_t kSchemaValuesMax = 8'192;  // JSON values of one request's schemas together
inline constexpr std::size_t kSchemaPropertiesMax = 1'024;
inline constexpr std::size_t kSchemaNameBytesMax = 128;  // of a property
inline constexpr std::size_t kSchemaRefBytesMax = 256;
inline constexpr std::size_t kSchemaPatternsMax = 256;
inline constexpr std::size_t kSchemaPatternBytesMax = 2'048;
inline constexpr std::size_t kSchemaLevelsMax = 1'024;     // nesting, of the schema and all it refers to, added up
inline constexpr std::size_t kSchemaExpandedMax = 32'768;  // parts, with all that the converter writes out more than once

// How many values a JSON value is made of.
std::size_t count_values(const Input& value);
// The fields named of a body, as they were written: `Input` sorts an object's names, and a schema's properties come in their order.
// Null, if they hold more than kSchemaValuesMax names (a field that is there twice counts twice). Requires: the body has been read.
Json in_order(std::string_view body, const std::vector<std::string>& fields);
// Whether the converter may see the schema. Fails with kInvalid: what is wrong, and where in the schema.
Status check_schema(const Json& schema);

}  // namespace drift::server::api
