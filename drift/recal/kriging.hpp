// kriging.hpp - how much each of a position's neighbours counts, from how near they are to it and to one another.
//
// Entries are taken for noisy samples of one smooth function, the residual as a function of the key. The best linear estimate at
// the position is then sum_j a_j b_j with (K + D) a = k: K the kernel between the neighbours, k between them and the position, D a
// noise that shrinks with the number of lessons in an entry ("simple kriging", a Gaussian process's mean). So entries that say the
// same share one weight, a trend between entries is followed rather than flattened, few lessons count less, and far from all of
// them the estimate falls to zero. Closed form: no gradient, no state.
// Threads: holds scratch memory, one per thread. Cost: n neighbours of d floats: n*n/2 dot products of d, and n*n*n/6.
#pragma once

#include <span>
#include <vector>

#include "drift/bank/bank.hpp"

namespace drift::recal {

// Variance of one lesson's residual beside that of the function it is a sample of; an entry's falls with its count, up to a bound
// that keeps K + D well conditioned where keys all but coincide.
inline constexpr double kLessonNoise = 0.03;
inline constexpr std::uint32_t kNoiseCount = 32;

// Over cosine distance: exp(-(1 - cos) / sigma), a Gaussian of the distance between unit vectors. Positive definite, so K + D is.
float kriging_kernel(float cosine, float sigma);

class Kriging {
 public:
  // A neighbour, and the bank it is an entry of. Where banks have learned key statistics of their own, what is between entries of two
  // of them is approximate.
  struct Known {
    const bank::Bank* bank = nullptr;
    bank::Neighbor neighbor;
  };
  // out[j] = a_j. Requires: banks with vectors of one width for keys; sigma > 0. Weights may be negative.
  void weigh(std::span<const Known> neighbors, float sigma, std::vector<float>& out);

 private:
  std::vector<float> key_;          // [key_dim]
  std::vector<double> matrix_, a_;  // [n, n] lower triangle, then its Cholesky factor; [n]
};

}  // namespace drift::recal
