"""Runs drift compare for each run of the plan, keeps its report, and repeats nothing that is there."""
import dataclasses
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import plan
import prompts

SEED = 1


def say(message):
    print(f"lab: {message}", file=sys.stderr, flush=True)


class Interrupted(Exception):
    pass


class Terminated(KeyboardInterrupt):
    """By a signal to the lab alone: unlike Ctrl-C, the program it runs has not heard it."""


class Failed(Exception):
    """A run ended badly; its log tells why."""


def ago(seconds):
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def has_chat_template(path):
    """Whether a GGUF file's head speaks of a chat template: only then can prompts of kind "instruction" be sent."""
    with open(path, "rb") as file:
        return b"tokenizer.chat_template" in file.read(64 << 20)


def abilities(program):
    """What this build of drift can do beyond the modes every build has."""
    try:
        text = subprocess.run([program, "compare", "--help"], capture_output=True, text=True, timeout=60).stdout
        # Refused before anything is loaded where there is no LibTorch; else the missing files are what is refused.
        torch = subprocess.run([program, "compare", "-m", "no.gguf", "-md", "no.gguf", "--prompts", "no.jsonl", "--modes", "online-kd"],
                               capture_output=True, text=True, timeout=60).stderr
        version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError as error:
        raise plan.Unusable(f"{program}: {error.strerror}") from error
    if not version or not text:
        raise plan.Unusable(f"{program} is not a drift program that works")
    return version, {name for name, there in (("torch", "needs LibTorch" not in torch), ("levels", "--levels" in text)) if there}


@dataclasses.dataclass
class Job:
    """A run with its files: ready to be run, or done."""
    run: plan.Run
    command: list
    path: str  # of the report
    key: str  # of everything that decides the figures
    weight: int  # requests x methods x tokens
    requests: int
    skipped: dict  # label: what is missing

    @property
    def done(self):
        try:
            with open(self.path + ".key", encoding="utf-8") as file:
                if file.read() != self.key:
                    return False
            with open(self.path, encoding="utf-8") as file:
                return json.load(file)["partial"] is False
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def shown_command(self):
        return " ".join(shlex.quote(word) for word in self.command)


class Lab:
    """Where things are. `tuned`: a folder with draft-DOMAIN.gguf and targets, or None."""

    def __init__(self, program, target, draft, data, out, size, split="eval", tuned=None, threads=1):
        self.program, self.target, self.draft, self.data, self.out, self.size, self.split, self.tuned = program, target, draft, data, out, size, split, tuned
        self.threads = threads
        for needed in (program, target, draft):
            if not os.path.isfile(needed):
                raise plan.Unusable(f"{needed} is not there")
        self.version, self.have = abilities(program)
        self.kinds = ("prefix", "instruction") if has_chat_template(target) else ("prefix",)
        self.hashes = {}

    def hash(self, path):
        if path not in self.hashes:
            self.hashes[path] = sha256_of(path)
        return self.hashes[path]

    def job(self, scenario, temperature, judge, methods):
        """(Job, notes), or (None, why not)."""
        each, tokens = plan.SIZES[self.size]
        target = self.target
        if scenario.target:
            target = os.path.join(self.tuned or "", scenario.target)
            if not self.tuned or not os.path.isfile(target):
                return None, [f"it needs {scenario.target} in the folder that --tuned names"]
        rows, notes = prompts.chosen(scenario, self.data, self.split, self.kinds, each)
        if rows is None:
            return None, notes
        files, have = {"target": target}, set(self.have)
        tuned = os.path.join(self.tuned or "", f"draft-{scenario.segments[0]}.gguf")
        if self.tuned and len(set(scenario.segments)) == 1 and not scenario.target and os.path.isfile(tuned):
            files["tuned-draft"] = tuned
            have.add("tuned-draft")
        able, skipped = plan.possible(methods, scenario, self.size, have)
        run = plan.Run(scenario, temperature, judge, able)
        content = prompts.written(rows)
        file = os.path.join(self.out, run.name + ".prompts.jsonl")
        path = os.path.join(self.out, run.name + ".json")
        command = [self.program, "compare", "-m", target, "-md", self.draft, "-t", str(self.threads), "--prompts", file, "--stream", "-n", str(tokens),
                   "--draft", str(scenario.draft), "--temp", f"{temperature:g}", "--judge", judge, "--seed", str(SEED),
                   "--modes", ",".join(m.as_mode(files) for m in able), "--json", path]
        models = [self.hash(path) for path in (target, self.draft, files.get("tuned-draft")) if path]
        key = hashlib.sha256(json.dumps([self.version, models, [m.as_mode({n: n for n in files}) for m in able], tokens, scenario.draft, temperature, judge, SEED, content]).encode())
        with open(file, "w", encoding="utf-8") as out:
            out.write(content)
        return Job(run, command, path, key.hexdigest(), len(rows) * len(able) * tokens, len(rows), skipped), notes


def run_all(jobs, log_every=15):
    """Runs what is not there yet. Returns the names of runs in which a text left plain decoding's by more than float noise."""
    odd, total, begun, done_weight = [], sum(j.weight for j in jobs if not j.done), time.monotonic(), 0
    for number, job in enumerate(jobs, 1):
        head = f"[{number}/{len(jobs)}] {job.run.name}"
        if job.done:
            say(f"{head}: there already")
            continue
        left = ""
        if done_weight:
            left = f", {ago((time.monotonic() - begun) * (total - done_weight) / done_weight)} left for all"
        say(f"{head}: {job.requests} requests x {len(job.run.methods)} methods{left}")
        start = time.monotonic()
        code = follow(job.command, job.path + ".log", head, "runs", log_every)
        if code == 130:
            raise Interrupted
        if code not in (0, 3):
            raise Failed(f"{job.run.name}: drift compare ended with {code}; see {job.path}.log")
        with open(job.path + ".key", "w", encoding="utf-8") as file:
            file.write(job.key)
        if code == 3:
            odd.append(job.run.name)
            say(f"{head}: a text was not plain decoding's; see {job.path}.log")
        done_weight += job.weight
        say(f"{head}: done in {ago(time.monotonic() - start)}")
    return odd


def hear_sigterm():
    """Makes SIGTERM a Terminated. Call first thing in main()."""
    def terminate(number, frame):
        raise Terminated
    signal.signal(signal.SIGTERM, terminate)


def follow(command, log_path, head, counted, log_every):
    """Runs drift; its exit code. Its output goes to the log; of its lines of progress, which count `counted`, one now and then is passed on."""
    environment = dict(os.environ)
    if "-t" in command and command[command.index("-t") + 1] == "1":
        environment["OMP_THREAD_LIMIT"] = "1"  # beside other load, threads of a small model wait for each other longer than they compute
    progress = f" {counted}".encode()
    shown = time.monotonic()
    with open(log_path, "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, env=environment)
        try:
            for line in process.stderr:
                log.write(line)
                if progress in line and time.monotonic() - shown > log_every:
                    shown = time.monotonic()
                    say(f"{head}: {line.decode(errors='replace').strip().removeprefix('drift: ')}")
            return process.wait()
        except KeyboardInterrupt as stop:
            if isinstance(stop, Terminated):
                process.terminate()
            process.wait()  # it writes what it has
            return 130
