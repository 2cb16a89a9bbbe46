#!/usr/bin/env python3
"""serve_bench.py - drift serve beside llama-server: same models, same prompts, same slots, same run.

    serve_bench.py --drift build/release/cli/drift --llama llama-server -m TARGET -md DRAFT --prompts FILE.jsonl [options]

Servers are started once and asked in turn, the order rotating, --repeats times; figures are medians over the repeats. One client is one
thread that sends the next prompt when its answer is complete; prompts are never repeated within a run, so that no cache flatters.
Printed and written (--json): tokens/s of all clients together, time to first text (median, p99), time between chunks (median, p99),
tokens per verification. Standard library of Python only.
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


def prompts_of(path, limit):
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
        "acceptance": accepted / drafted if drafted else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drift", required=True)
    parser.add_argument("--llama", help="llama-server; without it only drift serve is measured")
    parser.add_argument("-m", required=True, dest="target")
    parser.add_argument("-md", dest="draft")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--limit", type=int, default=16, help="prompts per measurement")
    parser.add_argument("-n", type=int, default=64, dest="tokens")
    parser.add_argument("-c", type=int, default=8192, dest="context", help="of all slots together")
    parser.add_argument("-np", type=int, default=8, dest="slots")
    parser.add_argument("-t", type=int, default=os.cpu_count(), dest="threads")
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
            plain = Server("llama-server", [options.llama, *common, "--port", str(options.port + 1)], options.port + 1)
            servers.append(plain)
            runs.append(("llama-server plain", plain, {}))
            if options.draft:
                drafting = Server("llama-server", [options.llama, *common, *draft, "--spec-type", "draft-simple", "--spec-draft-n-max",
                                                   str(options.n_max), "--port", str(options.port + 2)], options.port + 2)
                servers.append(drafting)
                runs.append(("llama-server draft-simple", drafting, {}))
        results = {}
        for repeat in range(options.repeats):
            for clients in map(int, options.clients.split(",")):
                order = runs[repeat % len(runs):] + runs[:repeat % len(runs)]
                for name, server, extra in order:
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
    print("| clients | server | tokens/s (least-most) | first text s (p99) | between chunks ms (p99) | tokens per chunk | acceptance |")
    print("|---|---|---|---|---|---|---|")
    for (clients, name), rows in sorted(results.items(), key=lambda item: (item[0][0], [r[0] for r in runs].index(item[0][1]))):
        row = {key: median(rows, key) for key in rows[0]}
        speeds = [r["tokens_per_s"] for r in rows]
        acceptance = "-" if row["acceptance"] is None else f"{row['acceptance']:.3f}"
        print(f"| {clients} | {name} | {row['tokens_per_s']:.2f} ({min(speeds):.2f}-{max(speeds):.2f}) | {row['first_s']:.2f} ({row['first_s_p99']:.2f}) | "
              f"{1e3 * row['gap_s']:.0f} ({1e3 * row['gap_s_p99']:.0f}) | {row['tokens_per_chunk']:.2f} | {acceptance} |")
        table.append({"clients": clients, "server": name, "repeats": rows, **row})
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": "drift.serve_bench/1", "options": vars(options), "rows": table}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
