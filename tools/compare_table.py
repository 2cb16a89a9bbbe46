#!/usr/bin/env python3
"""Prints reports of `drift compare --json` as one Markdown table, a row for each domain and mode.

usage: tools/compare_table.py REPORT.json [REPORT.json ...]
Every figure is copied from the reports; nothing is recomputed but the totals' order. A partial report is refused.
"""
import json
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


def rows(report):
    name = domain_of(report)
    for mode in report["modes"]:
        off = mode["mode"] == "off"
        drafts = "-" if off else None
        low, high = mode["speedup_quartiles"] or (None, None)
        yield [
            name,
            mode["label"],
            str(mode["tokens"]),
            drafts or shown(mode["acceptance"], 3),
            drafts or shown(mode["acceptance_conditional"], 3),
            drafts or shown(mode["mean_accepted_per_block"], 2),
            shown(mode["tokens_per_s"], 1),
            f"{shown(mode['speedup'], 2)} ({shown(low, 2)}-{shown(high, 2)})",
            drafts or shown(mode["modelled_speedup"], 2),
            drafts or f"{100 * mode['overhead_fraction']:.2f} %",
            "-" if off else f"{mode['diverged_prompts']} ({shown(mode['max_divergence_margin'], 2)} / {shown(mode['allowed_divergence_margin'], 2)})",
        ]
        name = ""


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    head = ["domain", "mode", "tokens", "acceptance", "conditional", "per block", "tokens/s", "speed-up (quartiles)", "at the seed's costs",
            "overhead", "diverged (margin / allowed)"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    reports = [read(path) for path in sys.argv[1:]]
    for report in reports:
        for row in rows(report):
            print("| " + " | ".join(row) + " |")
    print("\nCost of one pass, in passes of one token (median over the runs above):\n")
    print("| model | " + " | ".join(f"{n} rows" for n in range(1, 9)) + " | ms of one token |")
    print("|" + "---|" * 10)
    for model in ("target", "draft"):
        curves = sorted((r["cost_curve"][model]["ms"] for r in reports), key=lambda ms: ms[0])
        middle = curves[len(curves) // 2]
        print(f"| {model} | " + " | ".join(f"{ms / middle[0]:.2f}" for ms in middle) + f" | {middle[0]:.0f} |")
    loads = [f"{r['load_average_before'][0]:.1f}" for r in reports]
    machine = reports[0]["machine"]
    print(f"\n{machine['cpu']}, {machine['threads']} threads, ggml {machine['ggml_flags']}, DRIFT kernels {machine['highway_target']}; "
          f"load average before each run {', '.join(loads)}; drift {reports[0]['drift_version']}.")


if __name__ == "__main__":
    main()
