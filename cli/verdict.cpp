#include "cli/verdict.hpp"

#include <fmt/format.h>

#include <iterator>

namespace drift::cli {
namespace {

void put_curve(std::string& text, const char* name, const control::CostCurve& curve) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{:<8} ms", name);
  for (const double ms : curve.ms) fmt::format_to(out, " {:>7.1f}", ms);
  fmt::format_to(out, "\n{:<8}   ", "");
  for (const double ms : curve.ms) fmt::format_to(out, " {:>6.2f}x", curve.at(1) > 0 ? ms / curve.at(1) : 0.0);
  fmt::format_to(out, "\n");
}

}  // namespace

std::string curve_table(const control::CostCurve& target, const control::CostCurve* draft) {
  std::string text = fmt::format("{:<11}", "rows:");
  for (std::size_t n = 1; n <= control::kCurveRows; ++n) fmt::format_to(std::back_inserter(text), "{:>8}", n);
  text += "\n";
  put_curve(text, "target", target);
  if (draft != nullptr) put_curve(text, "draft", *draft);
  return text;
}

std::string verdict(const control::CostCurve& target, const control::CostCurve& draft, int draft_tokens, double alpha,
                    const std::string& label, double measured) {
  const auto rows = static_cast<std::size_t>(draft_tokens) + 1;
  const double speedup = control::block_speedup(target, draft, draft_tokens, alpha);
  const double needed = control::break_even(target, draft, draft_tokens);
  const double draft_share = draft.at(1) / target.at(1), verify = control::pass_ms(target, rows) / target.at(1);
  std::string text = fmt::format("Blocks of {}: a drafted token costs {:.2f} of a target token, verifying {} rows costs {:.2f}. ",
                                 draft_tokens, draft_share, rows, verify);
  if (needed > 1) {
    text += fmt::format("Drafting cannot pay here, even if every proposal stood: ");
  } else {
    text += fmt::format("Drafting pays from a conditional acceptance of {:.2f}; '{}' has {:.2f}, so it should give {:.2f}x. ",
                        needed, label, alpha, speedup);
    if (speedup >= 1 && (measured <= 0 || measured >= 1)) return text + "Drafting pays here.";
    if (speedup >= 1) {
      return text + fmt::format(
                        "But this run had {:.2f}x: drafting loses here, and the costs, measured apart from it, mislead (a busy "
                        "machine?).",
                        measured);
    }
    text += "Drafting loses here: ";
  }
  // Which change alone would make it pay: a free draft, or verification at the price of one token?
  control::CostCurve free_draft = draft, flat = target;
  for (double& ms : free_draft.ms) ms = 0;
  for (double& ms : flat.ms) ms = target.at(1);
  const double with_free_draft = control::block_speedup(target, free_draft, draft_tokens, alpha);
  const double with_flat = control::block_speedup(flat, draft, draft_tokens, alpha);
  if (with_flat < 1 && with_free_draft < 1) {
    text += "the draft is too dear and verification too.";
  } else if (with_free_draft >= with_flat) {
    text += fmt::format("the draft is too dear (a free one would give {:.2f}x).", with_free_draft);
  } else {
    text += fmt::format("verifying several rows is too dear (at the price of one it would give {:.2f}x).", with_flat);
  }
  return text;
}

}  // namespace drift::cli
