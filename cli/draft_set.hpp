// draft_set.hpp - several drafts behind one Engine, one of them selected: the frozen ones first, then one for each mode that
// trains its own weights. So a comparison keeps one stepper and one target text, and no mode drafts with another's weights.
//
// A sequence is open in every draft. What follows concerns the selected one; its kept text may be behind, and is then prefilled.
// Threads: the drafts'. Requires: the drafts outlive the set, open alike many sequences, and are replaced only while none is open.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "drift/base/check.hpp"
#include "drift/engine/engine.hpp"

namespace drift::cli {

class DraftSet final : public engine::Engine {
 public:
  // Requires: at least one, none null.
  explicit DraftSet(std::vector<engine::Engine*> frozen) : drafts_(std::move(frozen)) {}

  // Puts a draft at a place; places must be filled in order.
  void set(std::size_t place, engine::Engine& draft) {
    DRIFT_CHECK(place <= drafts_.size(), "places are filled in order");
    if (place == drafts_.size()) drafts_.push_back(nullptr);
    drafts_[place] = &draft;
  }
  void select(std::size_t place) {
    DRIFT_CHECK(place < drafts_.size(), "a draft that is there is selected");
    selected_ = place;
  }

  // The first one's, with the vocabulary and the context that all have.
  engine::ModelInfo info() const override {
    engine::ModelInfo out = drafts_[0]->info();
    for (const engine::Engine* draft : drafts_) {
      const engine::ModelInfo one = draft->info();
      out.vocab = std::min(out.vocab, one.vocab);
      out.context = std::min(out.context, one.context);
    }
    return out;
  }
  engine::Counters counters() const override { return draft().counters(); }
  Result<SeqId> open() override {
    SeqId first = -1;
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      Result<SeqId> opened = drafts_[i]->open();
      const bool alike = opened.is_ok() && (i == 0 || *opened == first);
      if (!alike) {
        if (opened.is_ok()) drafts_[i]->close(*opened);
        for (std::size_t j = 0; j < i; ++j) drafts_[j]->close(first);
        return opened.is_ok() ? Status(Code::kInternal, "the drafts of a comparison number their sequences differently")
                              : opened.status();
      }
      first = *opened;
    }
    return first;
  }
  Status forward(std::span<const engine::Node> nodes, engine::Rows& out) override { return draft().forward(nodes, out); }
  Status keep(SeqId seq, std::span<const NodeIndex> path) override { return draft().keep(seq, path); }
  Result<SeqId> fork(SeqId) override { return Status(Code::kUnsupported, "a set of drafts does not fork sequences"); }
  Status truncate(SeqId seq, Pos length) override { return draft().truncate(seq, length); }
  Pos length(SeqId seq) const override { return draft().length(seq); }
  void close(SeqId seq) override {
    for (engine::Engine* d : drafts_) d->close(seq);
  }

 private:
  engine::Engine& draft() const { return *drafts_[selected_]; }
  std::vector<engine::Engine*> drafts_;
  std::size_t selected_ = 0;
};

}  // namespace drift::cli
