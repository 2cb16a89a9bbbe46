#!/usr/bin/env python3
"""llama_flags.py - the table of llama-server's flags: what `drift serve` does with each.

    llama_flags.py --source DIR|ARCHIVE   write cli/llama_flags_table.hpp and docs/llama-server-flags.md
    llama_flags.py --source ... --check   exit 1 and say why if they are not what would be written

llama-server's own list is the table in tools/server/README.md of the pinned source (its folder, or the archive that ./dev setup
keeps); what is done with each flag stands in tools/llama_flags.txt. Every flag of the list must have exactly one line there.
"""

import os
import re
import sys
import tarfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
README = "tools/server/README.md"
HEADER = "cli/llama_flags_table.hpp"
PAGE = "docs/llama-server-flags.md"
NAME = re.compile(r"(?:^|, )(--?[A-Za-z0-9.][A-Za-z0-9._-]*)")


def read_list(source):
    if os.path.isdir(source):
        with open(os.path.join(source, README), encoding="utf-8") as file:
            return file.read()
    with tarfile.open(source) as archive:
        for member in archive:
            if member.name.endswith("/llama.cpp/" + README):
                return archive.extractfile(member).read().decode()
    raise SystemExit(f"llama_flags: there is no {README} in {source}")


def flags_of(readme):
    """[(names, number of values)] in the order of llama-server's help."""
    out = []
    for line in readme.splitlines():
        match = re.match(r"\| `(-[^`]*)` \|", line)
        if not match:
            continue
        cell = match.group(1)
        names = NAME.findall(cell)
        end = list(NAME.finditer(cell))[-1].end()
        values = cell[end:].strip()
        # "START END" are two values; "<tensor name pattern>=<buffer type>,..." is one.
        count = 2 if values == "START END" else 1 if values else 0
        out.append((names, count))
    return out


def rules_of(text):
    out = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        same = re.fullmatch(r"same\s+(--\S+)(?:\s+=\s+(--\S+))?", line)
        other = re.fullmatch(r"(warn|refuse)\s+(--\S+)\s+:\s+(.+)", line)
        if same:
            flag, rule = same.group(1), ("same", same.group(2) or same.group(1))
        elif other:
            flag, rule = other.group(2), (other.group(1), other.group(3))
        else:
            raise SystemExit(f"llama_flags: tools/llama_flags.txt:{number}: cannot be read: {line}")
        if flag in out:
            raise SystemExit(f"llama_flags: tools/llama_flags.txt:{number}: {flag} is there twice")
        out[flag] = rule
    return out


def rows_of(flags, rules):
    rows, used, missing = [], set(), []
    for names, count in flags:
        found = [name for name in names if name in rules]
        if len(found) != 1:
            missing.append(f"{', '.join(names)}: {len(found)} lines in tools/llama_flags.txt, must be 1")
            continue
        used.add(found[0])
        verdict, text = rules[found[0]]
        rows.append((names, count, verdict, text))
    missing += [f"{flag}: llama-server has no such flag" for flag in rules if flag not in used]
    if missing:
        raise SystemExit("llama_flags: " + "\nllama_flags: ".join(missing))
    return rows


def header_of(rows):
    kinds = {"same": "kSame", "warn": "kWarn", "refuse": "kRefuse"}
    lines = [
        "// llama_flags_table.hpp - made by tools/llama_flags.py of llama-server's list and tools/llama_flags.txt; do not edit.",
        "#pragma once",
        "",
        '#include "cli/llama_flags.hpp"',
        "",
        "namespace drift::cli {",
        "",
        "// clang-format off",
        "inline constexpr LlamaFlag kLlamaFlags[] = {",
    ]
    for names, count, verdict, text in rows:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'    {{"{" ".join(names)}", {count}, FlagRule::{kinds[verdict]}, "{quoted}"}},')
    lines += ["};", "// clang-format on", "", "}  // namespace drift::cli", ""]
    return "\n".join(lines)


def page_of(rows):
    counts = {kind: sum(1 for row in rows if row[2] == kind) for kind in ("same", "warn", "refuse")}
    lines = [
        "# Flags of llama-server, and what `drift serve` does with them",
        "",
        "Made by `tools/llama_flags.py` of the pinned llama-server's own list; do not edit.",
        "",
        f"{len(rows)} flags: {counts['same']} mean the same, {counts['warn']} are taken with a warning and have no effect, "
        f"{counts['refuse']} are refused.",
        "",
        "| flag | here |",
        "|---|---|",
    ]
    for names, _, verdict, text in rows:
        shown = ", ".join(f"`{name}`" for name in names)
        what = {
            "same": "the same" if text in names else f"the same, as `{text}`",
            "warn": f"no effect: {text}",
            "refuse": f"refused: {text}",
        }[verdict]
        lines.append(f"| {shown} | {what} |")
    return "\n".join(lines) + "\n"


def main(arguments):
    if len(arguments) not in (2, 3) or arguments[0] != "--source" or arguments[2:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    with open(os.path.join(ROOT, "tools/llama_flags.txt"), encoding="utf-8") as file:
        rules = rules_of(file.read())
    rows = rows_of(flags_of(read_list(arguments[1])), rules)
    status = 0
    for path, text in ((HEADER, header_of(rows)), (PAGE, page_of(rows))):
        full = os.path.join(ROOT, path)
        if len(arguments) == 2:
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        try:
            with open(full, encoding="utf-8") as file:
                same = file.read() == text
        except FileNotFoundError:
            same = False
        if not same:
            print(f"llama_flags: {path} is not what tools/llama_flags.py would write; run it without --check")
            status = 1
    print(f"llama_flags: {len(rows)} flags of llama-server, each with a rule")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
