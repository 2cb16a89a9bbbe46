#include "drift/recal/config.hpp"

#include <string>

namespace drift::recal {
namespace {

// Written so that NaN fails.
Status within(const char* name, float value, bool ok, const char* bounds) {
  if (ok) return Status::ok();
  return {Code::kInvalid, std::string(name) + " is " + std::to_string(value) + "; it must be " + bounds};
}

}  // namespace

RecalConfig RecalConfig::standard() {
  RecalConfig c;
  c.weights = WeightRule::kKriged;
  c.neighbors = 16;
  c.bank.tau = 0.999f;
  c.levels = {Level::kHidden, Level::kNgram2, Level::kNgram3, Level::kNgram4};
  c.teach_prompt = true;
  return c;
}

RecalConfig RecalConfig::seed() {
  RecalConfig c;
  c.lambda = 0.6f;
  c.gain = GainRule::kFixed;
  c.weights = WeightRule::kSum;
  c.support = SupportRule::kIntersection;
  c.centre = false;
  return c;
}

Status RecalConfig::validate() const {
  DRIFT_TRY(bank.validate());
  if (bank.key_type == bank::KeyType::kHash)
    return {Code::kInvalid, "the hidden level's keys are vectors: key_type is f32 or f16"};
  if (levels.empty()) return {Code::kInvalid, "levels is empty; name at least one"};
  DRIFT_TRY(within("ngram_capacity", static_cast<float>(ngram_capacity),
                   ngram_capacity >= 1 && ngram_capacity <= kMaxNgramCapacity, "1 to 32768"));
  DRIFT_TRY(within("ngram_support", static_cast<float>(ngram_support), ngram_support >= 1 && ngram_support <= kMaxNgramSupport,
                   "1 to 32"));
  if (neighbors < 1 || neighbors > bank::kMaxNeighbors) {
    return {Code::kInvalid,
            "neighbors is " + std::to_string(neighbors) + "; it must be 1 to " + std::to_string(bank::kMaxNeighbors)};
  }
  DRIFT_TRY(within("sigma", sigma, sigma > 0.0f && sigma <= 10.0f, "above 0 and at most 10"));
  DRIFT_TRY(within("lambda", lambda, lambda >= 0.0f && lambda <= 10.0f, "between 0 and 10"));
  DRIFT_TRY(within("clip", clip, clip > 0.0f && clip <= 100.0f, "above 0 and at most 100"));
  if (renormalise && centre) {
    return {Code::kInvalid, "renormalise and centre are both on; they exclude each other: switch centre off to renormalise"};
  }
  return Status::ok();
}

}  // namespace drift::recal
