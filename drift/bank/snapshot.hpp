// snapshot.hpp - a consistent copy of a bank, taken a little at a time so that no decoding step waits for it.
//
// start() fixes the moment; advance() copies a bounded number of bytes per call (call it between steps); an entry about to
// be changed by commit() is copied first. When done() the image equals the bank at start(), bit for bit.
// Threads: start, advance and the bank's commits on the bank's thread; take() the image anywhere once done().
// Cost: start() copies 20 bytes an entry, advance(budget) about `budget` bytes (at least one entry); one snapshot per bank at
// a time. Without a room() the pages of the image are fresh when advance() fills them, and on a virtual machine one fresh page can
// cost milliseconds: programs that mind their slowest step prepare a room off the bank's thread. Figures: docs/performance.md.
#pragma once

#include <memory>

#include "drift/bank/bank.hpp"

namespace drift::bank {

// A good budget for advance() between two decoding steps: the largest bank is copied in some 700 steps.
inline constexpr std::size_t kSnapshotStepBytes = std::size_t{1} << 20;

class Snapshot {
 public:
  // Memory for an image of a full bank, every page of it touched. Make it on another thread and hand it to start(): fresh pages
  // can cost ten times what copying into them does. The image that take() gave may serve again in the same way.
  // Fails as BankConfig::validate(); kLimit if memory cannot be had.
  static Result<BankImage> room(const BankConfig& config);
  // Allocates what `room` lacks (nothing of it is touched yet). Fails with kBusy if a snapshot is running on this bank, kLimit if
  // memory cannot be had.
  static Result<std::unique_ptr<Snapshot>> start(Bank& bank, BankImage room = {});
  ~Snapshot();
  // Copies the next entries, about budget_bytes of them and at least one. Does nothing once done().
  void advance(std::size_t budget_bytes);
  bool done() const;
  // Requires: done().
  BankImage take();

  // The whole image at once, for programs that do not mind waiting.
  static BankImage copy(const Bank& bank);

 private:
  friend class Bank;
  struct Impl;
  explicit Snapshot(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace drift::bank
