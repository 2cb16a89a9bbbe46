"""What DRIFT's own stages cost a drafted token, against the bank's size, support, key and vocabulary; and the bench's scan beside it."""
import glob
import json
import os
import re
import subprocess

import runs
from tables import Table

DRAFT = ("--draft", "5")
STAGES = ("lookup", "bias", "residual", "commit")
SETTINGS = {"default": "drift", "N 256": "drift:capacity=256", "N 16,384": "drift:capacity=16384,tau=1", "N 16,384, int8 scan": "drift:capacity=16384,tau=1,int8-scan=on", "f16 keys": "drift:key-type=f16",
            "standardised": "drift:standardise=on", "m 4": "drift:support=4", "m 256": "drift:support=256", "m 1,024": "drift:support=1024", "k 64": "drift:neighbors=64", "fixed gain": "drift:gain=fixed",
            "seed": "drift:preset=seed", "all levels": "drift:levels=all"}


def tables(context):
    places = [place for domain in context.domains() for place in context.places(domain)]
    modes = {re.sub("[^A-Za-z0-9]", "-", name): mode for name, mode in SETTINGS.items()}
    report, _ = context.corpus.report("eval", list(dict.fromkeys(p.domain for p in places)), [places], modes, DRAFT, False)
    trace = report["traces"][0]
    rows, records = [], []
    for (name, mode), one in zip(SETTINGS.items(), report["modes"]):
        drafted = one["total"]["drafted"]
        microseconds = {stage: 1e3 * one["own_ms"][stage] / drafted for stage in STAGES}
        records.append({"setting": name, "mode": mode, "drafted": drafted, "entries": one["bank_entries"], "microseconds_a_drafted_token": microseconds})
        rows.append([name, mode, str(one["bank_entries"]), *(f"{microseconds[s]:.1f}" for s in STAGES), f"{sum(microseconds.values()):.1f}"])
    load = os.getloadavg()
    out = [Table("overhead", "What DRIFT's own work costs",
                 f"Microseconds of each stage for a drafted token, over all domains through one bank (entries: at the end). Hidden states of {trace['draft']['hidden_width']}, rows of {trace['target']['vocab']} logits. Measured while "
                 f"replaying, where this work is the same as live; one thread, load {load[0]:.1f}: wall-clock, so beside other work only the shares within a row mean something. All levels: their work is not split further.",
                 ["setting", "mode", "entries", *STAGES, "together"], rows, records, [])]
    bench = os.path.join(context.options.benches or "", "bench_lookup")
    if context.options.benches and glob.glob(bench):
        context.commands.append(bench)
        done = subprocess.run([bench], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise runs.Failed(f"bench_lookup ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        lines = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines() if line.strip()]
        width = max(map(len, lines))
        out.append(Table("bench", "One lookup alone (bench_lookup)", "As the program prints it.", [""] * width, [line + [""] * (width - len(line)) for line in lines], [{"line": " ".join(line)} for line in lines], []))
    return out
