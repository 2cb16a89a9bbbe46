// json_fields.hpp - JSON fields that several reports write alike.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "cli/machine.hpp"
#include "drift/engine/engine.hpp"
#include "drift/spec/distribution.hpp"
#include "drift/trace/metrics.hpp"

namespace drift::cli {

using Json = nlohmann::ordered_json;

// Fields of a fold over steps, the same for a mode, a domain, a prompt and a run.
void put_metrics(Json& out, const trace::Metrics& metrics);
Json machine_json(const Machine& machine);
Json model_json(const engine::ModelInfo& info);
// The shortest decimal that reads back as `value`: 0.8, not 0.800000011920929.
double decimal(float value);

Json sampler_json(const spec::SamplerConfig& sampler, std::uint64_t seed);

}  // namespace drift::cli
