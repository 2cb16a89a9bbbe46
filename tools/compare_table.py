#!/usr/bin/env python3
"""Prints reports of `drift compare --json` as one Markdown table, a row for each domain (of a stream: each segment, then the whole) and mode.

usage: tools/compare_table.py REPORT.json [REPORT.json ...]
Figures are copied from the reports, but for the column "against static": the difference in acceptance (accepted / drafted) from the
mode labelled static, in points, with a paired 95 % bootstrap interval over prompts (10,000 resamples, fixed seed). A partial
report is refused.
"""
import json
import random
import sys


def fail(message):
    sys.exit(f"compare_table: {message}")


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")
    if report.get("schema") != "drift.compare/1":
        fail(f"{path}: schema is {report.get('schema')!r}; this tool reads drift.compare/1")
    if report["partial"]:
        fail(f"{path}: the run was interrupted; its figures are not a table's")
    return report


def domain_of(report):
    names = {p["domain"] for p in report["prompts"]}
    return names.pop() if len(names) == 1 else "mixed"


def shown(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def paired_difference(pairs):
    """Difference in acceptance in points and its interval, or None where there is nothing to compare. A pair is what one prompt gave:
    accepted and drafted, then accepted and drafted of the mode it is held against."""
    def difference(sample):
        accepted, drafted, accepted_static, drafted_static = (sum(column) for column in zip(*sample))
        return 100 * (accepted / drafted - accepted_static / drafted_static) if drafted and drafted_static else 0.0
    if not any(p[3] for p in pairs) or not any(p[1] for p in pairs):
        return None
    dice = random.Random(1)
    resampled = sorted(difference(dice.choices(pairs, k=len(pairs))) for _ in range(10_000))
    return difference(pairs), resampled[250], resampled[9_749]


def shown_against_static(prompts, label):
    def counts(prompt, wanted):
        runs = [run for run in prompt["runs"] if run["label"] == wanted]
        return sum(run["accepted"] for run in runs), sum(run["drafted"] for run in runs)
    found = None if label == "static" else paired_difference([counts(p, label) + counts(p, "static") for p in prompts])
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


def quartiles(values):
    if not values:
        return None
    values = sorted(values)

    def at(q):  # linear between ranks, as the program does it
        rank = q * (len(values) - 1)
        low = int(rank)
        return values[low] + (rank - low) * (values[min(low + 1, len(values) - 1)] - values[low])
    return at(0.25), at(0.75)


def within(report, mode, number, prompts):
    """The mode's figures within one segment. Overhead is told for the whole stream only."""
    runs = [run for prompt in prompts for run in prompt["runs"] if run["label"] == mode["label"]]
    part = dict(mode["segments"][number], mode=mode["mode"], label=mode["label"])
    cost = report["modelled_at"]
    passes = part["drafted"] * cost["draft_cost"] + part["steps"] * cost["verify_cost"]
    part["modelled_speedup"] = part["tokens"] / passes if passes else None
    part["speedup_quartiles"] = quartiles([run["speedup"] for run in runs if run["speedup"] is not None])
    judged = mode["diverged_prompts"] is not None
    margins = [run["divergence_margin"] for run in runs if run["first_difference"] is not None]
    part["diverged_prompts"] = sum(any(run["label"] == mode["label"] and run["first_difference"] is not None for run in p["runs"]) for p in prompts) if judged else None
    part["max_divergence_margin"] = None if not judged or None in margins else max(margins, default=0.0)
    part["allowed_divergence_margin"] = mode["allowed_divergence_margin"]
    return part


def rows(report):
    for number, segment in enumerate(report.get("segments", [])):
        name = f"{number + 1} {segment['domain'] or '(none)'}"
        prompts = report["prompts"][segment["first_prompt"]:segment["first_prompt"] + segment["prompts"]]
        for mode in report["modes"]:
            yield row(name, within(report, mode, number, prompts), prompts)
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
    reports = [read(path) for path in sys.argv[1:]]
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
