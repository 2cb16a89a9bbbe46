// answer_text.hpp - tokens of an answer become text that may be sent: whole characters, nothing that may begin a stop string.
//
// Threads: plain value. Limits: text::StopStrings'. Cost: linear.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "server/schedule/generation.hpp"
#include "text/stop.hpp"
#include "text/utf8.hpp"

namespace drift::server {

class AnswerText {
 public:
  AnswerText() = default;
  explicit AnswerText(text::StopStrings stops) : stops_(std::move(stops)) {}

  // A token of the answer; its bytes are what it adds to the text. Appends to `out` what may be sent now.
  void push(TokenInfo token, Delta& out);
  // Nothing more comes: appends what was held back, unless a stop string was found.
  void finish(Delta& out);

  bool stopped() const { return stops_.stopped(); }
  const std::string& stop_string() const { return stops_.found(); }

 private:
  struct Held {
    TokenInfo token;
    std::size_t begin = 0, end = 0;  // the token's place in the text, in bytes of whole characters
  };
  void release(std::string shown, Delta& out);

  text::Utf8Hold hold_;
  text::StopStrings stops_;
  std::deque<Held> held_;   // tokens whose text was not sent to its end
  std::size_t length_ = 0;  // of the text so far, held back or not
  std::size_t shown_ = 0;
};

}  // namespace drift::server
