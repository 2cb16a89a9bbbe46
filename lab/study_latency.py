"""Live: how long a request takes before, at and after a shift, under plain decoding, the static draft and drift."""
import json
import os
import subprocess

import prompts
import runs
from compare_report import counts
from studies import Skipped
from tables import Table

BEFORE, AFTER = "general", "code"
MODES = "off,static,drift"
AT = 4  # requests that count as at the shift
TOKENS = 64


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, round(q * (len(values) - 1)))]


def tables(context):
    options = context.options
    if not options.data:
        raise Skipped("it runs models on requests; name a folder of them with --data")
    kinds = ("prefix", "instruction") if runs.has_chat_template(options.target) else ("prefix",)
    parts = []
    for domain in (BEFORE, AFTER):
        rows = prompts.read_domain(options.data, domain, "eval", kinds)
        if not rows:
            raise Skipped(f"there are no eval rows of {domain}")
        parts.append(prompts.balanced(rows)[:max(2 * AT, 3 * context.requests)])
    stem = os.path.join(options.out, "latency")
    with open(stem + ".prompts.jsonl", "w", encoding="utf-8") as file:
        file.write(prompts.written(parts[0] + parts[1]))
    command = [options.program, "compare", "-m", options.target, "-md", options.draft, "-t", "1", "--prompts", stem + ".prompts.jsonl", "--stream", "-n", str(TOKENS), "--draft", "5", "--temp", "0.5", "--seed", "1",
               "--modes", MODES, "--json", stem + ".json"]
    context.commands.append(" ".join(command))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, "OMP_THREAD_LIMIT": "1"})
    if done.returncode not in (0, 3):
        raise runs.Failed(f"drift compare ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    with open(stem + ".json", encoding="utf-8") as file:
        report = json.load(file)
    first = len(parts[0])
    spans = {f"before ({BEFORE})": range(0, first), f"at ({AFTER}, first {AT})": range(first, first + AT), f"after ({AFTER})": range(first + AT, first + len(parts[1]))}
    rows, records = [], []
    for label in MODES.split(","):
        name = label
        for span, points in spans.items():
            per_token = [found["time_ms"] / found["tokens"] for found in (counts(report["prompts"][i], label) for i in points) if found["tokens"]]
            passes = [found["steps"] / found["tokens"] for found in (counts(report["prompts"][i], label) for i in points) if found["tokens"]]
            values = [percentile(x, q) for x in (per_token, passes) for q in (0.5, 0.99)]
            records.append({"method": label, "span": span, "requests": len(per_token), "ms_a_token_p50": values[0], "ms_a_token_p99": values[1], "passes_a_token_p50": values[2], "passes_a_token_p99": values[3]})
            rows.append([name, span, str(len(per_token)), f"{values[0]:.2f}", f"{values[1]:.2f}", f"{values[2]:.3f}", f"{values[3]:.3f}"])
            name = ""
    loads = [report[f"load_average_{when}"][0] for when in ("before", "after")]
    return [Table("latency", "A request before, at and after a shift",
                  f"Decoding time of a request for each of its tokens, and passes of the target for each token, which no load moves: the median and the 99th percentile over requests (of few requests: the longest). Live, one "
                  f"thread, load {loads[0]:.1f} before and {loads[1]:.1f} after; one stream, {BEFORE} then {AFTER}, one bank.",
                  ["method", "requests", "of them", "ms a token, p50", "p99", "passes a token, p50", "p99"], rows, records, [])]
