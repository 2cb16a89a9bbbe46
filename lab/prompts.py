"""The requests of a run: rows of DOMAIN.jsonl files (docs/cli.md), chosen the same way every time."""
import json
import os

import plan


def fnv1a(text):
    """The 64-bit hash by which `drift compare --limit` chooses, so that both take the same rows."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def read_domain(folder, domain, split, kinds):
    """Rows of the split and kinds. None where the folder has no such domain."""
    path = os.path.join(folder, domain + ".jsonl")
    if not os.path.exists(path):
        return None
    rows = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not isinstance(row.get("id"), str):
                        raise plan.Unusable(f"{path}:{number}: a row needs the texts \"id\" and \"prompt\"")
                    row.setdefault("kind", "prefix")
                    if row.get("split", split) == split and row["kind"] in kinds:
                        rows.append(row)
    except (OSError, ValueError) as error:
        raise plan.Unusable(f"{path}: {error}") from error
    return rows


def balanced(rows):
    """By rising hash of the id, kinds taking turns."""
    queues = {}
    for row in sorted(rows, key=lambda r: (fnv1a(r["id"]), r["id"])):
        queues.setdefault(row["kind"], []).append(row)
    out, queues = [], [queues[kind] for kind in sorted(queues)]
    while any(queues):
        out += [queue.pop(0) for queue in queues if queue]
    return out


def chosen(scenario, folder, split, kinds, each):
    """(rows in the order they are sent, notes for the user), or (None, why not). `each` requests a segment, fewer where a domain has too few."""
    comes = {domain: scenario.segments.count(domain) for domain in scenario.segments}
    rest, notes = {}, []
    for domain, times in comes.items():
        rows = read_domain(folder, domain, split, kinds)
        if not rows or len(rows) < times:
            return None, [f"there are {'no' if not rows else 'too few'} {split} rows of {domain}"]
        count = min(each, len(rows) // times)
        if count < each:
            notes.append(f"{count} requests a segment of {domain} instead of {each}: there are no more")
        # Chosen by hash, sent in the order of the file, which matters for code switching.
        taken = [balanced(rows)[i * count:(i + 1) * count] for i in range(times)]
        place = {row["id"]: i for i, row in enumerate(rows)}
        rest[domain] = [sorted(part, key=lambda r: place[r["id"]]) for part in taken]
    parts = [rest[domain].pop(0) for domain in scenario.segments]
    if scenario.order == "turns":
        return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)], notes
    return [row for part in parts for row in part], notes


def written(rows):
    """The content of the run's prompt file: the fields `drift compare` reads."""
    return "".join(json.dumps({name: row[name] for name in ("id", "domain", "kind", "split", "prompt") if name in row}, ensure_ascii=False) + "\n" for row in rows)
