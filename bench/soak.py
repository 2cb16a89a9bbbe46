#!/usr/bin/env python3
"""soak.py - drift serve for a long time, with more tenants than it has room for, and does its memory grow?

    soak.py --drift build/release/cli/drift [--minutes 20] [-m TARGET -md DRAFT] [--json FILE]

Tenants come and go beyond every bound: of banks in memory, of banks on disk, of slots. Their clients ask for whole answers and streams,
in all modes, with banks of several names and salts, hang up in the middle, look at the page's figures; now and then the operator
deletes a tenant. Resident memory is read from /proc every few seconds; its slope (least squares) is over the last three quarters of the
time. At the end everybody has gone: all slots must be free. Exit code 1: it grew by --slope-max or more (judged from 10 minutes on,
when the caches are full), slots stayed busy, something was answered 5xx, or the server did not end well. Linux; Python's own library.
"""

import argparse
import collections
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODES = ("off", "static", "drift", "drift", "drift", "lookup", "suffix", "draft+suffix", "drift+suffix")
WORDS = ("court fever river method patient contract red the of under seven report table light engine claim dose north paper "
         "window answer court's 12 left measure judge bone market").split()
OPERATOR = "operator-key"


class Soak:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.statuses, self.failures, self.hung_up = collections.Counter(), collections.Counter(), 0
        self.stop, self.lock = threading.Event(), threading.Lock()
        keys, banks = os.path.join(folder, "keys"), os.path.join(folder, "banks")
        os.mkdir(banks)
        with open(keys, "w", encoding="utf-8") as file:
            file.write(f"{OPERATOR}\n" + "".join(f"key-{n} tenant-{n}\n" for n in range(args.tenants)))
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        command = [args.drift, "serve", "-m", args.target, "-md", args.draft, "-t", "1", "-c", "256", "--port", "0", "--api-key-file", keys,
                   "--bank-dir", banks, "--banks-per-tenant", "2", "--banks-max", "8", "--bank-files-per-tenant", "3", "--bank-files-max", "64",
                   "--capacity", "512", "--suffix-tokens", "8192", "--bank-save-interval", "2", "--queue-max", "32", "--queue-per-tenant", "4",
                   "--timeout", "5", "--log-format", "json"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log,
                                        env=dict(os.environ, OMP_THREAD_LIMIT="1"))
        self.port = int(self.wait_for_event("listening")["url"].rsplit(":", 1)[1])
        self.wait_for_event("ready")

    def wait_for_event(self, name):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            with open(self.log.name, encoding="utf-8") as file:
                for line in file:
                    if line.endswith("}\n") and json.loads(line)["event"] == name:
                        return json.loads(line)
            time.sleep(0.05)
        raise SystemExit(f"soak: the server did not say '{name}': {open(self.log.name, encoding='utf-8').read()}")

    def request(self, method, path, key, body=None, read=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            with self.lock:
                self.statuses[answer.status] += 1
            if read is not None and answer.status == 200:
                answer.read(read)
                with self.lock:
                    self.hung_up += 1
                return answer.status, b""
            return answer.status, answer.read()
        finally:
            connection.close()

    def client(self, seed):
        rng = random.Random(seed)
        while not self.stop.is_set():
            tenant = rng.randrange(self.args.tenants)
            try:
                dice = rng.random()
                if dice < 0.02:
                    self.request("DELETE", f"/v1/drift/tenants/tenant-{tenant}", OPERATOR)
                elif dice < 0.06:
                    self.request("GET", rng.choice(("/metrics", "/v1/drift/state?history=whole", "/v1/drift/banks", "/slots")), OPERATOR)
                else:
                    body = {"prompt": " ".join(rng.choices(WORDS, k=rng.randrange(1, 60))), "max_tokens": rng.randrange(1, 60), "temperature": rng.choice((0, 1)),
                            "stream": rng.random() < 0.5, "drift": {"mode": rng.choice(MODES), "bank": rng.choice(("default", "a", "b", "c"))}}
                    if rng.random() < 0.2:
                        body["cache_salt"] = f"salt {rng.randrange(5)}"
                    if rng.random() < 0.2:
                        body["logprobs"] = 3
                    if rng.random() < 0.2:
                        body["n"] = 2
                    self.request("POST", "/v1/completions", f"key-{tenant}", body, read=200 if rng.random() < 0.1 else None)
            except (OSError, http.client.HTTPException) as error:
                with self.lock:
                    self.failures[type(error).__name__] += 1

    def resident_mb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS:"))

    def run(self):
        clients = [threading.Thread(target=self.client, args=(self.args.seed + n,)) for n in range(self.args.clients)]
        for client in clients:
            client.start()
        from_then, samples = time.monotonic(), []
        seconds, next_word = self.args.minutes * 60, 0
        try:
            while (now := time.monotonic() - from_then) < seconds and self.process.poll() is None:
                samples.append((now / 60, self.resident_mb()))
                if now >= next_word:
                    print(f"{now / 60:6.1f} min  {samples[-1][1]:8.1f} MB  {sum(self.statuses.values())} requests", flush=True)
                    next_word += max(60.0, seconds / 20)
                time.sleep(min(5, seconds / 20))
        finally:
            self.stop.set()
            for client in clients:
                client.join()
        return samples

    def finish(self):
        """What is wrong at the end."""
        wrong = []
        if self.process.poll() is not None:
            return [f"the server ended with {self.process.returncode}"]
        deadline = time.monotonic() + 30
        while True:
            state = json.loads(self.request("GET", "/v1/drift/state", OPERATOR)[1])
            busy = [slot for slot in state["slots"] if slot["phase"] != "idle"]
            if not busy and state["waiting"] == 0:
                break
            if time.monotonic() > deadline:
                wrong.append(f"30 s after the last client had gone {len(busy)} slots were busy and {state['waiting']} answers waited")
                break
            time.sleep(0.2)
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        if code != 0:
            wrong.append(f"the server ended with {code}")
        refused = {status: n for status, n in self.statuses.items() if status >= 500 and status != 503}
        if refused:
            wrong.append(f"answers that must not be: {refused}")
        if self.failures:
            wrong.append(f"connections that broke: {dict(self.failures)}")
        if self.statuses[200] == 0:
            wrong.append("nothing was answered")
        return wrong


def slope(samples):
    """MB a minute, by least squares."""
    n = len(samples)
    mean_t, mean_m = sum(t for t, _ in samples) / n, sum(m for _, m in samples) / n
    square = sum((t - mean_t) ** 2 for t, _ in samples)
    return sum((t - mean_t) * (m - mean_m) for t, m in samples) / square if square > 0 else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drift", required=True, help="the program")
    parser.add_argument("-m", dest="target", default=os.path.join(ROOT, "models", "drift-mini-target.gguf"))
    parser.add_argument("-md", dest="draft", default=os.path.join(ROOT, "models", "drift-mini-draft.gguf"))
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--tenants", type=int, default=40)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--slope-max", type=float, default=1.0, help="MB a minute")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the figures there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="drift-soak-") as folder:
        soak = Soak(args, folder)
        try:
            samples = soak.run()
            wrong = soak.finish()
        finally:
            if soak.process.poll() is None:
                soak.process.kill()
                soak.process.wait()
        late = [s for s in samples if s[0] >= args.minutes / 4]
        growth = slope(late) if len(late) > 1 else 0.0
        figures = {"minutes": args.minutes, "requests": sum(soak.statuses.values()), "statuses": dict(sorted(soak.statuses.items())),
                   "hung_up": soak.hung_up, "first_mb": samples[0][1], "last_mb": samples[-1][1], "most_mb": max(m for _, m in samples),
                   "slope_mb_per_min": round(growth, 3), "slope_over_min": round(late[-1][0] - late[0][0], 1) if late else 0}
        if args.minutes >= 10 and growth >= args.slope_max:
            wrong.append(f"resident memory grew by {growth:.2f} MB a minute")
        if wrong:
            sys.stderr.write(open(soak.log.name, encoding="utf-8").read()[-3000:])
        soak.log.close()
    print(json.dumps(figures))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({**figures, "samples": samples}, file)
    for text in wrong:
        print("soak:", text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
