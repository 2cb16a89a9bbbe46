// fair_queue.hpp - answers that wait for a slot: the tenant with the fewest answers in work goes first, tenants with as many take turns,
// within a tenant the oldest goes first.
//
// So with T tenants waiting each gets its ceil(slots / T), and slots nobody else wants are lent: a tenant that asks for a thousand
// answers delays another tenant's next one until one slot is free.
// Threads: none inside; the scheduler's lock guards it. Cost: O(1), remove_if() O(size).
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/schedule/job.hpp"

namespace drift::server {

struct Waiting {
  std::shared_ptr<Job> job;
  std::size_t choice = 0;
};

class FairQueue {
 public:
  void push(const std::string& tenant, Waiting waiting);
  // The oldest of the tenant whose turn it is; `in_work` says how many answers of a tenant have a slot. Cost: one pass over the tenants.
  std::optional<Waiting> pop(const std::function<std::size_t(const std::string& tenant)>& in_work = {});
  std::size_t size() const { return size_; }
  std::size_t size(const std::string& tenant) const;

  template <class Predicate>
  void remove_if(Predicate gone) {
    for (auto turn = turns_.begin(); turn != turns_.end();) {
      auto& line = lines_.at(*turn);
      size_ -= std::erase_if(line, gone);
      if (line.empty()) {
        lines_.erase(*turn);
        turn = turns_.erase(turn);
      } else {
        ++turn;
      }
    }
  }

 private:
  std::list<std::string> turns_;  // tenants with something waiting, the next one first
  std::unordered_map<std::string, std::deque<Waiting>> lines_;
  std::size_t size_ = 0;
};

}  // namespace drift::server
