#!/usr/bin/env python3
"""Builds prompts out of texts that a Debian machine already carries, so that anyone can run the lab without data of ours.

usage: lab/public_prompts.py OUT [--root DIR]
Writes OUT/DOMAIN.jsonl (docs/cli.md) for each domain that gives at least ROWS_MIN rows, and OUT/manifest.json: the sources with their
sha256, and the sha256 of each file written. --root: the folder the sources are looked for under, instead of /.

domain      source
general     examples/demo-stream.jsonl of this project; prose of README files in /usr/share/doc
law         examples/demo-stream.jsonl; licences in /usr/share/common-licenses
clinical    examples/demo-stream.jsonl
code        examples/demo-stream.jsonl; modules of Python's standard library
support     README.Debian files: how to run what was packaged
temporal    Debian change logs, entries of 2025 and later
codeswitch  translated manual pages: the end of one language's passage and the start of the next one's
Rows continue a text (kind "prefix"), end in the middle of a line, and are split by a hash of their document: `tune` or `eval`; rows of
the demo are all `eval`. What is installed decides what there is: compare runs with the same manifest only.
"""
import argparse
import glob
import gzip
import hashlib
import json
import os
import re
import sys
import sysconfig

import prompts

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROWS_MIN, ROWS_MAX, PER_DOCUMENT = 12, 120, 6
CHARACTERS = 480  # of a prompt, before its last line is cut
LANGUAGES = ("de", "fr", "es", "pt_BR", "it", "nl", "pl", "sv", "ru", "ja")


def text_of(path):
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            return file.read(1 << 20).decode("utf-8", errors="strict").replace("\r\n", "\n")
    except (OSError, EOFError, ValueError):
        return ""


def passages(text, count):
    """Up to `count` passages of whole lines, spread over the text; each ends within a line."""
    lines = [line for line in re.sub(r"\n{3,}", "\n\n", text).splitlines() if len(line) < 400]
    starts = [i for i, line in enumerate(lines) if line.strip()]
    out = []
    for n in range(count):
        at = starts[(2 * n + 1) * len(starts) // (2 * count)] if starts else 0
        passage = "\n".join(lines[at:])[:CHARACTERS]
        if len(passage) < CHARACTERS:
            continue
        cut = passage.rfind(" ", 0, CHARACTERS - 8)
        if cut > CHARACTERS // 2 and passage[:cut].strip():
            out.append(passage[:cut].rstrip())
    return out


def split_of(document):
    return "tune" if prompts.fnv1a(document) % 5 < 2 else "eval"


class Domain:
    def __init__(self, name):
        self.name, self.rows, self.sources, self.seen = name, [], {}, set()

    def add(self, document, texts, split=None):
        for text in texts:
            if len(self.rows) < ROWS_MAX and text not in self.seen:  # packages of one source carry the same files
                self.seen.add(text)
                self.rows.append({"id": f"public-{self.name}-{len(self.rows) + 1:04}", "domain": self.name, "kind": "prefix", "split": split or split_of(document),
                                  "prompt": text, "source": document})
                self.sources[document] = None

    def add_file(self, root, path, text=None, count=PER_DOCUMENT, document=None):
        document = document or os.path.relpath(path, root)
        self.add(document, passages(text_of(path) if text is None else text, count))
        if document in self.sources:
            with open(path, "rb") as file:
                self.sources[document] = hashlib.sha256(file.read()).hexdigest()


def prose(text):
    """Paragraphs of plain sentences; nothing of tables, listings and headings."""
    kept = [p for p in text.split("\n\n") if len(p) > 120 and sum(c.isalpha() or c in " \n,.'" for c in p) > 0.94 * len(p)]
    return "\n\n".join(kept)


def recent_entries(text):
    """Entries of a Debian change log dated 2025 or later."""
    entries = re.split(r"(?m)^(?=\S+ \(.*\) )", text)
    return "".join(entry for entry in entries if re.search(r"(?m)^ -- .* (202[5-9]|20[3-9]\d) ", entry))


def of_roff(text):
    """Plain text of a manual page: macros dropped, escapes undone."""
    text = re.sub(r"(?m)^(?:\.\\\"|'\\\"|\.[A-Z]*[a-z]?[A-Z]*\s*$).*\n?", "", text)
    text = re.sub(r"(?m)^\.(?:B|I|BR|IR|RI|RB|BI|IB|SM|SH|SS|TP|IP)\s+", "", text)
    text = re.sub(r"(?m)^[.'].*\n?", "", text)
    text = re.sub(r"\\f(?:.|\(..|\[[^\]]*\])", "", text)
    for escape, plain in (("\\-", "-"), ("\\&", ""), ("\\ ", " "), ("\\(aq", "'"), ("\\(bu", "*"), ("\\(co", "(c)"), ("\\e", "\\"), ("\\(lq", '"'), ("\\(rq", '"'), ("\\%", "")):
        text = text.replace(escape, plain)
    return re.sub(r"\\[*]?(?:\[[^\]]*\]|\(..)|\\\*.", "", text)


def switched(pages):
    """Passages that begin in one language and go on in another, from translations of one manual page: language -> text."""
    out, names = [], [name for name in LANGUAGES if name in pages]
    for i, name in enumerate(names):
        other = names[(i + 1) % len(names)]
        mine, its = prose_lines(pages[name]), prose_lines(pages[other])
        if name != other and min(len(mine), len(its)) > 800:
            start = len(mine) // 2
            head, tail = mine[start - 300:start], its[len(its) // 2:len(its) // 2 + 180]
            out.append((head[head.find(" ") + 1:] + "\n\n" + tail[tail.find(" ") + 1:tail.rfind(" ")]).strip())
    return out


def prose_lines(text):
    return "\n".join(line for line in text.splitlines() if len(line) > 30)


def built(root):
    """The domains, each from its sources, in the same order every time."""
    def found(pattern):
        return sorted(path for path in glob.glob(os.path.join(root, pattern)) if os.path.isfile(path) and not os.path.islink(path))
    domains = {name: Domain(name) for name in ("general", "law", "clinical", "code", "support", "temporal", "codeswitch")}
    with open(os.path.join(ROOT, "examples", "demo-stream.jsonl"), encoding="utf-8") as file:
        for row in map(json.loads, file):
            domains[row["domain"]].add("examples/demo-stream.jsonl", [row["prompt"]], split="eval")
    for path in found("usr/share/doc/*/README") + found("usr/share/doc/*/README.gz") + found("usr/share/doc/*/README.md*"):
        domains["general"].add_file(root, path, prose(text_of(path)), 2)
    for path in found("usr/share/common-licenses/*"):
        domains["law"].add_file(root, path, count=10)
    library = sysconfig.get_path("stdlib")  # of the Python that runs this, wherever that is
    for path in sorted(glob.glob(os.path.join(library, "*.py"))):
        domains["code"].add_file(root, path, count=1, document=f"python{sys.version_info.major}.{sys.version_info.minor}/{os.path.basename(path)}")
    for path in found("usr/share/doc/*/README.Debian*"):
        domains["support"].add_file(root, path, count=3)
    for path in found("usr/share/doc/*/changelog.Debian*"):
        domains["temporal"].add_file(root, path, recent_entries(text_of(path)), 2)
    for first in found("usr/share/man/de/man[1-8]/*"):
        parts = first.split(os.sep)
        paths = {name: os.sep.join(parts[:-3] + [name] + parts[-2:]) for name in LANGUAGES}
        pages = {name: of_roff(text_of(path)) for name, path in paths.items() if os.path.isfile(path)}
        domains["codeswitch"].add(os.path.relpath(first, root), switched(pages))
    return domains


def write(domains, out):
    """Returns {domain: rows written}; domains with too few rows are left out."""
    os.makedirs(out, exist_ok=True)
    manifest, kept = {"schema": "drift.lab.prompts/1", "domains": {}}, {}
    for domain in domains.values():
        if len(domain.rows) < ROWS_MIN:
            continue
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in domain.rows).encode()
        with open(os.path.join(out, domain.name + ".jsonl"), "wb") as file:
            file.write(content)
        manifest["domains"][domain.name] = {"rows": len(domain.rows), "sha256": hashlib.sha256(content).hexdigest(), "sources": domain.sources}
        kept[domain.name] = len(domain.rows)
    with open(os.path.join(out, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
    return kept


def main():
    parser = argparse.ArgumentParser(usage="lab/public_prompts.py OUT [--root DIR]", description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--root", default="/")
    options = parser.parse_args()
    domains = built(options.root)
    kept = write(domains, options.out)
    for name, domain in domains.items():
        print(f"{name}: {kept[name]} rows of {len(domain.sources)} documents" if name in kept else f"{name}: left out, only {len(domain.rows)} rows here")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
