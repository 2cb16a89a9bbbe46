#include "engines/torch/shape.hpp"

#include <cmath>
#include <string>

namespace drift::engine {
namespace {

constexpr std::int64_t kParametersMax = std::int64_t{1} << 31;

struct Bound {
  const char* what;
  std::int64_t value, low, high;
};

}  // namespace

std::int64_t parameter_count(const ModelShape& shape) {
  const std::int64_t attention = 2 * shape.width * shape.width + 2 * shape.width * shape.kv_width();
  const std::int64_t biases = shape.qkv_bias ? shape.width + 2 * shape.kv_width() : 0;
  const std::int64_t layer = attention + biases + 3 * shape.width * shape.ffn + 2 * shape.width;
  return shape.layers * layer + (shape.tied ? 1 : 2) * shape.vocab * shape.width + shape.width;
}

Status check_shape(const ModelShape& shape) {
  for (const Bound& bound : {Bound{"vocabulary", shape.vocab, 2, 1 << 20}, Bound{"width", shape.width, 2, 1 << 14},
                             Bound{"number of layers", shape.layers, 1, 512}, Bound{"number of heads", shape.heads, 1, 1 << 10},
                             Bound{"number of kv heads", shape.kv_heads, 1, 1 << 10},
                             Bound{"feed-forward width", shape.ffn, 1, 1 << 16}, Bound{"context", shape.context, 1, 1 << 20}}) {
    if (bound.value < bound.low || bound.value > bound.high) {
      return {Code::kInvalid, std::string("the model's ") + bound.what + " is " + std::to_string(bound.value) +
                                  "; it must lie between " + std::to_string(bound.low) + " and " + std::to_string(bound.high)};
    }
  }
  if (shape.width % shape.heads != 0 || shape.head_width() % 2 != 0) {
    return {Code::kInvalid, "the model's width " + std::to_string(shape.width) + " must be an even multiple of its " +
                                std::to_string(shape.heads) + " heads"};
  }
  if (shape.heads % shape.kv_heads != 0) {
    return {Code::kInvalid, "the model's " + std::to_string(shape.heads) + " heads are not a multiple of its " +
                                std::to_string(shape.kv_heads) + " kv heads"};
  }
  if (!std::isfinite(shape.rope_base) || shape.rope_base < 1 || shape.rope_base > 1e9)
    return {Code::kInvalid, "the model's rope base is " + std::to_string(shape.rope_base) + "; it must lie between 1 and 1e9"};
  if (!std::isfinite(shape.norm_eps) || shape.norm_eps <= 0 || shape.norm_eps > 0.1)
    return {Code::kInvalid, "the model's norm epsilon must lie between 0 and 0.1"};
  if (parameter_count(shape) > kParametersMax) {
    return {Code::kLimit, "the model has " + std::to_string(parameter_count(shape)) + " parameters; at most " +
                              std::to_string(kParametersMax) + " are supported"};
  }
  return Status::ok();
}

}  // namespace drift::engine
