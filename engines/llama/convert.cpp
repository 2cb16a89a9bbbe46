#include "engines/llama/convert.hpp"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "engines/llama/log.hpp"
#include "engines/llama/model.hpp"

namespace drift::engine {
namespace {

struct Kind {
  std::string_view name;
  llama_ftype type;
};

// Those that need no importance matrix.
constexpr std::array kKinds{
    Kind{"f32", LLAMA_FTYPE_ALL_F32},          Kind{"f16", LLAMA_FTYPE_MOSTLY_F16},   Kind{"bf16", LLAMA_FTYPE_MOSTLY_BF16},
    Kind{"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},     Kind{"q6_k", LLAMA_FTYPE_MOSTLY_Q6_K}, Kind{"q5_k_m", LLAMA_FTYPE_MOSTLY_Q5_K_M},
    Kind{"q4_k_m", LLAMA_FTYPE_MOSTLY_Q4_K_M}, Kind{"q4_1", LLAMA_FTYPE_MOSTLY_Q4_1}, Kind{"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0}};

const Kind* kind_of(std::string_view name) {
  const auto* kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& one) { return one.name == name; });
  return kind == kKinds.end() ? nullptr : kind;
}

}  // namespace

std::string conversion_types() {
  std::string names;
  for (const Kind& kind : kKinds) names += (names.empty() ? "" : ", ") + std::string(kind.name);
  return names;
}

Status check_conversion_type(const std::string& type) {
  if (kind_of(type) != nullptr) return Status::ok();
  return {Code::kInvalid, fmt::format("there is no type '{}'; there are: {}", type, conversion_types())};
}

Status convert_gguf(const std::string& in, const std::string& out, const std::string& type, int threads) {
  DRIFT_TRY(check_conversion_type(type));
  DRIFT_TRY(check_gguf(in));
  start_llama();
  clear_llama_errors();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.nthread = threads;
  params.ftype = kind_of(type)->type;
  params.allow_requantize = true;
  if (llama_model_quantize(in.c_str(), out.c_str(), &params) == 0) return Status::ok();
  return {Code::kUnsupported,
          fmt::format("{} could not be converted to {}: {}", in, type, llama_errors("llama.cpp gave no reason"))};
}

}  // namespace drift::engine
