#!/usr/bin/env python3
"""The lab: every scenario under every method, one report.

usage: lab/lab.py --program FILE --out DIR [--size smoke|quick|full] [--data DIR] [options]     (./dev lab calls it)
Scenarios are in lab/scenarios/, methods in lab/methods.toml. Each run is one call of `drift compare`; its report stays in OUT, and a run
whose report is there, whole, and of the same program, models, requests and settings is not repeated: a call that was interrupted goes on.
Writes OUT/lab.html (one file that needs no network), lab.md, lab.json and opening.png.
Exit codes: 0 done; 1 a run failed; 2 something given cannot be used; 3 done, but a text left plain decoding's by more than float noise
explains; 130 interrupted.
"""
import argparse
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import plan  # noqa: E402
import public_prompts  # noqa: E402
import runs  # noqa: E402
from runs import say  # noqa: E402


def arguments(words=None):
    parser = argparse.ArgumentParser(usage="lab/lab.py --program FILE --out DIR [options]", description=__doc__.split("\n\n")[0])
    built_in = os.path.join(ROOT, "models", "drift-mini-")
    parser.add_argument("--program", required=True, metavar="FILE", help="the program drift")
    parser.add_argument("--out", required=True, metavar="DIR", help="where reports are kept")
    parser.add_argument("--size", choices=plan.SIZES, default="full", help="; ".join(f"{name}: {each} requests a segment, {tokens} tokens each" for name, (each, tokens) in plan.SIZES.items()))
    parser.add_argument("--data", metavar="DIR", help="folder of DOMAIN.jsonl [a public set, built from texts that are on this machine]")
    parser.add_argument("--split", choices=("eval", "tune"), default="eval", help="rows for tables, or for choosing constants [eval]")
    parser.add_argument("--target", default=built_in + "target.gguf", metavar="FILE", help="[the built-in pair's]")
    parser.add_argument("--draft", default=built_in + "draft.gguf", metavar="FILE", help="[the built-in pair's]")
    parser.add_argument("--tuned", metavar="DIR", help="folder with draft-DOMAIN.gguf and target-DOMAIN.gguf (drift-train tune)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of drift [1: passes of the built-in pair are shorter than threads take to meet]")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this scenario; may be repeated")
    parser.add_argument("--report-only", action="store_true", help="run nothing; tables and pictures from what is there")
    return parser.parse_args(words)


def planned(lab, only):
    """(jobs, [what is left out and why])"""
    methods, scenarios = plan.read_methods(), plan.read_scenarios()
    unknown = set(only) - {s.name for s in scenarios}
    if unknown:
        raise plan.Unusable(f"there is no scenario {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in scenarios)}")
    jobs, skipped, missing = [], [], {}
    for scenario in scenarios:
        if scenario.name not in only if only else lab.size == "smoke" and scenario.name not in plan.SMOKE_SCENARIOS:
            continue
        for temperature, judge in scenario.points:
            job, notes = lab.job(scenario, temperature, judge, methods)
            if job is None:
                skipped.append(f"scenario {scenario.name}: {notes[0]}")
                break
            jobs.append(job)
            for label, needs in job.skipped.items():
                missing.setdefault((label, ", ".join(needs)), []).append(scenario.name)
            if (temperature, judge) == scenario.points[0]:
                skipped += [f"scenario {scenario.name}: {note}" for note in notes]
    reasons = {"torch": "this program is built without LibTorch", "levels": "this program has no setting `levels`",
               "tuned-draft": "there is no draft tuned on the scenario's one domain (--tuned)"}
    for (label, need), names in missing.items():
        ran = any(m.label == label for job in jobs for m in job.run.methods)
        where = "in " + ", ".join(dict.fromkeys(names)) if ran else "everywhere"
        skipped.append(f"method {label}: left out {where}: {reasons.get(need, need)}")
    return jobs, skipped


def main():
    options = arguments()
    runs.hear_sigterm()
    try:
        os.makedirs(options.out, exist_ok=True)
        data = options.data
        if data is None:
            data = os.path.join(options.out, "public-prompts")
            kept = public_prompts.write(public_prompts.built("/"), data)
            say("requests from texts on this machine: " + ", ".join(f"{name} {rows}" for name, rows in kept.items()))
        elif not os.path.isdir(data):
            raise plan.Unusable(f"{data} is not a folder")
        lab = runs.Lab(options.program, options.target, options.draft, data, options.out, options.size, options.split, options.tuned, options.threads)
        jobs, skipped = planned(lab, options.only)
    except (plan.Unusable, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    if "instruction" not in lab.kinds:
        skipped.insert(0, "rows of kind instruction: the target has no chat template")
    for line in skipped:
        say(f"SKIPPED {line}")
    odd = []
    try:
        if not options.report_only:
            odd = runs.run_all(jobs)
    except runs.Interrupted:
        say("interrupted; what is done is kept, and the same call goes on")
        return 130
    except runs.Failed as error:
        say(str(error))
        return 1
    import page  # needs the reports only now
    try:
        page.write_all(lab, [job for job in jobs if job.done], skipped, sys.argv, public=options.data is None)
    except plan.Unusable as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"{error.filename}: {error.strerror}")
        return 1
    return 3 if odd else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
