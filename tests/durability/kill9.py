#!/usr/bin/env python3
"""kill9.py - kills a program that saves a bank in a loop at random moments and looks at what is left.

After every kill: the bank verifies, and its content is that of one of the last two saves (the last finished one, or the
one that was under way). Every tenth run starts without a file, so that its making is hit too. At the end the next writer
must have cleaned up: one file in the folder.

    kill9.py [--runs N] [--seed S] BANK_WRITER
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time


def last_numbers(lines):
    """The number of the last finished save and of the last one begun."""
    saved = begun = None
    for line in lines:
        word, number = line.split()
        if word == "saved":
            saved = int(number)
        else:
            begun = int(number)
    return saved, begun


def run_once(writer, bank, delay, from_first_save=False):
    """Kills it `delay` seconds after its start, or after it began to save first: a busy machine may need long until then."""
    process = subprocess.Popen([writer, "write", bank], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = process.stdout.readline() if from_first_save else b""
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate()
    out = first + out
    if process.returncode != -signal.SIGKILL:
        sys.exit(f"the writer ended by itself ({process.returncode}): {err.decode()}")
    lines = out.decode().split("\n")
    return [line for line in lines[:-1] if line]  # what follows the last newline was cut by the kill


def check(writer, bank):
    done = subprocess.run([writer, "check", bank], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: {done.stderr.strip()}")
    return done.stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("writer")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    kept_new = kept_old = untouched = leftovers = within = 0
    with tempfile.TemporaryDirectory(prefix="drift-kill9-") as folder:
        bank = os.path.join(folder, "killed.bank")
        before = "missing"
        for run in range(args.runs):
            if run % 10 == 0 and os.path.exists(bank):
                os.remove(bank)
                before = "missing"
            if run % 2 == 1:  # half of the kills come while the file is opened or saved first
                lines = run_once(args.writer, bank, rng.uniform(0.0005, 0.015))
            else:
                lines = run_once(args.writer, bank, rng.uniform(0, 0.1), from_first_save=True)
            saved, begun = last_numbers(lines)
            found = check(args.writer, bank)
            if saved is None and begun is None:
                allowed = {before, "missing", "empty"} if before in ("missing", "empty") else {before}
            else:
                allowed = {str(begun), str(saved) if saved is not None else before}
                if saved is None and before == "missing":
                    allowed.add("empty")
            if found not in allowed:
                sys.exit(f"FAILED in run {run}: found {found}, allowed {sorted(allowed)}, seed {seed}")
            kept_new += found == str(begun) and begun != saved
            kept_old += begun is not None and found != str(begun)
            untouched += begun is None
            within += begun is not None and begun != saved
            leftovers += len(os.listdir(folder)) > 1
            before = found
        lines = run_once(args.writer, bank, 0.5)
        left = os.listdir(folder)
        check(args.writer, bank)
        if len(left) > 2:
            sys.exit(f"FAILED: files pile up: {left}")
    if within < args.runs / 8:
        sys.exit(f"FAILED: only {within} of {args.runs} kills came within a save: the others show little")
    print(f"{args.runs} kills, {within} of them within a save: every bank verified and held one of the last two saves "
          f"({kept_old} kept the old content, {kept_new} the new; before any save: {untouched}; "
          f"temporary file left: {leftovers})")


if __name__ == "__main__":
    main()
