"""tools/built_in_pair.py: what is run, which setting is taken, and the tables, from reports made up here."""

import contextlib
import importlib.util
import io
import json
import os
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tools", "built_in_pair.py")
spec = importlib.util.spec_from_file_location("built_in_pair", TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def mode(label, accepted, drafted=100, **more):
    return {"label": label, "accepted": accepted, "drafted": drafted, "acceptance": accepted / drafted, "acceptance_conditional": 0.5, "tokens": 10,
            "speedup": 1.5, "modelled_speedup": 2.0, "distinct_4": 0.9, "repeat_32": 0.4, "trigram_seen": 0.1, "diverged_prompts": 0,
            "overhead_fraction": 0.01, "step_ms_p50": 1.0, "step_ms_p99": 2.0, "step_ms_max": 3.0, "bank_bytes": 0, "learner": None, **more}


class BuiltInPair(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("cli/drift", "train/drift-train", "drift-mini-target.gguf", "drift-mini-draft.gguf"):
            os.makedirs(os.path.dirname(os.path.join(self.folder, name)) or ".", exist_ok=True)
            open(os.path.join(self.folder, name), "w").close()
        with open(os.path.join(self.folder, "law.jsonl"), "w", encoding="utf-8") as file:
            for kind in ("prefix", "instruction", "prefix"):
                file.write(json.dumps({"id": kind, "kind": kind, "prompt": "x"}) + "\n")

        class Options:
            programs = pair = prompts = texts = self.folder
            out = os.path.join(self.folder, "out")
        self.runs = tool.Runs(Options)
        self.asked = []
        self.runs.run = lambda arguments, log: self.asked.append((log, arguments)) or 0

    def put(self, name, modes, **more):
        report = {"modes": modes, "settings": {"repeat": 1}, "prompts": [], "machine": {"cpu": "C"}, "load_average_before": [0.5], "drift_version": "v", **more}
        with open(self.runs.path(name + ".json"), "w", encoding="utf-8") as file:
            json.dump(report, file)

    def put_trials(self):
        for kind, best in (("kd", 5), ("drift", 13)):
            for domain in tool.TRIAL_DOMAINS:
                for first in range(0, len(tool.KD_TRIALS), 12):
                    self.put(f"trials-{kind}-{domain}-{first}",
                             [mode("off", 0)] + [mode(f"t{i:02}", 30 if i == best else 20) for i in range(first, first + 12)])

    def printed(self, part):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            part()
        return out.getvalue()

    def test_all_rivals_get_equally_many_trials(self):
        for trials in (tool.KD_TRIALS, tool.TUNING_NAMES):
            self.assertEqual(len(set(trials)), len(set(tool.DRIFT_TRIALS)))

    def test_trials_of_tuning_see_as_many_tokens_and_are_scored_on_tune_rows(self):
        self.runs.prompts = lambda domain: "p"
        with contextlib.redirect_stderr(io.StringIO()):
            self.runs.tuning()
        trained = [a for _, a in self.asked if "tune" == a[1]]
        self.assertEqual(len(trained), 2 * len(tool.TUNING_TRIALS))
        for a in trained:
            steps, rows, window = (int(a[a.index(flag) + 1]) for flag in ("--steps", "--rows", "--window"))
            self.assertAlmostEqual(steps * rows * window, tool.TUNING_TOKENS, delta=rows * window)
        scored = [a for _, a in self.asked if "compare" == a[1]]
        self.assertEqual([a[a.index("--split") + 1] for a in scored], ["tune"] * 4)

    def test_the_best_trial_is_taken(self):
        with self.assertRaises(SystemExit):
            self.runs.best("kd")
        self.put_trials()
        self.assertEqual(self.runs.best("kd"), tool.KD_TRIALS[5])
        self.assertEqual(self.runs.best("drift"), tool.DRIFT_TRIALS[13])
        self.assertIn("0.300", self.printed(self.runs.report_trials).splitlines()[5])

    def test_only_text_to_go_on_with_is_asked_for_and_constants_come_from_tune_rows(self):
        with open(self.runs.prompts("law"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["kind"] for line in file], ["prefix", "prefix"])
        self.runs.prompts = lambda domain: "p"
        with contextlib.redirect_stderr(io.StringIO()):
            self.runs.trials()
            self.put_trials()
            trials = len(self.asked)
            self.runs.trials()  # all there
            self.assertEqual(len(self.asked), trials)
            self.runs.rates()
        for log, arguments in self.asked:
            self.assertEqual(arguments[arguments.index("--split") + 1], "tune" if log.startswith("trials") else "eval")
        rate = float(dict(item.split("=") for item in tool.KD_TRIALS[5].split(","))["lr"])
        modes = self.asked[-1][1][self.asked[-1][1].index("--modes") + 1]
        for factor in (1 / 3, 1, 3, 10):
            self.assertIn(f"lr={min(rate * factor, 1):.6g}", modes)

    def test_an_interrupted_run_is_run_again(self):
        self.put("bars-law-0", [mode("off", 0)], partial=True)
        self.assertIsNone(self.runs.read("bars-law-0"))
        self.put("bars-law-0", [mode("off", 0)], partial=False)
        self.assertIsNotNone(self.runs.read("bars-law-0"))

    def test_what_cannot_be_read_is_named(self):
        def said(action):
            with self.assertRaises(SystemExit) as stopped:
                action()
            self.assertIsInstance(stopped.exception.code, str)  # a sentence, and no stack trace
            return stopped.exception.code

        for content in ("", "{", "[]", "{}", '{"modes": 1}', '{"modes": []}', '{"modes": [1]}', '{"modes": [{"label": "off"}]}'):
            for name in ("bars-general-0", "methods-law"):
                path = self.runs.path(name + ".json")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
                with contextlib.redirect_stdout(io.StringIO()):
                    self.assertIn(name, said(self.runs.report), content)
                os.remove(path)
        self.assertIn("clinical.jsonl", said(lambda: self.runs.prompts("clinical")))
        for content, words in (("x{", "law.jsonl"), ("[1]\n", "law.jsonl:1"), ('{"kind": "instruction"}\n', "no row")):
            with open(os.path.join(self.folder, "law.jsonl"), "w", encoding="utf-8") as file:
                file.write(content)
            self.assertIn(words, said(lambda: self.runs.prompts("law")))

        class Options:
            programs = pair = prompts = texts = self.folder
            out = os.path.join(self.folder, "law.jsonl")
        self.assertIn("--out", said(lambda: tool.Runs(Options)))

    def test_tables(self):
        self.assertEqual(self.printed(self.runs.report), "")  # nothing is there
        for domain in tool.DOMAINS:
            for temperature in (0, 0.5):
                self.put(f"bars-{domain}-{temperature}", [mode("off", 0), mode("static", 30 if domain == "general" else 15), mode("drift", 20)])
        bars = self.printed(self.runs.report_bars)
        self.assertIn("| general | 10 | 0.300 | 1.00 |", bars)
        self.assertIn("| law | 10 | 0.150 | 0.50 |", bars)
        self.put_trials()
        learner = {"weight_bytes": 1e6, "optimiser_bytes": 2e6, "buffer_bytes": 5e5, "updates": 4, "update_ms": 40}
        prompts = [{"runs": [{"label": label, "repeat": 0, "tokens": tokens, "time_ms": 1000} for label, tokens in (("off", 50), ("static", 100), ("online-kd", 80))]}]
        for domain in tool.SHIFTED:
            self.put(f"methods-{domain}", [mode("off", 0), mode("static", 20), mode("online-kd", 25, learner=learner)], prompts=prompts)
        methods = self.printed(self.runs.report_methods)
        self.assertIn("| online-kd | 0.250 | 80 (80-80) | 0.80 | 2.00 | 1.0 % | 1.00 | 2.00 | 3.0 | 3.50 | 4 x 10 ms |", methods)


if __name__ == "__main__":
    unittest.main()
