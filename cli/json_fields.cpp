#include "cli/json_fields.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace drift::cli {

void put_metrics(Json& out, const trace::Metrics& m) {
  out["tokens"] = m.tokens;
  out["steps"] = m.steps;
  out["drafted"] = m.drafted;
  out["accepted"] = m.accepted;
  out["accepted_bank"] = m.accepted_bank;
  out["copied"] = m.copied;
  out["accepted_copied"] = m.accepted_copied;
  out["acceptance"] = m.acceptance();
  out["acceptance_conditional"] = m.acceptance_conditional();
  out["mean_accepted_per_block"] = m.mean_accepted_per_block();
  out["time_ms"] = static_cast<double>(m.times.total_ns) * 1e-6;
  out["tokens_per_s"] = m.tokens_per_s();
}

Json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"hardware_threads", machine.hardware_threads},
          {"threads", machine.threads},
          {"ggml_flags", machine.ggml_flags},
          {"llama_build", machine.llama_build},
          {"highway_target", machine.highway_target}};
}

Json model_json(const engine::ModelInfo& info) {
  return {{"name", info.name},
          {"arch", info.arch},
          {"content_hash", info.content_hash},
          {"weight_bytes", info.weight_bytes},
          {"vocab", info.vocab},
          {"hidden_width", info.hidden_width}};
}

double decimal(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Json sampler_json(const spec::SamplerConfig& sampler, std::uint64_t seed) {
  return {{"temperature", decimal(sampler.temperature)},
          {"top_k", sampler.top_k},
          {"top_p", decimal(sampler.top_p)},
          {"min_p", decimal(sampler.min_p)},
          {"seed", seed}};
}

}  // namespace drift::cli
