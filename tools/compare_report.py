"""What the tools that read reports of `drift compare --json` (docs/compare-format.md) share: reading one, the figures of a part of it,
and paired intervals. Standard library only.
"""
import functools
import json
import math
import operator
import random

RESAMPLES = 10_000
COUNTS = ("tokens", "steps", "drafted", "accepted", "copied", "accepted_copied", "time_ms")


class Unreadable(Exception):
    """Why a report cannot be used, for the user."""


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from error
    if not isinstance(report, dict) or report.get("schema") != "drift.compare/1":
        raise Unreadable(f"{path}: schema is {report.get('schema') if isinstance(report, dict) else None!r}; this tool reads drift.compare/1")
    if report["partial"]:
        raise Unreadable(f"{path}: the run was interrupted; its figures are not a table's")
    return report


def mode(report, label):
    return next((m for m in report["modes"] if m["label"] == label), None)


# ----------------------------------------------------------------------------------------------------------- counts

def counts(prompt, label):
    """What one prompt gave under one mode, over its repeats."""
    runs = [run for run in prompt["runs"] if run["label"] == label]
    return {name: sum(run.get(name, 0) for run in runs) for name in COUNTS}


def prompt_blocks(prompt, label, longest=None):
    return sum(blocks(run, longest) for run in prompt["runs"] if run["label"] == label)


def blocks(fold, longest=None):
    """Steps that drafted. A report gives them as a ratio to `accepted`; where none was accepted, the fewest that could have held what was
    drafted in blocks of `longest` (of steps, where that is not known)."""
    if fold["accepted"]:
        return round(fold["accepted"] / fold["mean_accepted_per_block"])
    if not fold["drafted"]:
        return 0
    return math.ceil(fold["drafted"] / longest) if longest else min(fold["steps"], fold["drafted"])


def modelled_speedup(fold, fold_blocks, cost):
    """What the counts would give at the report's `modelled_at`: as the program reckons it, a copied proposal costs no draft pass, a step
    that drafted nothing one plain pass."""
    passes = (fold["drafted"] - fold.get("copied", 0)) * cost["draft_cost"] + fold_blocks * cost["verify_cost"] + fold["steps"] - fold_blocks
    return fold["tokens"] / passes if passes else None


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
    part["modelled_speedup"] = modelled_speedup(part, blocks(part, len(mode.get("per_position") or []) or None), report["modelled_at"])
    part["speedup_quartiles"] = quartiles([run["speedup"] for run in runs if run["speedup"] is not None])
    judged = mode["diverged_prompts"] is not None
    margins = [run["divergence_margin"] for run in runs if run["first_difference"] is not None]
    part["diverged_prompts"] = sum(any(run["label"] == mode["label"] and run["first_difference"] is not None for run in p["runs"]) for p in prompts) if judged else None
    part["max_divergence_margin"] = None if not judged or None in margins else max(margins, default=0.0)
    part["allowed_divergence_margin"] = mode["allowed_divergence_margin"]
    return part


# -------------------------------------------------------------------------------------------------------- intervals

@functools.lru_cache(maxsize=8)
def _resamples(size):
    """For each resample what picks its rows out of a column. Always the same draws for the same size."""
    dice = random.Random(1)
    return [operator.itemgetter(*dice.choices(range(size), k=size)) if size > 1 else tuple for _ in range(RESAMPLES)]


def paired_interval(rows, figure):
    """figure(sums of the columns) and its 95 % bootstrap interval over the rows: (value, low, high), or None where there is no figure
    (None for the sums). A row is what one prompt gave under everything compared, so what is shared by the methods falls out.
    Resamples without a figure are left out; were these more than one in twenty, there is no interval."""
    columns = list(zip(*rows))
    value = figure(*(sum(column) for column in columns)) if columns else None
    if value is None:
        return None
    found = sorted(v for pick in _resamples(len(rows)) if (v := figure(*(sum(pick(column)) for column in columns))) is not None)
    if len(found) < 0.95 * RESAMPLES:
        return value, None, None
    return value, found[round(0.025 * len(found))], found[round(0.975 * len(found)) - 1]


def paired_difference(pairs):
    """Difference in acceptance in points and its interval, or None where there is nothing to compare. A pair is what one prompt gave:
    accepted and drafted, then accepted and drafted of the mode it is held against."""
    if not any(p[3] for p in pairs) or not any(p[1] for p in pairs):
        return None
    return paired_interval(pairs, lambda a, d, a0, d0: 100 * (a / d - a0 / d0) if d and d0 else 0.0)
