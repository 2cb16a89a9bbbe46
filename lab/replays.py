"""Replays of a corpus (lab/corpus.py) by `drift trace replay`, kept and not repeated; and their figures, request by request."""
import dataclasses
import hashlib
import json
import os
import shlex
import subprocess
import sys

import plan
import runs

MODES_MAX = 16  # of one call


def numpy():
    """numpy as `./dev lab studies` has installed it, else the system's. ImportError where there is none."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, os.path.join(os.environ.get("DRIFT_DEPS") or os.path.join(root, ".deps"), "lab"))
    import numpy as np
    return np


@dataclasses.dataclass(frozen=True)
class Place:
    """A request of an order: of which domain, which one, and whose memory it goes through."""
    domain: str
    prompt: int
    memory: str = ""


@dataclasses.dataclass
class Replayed:
    """One mode on one order. Requests stand in the order they came."""
    label: str
    order: int
    places: list
    prompts: list  # of the report, beside places
    entries: int

    def total(self, field, points=None):
        return sum(self.prompts[i][field] for i in (range(len(self.prompts)) if points is None else points))

    def acceptance(self, points=None):
        drafted = self.total("drafted", points)
        return self.total("accepted", points) / drafted if drafted else None

    def per_pass(self, points=None):
        return self.total("tokens", points) / self.total("steps", points)


class Corpus:
    """The traces of one pair in a folder, as lab/corpus.py leaves them."""

    def __init__(self, folder, program, out):
        self.folder, self.program, self.out = folder, program, out
        self.commands = []  # of the replays that were asked for, as a shell takes them
        try:
            with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
                self.manifest = json.load(file)
        except (OSError, ValueError) as error:
            raise plan.Unusable(f"{folder} holds no corpus ({error}); ./dev lab corpus makes one") from error
        if self.manifest.get("schema") != "drift.corpus/1":
            raise plan.Unusable(f"{folder}/manifest.json is of another schema")
        os.makedirs(out, exist_ok=True)
        self.version, _ = runs.abilities(program)

    @property
    def pair(self):
        return self.manifest["pair"]

    def entry(self, domain, split):
        return next((dict(entry, name=name) for name, entry in self.manifest["traces"].items() if entry["domain"] == domain and entry["split"] == split), None)

    def domains(self, split):
        return [entry["domain"] for entry in self.manifest["traces"].values() if entry["split"] == split]

    def path(self, domain, split):
        return os.path.join(self.folder, self.entry(domain, split)["name"] + ".trace")

    def count(self, domain, split):
        return self.entry(domain, split)["requests"]

    def places(self, domain, split, first=0, count=None, memory=""):
        there = self.count(domain, split)
        return [Place(domain, i, memory) for i in range(first, there if count is None else min(there, first + count))]

    def replay(self, split, orders, modes, defaults=(), proposals=False):
        """[Replayed], order after order, mode after mode. modes: {label: as --modes has it}; defaults: flags for all of them.
        With proposals: also the path of each call's CSV. A report that is there is not made again."""
        out, files = [], []
        labels = list(modes)
        domains = list(dict.fromkeys(place.domain for order in orders for place in order))
        for start in range(0, len(labels), MODES_MAX):
            part = {label: modes[label] for label in labels[start:start + MODES_MAX]}
            report, csv = self.report(split, domains, orders, part, tuple(defaults), proposals)
            files.append(csv)
            for one in report["modes"]:
                out.append(Replayed(one["label"], one["order"], orders[one["order"]], one["prompts"], one["bank_entries"]))
        out.sort(key=lambda r: (r.order, labels.index(r.label)))
        return (out, files) if proposals else out

    def report(self, split, domains, orders, modes, defaults, proposals):
        """(the report of one call, the path of its proposals)"""
        lines = "".join(" ".join(f"{domains.index(p.domain)}:{p.prompt}" + (f"@{p.memory}" if p.memory else "") for p in order) + "\n" for order in orders)
        listed = ",".join(f"{label}={mode}" for label, mode in modes.items())
        contents = [self.entry(domain, split)["content"] for domain in domains]
        key = hashlib.sha256(json.dumps([self.version, contents, lines, listed, list(defaults)]).encode()).hexdigest()[:24]
        stem = os.path.join(self.out, f"{self.pair}-{key}")
        command = [self.program, "trace", "replay", *(self.path(domain, split) for domain in domains), "--modes", listed, *defaults, "--order", stem + ".orders", "--json", stem + ".json"]
        csv = stem + ".csv"
        if proposals:
            command += ["--proposals", csv]
        self.commands.append(shlex.join(command))
        if not os.path.exists(stem + ".json") or (proposals and not os.path.exists(csv)):
            with open(stem + ".orders", "w", encoding="utf-8") as file:
                file.write(lines)
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode == 130:
                raise runs.Interrupted
            if done.returncode != 0:
                raise runs.Failed(f"drift trace replay ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        with open(stem + ".json", encoding="utf-8") as file:
            report = json.load(file)
        if report["partial"]:
            os.unlink(stem + ".json")
            raise runs.Interrupted
        return report, csv


def by_label(replayed, order=0):
    return {r.label: r for r in replayed if r.order == order}


def paired(ours, other, fields=("accepted", "drafted")):
    """Rows for compare_report.paired_interval: what each request gave under two modes, matched by domain and number. Both may be
    lists of Replayed, of several orders, whose counts are then summed: the request is what is drawn again."""
    def sums(several):
        found = {}
        for one in several if isinstance(several, list) else [several]:
            for place, prompt in zip(one.places, one.prompts):
                kept = found.setdefault((place.domain, place.prompt), [0] * len(fields))
                for i, field in enumerate(fields):
                    kept[i] += prompt[field]
        return found
    a, b = sums(ours), sums(other)
    return [tuple(a[place]) + tuple(b[place]) for place in a if place in b]
