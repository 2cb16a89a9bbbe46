#include "server/schedule/answer_text.hpp"

#include <utility>

namespace drift::server {

void AnswerText::push(TokenInfo token, Delta& out) {
  if (stopped()) return;
  const std::string whole = hold_.push(token.bytes);
  held_.push_back({std::move(token), length_, length_ + whole.size()});
  length_ += whole.size();
  release(stops_.push(whole), out);
}

void AnswerText::finish(Delta& out) {
  if (!stopped()) {
    const std::string rest = hold_.finish();
    length_ += rest.size();
    if (!held_.empty()) held_.back().end = length_;
    std::string shown = stops_.push(rest);
    shown += stops_.finish();
    release(std::move(shown), out);
  }
  // A token that is shown in part counts as sent; one that lies behind the stop string does not belong to the text.
  while (!held_.empty() && (held_.front().begin < shown_ || (!stopped() && held_.front().end <= shown_))) {
    out.tokens.push_back(std::move(held_.front().token));
    held_.pop_front();
  }
  held_.clear();
}

// Tokens go out with the last byte of their text. One without text goes with the next that has some.
void AnswerText::release(std::string shown, Delta& out) {
  shown_ += shown.size();
  if (out.text.empty()) {
    out.text = std::move(shown);
  } else {
    out.text += shown;
  }
  while (!held_.empty() && held_.front().end <= shown_ && (held_.front().begin < held_.front().end || !out.text.empty())) {
    if (stopped() && held_.front().begin >= shown_) break;
    out.tokens.push_back(std::move(held_.front().token));
    held_.pop_front();
  }
}

}  // namespace drift::server
