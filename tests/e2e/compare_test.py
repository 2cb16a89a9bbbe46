"""drift compare: prompts, modes, the JSON's fields, equal texts, and every input it must refuse."""

import json
import os
import shutil
import signal
import time

import program
from program import ProgramTest, drift, model, target, pair, read, shell, start

ROWS = [
    {"id": "a", "domain": "general", "kind": "instruction", "prompt": "Name three colours.", "split": "eval"},
    {"id": "b", "domain": "general", "kind": "prefix", "prompt": "The capital of France is", "split": "eval"},
    {"id": "c", "domain": "law", "kind": "prefix", "prompt": "This agreement is made between", "split": "eval"},
    {"id": "d", "domain": "law", "kind": "prefix", "prompt": "unused", "split": "tune"},
]
TOP_FIELDS = set("""schema schema_minor drift_version partial runs_done runs_planned machine load_average_before load_average_after load_s wall_s
    target draft more_drafts vocab context sampler settings reference noise cost_curve modelled_at segments modes prompts""".split())
MODE_FIELDS = set("""label mode settings tokens steps drafted accepted accepted_bank copied accepted_copied acceptance acceptance_conditional
    mean_accepted_per_block time_ms tokens_per_s per_position accepted_histogram mean_length predicted_accepted speedup speedup_median
    distinct_4 repeat_32 trigram_seen speedup_quartiles modelled_speedup step_ms_p50 step_ms_p99 step_ms_max overhead_fraction overhead_ns step_ns bank_entries bank_bytes
    draft draft_engine learner level_entries suffix_tokens suffix_bytes
    diverged_prompts max_divergence_margin allowed_divergence_margin divergence_beyond_margin domains segments curve""".split())


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


class Refusals(ProgramTest):
    def test_prompts(self):
        base = ("compare", "-m", "x", "-md", "x", "--prompts")
        self.refused(["p.jsonl:2: column 12: not valid JSON: unexpected end of input"], *base, self.path("p.jsonl", '{"prompt": "a"}\n{"prompt": \n'))
        self.refused(["p.jsonl:1: ", "UTF-8"], *base, self.path("p.jsonl", b'{"prompt": "\xff"}\n'))
        self.refused(["no prompt has", "test"], *base, self.path("p.jsonl", lines(ROWS)), "--split", "test")
        self.refused(["cannot open"], *base, self.path("missing.jsonl"))
        self.refused(["empty"], *base, self.path("empty.txt", ""))
        self.refused(["P.JSONL:1: ", "missing or empty"], *base, self.path("P.JSONL", "{}\n"))
        steering = self.refused(["id"], *base, self.path("p.jsonl", lines([{"id": "\x1b[2J", "prompt": "a"}])))
        self.assertNotIn("\x1b", steering.stderr)

    def test_command_line(self):
        prompts = self.path("p.jsonl", lines(ROWS))
        base = ("compare", "-m", "x", "-md", "x", "--prompts", prompts)
        self.refused(["no mode 'fast'"], *base, "--modes", "off,fast")
        self.refused(["lambda in mode 'drift' is 'nan'"], *base, "--modes", "off,drift:lambda=nan")
        self.refused(["'lr' belongs to online-kd"], *base, "--modes", "off,drift:lr=0.1")
        self.refused(["--bank", "mode 'law' has another"], *base, "--bank", "y", "--modes", "off,law=drift:model-draft=z")
        self.refused(["--draft-engine is 'fast'", "llama or torch"], *base, "--draft-engine", "fast")
        self.refused(["-n is '0'"], *base, "-n", "0")
        self.refused(["does not exist"], *base, "--json", self.path("no/such/out.json"))
        self.refused(["needs a draft"], "compare", "-m", "x", "--prompts", prompts)
        for flag in ("--json", "--bank", "--split", "--prompts"):
            self.refused([f"{flag} is empty"], *base, flag, "")
        self.refused(["-m", "no such file"], *base)

    def test_an_input_is_not_overwritten(self):
        prompts = self.path("p.jsonl", lines(ROWS))
        for path in (prompts, self.path("link")):
            if path != prompts:
                os.symlink("p.jsonl", path)
            self.refused(["same file"], "compare", "-m", "x", "-md", "x", "--prompts", prompts, "--json", path)
        self.assertEqual(read(prompts), lines(ROWS).encode())

    def test_a_prompt_beyond_the_context(self):
        m = target()
        self.refused(["huge.txt", "tokens", "context"], "compare", "-m", m, "-md", m, "-c", "256", "--prompts", self.path("huge.txt", "word " * 1000))


class Comparisons(ProgramTest):
    def compare(self, *arguments):  # the rows' instructions need a chat template
        m, out = model(), self.path("out.json")
        done = self.worked("compare", "-m", m, "-md", m, "--prompts", self.path("p.jsonl", lines(ROWS)), "--split", "eval", "-n", "16", "--json", out, *arguments)
        with open(out, encoding="utf-8") as file:
            return done, json.load(file)

    def test_the_report_and_its_fields(self):
        done, out = self.compare("--modes", "off,static,seed=drift:preset=seed,earned=drift:gain=earned")
        self.assertEqual(out["schema"], "drift.compare/1")
        self.assertEqual(set(out), TOP_FIELDS)
        self.assertEqual([m["label"] for m in out["modes"]], ["off", "static", "seed", "earned"])
        for mode in out["modes"]:
            self.assertEqual(set(mode), MODE_FIELDS)
            self.assertEqual(set(mode["overhead_ns"]), {"lookup", "bias", "residual", "commit"})
            self.assertFalse(mode["divergence_beyond_margin"])
        self.assertEqual(out["modes"][2]["settings"]["lambda"], "0.6")
        self.assertEqual(out["modes"][2]["settings"]["gain"], "fixed")
        self.assertGreater(out["modes"][1]["acceptance"], 0.5)  # a model as its own draft
        self.assertGreater(out["modes"][2]["bank_entries"], 0)
        for side in ("target", "draft"):
            self.assertEqual(len(out["cost_curve"][side]["ms"]), 8)
        self.assertEqual([p["id"] for p in out["prompts"]], ["a", "b", "c"])
        self.assertEqual(set(out["modes"][1]["domains"]), {"general", "law"})
        self.assertEqual(out["noise"][0]["rows"], 4)
        for word in ("acceptance", "speed-up", "Float noise", "rows:", "lambda=0.6"):
            self.assertIn(word, done.stdout)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["out.json", "p.jsonl"])

    def test_rows_one_by_one_are_identical(self):
        for sampling in (("--temp", "0"), ("--temp", "0.8", "--seed", "7")):
            _, out = self.compare("--verify-rows-one-by-one", "--modes", "off,static,drift:lambda=2,gain=fixed", *sampling)
            for mode in out["modes"]:
                self.assertEqual(mode["diverged_prompts"], 0)
                self.assertEqual(mode["allowed_divergence_margin"], 0)
            self.assertEqual(out["noise"], [])

    def test_modes_that_copy(self):
        _, out = self.compare_rows([{"prompt": "one two three four one two three four one two"}] * 2, "-n", "24", "--verify-rows-one-by-one",
                                   "--modes", "off,lookup,suffix:suffix-tokens=256,draft+suffix:min-match=3,drift+suffix")
        off, lookup, suffix, hybrid, drift = out["modes"]
        for mode in out["modes"]:
            self.assertEqual(mode["diverged_prompts"], 0)
        for mode in (lookup, suffix, hybrid, drift):
            self.assertGreater(mode["copied"], 0)
            self.assertEqual(mode["settings"]["min-match"], "3" if mode is hybrid else "2")
        self.assertEqual(lookup["copied"], lookup["drafted"])
        self.assertEqual(lookup["step_ns"]["draft"], 0)
        self.assertEqual(lookup["suffix_bytes"], 0)
        self.assertGreater(suffix["suffix_tokens"], 48)  # two answers and what goes before them
        self.assertGreater(suffix["accepted_copied"], lookup["accepted_copied"])  # the second prompt is the first
        self.assertGreater(hybrid["drafted"], hybrid["copied"])
        self.assertNotIn("capacity", suffix["settings"])

    def test_copying_needs_no_draft(self):
        m = target()
        rows = [{"prompt": "one two three four, one two three four, one two three four, one two", "kind": "prefix"}]
        done = self.worked("compare", "-m", m, "--prompts", self.path("p.jsonl", lines(rows)), "-n", "16", "--modes", "off,lookup")
        self.assertIn("copied", done.stdout)
        self.refused(["needs a draft"], "compare", "-m", m, "--prompts", self.path("p.jsonl"), "--modes", "off,draft+suffix")

    def test_rejection_is_not_compared_above_zero(self):
        _, out = self.compare("--temp", "0.8", "--modes", "off,static:judge=rejection")
        self.assertIsNone(out["modes"][1]["diverged_prompts"])
        self.assertEqual(out["modes"][0]["diverged_prompts"], 0)

    def test_a_draft_that_learns(self):
        target, draft = pair()
        prompts = self.path("p.jsonl", lines(ROWS[1:3]))
        run = ("compare", "-m", target, "-md", draft, "--prompts", prompts, "-n", "12")
        too_small = ("--modes", "online-kd:every=300")
        if "needs LibTorch" in drift(*run, *too_small).stderr:
            for wanted in (("--modes", "online-kd"), ("--draft-engine", "torch")):
                self.refused(["needs LibTorch", "-DDRIFT_WITH_TORCH=ON", "libtorch-dev"], *run, *wanted)
            return
        self.refused(["mode 'online-kd'", "buffer", "at least"], *run, *too_small)
        out = self.path("out.json")
        done = self.worked(*run, "--json", out, "--draft-engine", "torch", "--modes",
                           "off,static,drift,kd=online-kd:lr=1e-4,every=4,buffer=16,lora-rank=4")
        with open(out, encoding="utf-8") as file:
            modes = json.load(file)["modes"]
        self.assertEqual([mode["draft_engine"] for mode in modes], [None, "torch", "torch", "torch"])
        self.assertEqual([mode["learner"] is None for mode in modes], [True, True, True, False])
        learner = modes[3]["learner"]
        self.assertGreater(learner["updates"], 1)
        self.assertGreater(learner["recomputed_tokens"], 0)
        self.assertGreater(learner["update_ms_max"], 0)
        self.assertGreaterEqual(modes[3]["step_ms_max"], learner["update_ms_max"])
        self.assertGreater(modes[3]["overhead_ns"]["commit"], 0)
        self.assertLess(learner["optimiser_bytes"], learner["weight_bytes"])
        for mode in modes:
            self.assertFalse(mode["divergence_beyond_margin"])
        self.assertGreater(learner["update_fraction"], 0)
        self.assertLess(learner["update_fraction"], 1)
        for word in ("kd = online-kd: ", "lr=0.0001", "updates from", "All drafts run in LibTorch"):
            self.assertIn(word, done.stdout)

    def test_a_mode_with_another_draft(self):
        target, draft = pair()
        other = target
        if target == draft:  # no built-in pair
            other = self.path("other.gguf")
            shutil.copy(target, other)
        link, out = self.path("link.gguf"), self.path("out.json")
        os.symlink(other, link)
        run = ("compare", "-m", target, "-md", draft, "--prompts", self.path("p.jsonl", lines(ROWS[1:2])), "-n", "12")
        done = self.worked(*run, "--json", out, "--modes",
                           f"off,static,own=static:model-draft={other},again=static:draft=3,model-draft={link},own2=static:model-draft={draft}")
        report = json.loads(read(out))
        self.assertEqual([mode["draft"] for mode in report["modes"]], [None, 0, 1, 1, 0])
        self.assertEqual([one["file"] for one in report["more_drafts"]], [other])  # once, whatever its name
        self.assertEqual(report["modes"][2]["settings"]["model-draft"], other)
        static, own, again, own2 = report["modes"][1:]
        self.assertGreater(own["acceptance"], 0.5)  # the target as its own draft
        self.assertGreaterEqual(own["acceptance"], static["acceptance"])
        self.assertEqual(again["accepted"], own["accepted"])
        self.assertEqual(own2["accepted"], static["accepted"])
        for mode in report["modes"]:
            self.assertFalse(mode["divergence_beyond_margin"])
        for word in (other, "memory  weights", "step p50"):
            self.assertIn(word, done.stdout)
        self.refused(["model-draft in mode 'x'", "no such file"], *run, "--modes", f"off,x=static:model-draft={self.path('none.gguf')}")
        self.refused(["model-draft in mode 'x'", "GGUF"], *run, "--modes", f"off,x=static:model-draft={self.path('p.jsonl')}")
        self.refused(["same file"], *run, "--modes", f"off,x=static:model-draft={other}", "--json", link)

    def test_the_smallest_context(self):
        done, out = self.compare_rows([{"prompt": "a"}], "-c", "2", "-n", "1", "--modes", "off,static")
        self.assertIn("No cost curve", done.stdout)
        self.assertIsNone(out["cost_curve"]["target"])
        self.assertEqual(out["runs_done"], 2)

    def compare_rows(self, rows, *arguments):
        m, out = target(), self.path("out.json")
        done = self.worked("compare", "-m", m, "-md", m, "--prompts", self.path("p.jsonl", lines(rows)), "--json", out, *arguments)
        return done, json.loads(read(out))

    def test_figures_into_the_standard_output(self):
        m, both = target(), self.path("both.txt")
        done = shell("", f"> '{both}'", "compare", "-m", m, "--prompts", self.path("p.jsonl", lines(ROWS[1:2])), "-n", "4", "--modes", "off",
                     "--json", "/dev/stdout")
        self.assertEqual(done.returncode, 0, done.stderr)
        text = read(both).decode()
        self.assertTrue(text.startswith("target "), text)
        self.assertEqual(json.loads(text[text.index("\n{") :])["schema"], "drift.compare/1")

    def test_interrupted_before_the_first_run_it_keeps_an_older_report(self):
        m, out = model(), self.path("out.json", "older")
        process = start("compare", "-m", m, "-md", m, "--prompts", self.path("p.txt", "word " * 7000), "-c", "8192", "-n", "8", "--json", out)
        process.stdout.read(1)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn(b"was not written", errors)
        self.assertEqual(read(out), b"older")

    def test_interrupted_it_tells_what_is_done(self):
        m, out = model(), self.path("out.json")
        rows = [dict(ROWS[1], id=str(i)) for i in range(500)]
        process = start("compare", "-m", m, "-md", m, "--prompts", self.path("p.jsonl", lines(rows)), "-n", "8", "--json", out)
        process.stdout.read(1)
        time.sleep(10)
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn(b"INTERRUPTED", text)
        with open(out, encoding="utf-8") as file:
            result = json.load(file)
        self.assertTrue(result["partial"])
        self.assertLess(result["runs_done"], result["runs_planned"])


if __name__ == "__main__":
    program.main()
