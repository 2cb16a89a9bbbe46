#!/usr/bin/env python3
"""The corpus of traces that the lab's studies replay: one trace a domain and split, recorded once, kept outside git.

usage: lab/corpus.py --program FILE --out DIR [--data DIR] [--pair NAME --target FILE --draft FILE] [options]     (./dev lab corpus calls it)
Resumable: a trace that is there, whole, and of the same program, models, requests and settings is not recorded again; one that was cut off
is. DIR/manifest.json has, for each trace, its hash, the hash of its content (everything but the measured times, so the same in every
recording of the same thing) and how it was made. With --check FILE the corpus is held against a manifest that somebody else made.
Exit codes: 0 done; 1 a recording failed; 2 something given cannot be used; 3 done, but the content is not the manifest's; 130 interrupted.
"""
import argparse
import dataclasses
import hashlib
import json
import os
import shlex
import sqlite3
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import plan  # noqa: E402
import prompts  # noqa: E402
import public_prompts  # noqa: E402
import runs  # noqa: E402
from runs import ago, say  # noqa: E402

DOMAINS = ("general", "law", "clinical", "code", "support", "temporal", "codeswitch")
# What a trace keeps of a row (1,024 logits) is all that may be drawn from. At temperature 0.5 the 64 best have practically all there is, and a replay
# that draws from so few takes a quarter of the time.
TOP_K, TOP_K_MAX = 64, 1024
DRAFT = 5  # tokens a block, the seed's; a replay may take another
# A row's measured times are the only columns that differ between two recordings of one thing.
CONTENT = (("prompts", "prompt, id, domain, kind, split, sequence, tokens, ending, steps, emitted"), ("steps", "prompt, step, first, proposed, accepted, emitted"),
           ("proposals", "prompt, step, place, token, q, accepted"), ("tokens", "prompt, position, step, token, origin"),
           ("target_rows", "prompt, position, tokens, logits"), ("draft_rows", "prompt, position, tokens, logits, hidden"))


@dataclasses.dataclass
class Recording:
    name: str
    domain: str
    split: str
    path: str
    command: list
    key: str
    requests: int

    @property
    def done(self):
        try:
            with open(self.path + ".key", encoding="utf-8") as file:
                return file.read() == self.key and os.path.exists(self.path)
        except OSError:
            return False


def content_hash(path):
    """Over everything in a trace but the times it took."""
    digest = hashlib.sha256()
    db = sqlite3.connect(f"file:{os.path.abspath(path)}?mode=ro&immutable=1", uri=True)
    try:
        for table, columns in CONTENT:
            digest.update(table.encode())
            for row in db.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2"):
                for value in row:
                    digest.update(value if isinstance(value, bytes) else repr(value).encode())
                    digest.update(b"\0")
    finally:
        db.close()
    return digest.hexdigest()


def long_rows(rows):
    """Each text cut at five places, so that one domain gives a long stream: all first cuts, then all second ones, ... The places of one text
    are as many requests apart as there are texts; what was asked and answered there before is no part of the later ones' answers."""
    out = []
    for part, after in ((0.4, 0), (0.7, 0), (1, 0), (1, 0.5), (1, 1)):
        for row in rows:
            text = row["prompt"][:round(part * len(row["prompt"]))] + (row.get("reference") or "")[:round(after * len(row.get("reference") or ""))]
            out.append({**row, "id": f"{row['id']}@{part:g}+{after:g}", "split": "long", "prompt": text})
    return out


def planned(options, data):
    """[Recording], notes"""
    kinds = ("prefix", "instruction") if runs.has_chat_template(options.target) else ("prefix",)
    hashes = [runs.sha256_of(path) for path in (options.target, options.draft)]
    version, _ = runs.abilities(options.program)
    out, notes = [], []
    for split in options.splits:
        for domain in options.domains:
            rows = prompts.read_domain(data, domain, "eval" if split == "long" else split, ("prefix",) if split == "long" else kinds)
            if not rows:
                notes.append(f"there are no {split} rows of {domain}")
                continue
            if split == "long":
                rows = long_rows(rows)[:options.requests]
            else:
                place = {row["id"]: i for i, row in enumerate(rows)}
                rows = sorted(prompts.balanced(rows)[:options.requests], key=lambda row: place[row["id"]])
            name = f"{domain}-{split}-t{options.temp:g}-match"
            stem = os.path.join(options.out, name)
            content = prompts.written(rows)
            os.makedirs(options.out, exist_ok=True)
            with open(stem + ".prompts.jsonl", "w", encoding="utf-8") as file:
                file.write(content)
            settings = ["-t", str(options.threads), "-n", str(options.tokens), "--mode", "static", "--draft", str(DRAFT), "--temp", f"{options.temp:g}", "--judge", "match", "--seed", str(runs.SEED)]
            if options.temp > 0:
                settings += ["--top-k", str(options.top_k)]
            command = [options.program, "trace", "record", "-m", options.target, "-md", options.draft, "--prompts", stem + ".prompts.jsonl", *settings, "-o", stem + ".trace"]
            key = hashlib.sha256(json.dumps([version, hashes, settings, content]).encode()).hexdigest()
            out.append(Recording(name, domain, split, stem + ".trace", command, key, len(rows)))
    return out, notes


def make(recordings):
    begun, done, total = time.monotonic(), 0, sum(r.requests for r in recordings if not r.done)
    for number, recording in enumerate(recordings, 1):
        head = f"[{number}/{len(recordings)}] {recording.name}"
        if recording.done:
            say(f"{head}: there already")
            continue
        left = f", {ago((time.monotonic() - begun) * (total - done) / done)} left for all" if done else ""
        say(f"{head}: {recording.requests} requests{left}")
        code = runs.follow(recording.command, recording.path + ".log", head, "prompts", log_every=30)
        if code == 130:
            raise runs.Interrupted
        if code != 0:
            raise runs.Failed(f"{recording.name}: drift trace record ended with {code}; see {recording.path}.log")
        with open(recording.path + ".key", "w", encoding="utf-8") as file:
            file.write(recording.key)
        done += recording.requests


def manifest_of(recordings, options):
    traces = {}
    for recording in recordings:
        if recording.done:
            traces[recording.name] = {"domain": recording.domain, "split": recording.split, "requests": recording.requests, "flags": shlex.join(recording.command[recording.command.index("-n"):recording.command.index("-o")]), "bytes": os.path.getsize(recording.path),
                                      "sha256": runs.sha256_of(recording.path), "content": content_hash(recording.path),
                                      "prompts": runs.sha256_of(recording.path.removesuffix(".trace") + ".prompts.jsonl")}
    version, _ = runs.abilities(options.program)
    models = {side: {"name": os.path.basename(path), "sha256": runs.sha256_of(path)} for side, path in (("target", options.target), ("draft", options.draft))}
    return {"schema": "drift.corpus/1", "pair": options.pair, "program": version, **models, "traces": traces}


def differences(ours, theirs):
    """Names of traces whose content is not the manifest's, and why."""
    out = []
    for name, entry in theirs["traces"].items():
        mine = ours["traces"].get(name)
        if mine is None:
            out.append(f"{name}: not recorded here")
        elif mine["prompts"] != entry["prompts"]:
            out.append(f"{name}: made from other requests")
        elif mine["content"] != entry["content"]:
            out.append(f"{name}: other content; another CPU or llama.cpp moves the last bits of logits")
    return out


def arguments(words=None):
    parser = argparse.ArgumentParser(usage="lab/corpus.py --program FILE --out DIR [options]", description=__doc__.split("\n\n")[0])
    built_in = os.path.join(ROOT, "models", "drift-mini-")
    parser.add_argument("--program", required=True, metavar="FILE", help="the program drift")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the traces are kept; a folder a pair")
    parser.add_argument("--data", metavar="DIR", help="folder of DOMAIN.jsonl [a public set, built from texts that are on this machine]")
    parser.add_argument("--pair", default="built-in", metavar="NAME", help="what the manifest calls the pair [built-in]")
    parser.add_argument("--target", default=built_in + "target.gguf", metavar="FILE", help="[the built-in pair's]")
    parser.add_argument("--draft", default=built_in + "draft.gguf", metavar="FILE", help="[the built-in pair's]")
    parser.add_argument("--requests", type=int, default=24, metavar="N", help="of each domain and split, fewer where there are no more [24]")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="of each request [128]")
    parser.add_argument("--temp", type=float, default=0.5, metavar="X", help="temperature [0.5]")
    parser.add_argument("--top-k", type=int, default=TOP_K, metavar="K", help=f"candidates of a draw above temperature 0, up to {TOP_K_MAX} [{TOP_K}]")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of drift [1]")
    parser.add_argument("--domains", type=lambda text: tuple(text.split(",")), default=DOMAINS, metavar="LIST", help="[all]")
    parser.add_argument("--splits", type=lambda text: tuple(text.split(",")), default=("eval", "tune"), metavar="LIST", help="of eval, tune, and long (eval texts cut at five places, for streams of hundreds of requests) [eval,tune]")
    parser.add_argument("--add", action="store_true", help="keep what the folder's manifest has beside what is recorded now")
    parser.add_argument("--check", metavar="FILE", help="a manifest to hold the corpus against")
    return parser.parse_args(words)


def main():
    options = arguments()
    runs.hear_sigterm()
    try:
        for needed in (options.program, options.target, options.draft, *([options.check] if options.check else [])):
            if not os.path.isfile(needed):
                raise plan.Unusable(f"{needed} is not there")
        os.makedirs(options.out, exist_ok=True)
        data = options.data
        if data is None:
            data = os.path.join(options.out, "public-prompts")
            public_prompts.write(public_prompts.built("/"), data)
        recordings, notes = planned(options, data)
    except (plan.Unusable, OSError) as error:
        print(f"corpus: {error}", file=sys.stderr)
        return 2
    for note in notes:
        say(f"SKIPPED {note}")
    try:
        make(recordings)
    except runs.Interrupted:
        say("interrupted; the same call goes on")
        return 130
    except runs.Failed as error:
        say(str(error))
        return 1
    manifest = manifest_of(recordings, options)
    path = os.path.join(options.out, "manifest.json")
    if options.add and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        if any(kept[name] != manifest[name] for name in ("schema", "pair", "target", "draft")):
            say(f"{path} is of another pair")
            return 2
        manifest["traces"] = {**kept["traces"], **manifest["traces"]}
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(manifest, indent=1) + "\n")
    say(f"{len(manifest['traces'])} traces, {sum(t['bytes'] for t in manifest['traces'].values()) / 1e6:.0f} MB; {path}")
    if options.check:
        with open(options.check, encoding="utf-8") as file:
            found = differences(manifest, json.load(file))
        for line in found:
            say(f"DIFFERS {line}")
        return 3 if found else 0
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
