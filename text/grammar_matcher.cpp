#include "text/grammar_matcher.hpp"

#include <algorithm>

namespace drift::text {
namespace {

using Kind = Grammar::Kind;

constexpr std::uint32_t kUnknown = UINT32_MAX;
constexpr std::size_t kWorkMax = std::size_t{1} << 20;  // stacks looked at for one token or mask: a tenth of a second
// What one matcher may hold; above a part of it settle() begins anew. All together some 100 MB, and a few as a rule.
constexpr std::size_t kStacksMax = std::size_t{1} << 20;
constexpr std::size_t kHeldMax = std::size_t{1} << 22;
constexpr std::size_t kNextMax = std::size_t{1} << 23;
constexpr std::size_t kMaskBytesMax = std::size_t{16} << 20;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Pieces> pieces, GrammarExtras extras)
    : grammar_(std::move(grammar)), pieces_(std::move(pieces)), extras_(std::move(extras)) {
  clear();
  std::vector<std::uint32_t> open;
  for (const std::uint32_t first : grammar_->alternatives(grammar_->root())) open.push_back(push(first, 0));
  begin_ = read_from(std::move(open));
  if (!extras_.read.empty()) begin_ = after_bytes(begin_, extras_.read);
}

void GrammarMatcher::clear() {
  stacks_.assign(1, {});
  stack_of_.clear();
  seen_.assign(1, 0);
  reading_ = 0;
  sets_.clear();
  set_of_.clear();
  next_.clear();
  held_ = masks_ = 0;
  static_cast<void>(add_set({}));  // kDead
}

bool GrammarMatcher::is_large(std::size_t of_limits) const {
  return stacks_.size() > kStacksMax / of_limits || held_ > kHeldMax / of_limits || next_.size() > kNextMax / of_limits;
}

void GrammarMatcher::fail() {
  if (failure_.empty()) failure_ = "the grammar can be read in too many ways; make it less ambiguous";
}

std::uint32_t GrammarMatcher::add_stack(const Stack& stack) {
  const std::uint64_t hash = mix(mix(mix(0, stack.element), stack.node), stack.below);
  const auto [from, to] = stack_of_.equal_range(hash);
  for (auto it = from; it != to; ++it) {
    if (stacks_[it->second] == stack) return it->second;
  }
  const auto number = static_cast<std::uint32_t>(stacks_.size());
  stacks_.push_back(stack);
  seen_.push_back(0);
  stack_of_.emplace(hash, number);
  return number;
}

// What is left of an alternative on top of a stack; nothing, at its end.
std::uint32_t GrammarMatcher::push(std::uint32_t element, std::uint32_t below) {
  const Grammar::Element& e = grammar_->element(element);
  if (e.kind == Kind::kEnd) return below;
  return add_stack({element, e.kind == Kind::kChar ? e.value : 0, below});
}

spec::Constraint::State GrammarMatcher::add_set(std::vector<std::uint32_t> stacks) {
  std::sort(stacks.begin(), stacks.end());
  stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
  std::uint64_t hash = stacks.size();
  for (const std::uint32_t s : stacks) hash = mix(hash, s);
  const auto [from, to] = set_of_.equal_range(hash);
  for (auto it = from; it != to; ++it) {
    if (sets_[it->second].stacks == stacks) return it->second;
  }
  const auto number = static_cast<State>(sets_.size());
  held_ += stacks.size();
  sets_.push_back({std::move(stacks), nullptr});
  set_of_.emplace(hash, number);
  next_.resize(next_.size() + grammar_->byte_classes(), kUnknown);
  return number;
}

// The set of all stacks that these become when rules on top are replaced by their alternatives.
spec::Constraint::State GrammarMatcher::read_from(std::vector<std::uint32_t> open) {
  std::vector<std::uint32_t> out;
  ++reading_;
  while (!open.empty()) {
    const std::uint32_t number = open.back();
    open.pop_back();
    if (seen_[number] == reading_) continue;
    seen_[number] = reading_;
    if (++work_ > kWorkMax || is_large(1)) {
      fail();
      return kDead;
    }
    const Stack top = stacks_[number];
    if (number == 0 || grammar_->element(top.element).kind != Kind::kRule) {
      out.push_back(number);
      continue;
    }
    const std::uint32_t rest = push(top.element + 1, top.below);
    for (const std::uint32_t first : grammar_->alternatives(grammar_->element(top.element).value))
      open.push_back(push(first, rest));
  }
  return add_set(std::move(out));
}

spec::Constraint::State GrammarMatcher::after_byte(State state, std::uint8_t byte) {
  const std::size_t at = state * grammar_->byte_classes() + grammar_->byte_class(byte);
  if (next_[at] != kUnknown) return next_[at];
  std::vector<std::uint32_t> open;
  for (const std::uint32_t number : sets_[state].stacks) {
    if (number == 0) continue;
    const Stack top = stacks_[number];
    if (grammar_->element(top.element).kind != Kind::kChar) continue;
    for (const Grammar::Arc& arc : grammar_->node(top.node)) {
      if (byte < arc.low || byte > arc.high) continue;
      open.push_back(arc.to == Grammar::kWhole ? push(top.element + 1, top.below) : add_stack({top.element, arc.to, top.below}));
    }
  }
  const State next = read_from(std::move(open));
  next_[at] = next;
  return next;
}

spec::Constraint::State GrammarMatcher::after_bytes(State state, std::string_view bytes) {
  if (bytes.empty()) return kDead;
  for (const char c : bytes) {
    if (state == kDead) break;
    state = after_byte(state, static_cast<std::uint8_t>(c));
  }
  return state;
}

spec::Constraint::State GrammarMatcher::after(State state, Token token) {
  work_ = 0;
  if (state == kDead || !failure_.empty()) return kDead;
  if (is_waiting(state)) return after_waiting(ends_[state & ~kWaiting]->end, bytes_of(token));
  const State by_bytes = after_bytes(state, bytes_of(token));
  if (!grammar_->has_tokens()) return by_bytes;
  std::vector<std::uint32_t> open = sets_[by_bytes].stacks;
  for (const std::uint32_t number : sets_[state].stacks) {
    if (number == 0) continue;
    const Stack top = stacks_[number];
    const Grammar::Element e = grammar_->element(top.element);
    const bool same = e.value == static_cast<std::uint32_t>(token);
    if ((e.kind == Kind::kToken && same) || (e.kind == Kind::kNotToken && !same))
      open.push_back(push(top.element + 1, top.below));
  }
  return read_from(std::move(open));
}

std::string_view GrammarMatcher::bytes_of(Token token) const {
  for (const auto& [shown, bytes] : extras_.shown) {
    if (shown == token) return bytes;
  }
  return pieces_->of(token);
}

// ---- before a trigger ----

GrammarMatcher::Waiting& GrammarMatcher::waiting(const std::string& end) {
  const auto [at, is_new] = waiting_.try_emplace(end);
  if (is_new) at->second = {kWaiting | static_cast<State>(ends_.size()), end, nullptr};
  if (is_new) ends_.push_back(&at->second);
  return at->second;
}

// The first trigger in the text begins the grammar; without one, what is left is the longest end that may still become one.
spec::Constraint::State GrammarMatcher::after_waiting(const std::string& end, std::string_view bytes) {
  std::string text = end;
  text += bytes;
  if (extras_.required) {
    for (const std::string& trigger : extras_.triggers) {
      if (text.starts_with(trigger)) return after_bytes(begin_, text);
      if (trigger.starts_with(text) && !bytes.empty()) return waiting(text).state;
    }
    return kDead;
  }
  std::size_t first = std::string::npos, left = 0;
  for (const std::string& trigger : extras_.triggers) {
    first = std::min(first, text.find(trigger));
    for (std::size_t n = std::min(trigger.size() - 1, text.size()); n > left; --n) {
      if (text.compare(text.size() - n, n, trigger, 0, n) == 0) left = n;
    }
  }
  if (first != std::string::npos) return after_bytes(begin_, std::string_view(text).substr(first));
  return waiting(text.substr(text.size() - left)).state;
}

// All, but tokens that hold a trigger and go on from it as the grammar does not; where one is required, only what leads there.
const GrammarMatcher::Bits& GrammarMatcher::allowed_waiting(State state) {
  Waiting& at = *ends_[state & ~kWaiting];
  if (at.allowed) return *at.allowed;
  work_ = 0;
  auto bits = std::make_unique<Bits>(pieces_->vocab() / 64 + 1, extras_.required ? 0 : ~std::uint64_t{0});
  bool any = !extras_.required;
  const auto try_one = [&](Token token, std::string_view bytes) {
    const bool may_come = after_waiting(at.end, bytes) != kDead;
    const std::uint64_t bit = std::uint64_t{1} << (token % 64);
    std::uint64_t& word = (*bits)[static_cast<std::size_t>(token) / 64];
    word = may_come ? word | bit : word & ~bit;
    any = any || may_come;
  };
  for (std::size_t i = 0; i < pieces_->size(); ++i) try_one(pieces_->token(i), pieces_->bytes(i));
  for (const auto& [token, bytes] : extras_.shown) try_one(token, bytes);
  for (const Token end : pieces_->ends()) {
    if (!any) (*bits)[static_cast<std::size_t>(end) / 64] |= std::uint64_t{1} << (end % 64);
  }
  at.allowed = std::move(bits);
  return *at.allowed;
}

// ---- masks ----

// Sets the bit of every token whose bytes can be read. Tokens come sorted: the states along what two have in common are kept.
void GrammarMatcher::try_pieces(State state, Bits& out) {
  along_.resize(pieces_->longest() + 1);
  along_[0] = state;
  std::size_t alive = 0;  // bytes of the last piece that could be read
  for (std::size_t i = 0; i < pieces_->size(); ++i) {
    const std::size_t common = pieces_->common(i);
    if (common > alive) continue;  // it begins with what could not be read just now
    const std::string_view bytes = pieces_->bytes(i);
    alive = common;
    while (alive < bytes.size()) {
      const State next = after_byte(along_[alive], static_cast<std::uint8_t>(bytes[alive]));
      if (next == kDead) break;
      along_[++alive] = next;
    }
    if (!failure_.empty()) return;
    const Token token = pieces_->token(i);
    if (alive == bytes.size()) out[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
  }
}

const GrammarMatcher::Bits& GrammarMatcher::allowed(State state) {
  if (is_waiting(state)) return allowed_waiting(state);
  if (sets_[state].allowed) return *sets_[state].allowed;
  const std::size_t words = pieces_->vocab() / 64 + 1;
  if ((masks_ + 1) * words * sizeof(std::uint64_t) > kMaskBytesMax) {
    for (Set& set : sets_) set.allowed.reset();
    masks_ = 0;
  }
  work_ = 0;
  auto bits = std::make_unique<Bits>(words);
  const auto set = [&](Token t, bool on) {
    const std::uint64_t bit = std::uint64_t{1} << (t % 64);
    std::uint64_t& word = (*bits)[static_cast<std::size_t>(t) / 64];
    word = on ? word | bit : word & ~bit;
  };
  if (state != kDead && failure_.empty()) {
    try_pieces(state, *bits);
    for (const auto& [token, bytes] : extras_.shown) set(token, after_bytes(state, bytes) != kDead);
    for (const std::uint32_t number : sets_[state].stacks) {
      if (number == 0) continue;
      const Grammar::Element e = grammar_->element(stacks_[number].element);
      if (e.kind == Kind::kToken && e.value < pieces_->vocab()) set(static_cast<Token>(e.value), true);
      for (std::size_t i = 0; e.kind == Kind::kNotToken && i < pieces_->size(); ++i) {
        if (static_cast<std::uint32_t>(pieces_->token(i)) != e.value) set(pieces_->token(i), true);
      }
    }
  }
  if (!failure_.empty()) std::fill(bits->begin(), bits->end(), 0);
  const bool may_end = complete(state) || std::all_of(bits->begin(), bits->end(), [](std::uint64_t word) { return word == 0; });
  for (const Token end : pieces_->ends()) set(end, may_end);
  ++masks_;
  sets_[state].allowed = std::move(bits);
  return *sets_[state].allowed;
}

void GrammarMatcher::mask(State state, std::span<float> logits) {
  const Bits& bits = allowed(failure_.empty() ? state : kDead);
  for (std::size_t word = 0; word * 64 < logits.size(); ++word) {
    const std::uint64_t in = word < bits.size() ? bits[word] : 0;
    if (in == ~std::uint64_t{0}) continue;
    const std::size_t end = std::min(logits.size(), word * 64 + 64);
    for (std::size_t t = word * 64; t < end; ++t) {
      if ((in >> (t % 64) & 1) == 0) logits[t] = spec::kForbidden;
    }
  }
}

// What grew large is made anew from where the text stands.
spec::Constraint::State GrammarMatcher::settle(State state) {
  if (is_waiting(state) || !is_large(4)) return state;
  // Whatever lies below a stack was made before it.
  std::vector<std::uint32_t> needed = sets_[state].stacks;
  std::vector<bool> has(stacks_.size());
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (has[needed[i]]) continue;
    has[needed[i]] = true;
    needed.push_back(stacks_[needed[i]].below);
  }
  const std::vector<Stack> before = std::move(stacks_);
  std::vector<std::uint32_t> tops = sets_[state].stacks;
  clear();
  std::vector<std::uint32_t> now(before.size());
  for (std::size_t i = 1; i < before.size(); ++i) {
    if (has[i]) now[i] = add_stack({before[i].element, before[i].node, now[before[i].below]});
  }
  for (std::uint32_t& top : tops) top = now[top];
  begin_ = kDead;  // nobody asks for it again
  return add_set(std::move(tops));
}

}  // namespace drift::text
