#!/usr/bin/env python3
"""serve_bench.py - drift serve beside llama-server: same models, same prompts, same slots, same run.

    serve_bench.py --drift build/release/cli/drift --llama llama-server -m TARGET -md DRAFT --prompts FILE.jsonl [options]

Servers are started once and asked in turn, the order rotating, --repeats times; figures are medians over the repeats. One client is one
thread that sends the next prompt when its answer is complete. Prompts are not repeated within a measurement, prompt caches are off, and
drift's bank is emptied before each measurement: what it knows, it learned from the answers of that measurement.
Printed and written (--json): tokens/s of all clients together, time to first text (median, p99), time between chunks (median, p99),
tokens per verification; then the ratios drift / llama-server, taken within each repeat (the two of a pair run shortly after one another,
so that a machine that slows down slows both), as median and spread over the repeats. Several --prompts files are one stream, in their
order (a shift of domain), --limit prompts of each. Standard library of Python only.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time


def prompts_of(paths, limit):
    return [prompt for path in paths for prompt in prompts_of_file(path, limit)]


def prompts_of_file(path, limit):
    out = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                out.append(json.loads(line)["prompt"])
    return out[:limit]


class Server:
    def __init__(self, name, command, port):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"serve_bench: {name} ended with {self.process.returncode}: {' '.join(command)}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise SystemExit(f"serve_bench: {name} is not ready after 300 s")
            time.sleep(0.1)

    def forget(self):
        """Empties the bank 'default' of drift serve."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/drift/banks/default/reset", "", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"serve_bench: the bank was not emptied: {answer.status} {text[:500]!r}")

    def ask(self, prompt, tokens, extra):
        """(arrival times of chunks with text, tokens, draft_n, draft_n_accepted), times in seconds from the request."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, "cache_prompt": False,
                "stream_options": {"include_usage": True}, **extra}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        start = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"serve_bench: {self.name}: {answer.status} {answer.read()[:500]!r}")
        times, usage, timings = [], None, {}
        for raw in answer:
            if not raw.startswith(b"data: ") or raw.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(raw[6:])
            if "error" in chunk:
                raise SystemExit(f"serve_bench: {self.name}: {chunk}")
            usage = chunk.get("usage") or usage
            timings = chunk.get("timings") or timings
            if chunk["choices"] and chunk["choices"][0].get("text"):
                times.append(time.monotonic() - start)
        connection.close()
        return times, usage["completion_tokens"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def measure(server, prompts, clients, tokens, extra):
    queue, lock, results, failures = list(prompts), threading.Lock(), [], []

    def client():
        while True:
            with lock:
                if not queue or failures:
                    return
                prompt = queue.pop(0)
            try:
                got = server.ask(prompt, tokens, extra)
            except BaseException as error:  # told by the main thread
                failures.append(error)
                return
            with lock:
                results.append(got)

    start = time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - start
    if failures:
        raise failures[0]
    gaps = [b - a for times, *_ in results for a, b in zip(times, times[1:])]
    firsts = [times[0] for times, *_ in results if times]
    total = sum(r[1] for r in results)
    chunks = sum(len(r[0]) for r in results)
    drafted, accepted = sum(r[2] for r in results), sum(r[3] for r in results)
    return {
        "tokens_per_s": total / wall,
        "first_s": statistics.median(firsts), "first_s_p99": percentile(firsts, 0.99),
        "gap_s": statistics.median(gaps) if gaps else 0.0, "gap_s_p99": percentile(gaps, 0.99),
        "tokens_per_chunk": total / max(chunks, 1),
        # Each pass of the target gives what it accepted and one token more; the same sum for both servers.
        "tokens_per_verification": total / max(total - accepted, 1) if drafted else None,
        "acceptance": accepted / drafted if drafted else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drift", required=True)
    parser.add_argument("--llama", help="llama-server; without it only drift serve is measured")
    parser.add_argument("-m", required=True, dest="target")
    parser.add_argument("-md", dest="draft")
    parser.add_argument("--prompts", required=True, nargs="+")
    parser.add_argument("--limit", type=int, default=16, help="prompts per file and measurement")
    parser.add_argument("-n", type=int, default=64, dest="tokens")
    parser.add_argument("-c", type=int, default=8192, dest="context", help="of all slots together")
    parser.add_argument("-np", type=int, default=8, dest="slots")
    parser.add_argument("-t", type=int, default=os.cpu_count(), dest="threads", help="of every server, target and draft")
    parser.add_argument("--n-max", type=int, default=3)
    parser.add_argument("--clients", default="1,4,8")
    parser.add_argument("--modes", default="off,static,drift")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--json")
    options = parser.parse_args()
    prompts = prompts_of(options.prompts, options.limit)
    common = ["-m", options.target, "-c", str(options.context), "-np", str(options.slots), "-t", str(options.threads), "--host", "127.0.0.1"]
    draft = ["-md", options.draft] if options.draft else []
    modes = options.modes.split(",") if options.draft else ["off"]

    servers, runs = [], []
    try:
        drift = Server("drift", [options.drift, "serve", *common, *draft, "--draft", str(options.n_max), "--port", str(options.port)], options.port)
        servers.append(drift)
        runs += [(f"drift {mode}", drift, {"drift": {"mode": mode}}) for mode in modes]
        if options.llama:
            # Its cache of prompts in RAM (8 GiB) would copy slots' states between answers; nothing here can hit it.
            no_cache = ["--cache-ram", "0"]
            plain = Server("llama-server", [options.llama, *common, *no_cache, "--port", str(options.port + 1)], options.port + 1)
            servers.append(plain)
            runs.append(("llama-server plain", plain, {}))
            if options.draft:
                drafting = Server("llama-server", [options.llama, *common, *no_cache, *draft, "--spec-type", "draft-simple", "--spec-draft-n-max",
                                                   str(options.n_max), "--port", str(options.port + 2)], options.port + 2)
                servers.append(drafting)
                runs.append(("llama-server draft-simple", drafting, {}))
        # The two of a pair stand side by side; odd repeats go backwards, so that neither is always the first of its pair.
        places = ["drift off", "llama-server plain", "drift static", "llama-server draft-simple", "drift drift"]
        runs.sort(key=lambda run: places.index(run[0]) if run[0] in places else len(places))
        for _, server, extra in runs:  # not measured: pages and buffers that only the first answer has to wait for
            server.ask(prompts[0], 4, extra)
        results = {}
        for repeat in range(options.repeats):
            for clients in map(int, options.clients.split(",")):
                order = runs[repeat % len(runs):] + runs[:repeat % len(runs)]
                order = order[::-1] if repeat % 2 else order
                for name, server, extra in order:
                    if extra.get("drift", {}).get("mode") == "drift":
                        server.forget()
                    got = measure(server, prompts, clients, options.tokens, extra)
                    results.setdefault((clients, name), []).append(got)
                    print(f"repeat {repeat + 1}, {clients} clients, {name}: {got['tokens_per_s']:.2f} tokens/s", file=sys.stderr)
    finally:
        for server in servers:
            server.process.terminate()
        for server in servers:
            server.process.wait(60)

    def median(rows, key):
        values = [row[key] for row in rows if row[key] is not None]
        return statistics.median(values) if values else None

    table = []
    print("| clients | server | tokens/s (least-most) | first text s (p99) | between chunks ms (p99) | tokens per chunk | tokens per verification | acceptance |")
    print("|---|---|---|---|---|---|---|---|")
    for (clients, name), rows in sorted(results.items(), key=lambda item: (item[0][0], [r[0] for r in runs].index(item[0][1]))):
        row = {key: median(rows, key) for key in rows[0]}
        speeds = [r["tokens_per_s"] for r in rows]
        acceptance = "-" if row["acceptance"] is None else f"{row['acceptance']:.3f}"
        per_pass = "-" if row["tokens_per_verification"] is None else f"{row['tokens_per_verification']:.3f}"
        print(f"| {clients} | {name} | {row['tokens_per_s']:.2f} ({min(speeds):.2f}-{max(speeds):.2f}) | {row['first_s']:.2f} ({row['first_s_p99']:.2f}) | "
              f"{1e3 * row['gap_s']:.0f} ({1e3 * row['gap_s_p99']:.0f}) | {row['tokens_per_chunk']:.2f} | {per_pass} | {acceptance} |")
        table.append({"clients": clients, "server": name, "repeats": rows, **row})

    def ratios(over, under, key):  # keys of results: (clients, server)
        """(median, least, most) of over / under, repeat by repeat; None where one was not measured."""
        pairs = zip(results.get(over, []), results.get(under, []))
        values = [a[key] / b[key] for a, b in pairs if a[key] and b[key]]
        return (statistics.median(values), min(values), max(values)) if values else None

    compared = []

    def compare(over, under, keys):
        cells = [ratios(over, under, key) for key in keys]
        if any(cells):
            compared.append({"over": over, "under": under, **{key: cell for key, cell in zip(keys, cells) if cell}})
            shown = " | ".join(f"{c[0]:.3f} ({c[1]:.3f}-{c[2]:.3f})" if c else "-" for c in cells)
            print(f"| {over[1]}, {over[0]} clients / {under[1]}, {under[0]} | {shown} |")

    keys = ["tokens_per_s", "first_s", "gap_s_p99", "tokens_per_verification"]
    print("\n| ratio, median (least-most) | tokens/s | first text | between chunks, p99 | tokens per verification |")
    print("|---|---|---|---|---|")
    counts = list(map(int, options.clients.split(",")))
    for clients in counts:
        for mode in modes:
            other = "llama-server plain" if mode == "off" else "llama-server draft-simple"
            compare((clients, f"drift {mode}"), (clients, other), keys)
        compare((clients, "drift drift"), (clients, "drift static"), keys)
    for name in ("drift off", "llama-server plain"):  # what batching gains
        if min(counts) != max(counts):
            compare((max(counts), name), (min(counts), name), keys)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": "drift.serve_bench/1", "options": vars(options), "rows": table, "ratios": compared}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
