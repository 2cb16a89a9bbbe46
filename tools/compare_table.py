#!/usr/bin/env python3
"""Prints reports of `drift compare --json` as one Markdown table, a row for each domain (of a stream: each segment, then the whole) and mode.

usage: tools/compare_table.py REPORT.json [REPORT.json ...]
Figures are copied from the reports, but for the column "against static": the difference in acceptance (accepted / drafted) from the
mode labelled static, in points, with a paired 95 % bootstrap interval over prompts (10,000 resamples, fixed seed). A partial
report is refused.
"""
import sys

import compare_report


def fail(message):
    sys.exit(f"compare_table: {message}")


def domain_of(report):
    names = {p["domain"] for p in report["prompts"]}
    return names.pop() if len(names) == 1 else "mixed"


def shown(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def shown_against_static(prompts, label):
    def pair(prompt, wanted):
        found = compare_report.counts(prompt, wanted)
        return found["accepted"], found["drafted"]
    found = None if label == "static" else compare_report.paired_difference([pair(p, label) + pair(p, "static") for p in prompts])
    return "-" if found is None else "{:+.1f} ({:+.1f} .. {:+.1f})".format(*found)


def row(name, mode, prompts):
    off = mode["mode"] == "off"
    drafts = "-" if off else None
    low, high = mode["speedup_quartiles"] or (None, None)
    overhead = mode.get("overhead_fraction")
    return [
        name,
        mode["label"],
        str(mode["tokens"]),
        drafts or shown(mode["acceptance"], 3),
        drafts or shown_against_static(prompts, mode["label"]),
        drafts or shown(mode["acceptance_conditional"], 3),
        drafts or shown(mode["mean_accepted_per_block"], 2),
        shown(mode["tokens_per_s"], 1),
        f"{shown(mode['speedup'], 2)} ({shown(low, 2)}-{shown(high, 2)})",
        drafts or shown(mode["modelled_speedup"], 2),
        drafts or ("-" if overhead is None else f"{100 * overhead:.2f} %"),
        "-" if off else f"{shown(mode['diverged_prompts'], 0)} ({shown(mode['max_divergence_margin'], 2)} / {shown(mode['allowed_divergence_margin'], 2)})",
    ]


def rows(report):
    for number, segment in enumerate(report.get("segments", [])):
        name = f"{number + 1} {segment['domain'] or '(none)'}"
        prompts = report["prompts"][segment["first_prompt"]:segment["first_prompt"] + segment["prompts"]]
        for mode in report["modes"]:
            yield row(name, compare_report.within(report, mode, number, prompts), prompts)
            name = ""
    name = "whole stream" if report.get("segments") else domain_of(report)
    for mode in report["modes"]:
        yield row(name, mode, report["prompts"])
        name = ""


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    head = ["domain", "mode", "tokens", "acceptance", "against static (95 %)", "conditional", "per block", "tokens/s", "speed-up (quartiles)", "at the seed's costs",
            "overhead", "diverged (margin / allowed)"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    try:
        reports = [compare_report.read(path) for path in sys.argv[1:]]
    except compare_report.Unreadable as error:
        fail(error)
    for report in reports:
        for cells in rows(report):
            print("| " + " | ".join(cells) + " |")
    print("\nCost of one pass, in passes of one token (median over the runs above):\n")
    print("| model | " + " | ".join(f"{n} rows" for n in range(1, 9)) + " | ms of one token |")
    print("|" + "---|" * 10)
    for model in ("target", "draft"):
        curves = sorted((r["cost_curve"][model]["ms"] for r in reports if r["cost_curve"][model]), key=lambda ms: ms[0])
        if not curves:
            continue
        middle = curves[len(curves) // 2]
        print(f"| {model} | " + " | ".join(f"{ms / middle[0]:.2f}" for ms in middle) + f" | {middle[0]:.{0 if middle[0] >= 10 else 2}f} |")
    loads = [f"{r['load_average_before'][0]:.1f}" for r in reports]
    machine = reports[0]["machine"]
    print(f"\n{machine['cpu']}, {machine['threads']} threads, ggml {machine['ggml_flags']}, DRIFT kernels {machine['highway_target']}; "
          f"load average before each run {', '.join(loads)}; drift {reports[0]['drift_version']}.")


if __name__ == "__main__":
    main()
