#include "server/schedule/fair_queue.hpp"

#include <utility>

namespace drift::server {

void FairQueue::push(const std::string& tenant, Waiting waiting) {
  std::deque<Waiting>& line = lines_[tenant];
  if (line.empty()) turns_.push_back(tenant);
  line.push_back(std::move(waiting));
  ++size_;
}

std::optional<Waiting> FairQueue::pop() {
  if (turns_.empty()) return std::nullopt;
  const auto line = lines_.find(turns_.front());
  Waiting first = std::move(line->second.front());
  line->second.pop_front();
  --size_;
  if (line->second.empty()) {
    lines_.erase(line);
    turns_.pop_front();
  } else {
    turns_.splice(turns_.end(), turns_, turns_.begin());
  }
  return first;
}

std::size_t FairQueue::size(const std::string& tenant) const {
  const auto line = lines_.find(tenant);
  return line == lines_.end() ? 0 : line->second.size();
}

}  // namespace drift::server
