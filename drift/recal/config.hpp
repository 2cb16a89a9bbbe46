// config.hpp - the knobs of recalibration, with bounds. docs/method.md gives the formulas.
#pragma once

#include <cstdint>

#include "drift/bank/config.hpp"
#include "drift/base/status.hpp"
#include "drift/recal/level.hpp"

namespace drift::recal {

enum class GainRule : std::uint8_t {
  kFixed = 0,   // lambda everywhere: the seed's rule
  kEarned = 1,  // lambda times the grid gain that would have been accepted most so far in this context; 0 is in the grid
};

enum class WeightRule : std::uint8_t {
  kSum = 0,         // b = sum_j w_j b_j, the seed's text
  kNormalised = 1,  // weights sum to 1, then the result is scaled by the largest raw weight
  kKriged = 2,      // weights solve (K + D) a = k: neighbours that say the same share one weight (kriging.hpp)
};

// Which tokens a residual is taken on: the top m of p, of q, both, or those in both (the seed's "shared top m").
enum class SupportRule : std::uint8_t { kUnion = 0, kTarget = 1, kDraft = 2, kIntersection = 3 };

inline constexpr std::uint32_t kMaxNgramCapacity = 32'768;
inline constexpr std::uint32_t kMaxNgramSupport = 32;

struct RecalConfig {
  bank::BankConfig bank;
  std::uint32_t neighbors = 8;  // k; 1 .. bank::kMaxNeighbors
  float sigma = 0.1f;           // width of the kernel over cosine distance; (0, 10]
  float lambda = 1.0f;          // gain; [0, 10]. The seed's fixed setting is 0.6
  float clip = 12.0f;           // residuals are bounded to +-clip nats; (0, 100]
  GainRule gain = GainRule::kEarned;
  WeightRule weights = WeightRule::kNormalised;
  SupportRule support = SupportRule::kUnion;
  bool renormalise = false;  // log-probabilities renormalised on the support before they are subtracted
  // Residuals are taken relative to all tokens outside the support: r(v) - log(P(outside) / Q(outside)). Then the bias gives the
  // outside its true share, and "not stored" truly means 0. Without it, log Z_q / Z_p falls on the stored tokens alone.
  bool centre = true;
  LevelSet levels = kHiddenOnly;          // which levels take part, see chain.hpp; not empty
  std::uint32_t ngram_capacity = 16'384;  // contexts each n-gram level holds; 1 .. kMaxNgramCapacity
  std::uint32_t ngram_support = 16;       // tokens stored per context; 1 .. kMaxNgramSupport
  bool teach_prompt = false;              // the end of each prompt teaches before the first step (stepper.hpp, kPromptLesson)

  // What the lab chose (docs/method.md, Defaults): the command line's, the server's and the C API's default. The members' own
  // defaults are the plainest working method, the hidden level alone.
  static RecalConfig standard();
  // The seed's own rule: lambda 0.6 everywhere, plain kernel sum, shared top m, residuals as they are.
  static RecalConfig seed();
  // Fails with kInvalid naming the field, its value and its bounds; bank fields included.
  Status validate() const;
};

}  // namespace drift::recal
