// run_stream.hpp - generated tokens on their way to the reader: whole characters, stop strings, colours by origin.
//
// Threads: one. Cost: linear.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "text/stop.hpp"
#include "text/utf8.hpp"

namespace drift::cli {

enum class Look { kTarget, kAccepted, kBank, kRejected };

// One line that explains the colours, already coloured.
std::string colour_legend();

class RunStream {
 public:
  // `sink` gets what is to be shown; with `colours` it holds ANSI sequences.
  RunStream(text::StopStrings stops, bool colours, std::function<void(std::string_view)> sink);

  // Bytes of an emitted token.
  void token(Look look, std::string_view bytes);
  // Bytes of a proposal that did not stand: shown struck through between the tokens, with colours only; never part of the text.
  void rejected(std::string_view bytes);
  // Nothing more comes: what was held back is shown unless a stop string was found.
  void finish();

  bool stopped() const { return stops_.stopped(); }
  const std::string& stop_string() const { return stops_.found(); }
  const std::string& text() const { return text_; }  // all text shown, without colours and rejected proposals

 private:
  struct Segment {
    Look look;
    std::string text;
  };
  void push(Look look, std::string whole);
  void release(std::size_t bytes);
  void show(Look look, std::string_view text);

  text::StopStrings stops_;
  text::Utf8Hold hold_;
  bool colours_;
  std::function<void(std::string_view)> sink_;
  std::deque<Segment> waiting_;  // not shown yet, in order: text that may become a stop string, and rejected proposals
  std::string text_;
};

}  // namespace drift::cli
