#include "server/schedule/fair_queue.hpp"

#include <iterator>
#include <utility>

namespace drift::server {

void FairQueue::push(const std::string& tenant, Waiting waiting) {
  std::deque<Waiting>& line = lines_[tenant];
  if (line.empty()) turns_.push_back(tenant);
  line.push_back(std::move(waiting));
  ++size_;
}

std::optional<Waiting> FairQueue::pop(const std::function<std::size_t(const std::string&)>& in_work) {
  if (turns_.empty()) return std::nullopt;
  auto next = turns_.begin();
  if (in_work) {
    std::size_t fewest = in_work(*next);
    for (auto turn = std::next(next); turn != turns_.end(); ++turn) {
      const std::size_t has = in_work(*turn);
      if (has >= fewest) continue;
      fewest = has;
      next = turn;
    }
  }
  const auto line = lines_.find(*next);
  Waiting first = std::move(line->second.front());
  line->second.pop_front();
  --size_;
  if (line->second.empty()) {
    lines_.erase(line);
    turns_.erase(next);
  } else {
    turns_.splice(turns_.end(), turns_, next);
  }
  return first;
}

std::size_t FairQueue::size(const std::string& tenant) const {
  const auto line = lines_.find(tenant);
  return line == lines_.end() ? 0 : line->second.size();
}

}  // namespace drift::server
