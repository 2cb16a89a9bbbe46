#!/usr/bin/env python3
"""Measures the built-in pair: what it reaches, the tuned drafts, online distillation, and DRIFT beside them. Prints Markdown.

usage: tools/built_in_pair.py --programs BUILD --pair FOLDER --prompts FOLDER --texts FOLDER --out FOLDER [PART ...]

--programs  build folder with cli/drift and train/drift-train (preset torch)
--pair      folder with the pair: drift-mini-target.gguf and drift-mini-draft.gguf
--prompts   folder of DOMAIN.jsonl (docs/cli.md); rows of kind "prefix" are used: `tune` rows in trials, `eval` rows elsewhere
--texts     folder of DOMAIN.txt, what drafts are tuned on
--out       results, one JSON report a run; a run that is there is not repeated, so an interrupted call goes on
PART        bars      in distribution and shifted, temperature 0 and 0.5, in llama.cpp
            tuning    as many settings of offline tuning as the others get in `trials`, a quarter of its length, on `tune` rows
            tune      one tuned draft for each shifted domain, and a target tuned on support (drift-train tune)
            matrix    each tuned draft on each domain; the stock draft under the tuned target
            trials    equally many settings of online distillation and of DRIFT, on `tune` rows
            methods   off, static, drift, online distillation and the tuned draft live, all drafts in LibTorch, five repeats
            rates     online distillation at a third, three and ten times the best learning rate
            report    the Markdown of all parts that are there
            All of them, in this order, if none is named. Everything runs on one thread: passes of a model this small are shorter
            than threads take to meet.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SHIFTED = ("law", "clinical", "code", "support")
DOMAINS = ("general",) + SHIFTED + ("temporal", "codeswitch")
PARTS = ("bars", "tuning", "tune", "matrix", "trials", "methods", "rates", "report")
PROMPTS, TOKENS, BLOCK = 24, 128, 5
TRIAL_DOMAINS, TRIAL_PROMPTS, TRIAL_TOKENS = ("law", "code"), 8, 96
METHOD_PROMPTS = 12  # each five times
TUNE_MINUTES, TARGET_MINUTES = 2, 6

# Online distillation: learning rate x positions between updates x divergence.
KD_TRIALS = [f"lr={lr},every={every},loss={loss}" for loss in ("forward", "reverse", "js") for every in (16, 64)
             for lr in ("0.0003", "0.001", "0.003", "0.01")]
# DRIFT: equally many, around its defaults.
DRIFT_TRIALS = ["neighbors=8", "neighbors=2", "neighbors=1", "neighbors=32", "sigma=0.05", "sigma=0.2", "tau=0.95", "tau=0.97", "tau=0.995",
                "support=16", "support=64", "support=128", "eta=0.1", "eta=0.6", "rate=count", "rate=error", "standardise=on", "clip=6", "centre=off",
                "gain=fixed,lambda=0.6", "gain=fixed,lambda=1", "gain=fixed,lambda=1.3", "neighbors=2,sigma=0.05", "neighbors=2,support=64"]
# Offline tuning: learning rate x rows a step x tokens a row; as many tokens in each.
TUNING_TRIALS = [{"rate": rate, "rows": rows, "window": window} for window in ("128", "256", "512") for rows in ("4", "8") for rate in ("0.0003", "0.001", "0.003", "0.01")]
TUNING_NAMES = [",".join(f"{key}={value}" for key, value in trial.items()) for trial in TUNING_TRIALS]
TUNING_TOKENS = 75_000
assert len(KD_TRIALS) == len(DRIFT_TRIALS) == len(TUNING_TRIALS)


def fail(message):
    sys.exit(f"built_in_pair: {message}")


def note(message):
    print(message, file=sys.stderr, flush=True)


class Runs:
    def __init__(self, options):
        self.o = options
        self.drift = os.path.join(options.programs, "cli", "drift")
        self.train = os.path.join(options.programs, "train", "drift-train")
        self.target = os.path.join(options.pair, "drift-mini-target.gguf")
        self.draft = os.path.join(options.pair, "drift-mini-draft.gguf")
        for needed in (self.drift, self.train, self.target, self.draft, options.prompts, options.texts):
            if not os.path.exists(needed):
                fail(f"{needed} is not there")
        try:
            os.makedirs(options.out, exist_ok=True)
        except OSError as error:
            fail(f"--out {options.out}: {error.strerror}")
        self.reading = None  # the report looked at last, for errors

    def path(self, name):
        return os.path.join(self.o.out, name)

    def read(self, name):
        self.reading = self.path(name + ".json")
        try:
            with open(self.reading, encoding="utf-8") as file:
                report = json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            fail(f"{self.reading}: {error}")
        if not isinstance(report, dict) or not isinstance(report.get("modes"), list):
            fail(f"{self.reading} is no report of drift compare")
        return None if report.get("partial") else report  # interrupted: to be run again

    def prompts(self, domain):
        """The domain's rows of kind "prefix": the pair is trained on text and knows no chat."""
        out, source, rows = self.path(f"prompts-{domain}.jsonl"), os.path.join(self.o.prompts, domain + ".jsonl"), []
        try:
            with open(source, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        fail(f"{source}:{number}: no JSON object")
                    if row.get("kind") == "prefix":
                        rows.append(line)
        except OSError as error:
            fail(f"{source}: {error.strerror}")
        except ValueError as error:
            fail(f"{source}: {error}")
        if not rows:
            fail(f"{source} has no row of kind \"prefix\"")
        with open(out, "w", encoding="utf-8") as file:
            file.writelines(rows)
        return out

    def tuned(self, domain):
        return self.path(f"draft-{domain}.gguf")

    def tuned_target(self):
        return self.path("target-support.gguf")

    def run(self, arguments, log):
        environment = dict(os.environ, OMP_THREAD_LIMIT="1")
        with open(self.path(log + ".log"), "w", encoding="utf-8") as file:
            return subprocess.run(arguments, stdout=file, stderr=subprocess.STDOUT, env=environment).returncode

    def compare(self, name, domain, modes, temperature, *more, split="eval", prompts=PROMPTS, tokens=TOKENS, target=None):
        if self.read(name) is not None:
            return
        begun = time.time()
        code = self.run([self.drift, "compare", "-m", target or self.target, "-md", self.draft, "--prompts", self.prompts(domain), "--split", split,
                         "--limit", str(prompts), "-n", str(tokens), "--draft", str(BLOCK), "--temp", str(temperature), "-t", "1",
                         "--modes", ",".join(modes), "--json", self.path(name + ".json"), *more], name)
        if code == 3:
            note(f"{name}: a text was not plain decoding's (see its report)")
        elif code != 0:
            fail(f"{name}: drift compare ended with {code}; see {self.path(name)}.log")
        note(f"{name}: {time.time() - begun:.0f} s")

    def bars(self):
        for temperature in (0, 0.5):
            for domain in DOMAINS:
                self.compare(f"bars-{domain}-{temperature}", domain, ["off", "static", "drift"], temperature)

    def tuning(self):
        for domain in TRIAL_DOMAINS:
            for first in range(0, len(TUNING_TRIALS), 12):
                modes = ["off"]
                for i in range(first, first + 12):
                    trial = TUNING_TRIALS[i]
                    steps = TUNING_TOKENS // (int(trial["rows"]) * int(trial["window"]))
                    name = f"tuning-{domain}-{i:02}"
                    self.tune_one(self.path(name + ".gguf"), name, domain, "-md", self.draft, "--steps", str(steps),
                                  *(word for flag, value in trial.items() for word in ("--" + flag, value)))
                    modes.append(f"t{i:02}=static:model-draft={self.path(name + '.gguf')}")
                self.compare(f"trials-tuning-{domain}-{first}", domain, modes, 0.5, split="tune", prompts=TRIAL_PROMPTS, tokens=TRIAL_TOKENS)

    def tune(self):
        by_time = "--time-budget", str(TUNE_MINUTES)
        for domain in SHIFTED:
            self.tune_one(self.tuned(domain), f"tune-{domain}", domain, "-md", self.draft, *by_time)
        self.tune_one(self.tuned_target(), "tune-target-support", "support", "--time-budget", str(TARGET_MINUTES))

    def tune_one(self, out, log, domain, *more):
        if os.path.exists(out):
            return
        code = self.run([self.train, "tune", "-m", self.target, "--text", os.path.join(self.o.texts, domain + ".txt"), "--out", out,
                         "-t", "1", *more], log)
        if code != 0:
            fail(f"{log}: drift-train tune ended with {code}; see {self.path(log)}.log")
        note(f"{log}: done")

    def matrix(self):
        tuned = [f"tuned-{d}=static:model-draft={self.tuned(d)}" for d in SHIFTED]
        for domain in ("general",) + SHIFTED:
            self.compare(f"matrix-{domain}", domain, ["off", "static", "drift"] + tuned, 0.5)
        self.compare("adapted-target", "support", ["off", "static", "drift"], 0.5, target=self.tuned_target())

    def trials(self):
        for domain in TRIAL_DOMAINS:
            for kind, mode, trials in (("drift", "drift", DRIFT_TRIALS), ("kd", "online-kd", KD_TRIALS)):
                for first in range(0, len(trials), 12):
                    modes = ["off"] + [f"t{i:02}={mode}:{trials[i]}" for i in range(first, first + 12)]
                    self.compare(f"trials-{kind}-{domain}-{first}", domain, modes, 0.5, split="tune", prompts=TRIAL_PROMPTS, tokens=TRIAL_TOKENS)

    def trial_table(self, kind):
        """[(settings, pooled acceptance, acceptance by domain)], best first; None unless all were run."""
        trials = {"kd": KD_TRIALS, "drift": DRIFT_TRIALS, "tuning": TUNING_NAMES}[kind]
        counts = [{d: [0, 0] for d in TRIAL_DOMAINS} for _ in trials]
        for domain in TRIAL_DOMAINS:
            for first in range(0, len(trials), 12):
                report = self.read(f"trials-{kind}-{domain}-{first}")
                if report is None:
                    return None
                for mode in report["modes"]:
                    if mode["label"] != "off":
                        counts[int(mode["label"][1:])][domain] = [mode["accepted"], mode["drafted"]]
        rows = []
        for settings, by_domain in zip(trials, counts):
            accepted, drafted = (sum(column) for column in zip(*by_domain.values()))
            rows.append((settings, accepted / drafted, [by_domain[d][0] / by_domain[d][1] for d in TRIAL_DOMAINS]))
        return sorted(rows, key=lambda row: -row[1])

    def best(self, kind):
        table = self.trial_table(kind)
        if table is None:
            fail(f"the best setting of {kind} is not known: run the part `trials` first")
        return table[0][0]

    def methods(self):
        kd, drift = self.best("kd"), self.best("drift")
        for domain in SHIFTED:
            self.compare(f"methods-{domain}", domain,
                         ["off", "static", "drift", f"drift-tried=drift:{drift}", f"online-kd=online-kd:{kd}", f"tuned=static:model-draft={self.tuned(domain)}"],
                         0.5, "--draft-engine", "torch", "--repeat", "5", prompts=METHOD_PROMPTS)

    def rates(self):
        kd = dict(item.split("=") for item in self.best("kd").split(","))
        modes = ["off", "static"]
        for label, factor in (("third", 1 / 3), ("best", 1), ("three", 3), ("ten", 10)):
            modes.append(f"{label}=online-kd:" + ",".join(f"{k}={min(float(v) * factor, 1):.6g}" if k == "lr" else f"{k}={v}" for k, v in kd.items()))
        for domain in ("general",) + SHIFTED:
            self.compare(f"rates-{domain}", domain, modes, 0.5, prompts=METHOD_PROMPTS)

    # ------------------------------------------------------------------------------------------------------- Markdown

    def report(self):
        for part in (self.report_bars, self.report_matrix, self.report_trials, self.report_methods, self.report_rates):
            try:
                part()
            except (LookupError, TypeError, ValueError, ArithmeticError) as error:
                fail(f"{self.reading} is no report of drift compare that can be told: {error!r}")

    def report_bars(self):
        for temperature in (0, 0.5):
            rows, base = [], None
            for domain in DOMAINS:
                report = self.read(f"bars-{domain}-{temperature}")
                if report is None:
                    break
                off, static, drift = (mode(report, m) for m in ("off", "static", "drift"))
                base = base or static["acceptance"]
                rows.append([domain, off["tokens"] // report["settings"]["repeat"], f"{static['acceptance']:.3f}", f"{static['acceptance'] / base:.2f}",
                             f"{static['acceptance_conditional']:.3f}", f"{drift['acceptance']:.3f}", f"{off['distinct_4']:.2f}", f"{off['repeat_32']:.2f}",
                             f"{off['trigram_seen']:.2f}", f"{static['speedup']:.2f}", f"{drift['speedup']:.2f}", f"{static['modelled_speedup']:.2f}",
                             f"{drift['modelled_speedup']:.2f}", different(static) + " / " + different(drift)])
            else:
                print(f"\nTemperature {temperature}, blocks of {BLOCK}:\n")
                table(["domain", "tokens", "static", "of general", "conditional", "drift", "distinct-4", "repeat/32", "trigram seen", "speed-up static", "drift",
                       "at the seed's costs: static", "drift", "texts that differ from plain: static / drift"], rows)

    def report_matrix(self):
        reports = [(d, self.read(f"matrix-{d}")) for d in ("general",) + SHIFTED]
        if any(r is None for _, r in reports):
            return
        labels = ["static", "drift"] + [f"tuned-{d}" for d in SHIFTED]
        print("\nAcceptance, temperature 0.5; a row is the domain of the prompts, a column the draft:\n")
        table(["prompts"] + labels, [[d] + [f"{mode(r, label)['acceptance']:.3f}" for label in labels] for d, r in reports])
        adapted = self.read("adapted-target")
        if adapted:
            stock = dict(reports)["support"]
            print("\nThe target tuned on support, the draft stock (prompts: support):\n")
            table(["target", "static", "drift"], [[name] + [f"{mode(r, label)['acceptance']:.3f}" for label in ("static", "drift")]
                                                  for name, r in (("stock", stock), ("tuned on support", adapted))])

    def report_trials(self):
        for kind, title in (("kd", "Online distillation"), ("drift", "DRIFT"), ("tuning", "Offline tuning")):
            rows = self.trial_table(kind)
            if rows:
                print(f"\n{title}, {len(rows)} settings on `tune` rows ({TRIAL_PROMPTS} prompts x {TRIAL_TOKENS} tokens a domain, temperature 0.5), best first:\n")
                table(["settings", "all"] + list(TRIAL_DOMAINS), [[f"`{s}`", f"{a:.3f}"] + [f"{x:.3f}" for x in by] for s, a, by in rows])

    def report_methods(self):
        rows, loads = [], []
        for domain in SHIFTED:
            report = self.read(f"methods-{domain}")
            if report is None:
                continue
            loads.append(f"{report['load_average_before'][0]:.1f}")
            name = domain
            for m in report["modes"]:
                label, learner = m["label"], m["learner"]
                memory = m["bank_bytes"] if learner is None else learner["weight_bytes"] + learner["optimiser_bytes"] + learner["buffer_bytes"]
                speeds, ratios = by_repeat(report, label)
                overhead = m["overhead_fraction"]
                rows.append([name, label, "-" if label == "off" else f"{m['acceptance']:.3f}", f"{statistics.median(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f})",
                             f"{statistics.median(ratios):.2f}", "-" if label == "off" else f"{m['modelled_speedup']:.2f}", "-" if overhead is None or label == "off" else f"{100 * overhead:.1f} %",
                             f"{m['step_ms_p50']:.2f}", f"{m['step_ms_p99']:.2f}", f"{m['step_ms_max']:.1f}", f"{memory / 1e6:.2f}" if memory else "-",
                             "-" if learner is None else f"{learner['updates'] // report['settings']['repeat']} x {learner['update_ms'] / max(learner['updates'], 1):.0f} ms"])
                name = ""
        if not rows:
            return
        print(f"\nTemperature 0.5, {METHOD_PROMPTS} prompts x {TOKENS} tokens, drafts in LibTorch, medians of five repeats (lowest and highest):\n")
        table(["domain", "method", "acceptance", "tokens/s", "against static", "at the seed's costs, against off", "overhead", "step ms p50", "p99", "longest", "memory MB", "updates a repeat"], rows)
        print(f"\n`drift-tried`: {self.best('drift')}; `online-kd`: {self.best('kd')}. One thread, load average {', '.join(loads)} before the runs.")

    def report_rates(self):
        reports = [(d, r) for d in ("general",) + SHIFTED if (r := self.read(f"rates-{d}"))]
        if not reports:
            return
        print(f"\nOnline distillation ({self.best('kd')}) at other learning rates, acceptance ({METHOD_PROMPTS} prompts):\n")
        labels = ("static", "third", "best", "three", "ten")
        table(["prompts", "no learning", "a third", "the best on tune rows", "three times", "ten times"],
              [[d] + [f"{mode(r, label)['acceptance']:.3f}" for label in labels] for d, r in reports])


def mode(report, label):
    found = [m for m in report["modes"] if m["label"] == label]
    if not found:
        raise LookupError(f"there is no mode {label}")
    return found[0]


def different(m):
    return "-" if m["diverged_prompts"] is None else str(m["diverged_prompts"])


def by_repeat(report, label):
    """tokens/s of each repeat, and each over the static draft's of the same repeat."""
    def speeds(wanted):
        out = []
        for repeat in range(report["settings"]["repeat"]):
            runs = [r for p in report["prompts"] for r in p["runs"] if r["label"] == wanted and r["repeat"] == repeat]
            out.append(1000 * sum(r["tokens"] for r in runs) / sum(r["time_ms"] for r in runs))
        return out
    mine = speeds(label)
    return mine, [a / b for a, b in zip(mine, speeds("static"))]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    for name in ("programs", "pair", "prompts", "texts", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            fail(f"there is no part '{part}'; it knows: {' '.join(PARTS)}")
    runs = Runs(options)
    for part in options.parts or PARTS:
        getattr(runs, part)()


if __name__ == "__main__":
    main()
