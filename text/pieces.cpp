#include "text/pieces.hpp"

#include <algorithm>

namespace drift::text {

Pieces::Pieces(const std::vector<std::string>& bytes, std::vector<Token> ends) : ends_(std::move(ends)) {
  std::vector<Token> order;
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    if (!bytes[t].empty()) order.push_back(static_cast<Token>(t));
  }
  const auto piece = [&](Token t) -> const std::string& { return bytes[static_cast<std::size_t>(t)]; };
  std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return piece(a) < piece(b); });
  place_.assign(bytes.size(), static_cast<std::uint32_t>(order.size()));
  std::string_view before;
  for (const Token t : order) {
    const std::string_view now = piece(t);
    const auto common = std::mismatch(before.begin(), before.end(), now.begin(), now.end()).first - before.begin();
    place_[static_cast<std::size_t>(t)] = static_cast<std::uint32_t>(sorted_.size());
    sorted_.push_back({t, static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(now.size()),
                       static_cast<std::uint32_t>(common)});
    text_ += now;
    longest_ = std::max(longest_, now.size());
    before = now;
  }
}

std::string_view Pieces::of(Token token) const {
  if (token < 0 || static_cast<std::size_t>(token) >= place_.size()) return {};
  const std::size_t at = place_[static_cast<std::size_t>(token)];
  return at == sorted_.size() ? std::string_view() : bytes(at);
}

}  // namespace drift::text
