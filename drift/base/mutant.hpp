// mutant.hpp - deliberate bugs, off in every normal build.
//
// A losslessness test is worth something only if it fails when the product is wrong. Each mutant is one wrong line in the
// product's own code, chosen at compile time with -DDRIFT_MUTANT=<name>; `./dev mutants` builds each and prints which
// tests caught it. Cost in a normal build: none (constexpr false).
#pragma once

namespace drift {

enum class Mutant {
  kNone,
  kQRecordedRaw,            // the q stored with a proposal is the raw draft's, not the biased one it was drawn from
  kQRecomputedAfterCommit,  // q is recomputed from the bank after the commit instead of travelling with the token
  kBankChangesInStep,       // the bank is changed between proposing and judging, and q follows it
  kResidualNotClipped,      // the residual is stored without its bound
  kAcceptAlways,            // the rejection judge accepts whatever was proposed
  kAcceptRatioInverted,     // accepts with min(1, q/p)
  kResampleFromP,           // after a rejection draws from p instead of norm(max(p - q, 0))
  kMatchKeepsMismatch,      // the match judge keeps a draft token that differs from the target's draw
  kBonusFromDraft,          // the token after a fully accepted block is drawn from the draft
  kTargetBiased,            // the bank's bias is added to the target's logits too
  kFilterBeforeBias,        // top-k/top-p act on raw draft logits, the bias is added afterwards, q is recorded unfiltered
  kTeachOffPath,            // positions after the first rejection teach the bank
  kResidualFromBiased,      // the residual is taken from biased draft logits: the bank learns from itself
  kTouchInLookup,           // lookups change the LRU order before the commit
  kAcceptSharesDraw,        // the acceptance test uses the number the proposal was drawn with
  kResampleSharesDraw,      // the draw after a rejection uses the number the proposal was drawn with
  kSequenceNotInKey,        // all sequences of a batch use the same numbers
  kEndIgnored,              // tokens accepted after an end token stay in the answer
  kFailedStepTeaches,       // lessons staged before a failure are left for the next commit
  kWeightsChangeInStep,     // a draft that learns changes its weights between proposing and judging, and q follows it
  kQRecomputedAfterUpdate,  // q is computed anew from the draft after it has learned, instead of travelling with the token
  kLevelSeesOwnBias,        // the residual of a level is taken from logits that hold its own bias already
  kMemoryQIsCounts,         // a copied token is the most frequent continuation, but its recorded q is all continuations by count
  kMemoryLearnsProposals,   // the suffix memory learns a block's proposals before they are judged
  kSkippedDraftTeaches,     // a copied position teaches the bank with the draft row of an earlier step
  kConstraintKeepsPath,     // the state of a constraint after rejected proposals is not given up
  kDraftUnconstrained,      // the draft's logits are not edited, only the target's
  kDraftKeepsRejected,      // the draft's KV keeps rejected proposals as if they had stood
};

#ifndef DRIFT_MUTANT
#define DRIFT_MUTANT kNone
#endif

constexpr bool is_mutant(Mutant which) { return Mutant::DRIFT_MUTANT == which; }

}  // namespace drift
