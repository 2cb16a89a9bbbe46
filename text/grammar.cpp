#include "text/grammar.hpp"

#include <algorithm>
#include <bitset>
#include <charconv>
#include <map>
#include <string>

#include "text/char_nodes.hpp"
#include "text/utf8.hpp"

namespace drift::text {
namespace {

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

// Reads the notation into rules of alternatives, then checks them and lays them out. Every step that can fail returns whether it did not;
// the first failure is kept.
class GrammarReader {
 public:
  using Kind = Grammar::Kind;
  using Element = Grammar::Element;
  using Sequence = std::vector<Element>;

  GrammarReader(std::string_view text, const TokenOfName& token_of_name) : text_(text), token_of_name_(token_of_name) {}

  Result<std::shared_ptr<const Grammar>> read() {
    if (!read_rules() || !check_names() || !drop_impossible() || !check_recursion()) return failure_;
    return lay_out();
  }

 private:
  struct Rule {
    std::string_view name;  // empty: made for a part of another
    bool defined = false;
    std::vector<Sequence> alternatives;
  };

  bool fail(std::string why, Code code = Code::kInvalid) {
    if (failure_.is_ok()) failure_ = {code, std::move(why)};
    return false;
  }
  bool fail_here(const std::string& why) {
    const std::size_t line =
        1 + static_cast<std::size_t>(std::count(text_.begin(), text_.begin() + static_cast<long>(at_), '\n'));
    return fail("line " + std::to_string(line) + ": " + why + " at '" + std::string(text_.substr(at_, 20)) + "'");
  }

  // ---- the notation ----

  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void space(bool over_lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (over_lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }
  std::string_view word() {
    const std::size_t from = at_;
    while (is_word(peek())) ++at_;
    return text_.substr(from, at_ - from);
  }

  bool read_rules() {
    if (text_.size() > kGrammarBytesMax)
      return fail("it has " + std::to_string(text_.size()) + " bytes; at most " + std::to_string(kGrammarBytesMax) + " are taken",
                  Code::kLimit);
    if (valid_prefix(text_) < text_.size()) return fail("it is not valid UTF-8 at byte " + std::to_string(valid_prefix(text_)));
    if (text_.find('\0') != std::string_view::npos) return fail("it holds a NUL byte");
    space(true);
    while (at_ < text_.size()) {
      const std::string_view name = word();
      if (name.empty()) return fail_here("a rule's name is expected");
      const std::uint32_t rule = named(name);
      space(false);
      if (text_.substr(at_, 3) != "::=") return fail_here("::= is expected");
      at_ += 3;
      space(true);
      if (!read_alternatives(rule, 0)) return false;
      if (at_ < text_.size() && peek() != '\n' && peek() != '\r') return fail_here("the end of the line is expected");
      space(true);
    }
    return true;
  }

  std::uint32_t named(std::string_view name) {
    const auto [at, is_new] = names_.emplace(name, static_cast<std::uint32_t>(rules_.size()));
    if (is_new) rules_.push_back({name, false, {}});
    return at->second;
  }
  std::uint32_t unnamed() {
    rules_.emplace_back().defined = true;
    return static_cast<std::uint32_t>(rules_.size() - 1);
  }
  bool add(Sequence& to, Element element) {
    if (++elements_ > kGrammarElementsMax) {
      return fail(
          "it is too large: with its repetitions written out it has more than " + std::to_string(kGrammarElementsMax) + " parts",
          Code::kLimit);
    }
    to.push_back(element);
    return true;
  }

  bool read_alternatives(std::uint32_t rule, std::size_t depth) {
    if (depth > kGrammarDepthMax)
      return fail("brackets are nested deeper than " + std::to_string(kGrammarDepthMax), Code::kLimit);
    std::vector<Sequence> alternatives;
    while (true) {
      ++elements_;  // its end
      if (!read_sequence(alternatives.emplace_back(), depth)) return false;
      if (peek() != '|') break;
      ++at_;
      space(true);
    }
    rules_[rule].alternatives = std::move(alternatives);
    rules_[rule].defined = true;
    return true;
  }

  bool read_sequence(Sequence& out, std::size_t depth) {
    const bool inside = depth > 0;
    std::size_t symbol = 0;  // where the last one begins, which a repetition is of
    bool any = false;
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (!any || symbol == out.size()) return fail_here("something to repeat is expected");
        if (!read_repetition(out, symbol, inside)) return false;
        continue;
      }
      const std::size_t begin = out.size();
      if (c == '"') {
        if (!read_literal(out)) return false;
      } else if (c == '[') {
        if (!read_class(out)) return false;
      } else if (c == '.') {
        ++at_;
        if (!add(out, {Kind::kChar, chars({}, true)})) return false;
      } else if (c == '<' || c == '!') {
        if (!read_token(out)) return false;
      } else if (c == '(') {
        ++at_;
        space(true);
        const std::uint32_t part = unnamed();
        if (!read_alternatives(part, depth + 1)) return false;
        if (peek() != ')') return fail_here("')' is expected");
        ++at_;
        if (!add(out, {Kind::kRule, part})) return false;
      } else if (is_word(c)) {
        if (!add(out, {Kind::kRule, named(word())})) return false;
      } else {
        break;
      }
      symbol = begin;
      any = true;
      space(inside);
    }
    return true;
  }

  bool hex(std::size_t digits, std::uint32_t& out) {
    const std::string_view number = text_.substr(at_, digits);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out, 16);
    if (error != std::errc() || number.size() != digits || end != number.data() + digits)
      return fail_here(std::to_string(digits) + " hexadecimal digits are expected");
    at_ += digits;
    return true;
  }

  // One character, perhaps escaped.
  bool read_char(std::uint32_t& out) {
    if (at_ >= text_.size()) return fail_here("the end of the text is not expected");
    const char c = text_[at_];
    if (c != '\\') {
      const auto lead = static_cast<unsigned char>(c);
      const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      out = lead < 0x80 ? lead : lead & (0xFFu >> (length + 1));
      for (std::size_t i = 1; i < length; ++i) out = out << 6 | (static_cast<unsigned char>(text_[at_ + i]) & 0x3Fu);
      at_ += length;
      return true;
    }
    const char escaped = peek(1);
    at_ += 2;
    switch (escaped) {
      case 'x': return hex(2, out);
      case 'u': return hex(4, out);
      case 'U': return hex(8, out);
      case 't': out = '\t'; return true;
      case 'r': out = '\r'; return true;
      case 'n': out = '\n'; return true;
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-': out = static_cast<unsigned char>(escaped); return true;
      default: at_ -= 2; return fail_here("this escape is not known");
    }
  }

  std::uint32_t chars(std::vector<CharRange> ranges, bool negated) { return nodes_.of(plain_ranges(std::move(ranges), negated)); }

  bool read_literal(Sequence& out) {
    ++at_;
    while (peek() != '"') {
      std::uint32_t c = 0;
      if (!read_char(c) || !add(out, {Kind::kChar, chars({{c, c}}, false)})) return false;
    }
    ++at_;
    return true;
  }

  bool read_class(Sequence& out) {
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::vector<CharRange> ranges;
    while (peek() != ']') {
      std::uint32_t low = 0;
      if (!read_char(low)) return false;
      std::uint32_t high = low;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        if (!read_char(high)) return false;
      }
      ranges.emplace_back(low, high);
    }
    ++at_;
    elements_ += ranges.size() / 8;  // they take memory, too
    return add(out, {Kind::kChar, chars(std::move(ranges), negated)});
  }

  bool read_token(Sequence& out) {
    const bool negated = peek() == '!';
    if (negated) ++at_;
    const std::size_t end = text_.find('>', at_);
    if (peek() != '<' || end == std::string_view::npos) return fail_here("a token in <> is expected");
    const std::string_view name = text_.substr(at_, end + 1 - at_);
    std::optional<Token> token;
    if (name.size() > 4 && name.size() < 16 && name[1] == '[' && name[name.size() - 2] == ']') {
      Token number = -1;
      const auto [stop, error] = std::from_chars(name.data() + 2, name.data() + name.size() - 2, number);
      if (error == std::errc() && stop == name.data() + name.size() - 2 && number >= 0) token = number;
    } else if (token_of_name_ && name.size() <= 64) {
      token = token_of_name_(name);
    }
    if (!token) return fail_here("this is not one token");
    at_ = end + 1;
    has_tokens_ = true;
    return add(out, {negated ? Kind::kNotToken : Kind::kToken, static_cast<std::uint32_t>(*token)});
  }

  bool number(std::uint64_t& out) {
    const std::size_t from = at_;
    while (is_digit(peek())) ++at_;
    const std::string_view digits = text_.substr(from, at_ - from);
    if (digits.empty()) return fail_here("a number is expected");
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    if (error != std::errc() || out > kRepetitionsMax) {
      return fail("something is to be repeated " + std::string(digits.substr(0, 20)) + " times; at most " +
                      std::to_string(kRepetitionsMax) + " are taken",
                  Code::kLimit);
    }
    return true;
  }

  bool read_repetition(Sequence& out, std::size_t symbol, bool inside) {
    std::uint64_t least = 0, most = 0;
    bool endless = false;
    const char c = peek();
    ++at_;
    if (c == '{') {
      space(inside);
      if (!number(least)) return false;
      space(inside);
      most = least;
      if (peek() == ',') {
        ++at_;
        space(inside);
        endless = !is_digit(peek());
        if (!endless && !number(most)) return false;
        space(inside);
      }
      if (peek() != '}') return fail_here("'}' is expected");
      ++at_;
      if (!endless && most < least) return fail_here("the most is less than the least before this: a repetition");
    } else {
      least = c == '+' ? 1 : 0;
      most = 1;
      endless = c != '?';
    }
    space(inside);
    return repeat(out, symbol, least, endless ? std::nullopt : std::optional(most));
  }

  // S{m,n} is S m times, then S' with S' ::= S S'' |, S'' ::= S S''' | and so on; S{m,} ends with S' ::= S S' | instead.
  bool repeat(Sequence& out, std::size_t symbol, std::uint64_t least, std::optional<std::uint64_t> most) {
    Element unit = out[symbol];
    if (out.size() - symbol > 1) {
      unit = {Kind::kRule, unnamed()};
      ++elements_;
      rules_[unit.value].alternatives.emplace_back(out.begin() + static_cast<long>(symbol), out.end());
    }
    out.resize(symbol);
    for (std::uint64_t i = 0; i < least; ++i) {
      if (!add(out, unit)) return false;
    }
    const std::uint64_t more = most ? *most - least : 1;
    std::optional<std::uint32_t> last;
    for (std::uint64_t i = 0; i < more; ++i) {
      const std::uint32_t rest = unnamed();
      Sequence one;
      if (!add(one, unit)) return false;
      if (!most && !add(one, {Kind::kRule, rest})) return false;
      if (last && !add(one, {Kind::kRule, *last})) return false;
      elements_ += 2;
      rules_[rest].alternatives = {std::move(one), {}};
      last = rest;
    }
    return !last || add(out, {Kind::kRule, *last});
  }

  // ---- checks ----

  bool check_names() {
    for (const auto& [name, rule] : names_) {
      if (!rules_[rule].defined) return fail("rule '" + std::string(name.substr(0, 40)) + "' is not defined");
    }
    if (names_.find("root") == names_.end()) return fail("there is no rule 'root', which a text begins with");
    return true;
  }

  // Of every rule whether one of its alternatives is made of such rules only, and of elements that `plain` takes.
  template <class Plain>
  std::vector<bool> made_of(Plain plain) const {
    struct Open {
      std::uint32_t rule;
      std::size_t missing;
    };
    std::vector<Open> open;
    std::vector<std::vector<std::size_t>> waiting(rules_.size());
    std::vector<std::size_t> ready;
    std::vector<bool> out(rules_.size());
    for (std::uint32_t r = 0; r < rules_.size(); ++r) {
      for (const Sequence& sequence : rules_[r].alternatives) {
        if (!std::all_of(sequence.begin(), sequence.end(), [&](const Element& e) { return e.kind == Kind::kRule || plain(e); }))
          continue;
        std::size_t missing = 0;
        for (const Element& e : sequence) {
          if (e.kind != Kind::kRule) continue;
          waiting[e.value].push_back(open.size());
          ++missing;
        }
        open.push_back({r, missing});
        if (missing == 0) ready.push_back(open.size() - 1);
      }
    }
    while (!ready.empty()) {
      const std::uint32_t rule = open[ready.back()].rule;
      ready.pop_back();
      if (out[rule]) continue;
      out[rule] = true;
      for (const std::size_t i : waiting[rule]) {
        if (--open[i].missing == 0) ready.push_back(i);
      }
    }
    return out;
  }

  // What can match no text is left out; nothing leads into it then.
  bool drop_impossible() {
    const auto can_be = [this](const Element& e) { return e.kind != Kind::kChar || !nodes_.is_empty(e.value); };
    const std::vector<bool> possible = made_of(can_be);
    if (!possible[names_.at("root")]) return fail("it matches no text");
    for (Rule& rule : rules_) {
      std::erase_if(rule.alternatives, [&](const Sequence& sequence) {
        return !std::all_of(sequence.begin(), sequence.end(),
                            [&](const Element& e) { return e.kind == Kind::kRule ? possible[e.value] : can_be(e); });
      });
    }
    return true;
  }

  // A rule that calls itself before anything was read, with something left to do afterwards, has no end.
  bool check_recursion() {
    const std::vector<bool> maybe_empty = made_of([](const Element&) { return false; });
    struct Call {
      std::uint32_t rule;
      bool more;  // something follows
    };
    std::vector<std::vector<Call>> calls(rules_.size());
    for (std::size_t r = 0; r < rules_.size(); ++r) {
      for (const Sequence& sequence : rules_[r].alternatives) {
        for (std::size_t i = 0; i < sequence.size() && sequence[i].kind == Kind::kRule; ++i) {
          calls[r].push_back({sequence[i].value, i + 1 < sequence.size()});
          if (!maybe_empty[sequence[i].value]) break;
        }
      }
    }
    // Rules that call each other in a circle (Tarjan's components, without recursion of our own).
    constexpr std::uint32_t kNone = UINT32_MAX;
    std::vector<std::uint32_t> number(rules_.size(), kNone), low(rules_.size()), component(rules_.size(), kNone), stack;
    std::vector<std::pair<std::uint32_t, std::size_t>> work;
    std::uint32_t numbers = 0, components = 0;
    for (std::uint32_t from = 0; from < rules_.size(); ++from) {
      if (number[from] != kNone) continue;
      work.emplace_back(from, 0);
      while (!work.empty()) {
        const std::uint32_t r = work.back().first;
        if (work.back().second == 0) {
          number[r] = low[r] = numbers++;
          stack.push_back(r);
        }
        if (work.back().second < calls[r].size()) {
          const std::uint32_t to = calls[r][work.back().second++].rule;
          if (number[to] == kNone) {
            work.emplace_back(to, 0);
          } else if (component[to] == kNone) {
            low[r] = std::min(low[r], number[to]);
          }
          continue;
        }
        if (low[r] == number[r]) {
          for (std::uint32_t member = kNone; member != r;) {
            member = stack.back();
            stack.pop_back();
            component[member] = components;
          }
          ++components;
        }
        work.pop_back();
        if (!work.empty()) low[work.back().first] = std::min(low[work.back().first], low[r]);
      }
    }
    for (std::size_t r = 0; r < rules_.size(); ++r) {
      for (const Call& call : calls[r]) {
        if (!call.more || component[call.rule] != component[r]) continue;
        const std::string name(rules_[r].name.empty() ? std::string_view("a part of a rule") : rules_[r].name.substr(0, 40));
        return fail("'" + name + "' calls itself before it reads anything (left recursion)");
      }
    }
    return true;
  }

  std::shared_ptr<const Grammar> lay_out() {
    const std::shared_ptr<Grammar> out(new Grammar);
    out->root_ = names_.at("root");
    out->has_tokens_ = has_tokens_;
    out->rules_.resize(rules_.size());
    for (std::size_t r = 0; r < rules_.size(); ++r) {
      for (const Sequence& sequence : rules_[r].alternatives) {
        out->rules_[r].push_back(static_cast<std::uint32_t>(out->elements_.size()));
        out->elements_.insert(out->elements_.end(), sequence.begin(), sequence.end());
        out->elements_.push_back({});
      }
    }
    out->nodes_ = nodes_.take();
    out->classify_bytes();
    return out;
  }

  const std::string_view text_;
  const TokenOfName& token_of_name_;
  std::size_t at_ = 0;
  std::map<std::string_view, std::uint32_t> names_;
  std::vector<Rule> rules_;
  std::size_t elements_ = 0;
  CharNodes nodes_;
  bool has_tokens_ = false;
  Status failure_;
};

void Grammar::classify_bytes() {
  std::bitset<257> begins;  // where a class begins
  begins.set(0);
  for (const std::vector<Arc>& arcs : nodes_) {
    for (const Arc& arc : arcs) {
      begins.set(arc.low);
      begins.set(std::size_t{arc.high} + 1);
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (begins.test(byte)) byte_of_.push_back(static_cast<std::uint8_t>(byte));
    class_of_[byte] = static_cast<std::uint8_t>(byte_of_.size() - 1);
  }
}

Result<std::shared_ptr<const Grammar>> Grammar::parse(std::string_view gbnf, const TokenOfName& token_of_name) {
  return GrammarReader(gbnf, token_of_name).read();
}

}  // namespace drift::text
