// recalibrator.hpp - the method: hidden state -> bias on the draft's logits; verified position -> lesson for the bank.
//
// One decoding step: lookup() and bias() at each draft position, the caller proposes and verifies, observe() for each
// verified position, then one commit(). Between commits the bank and the gains are frozen, so a step is a pure function of
// (bank, rows, seed). Residuals are taken from raw logits at temperature 1: the bank never learns from itself, and does not
// depend on a request's sampling settings.
// With levels other than the hidden one (level.hpp) a Chain does the same for all of them.
// Banks of other owners may be looked up besides (borrow): each by the gain it has earned here, and none is ever changed by that.
// Threads: none inside; one owner. Limits: RecalConfig. Cost: a lookup is one scan of the bank; a bias is k * m; an
// observation two passes over the vocabulary; see `drift compare` for what that is of a block.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "drift/bank/bank.hpp"
#include "drift/bank/snapshot.hpp"
#include "drift/bank/store.hpp"
#include "drift/base/status.hpp"
#include "drift/recal/chain.hpp"
#include "drift/recal/config.hpp"
#include "drift/recal/gain.hpp"
#include "drift/recal/keyer.hpp"
#include "drift/recal/kriging.hpp"
#include "drift/recal/residual.hpp"
#include "drift/recal/reward.hpp"
#include "drift/spec/sparse.hpp"

namespace drift::recal {

// Where in a text a position stands, as far as levels care.
struct Place {
  std::span<const float> hidden;   // the draft's last hidden state; may be empty where the hidden level takes no part
  std::span<const Token> context;  // the text before the position; its last kOrders tokens count
};

// What one draft position found in the frozen bank. Filled by lookup(), passed on to bias() and observe() of the same step.
struct Lookup {
  std::vector<float> unit;                // hidden / |hidden|
  std::vector<float> key;                 // what the bank was asked with
  std::vector<bank::Neighbor> neighbors;  // best first
  std::size_t bin = 0;                    // context bin of the earned gain
  float similarity = -1.0f;               // of the nearest entry; -1 if there is none
  ContextLookup context;                  // of the other levels
  std::vector<Lookup> lent;               // what each borrowed bank found, in the order of borrow()
};

// The gain and the bias to use at one position: draft logits + gain * bias.
struct Bias {
  spec::SparseBias bias;
  float gain = 0.0f;
  ChainUse chain;  // how several levels made it up
  // Where banks are borrowed: what the own one and each of them says by itself, at gain 1.
  spec::SparseBias own;
  std::vector<spec::SparseBias> lent;
};

class Recalibrator;

// A bank of another owner, looked up and nothing else.
struct Loan {
  std::string owner;  // what was earned with it is kept under this name
  const Recalibrator* bank = nullptr;
  friend bool operator==(const Loan&, const Loan&) = default;
};
// Owners whose gains are kept, the present ones always.
inline constexpr std::size_t kLoanGainsMax = 64;

class Recalibrator {
 public:
  static Result<std::unique_ptr<Recalibrator>> create(const RecalConfig& config);

  const RecalConfig& config() const { return config_; }
  const bank::Bank& bank() const { return *bank_; }
  bank::Bank& bank() { return *bank_; }
  const GainTable& gains() const { return gains_; }
  const Chain* chain() const { return chain_.get(); }  // null with the hidden level alone
  std::uint64_t bytes() const;                         // of all banks, and of what other levels earned

  // Fails with kInvalid on a wrong width, a non-finite element or a zero vector.
  Status lookup(const Place& place, Lookup& out) const;
  Status lookup(std::span<const float> hidden, Lookup& out) const { return lookup(Place{hidden, {}}, out); }
  // Empty bias and gain 0 where nothing is near or no gain has been earned. Requires: raw finite draft logits, [vocab].
  void bias(const Lookup& lookup, std::span<const float> draft_logits, const Judging& judging, Bias& out) const;
  // The same without the logits. Requires: chain() == nullptr.
  void bias(const Lookup& lookup, const Judging& judging, Bias& out) const;
  // Stages one verified position: `found` and `used` as they were when the position was drafted, raw logits of both models.
  // Fails with kInvalid on wrong sizes or non-finite logits; nothing is staged then.
  Status observe(const Lookup& found, const Bias& used, std::span<const float> draft_logits, std::span<const float> target_logits,
                 const Judging& judging);
  // Stages a verified position that no draft saw: n-gram levels learn what the target said there, others nothing.
  // Fails as observe().
  Status observe_target(std::span<const Token> context, std::span<const float> target_logits);
  // Applies what was staged: touches, lessons, gains, key statistics. Never fails.
  void commit();
  // Drops what was staged.
  void discard();
  std::size_t staged() const { return staged_; }  // positions with a draft row
  void freeze(bool on) { frozen_ = on; }          // lookups go on, commits change nothing
  bool frozen() const { return frozen_; }

  // The banks to look up besides, from the next lookup on; empty: none. Each is asked by its own key statistics, and followed as far as
  // its entries have earned here: of those that earned a gain above 0, the neighbours are weighed together like one bank's. Gains begin
  // at 0, are scored against the raw draft for each bank by itself, so that none depends on another's being there, and live in memory only.
  // Requires: nothing staged, banks of the same pair that outlive their use, may_borrow() here and there. Cost: of a lookup one scan a bank.
  void borrow(std::span<const Loan> loans);
  // Only the hidden level is lent. Where there is a global one below it, its residuals are what that one left, and no other's.
  bool may_borrow() const { return config_.levels.has(Level::kHidden) && !config_.levels.has(Level::kGlobal); }
  // What was earned with an owner's bank is no more.
  void forget_loan(const std::string& owner);
  // Null: nothing was earned with it yet.
  const GainTable* gains_with(const std::string& owner) const;

  // log p - log q on the support, clipped (method.md section 4). Public for tests and the C API.
  void residual(std::span<const float> draft_logits, std::span<const float> target_logits, spec::SparseResidual& out);

  // Everything needed to go on later, and back. restore() fails with kCorrupt or kForeign; nothing is changed then.
  bank::StoredBank save(const bank::Fingerprint& fingerprint) const;
  // The same around an image taken by bank::Snapshot.
  bank::StoredBank save(const bank::Fingerprint& fingerprint, bank::BankImage image) const;
  Status restore(const bank::StoredBank& stored);

 private:
  struct Staged;
  explicit Recalibrator(const RecalConfig& config);
  struct Part {  // what a bank found, and by how much it counts
    const Recalibrator* bank = nullptr;
    const Lookup* found = nullptr;
    float gain = 1.0f;
  };
  Status look_up(std::span<const float> hidden, Lookup& out) const;
  void combine(std::span<const Part> parts, spec::SparseBias& out) const;
  void weigh(std::span<const Part> parts) const;
  void combine(const Lookup& lookup, spec::SparseBias& out) const;
  std::size_t earned(const GainTable* gains, std::size_t bin, const Judging& judging) const;
  void take_parts(const Lookup& lookup, const Judging& judging, Bias& out) const;
  void bias_of_all(const Lookup& lookup, const Judging& judging, Bias& out) const;

  RecalConfig config_;
  std::unique_ptr<bank::Bank> bank_;
  Keyer keyer_;
  GainTable gains_;
  std::unique_ptr<Chain> chain_;                           // levels other than the hidden one
  std::map<std::string, std::vector<std::byte>> carried_;  // blocks of a restored file that are of levels not in use here
  bool frozen_ = false;
  std::vector<Loan> loans_;
  std::map<std::string, GainTable> loan_gains_;  // by owner

  struct LoanScores {
    std::size_t loan = 0, bin = 0;
    GainTable::Scores rewards{};
  };
  struct StagedLesson {
    std::vector<float> unit, key;
    std::vector<bank::Neighbor> neighbors;
    spec::SparseResidual residual;
    GainTable::Scores rewards{};
    GainClass cls;
    std::size_t bin = 0;
    bool scored = false;
    bool hidden = true;  // the hidden level takes part
    std::vector<LoanScores> lent;
  };
  void score_lent(const Lookup& found, const Bias& used, std::span<const float> draft_logits,
                  std::span<const float> target_logits, const Judging& judging, StagedLesson& lesson);

  std::vector<StagedLesson> lessons_;  // reused between steps
  std::size_t staged_ = 0;
  std::vector<EntryId> touched_;
  std::vector<bank::Lesson> views_;
  Reward reward_;
  ResidualTaker residuals_;
  // scratch
  std::vector<float> biased_;
  mutable spec::SparseBias hidden_bias_;
  mutable ChainUse with_lent_;
  ContextLookup context_;
  mutable std::vector<std::pair<Token, float>> pairs_;
  mutable std::vector<Part> parts_;
  mutable Kriging kriging_;
  mutable std::vector<float> weights_;  // [neighbours of all parts]
  mutable std::vector<Kriging::Known> known_;
};

}  // namespace drift::recal
