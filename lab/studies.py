#!/usr/bin/env python3
"""The lab's studies: tables that replay a corpus of traces (lab/corpus.py), without the models.

usage: lab/studies.py --program FILE --corpus DIR --out DIR [--only NAME] [options]     (./dev lab studies calls it)
A replay that is there, of the same program, traces, orders and settings, is not repeated.
Writes OUT/studies.html (one file that needs no network), studies.md, studies.json and a PNG per picture.
Exit codes: 0 done; 1 a replay failed; 2 something given cannot be used; 130 interrupted.
"""
import argparse
import dataclasses
import importlib
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import page  # noqa: E402
import plan  # noqa: E402
import replays  # noqa: E402
import runs  # noqa: E402
from runs import say  # noqa: E402

# A module each, in the order of the report; it has tables(context) -> [tables.Table], and may have pictures(alt, tables) -> [(title, text, chart)].
STUDIES = ("orders", "ablations", "gains", "spectrum", "cold", "interference", "oracles", "overhead", "latency")
SIZES = {"smoke": 2, "quick": 8, "full": 24}  # requests of each domain, at most


@dataclasses.dataclass
class Context:
    corpus: replays.Corpus
    requests: int  # of each domain, at most
    grid: str  # full: every value of an ablation; ends: its ends and the default
    options: argparse.Namespace
    commands: list = dataclasses.field(default_factory=list)  # of this study, beside its replays

    def domains(self, split="eval"):
        there = self.corpus.domains(split)
        return [d for d in there if d in self.options.domains] if self.options.domains else there

    def places(self, domain, split="eval", first=0, count=None, memory=""):
        return self.corpus.places(domain, split, first, self.requests if count is None else count, memory)


class Skipped(Exception):
    """Why a study cannot be made here."""


class Made:
    """A study's commands, as the page shows them."""

    def __init__(self, name, commands):
        self.run, self.commands = self, commands
        self.name = name

    def shown_command(self):
        return "\n$ ".join(self.commands) if self.commands else "(no command of its own)"


def arguments(words=None):
    parser = argparse.ArgumentParser(usage="lab/studies.py --program FILE --corpus DIR --out DIR [options]", description=__doc__.split("\n\n")[0])
    built_in = os.path.join(ROOT, "models", "drift-mini-")
    parser.add_argument("--program", required=True, metavar="FILE", help="the program drift")
    parser.add_argument("--corpus", required=True, metavar="DIR", help="the traces of a pair, from lab/corpus.py")
    parser.add_argument("--out", required=True, metavar="DIR", help="where replays and the report are kept")
    parser.add_argument("--size", choices=SIZES, default="full", help="requests of each domain, at most: " + ", ".join(f"{n} {c}" for n, c in SIZES.items()))
    parser.add_argument("--requests", type=int, metavar="N", help="the same as a number [that of --size]")
    parser.add_argument("--domains", type=lambda text: tuple(text.split(",")), default=(), metavar="LIST", help="only these [all that the corpus has]")
    parser.add_argument("--grid", choices=("full", "ends"), default="full", help="values of the ablations: all, or the ends and the default [full]")
    parser.add_argument("--settings", type=lambda text: tuple(text.split(",")), default=(), metavar="LIST", help="only these settings of the ablations [all]")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this study; may be repeated: " + ", ".join(STUDIES))
    parser.add_argument("--benches", metavar="DIR", help="folder of the benchmark programs, for the study of overhead")
    parser.add_argument("--data", metavar="DIR", help="folder of DOMAIN.jsonl, for the studies that run models (latency, long streams)")
    parser.add_argument("--target", default=built_in + "target.gguf", metavar="FILE", help="for these [the built-in pair's]")
    parser.add_argument("--draft", default=built_in + "draft.gguf", metavar="FILE", help="for these [the built-in pair's]")
    return parser.parse_args(words)


def requests_of(options):
    return options.requests or SIZES[options.size]


def made(options, names):
    corpus = replays.Corpus(options.corpus, options.program, os.path.join(options.out, "replays"))
    out, drawn, skipped, jobs = [], [], [], []
    for name in names:
        begun = time.monotonic()
        corpus.commands = []
        context = Context(corpus, requests_of(options), options.grid, options)
        say(f"study {name}")
        try:
            study = importlib.import_module("study_" + name)
            found = study.tables(context)
        except (Skipped, ImportError) as error:
            skipped.append(f"study {name}: {error}")
            say(f"SKIPPED {skipped[-1]}")
            continue
        jobs.append(Made(name, corpus.commands + context.commands))
        for table in found:
            table.runs = [name]
        out += found
        drawn.append((study, found))
        say(f"study {name}: done in {runs.ago(time.monotonic() - begun)}")
    return corpus, out, drawn, skipped, jobs


def main():
    options = arguments()
    runs.hear_sigterm()
    try:
        unknown = set(options.only) - set(STUDIES)
        if unknown:
            raise plan.Unusable(f"there is no study {', '.join(sorted(unknown))}; there are {', '.join(STUDIES)}")
        for needed in (options.program, os.path.join(options.corpus, "manifest.json")):
            if not os.path.isfile(needed):
                raise plan.Unusable(f"{needed} is not there")
        corpus, out, drawn, skipped, jobs = made(options, [n for n in STUDIES if n in options.only] if options.only else list(STUDIES))
        page.write_studies(options, corpus, requests_of(options), out, drawn, skipped, jobs, sys.argv)
    except plan.Unusable as error:
        print(f"studies: {error}", file=sys.stderr)
        return 2
    except (runs.Interrupted, KeyboardInterrupt):
        say("interrupted; the same call goes on")
        return 130
    except (runs.Failed, OSError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
