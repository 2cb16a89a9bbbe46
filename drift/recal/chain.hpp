// chain.hpp - levels applied from general to specific, each correcting what is left after the one before.
//
// Two ways to store a level (method.md, Levels): the global and the hidden one hold mean residuals, added to the draft's logits; the n-gram
// ones hold the target's own mean distribution after a context of 1 to 4 tokens, mixed in. What comes out is one sparse bias.
// Each level's strength is earned: per judge, temperature class and bin, from what every strength would have earned at verified
// positions, zero among them. The hidden level's bank and gains belong to the Recalibrator; the others' are here.
// Between commits all is frozen. Threads: as the Recalibrator. Limits: RecalConfig; memory fixed at construction.
// Cost: of a bias two passes over the vocabulary, of an observation two to four; all else costs what the levels name.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drift/bank/bank.hpp"
#include "drift/base/status.hpp"
#include "drift/recal/config.hpp"
#include "drift/recal/level.hpp"
#include "drift/recal/level_reward.hpp"
#include "drift/recal/reduced.hpp"
#include "drift/recal/residual.hpp"
#include "drift/recal/score_table.hpp"
#include "drift/spec/sparse.hpp"

namespace drift::recal {

// Weights of a mixture; bins by how often a context was taught.
inline constexpr std::array<float, 6> kMixGrid{0.0f, 0.2f, 0.4f, 0.6f, 0.8f, 0.95f};
inline constexpr std::array<std::uint32_t, 5> kMixCountEdges{2, 3, 5, 9, 17};  // 6 bins: 1, 2, 3-4, 5-8, 9-16, 17+
inline constexpr std::array<std::uint32_t, 3> kGlobalCountEdges{16, 64, 256};  // 4 bins

// What a position's context found in the frozen banks: filled by look_up().
struct ContextLookup {
  std::size_t orders = 0;                               // contexts there are: min(kOrders, tokens before the position)
  std::array<std::uint64_t, kOrders> hashes{};          // [order - 1]
  std::array<std::optional<EntryId>, kLevels> entries;  // by level; none for the hidden one
};

// What one level says at a position, and by how much it is followed.
struct Said {
  Level level = Level::kHidden;
  Named named;             // residuals (global, hidden) or probabilities (n-grams); empty: nothing stored
  std::size_t bin = 0;     // of its scores
  std::size_t choice = 0;  // index into its strengths
};

// All levels at one position, as they were when it was drafted. Reused between steps.
struct ChainUse {
  ReducedRow row;
  std::vector<Said> said;  // [count], general to specific
  std::size_t count = 0;
};

// What the hidden level would add at gain 1, and which of kGainGrid it has earned.
struct HiddenSaid {
  const spec::SparseBias* bias = nullptr;
  std::size_t bin = 0;
  std::size_t choice = 0;
};

class Chain {
 public:
  // `config` outlives the chain. Fails as bank::Bank::create.
  static Result<std::unique_ptr<Chain>> create(const RecalConfig& config);

  void look_up(std::span<const Token> context, ContextLookup& out) const;
  // Writes the sum of what all levels add to the logits, and how it came about. Empty if lambda is 0.
  void bias(const ContextLookup& found, const HiddenSaid& hidden, std::span<const float> draft_logits, const Judging& judging,
            spec::SparseBias& out, ChainUse& use);

  // Stages a verified position for all levels but the hidden one, for which it hands back the residual and, where it had
  // something to say, what each gain would have earned. Requires: what Recalibrator::observe checks; residuals.begin() done.
  // Returns whether `hidden_rewards` was written.
  bool observe(const ContextLookup& found, const ChainUse& use, std::span<const float> draft_logits,
               std::span<const float> target_logits, const Judging& judging, ResidualTaker& residuals,
               spec::SparseResidual& hidden_residual, std::array<double, kGainGrid.size()>& hidden_rewards);
  // Stages a verified position that no draft saw: the n-gram levels learn what the target said.
  void observe_target(const ContextLookup& found, std::span<const float> target_logits);
  void commit();
  void discard() { staged_ = 0; }

  // Null where the level is not part of the chain, and for the hidden one.
  const bank::Bank* bank(Level level) const;
  const ScoreTable* scores(Level level) const;
  std::uint64_t bytes() const;

  // As named blocks of a bank file.
  void save(std::map<std::string, std::vector<std::byte>>& extras) const;
  // Levels the file does not know begin empty. Fails with kCorrupt, kForeign; the chain is then unchanged.
  Status restore(const std::map<std::string, std::vector<std::byte>>& extras);

 private:
  struct Store {
    std::unique_ptr<bank::Bank> bank;
    std::unique_ptr<ScoreTable> scores;
  };
  struct Staged {
    ContextLookup found;
    spec::SparseResidual global;                        // taught to the global level
    spec::SparseVector target;                          // taught to the n-gram levels
    bool drafted = false;                               // else no global lesson and no scores
    std::vector<double> rewards;                        // [scored levels, strengths]
    std::vector<std::pair<Level, std::size_t>> scored;  // level, bin
    GainClass cls;
  };

  explicit Chain(const RecalConfig& config);
  std::span<const float> strengths(Level level) const;
  void name_tokens(const ContextLookup& found, const HiddenSaid& hidden);
  void fill(Said& said, const ContextLookup& found, const HiddenSaid& hidden, const ReducedRow& row) const;
  std::size_t bin_of(Level level, std::uint32_t count) const;
  void deltas_of(const ReducedRow& row, const Said& said, std::size_t choice, double log_z_now);
  void apply(const Said& said);
  Staged& stage();
  void teach(Level level);

  const RecalConfig& config_;
  std::array<Store, kLevels> stores_;
  std::vector<Staged> staged_positions_;  // reused between steps
  std::size_t staged_ = 0;

  // scratch
  Reducer reducer_;
  LevelReward reward_;
  std::vector<Token> named_;
  std::vector<double> correction_, deltas_;  // [row], [named]
  std::vector<bank::Neighbor> neighbors_;
  std::vector<EntryId> touched_;
  std::vector<bank::Lesson> lessons_;
};

}  // namespace drift::recal
