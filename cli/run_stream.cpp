#include "cli/run_stream.hpp"

#include <algorithm>
#include <utility>

namespace drift::cli {
namespace {

constexpr std::string_view kReset = "\x1b[0m";

std::string_view colour(Look look) {
  switch (look) {
    case Look::kTarget: return "";
    case Look::kAccepted: return "\x1b[32m";
    case Look::kBank: return "\x1b[1;35m";
    case Look::kRejected: return "\x1b[9;31m";
  }
  return "";
}

std::string painted(Look look, std::string_view text) {
  const std::string_view begin = colour(look);
  if (begin.empty()) return std::string(text);
  return std::string(begin) + std::string(text) + std::string(kReset);
}

// A proposal that never became text must not move the cursor.
std::string on_one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += '.';
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string colour_legend() {
  return "target's own  " + painted(Look::kAccepted, "accepted") + "  " + painted(Look::kBank, "accepted thanks to the bank") +
         "  " + painted(Look::kRejected, "rejected") + "\n";
}

RunStream::RunStream(text::StopStrings stops, bool colours, std::function<void(std::string_view)> sink)
    : stops_(std::move(stops)), colours_(colours), sink_(std::move(sink)) {}

void RunStream::token(Look look, std::string_view bytes) { push(look, hold_.push(bytes)); }

void RunStream::rejected(std::string_view bytes) {
  if (!colours_ || stopped()) return;
  text::Utf8Hold own;
  std::string whole = own.push(bytes);
  whole += own.finish();
  if (whole.empty()) return;
  waiting_.push_back({Look::kRejected, on_one_line(whole)});
  release(0);
}

void RunStream::finish() {
  push(Look::kTarget, hold_.finish());
  release(stops_.finish().size());
  waiting_.clear();
}

void RunStream::push(Look look, std::string whole) {
  if (whole.empty() || stopped()) return;
  const std::size_t shown = stops_.push(whole).size();
  waiting_.push_back({look, std::move(whole)});
  release(shown);
}

// Stop strings release bytes in order, so counting them is enough.
void RunStream::release(std::size_t bytes) {
  while (!waiting_.empty()) {
    Segment& first = waiting_.front();
    if (first.look == Look::kRejected) {
      show(first.look, first.text);
      waiting_.pop_front();
      continue;
    }
    if (bytes == 0) return;
    const std::size_t count = std::min(bytes, first.text.size());
    show(first.look, std::string_view(first.text).substr(0, count));
    text_ += first.text.substr(0, count);
    bytes -= count;
    first.text.erase(0, count);
    if (first.text.empty()) waiting_.pop_front();
  }
}

void RunStream::show(Look look, std::string_view text) {
  if (sink_ && !text.empty()) sink_(colours_ ? painted(look, text) : std::string(text));
}

}  // namespace drift::cli
