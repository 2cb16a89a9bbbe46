"""drift-train: killed at any moment it ends with the same weights; what it writes is used; what it cannot use it refuses.

DRIFT_PROGRAM is drift-train here; DRIFT_OTHER_PROGRAM is drift.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import time

import program
from program import ProgramTest, read, start



def fitting_blas_kernels():
    """What drift-train chooses for itself where OpenBLAS takes the oldest kernels (engines/torch/blas.hpp): it then starts itself anew,
    which loads LibTorch twice. Chosen here, a hundred starts are half a second quicker each."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return "SkylakeX" if "avx512vl" in flags else "Haswell" if "avx2" in flags else None


WORDS = {
    "general": "the a small house river walked slowly through green morning light people said that they would never come back".split(),
    "law": "tenant shall lessee pursuant section herein agreement party notwithstanding liability indemnify clause".split(),
}
# A pair that trains in seconds, with steps enough for each stage to be met by a kill.
TOY = {"vocab": 400, "window": 32, "rows": 4, "context": 128, "target-width": 64, "target-layers": 2, "target-heads": 2,
       "target-ffn": 96, "draft-width": 32, "draft-layers": 1, "draft-heads": 1, "draft-ffn": 64, "threads": 1, "keep-seconds": 0}
STEPS = {"steps-target": 60, "steps-draft": 40, "steps-samples": 3, "steps-distil": 40}


def toy_text(name, size=60_000):
    """Sentences of a few words in changing order, the same every time."""
    rng = random.Random(name)
    parts = []
    while sum(map(len, parts)) < size:
        parts.append(" ".join(rng.choice(WORDS[name]) for _ in range(rng.randint(5, 12))).capitalize() + rng.choice([".\n", ". ", ".\n\n"]))
    return "".join(parts)


class TrainTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.data = self.path("data")
        os.mkdir(self.data)
        for name in WORDS:
            with open(os.path.join(self.data, name + ".txt"), "w", encoding="utf-8") as file:
                file.write(toy_text(name))

    def pair(self, out, steps=STEPS, more=()):
        """Arguments of a toy run; `more` replaces or adds flags."""
        flags = {"data": self.data, "out": self.path(out), **TOY, **steps, **dict(more)}
        return ["pair", "--f32", *(part for flag, value in flags.items() for part in ("--" + flag, str(value)))]

    def weights(self, out):
        return [read(os.path.join(self.path(out), name)) for name in ("target-f32.gguf", "draft-f32.gguf")]


class Pair(TrainTest):
    def test_killed_at_any_moment_it_ends_with_the_same_weights(self):
        self.worked(*self.pair("whole"))
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        kills = 0
        while kills < 6:
            process = start(*self.pair("killed"))
            time.sleep(rng.uniform(0.3, 2.0))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.communicate()
            if process.returncode == 0:
                break
            self.assertEqual(process.returncode, -signal.SIGKILL, f"seed {seed}")
        self.worked(*self.pair("killed"))
        self.assertGreater(kills, 0)
        self.assertEqual([name for name in os.listdir(self.path("killed")) if ".part" in name], [])
        self.assertEqual(self.weights("whole"), self.weights("killed"), f"seed {seed}, {kills} kills")

    def test_interrupted_it_keeps_what_it_has(self):
        process = start(*self.pair("out", more={"steps-target": 100_000}))
        while not os.path.exists(os.path.join(self.path("out"), "checkpoint.safetensors")):
            time.sleep(0.05)
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"the same command goes on", errors)
        shown = self.worked("show", self.path("out")).stdout
        self.assertIn("not finished", shown)

    def test_the_files_are_a_pair_and_the_recipe_tells_how(self):
        result = self.worked(*self.pair("out"))
        self.assertIn("going on", self.worked(*self.pair("out")).stdout)  # done already: nothing is trained again
        with open(os.path.join(self.path("out"), "recipe.json"), encoding="utf-8") as file:
            recipe = json.load(file)
        self.assertEqual(recipe["stages"]["target"]["steps"], 60)
        self.assertEqual(set(recipe["recipe"]["texts"]), set(WORDS))
        held_out = recipe["held_out"]
        self.assertLess(held_out["target"]["law"]["perplexity"], 100)  # of 400 tokens: it learnt
        self.assertGreater(held_out["draft"]["law"]["perplexity"], 2 * held_out["draft"]["general"]["perplexity"])  # never saw it
        self.assertIn("law: perplexity", result.stdout)
        shown = self.worked("show", self.path("out")).stdout
        for words in ("target:", "draft:", "sha256", "perplexity"):
            self.assertIn(words, shown)

        prompts = self.path("p.jsonl", json.dumps({"id": "1", "domain": "general", "kind": "prefix", "prompt": "The river walked"}) + "\n")
        compared = subprocess.run(
            [os.environ["DRIFT_OTHER_PROGRAM"], "compare", "-m", os.path.join(self.path("out"), "target-q8_0.gguf"), "-md",
             os.path.join(self.path("out"), "draft-q8_0.gguf"), "--prompts", prompts, "-n", "16", "-t", "1", "--modes", "off,static,drift"],
            capture_output=True, encoding="utf-8", timeout=300)
        self.assertEqual(compared.returncode, 0, compared.stderr)
        self.assertIn("static", compared.stdout)


class OnAToyPair(TrainTest):
    """On a toy pair that is made once for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory(prefix="drift-e2e-")
        cls.addClassCleanup(cls.shared.cleanup)

    def setUp(self):
        super().setUp()
        self.target, self.draft = (os.path.join(self.shared.name, name) for name in ("target-q8_0.gguf", "draft-q8_0.gguf"))
        if not os.path.exists(self.draft):
            self.worked(*self.pair(self.shared.name))
        self.law = os.path.join(self.data, "law.txt")

    def compared(self, *more):
        """`drift compare` on one prompt."""
        prompts = self.path("p.jsonl", json.dumps({"id": "1", "domain": "law", "kind": "prefix", "prompt": "Tenant shall"}) + "\n")
        modes = () if "--modes" in more else ("--modes", "off,static")
        return subprocess.run([os.environ["DRIFT_OTHER_PROGRAM"], "compare", "--prompts", prompts, "-n", "16", "-t", "1", *modes, *more],
                              capture_output=True, encoding="utf-8", timeout=300)

    def compares(self, *more):
        """What it prints."""
        done = self.compared(*more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def interrupted(self, out, *arguments):
        """Ctrl-C once there is a checkpoint."""
        process = start(*arguments)
        while not os.path.exists(self.path(out) + ".checkpoint"):
            time.sleep(0.02)
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"the same command goes on", errors)

    def killed_now_and_then(self, arguments, times):
        """The seed of the moments at which it was killed; it has ended by itself afterwards."""
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        for _ in range(times):
            process = start(*arguments)
            time.sleep(rng.uniform(0.2, 1.5))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        self.worked(*arguments)
        return seed


class Tune(OnAToyPair):
    STEPS = ["--steps", "60", "--window", "32", "--rows", "4", "--threads", "1", "--keep-seconds", "0", "--rate", "0.003"]

    def tune(self, out, *more):
        return ["tune", "-m", self.target, "--text", self.law, "--out", self.path(out), *self.STEPS, *more]

    def scores(self, output):
        """What text held out scored before, and at the end."""
        before = float(re.search(r"before, text held out: ([0-9.]+)", output).group(1))
        return before, float(re.findall(r"held out: (?:kl|loss) ([0-9.]+)", output)[-1])

    def test_a_draft_learns_what_its_target_says(self):
        before, after = self.scores(self.worked(*self.tune("law.gguf", "-md", self.draft)).stdout)
        self.assertLess(after, before / 2)  # the draft never saw law before
        self.assertFalse(os.path.exists(self.path("law.gguf.checkpoint")))
        self.compares("-m", self.target, "-md", self.path("law.gguf"))

    def test_tuned_drafts_stand_beside_the_stock_one(self):
        self.worked(*self.tune("law.gguf", "-md", self.draft))
        law, out = self.path("law.gguf"), self.path("out.json")
        for engine in ("llama", "torch"):
            # every=1: even one block taught is an update.
            self.compares("-m", self.target, "-md", self.draft, "--draft-engine", engine, "--json", out, "--modes",
                          f"off,static,tuned=static:model-draft={law},both=drift:model-draft={law},kd=online-kd:every=1,model-draft={law}")
            report = json.loads(read(out))
            static, tuned, both, kd = report["modes"][1:]
            self.assertEqual([mode["draft"] for mode in report["modes"]], [None, 0, 1, 1, 1])
            self.assertEqual(len(report["more_drafts"]), 1)
            self.assertNotEqual(report["more_drafts"][0]["content_hash"], report["draft"]["content_hash"])
            self.assertEqual([mode["draft_engine"] for mode in report["modes"]], [None, engine, engine, engine, "torch"])
            self.assertGreater(tuned["acceptance"], static["acceptance"])  # the stock draft never saw law
            self.assertGreater(kd["acceptance"], static["acceptance"])  # it began with the tuned weights
            self.assertGreater(kd["learner"]["updates"], 0)
            self.assertGreater(both["bank_entries"], 0)
            for mode in report["modes"]:
                self.assertEqual(mode["diverged_prompts"], 0)
        done = self.compared("-m", self.target, "-md", self.draft, "--modes", f"off,drift,x=drift:model-draft={self.target}")
        self.assertEqual(done.returncode, 2, done.stderr)  # keys of one bank are as wide as the draft's hidden state
        for word in ("mode 'x'", "drafts of one width"):
            self.assertIn(word, done.stderr)
        self.worked(*self.pair("other", more={"vocab": 420}))
        done = self.compared("-m", self.target, "-md", self.draft, "--modes",
                             f"off,x=static:model-draft={os.path.join(self.path('other'), 'draft-q8_0.gguf')}")
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in ("model-draft in mode 'x'", "vocabular"):
            self.assertIn(word, done.stderr)

    def test_an_adapter(self):
        before, after = self.scores(self.worked(*self.tune("lora.gguf", "-md", self.draft, "--lora", "4")).stdout)
        self.assertLess(after, before)
        self.compares("-m", self.target, "-md", self.draft, "--lora-draft", self.path("lora.gguf"))

    def test_a_target_learns_a_text(self):
        before, after = self.scores(self.worked(*self.tune("target.gguf")).stdout)
        self.assertLess(after, before)
        self.compares("-m", self.path("target.gguf"), "-md", self.draft)

    def test_killed_at_any_moment_it_ends_with_the_same_file(self):
        self.worked(*self.tune("whole.gguf", "-md", self.draft))
        seed = self.killed_now_and_then(self.tune("killed.gguf", "-md", self.draft), 4)
        self.assertEqual(read(self.path("whole.gguf")), read(self.path("killed.gguf")), f"seed {seed}")
        self.assertEqual([name for name in os.listdir(self.folder.name) if ".checkpoint" in name], [])

    def test_two_runs_of_one_file(self):
        long = ["100000" if part == "60" else part for part in self.tune("x.gguf", "-md", self.draft)]
        process = start(*long)
        while not os.path.exists(self.path("x.gguf.checkpoint")):
            time.sleep(0.02)
            self.assertIsNone(process.poll())
        self.refused(["another drift-train writes", "x.gguf"], *long, "--fresh", code=1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"the same command goes on", errors)
        self.assertFalse(os.path.exists(self.path("x.gguf.lock")))

    def test_refusals(self):
        self.refused(["--time-budget", "--steps"], "tune", "-m", self.target, "--text", self.law, "--out", self.path("x"))
        self.refused(["nowhere.gguf"], *self.tune("x.gguf", "-md", self.path("nowhere.gguf")))
        self.refused(["nowhere.txt"], "tune", "-m", self.target, "--text", self.path("nowhere.txt"), "--out", self.path("x"), "--steps", "1")
        self.refused(["same file"], "tune", "-m", self.target, "--text", self.law, "--out", self.target, "--steps", "1")
        self.refused(["--window 200", "128"], "tune", "-m", self.target, "--text", self.law, "--out", self.path("x"), "--steps", "1",
                     "--window", "200")
        os.mkfifo(self.path("pipe"))
        self.refused(["pipe", "regular file"], *self.tune("pipe", "-md", self.draft))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("pipe")).st_mode))
        text = self.path("z.gguf.checkpoint", toy_text("law"))
        self.refused(["z.gguf.checkpoint", "same file"], "tune", "-m", self.target, "--text", text, "--out", self.path("z.gguf"), "--steps", "1", "--fresh")
        self.assertEqual(read(text).decode(), toy_text("law"))
        self.refused(["law.txt"], "tune", "-m", self.law, "--text", self.law, "--out", self.path("x"), "--steps", "1")
        self.worked(*self.pair("other", more={"vocab": 420}))
        self.refused(["vocabular"], *self.tune("x.gguf", "-md", os.path.join(self.path("other"), "draft-q8_0.gguf")))
        self.interrupted("y.gguf", *self.tune("y.gguf", "-md", self.draft))
        self.refused(["another recipe", "seed"], *self.tune("y.gguf", "-md", self.draft, "--seed", "2"))


class Draft(OnAToyPair):
    """A new draft for the toy pair's target: 5 rounds of samples, a shortlist of a quarter of the vocabulary."""

    STEPS = {"steps-samples": 5, "steps-text": 30, "steps-distil": 60, "window": 32, "rows": 8, "width": 32, "layers": 1, "heads": 1, "ffn": 64,
             "shortlist": 100, "threads": 1, "keep-seconds": 0, "rate-adam": 0.01}

    def make(self, out, more=()):
        flags = {"model": self.target, "text": os.path.join(self.data, "general.txt"), "out": self.path(out), **self.STEPS, **dict(more)}
        return ["draft", *(part for flag, value in flags.items() for part in ("--" + flag, str(value)))]

    def matches(self, output):
        return [float(match) for match in re.findall(r"held out:.* match ([0-9.]+)", output)]

    def test_it_drafts_for_its_target(self):
        output = self.worked(*self.make("new.gguf")).stdout
        matches = self.matches(output)
        self.assertGreater(matches[-1], matches[0])
        self.assertGreater(matches[-1], 0.2)  # of 400 tokens
        self.assertIn("% of positions", output)
        self.assertFalse(os.path.exists(self.path("new.gguf.checkpoint")))
        self.compares("-m", self.target, "-md", self.path("new.gguf"))
        for kind in ("f16", "q4_0"):
            self.worked(*self.make(kind + ".gguf", {"type": kind, "steps-text": 0, "steps-distil": 1}))
            self.compares("-m", self.target, "-md", self.path(kind + ".gguf"))
        sizes = [os.path.getsize(self.path(name + ".gguf")) for name in ("q4_0", "new", "f16")]
        self.assertEqual(sizes, sorted(set(sizes)))

    def test_killed_at_any_moment_it_ends_with_the_same_file(self):
        more = {"type": "f32", "threads": 2}
        self.worked(*self.make("whole.gguf", more))
        seed = self.killed_now_and_then(self.make("killed.gguf", more), 4)
        self.assertEqual(read(self.path("whole.gguf")), read(self.path("killed.gguf")), f"seed {seed}")
        self.assertEqual([name for name in os.listdir(self.folder.name) if ".checkpoint" in name], [])

    def test_interrupted_it_keeps_what_it_has(self):
        long = {"steps-samples": 4000}
        self.interrupted("x.gguf", *self.make("x.gguf", long))
        self.interrupted("y.gguf", *self.make("y.gguf", {"steps-distil": 100_000}))
        self.refused(["another recipe", "seed"], *self.make("x.gguf", {**long, "seed": 2}))
        self.refused(["another recipe", "shape"], *self.make("x.gguf", {**long, "ffn": 96}))
        with open(self.path("x.gguf.checkpoint"), "r+b") as file:
            file.truncate(1000)
        self.refused(["damaged", "--fresh"], *self.make("x.gguf", long))
        self.worked(*self.make("x.gguf"), "--fresh")

    def test_by_the_clock(self):
        started = time.monotonic()
        output = self.worked("draft", "-m", self.target, "--text", self.law, "--out", self.path("x.gguf"), "--time-budget", "0.1", "--window",
                             "32", "--width", "32", "--heads", "1", "-t", "1").stdout
        self.assertLess(time.monotonic() - started, 60)
        self.assertGreater(len(self.matches(output)), 3)

    def test_refusals(self):
        base = ["draft", "-m", self.target, "--text", self.law, "--out", self.path("x.gguf"), "--window", "32"]
        self.refused(["--time-budget", "--steps-samples"], *base)
        self.refused(["give all", "--steps-samples and --steps-distil"], *base, "--steps-distil", "5")
        self.refused(["exclude each other"], *base, "--steps-distil", "5", "--time-budget", "1")
        self.refused(["'q3'", "q8_0"], *base, "--time-budget", "1", "--type", "q3")
        self.refused(["multiples of 32", "f16"], *base, "--time-budget", "1", "--width", "48")
        self.refused(["heads"], *base, "--time-budget", "1", "--width", "64", "--heads", "5")
        self.refused(["--window 200", "128"], *self.make("x.gguf", {"window": 200}))
        self.refused(["nowhere.gguf"], *self.make("x.gguf", {"model": self.path("nowhere.gguf")}))
        self.refused(["law.txt"], *self.make("x.gguf", {"model": self.law}))
        self.refused(["nowhere.txt"], *self.make("x.gguf", {"text": self.path("nowhere.txt")}))
        self.refused(["same file"], *self.make("x.gguf", {"out": self.target}))
        self.refused(["16384"], *self.make("x.gguf", {"text": self.path("short.txt", "short")}))


class Refusals(TrainTest):
    def test_texts(self):
        missing = self.path("nowhere")
        self.refused(["nowhere", "no folder"], "pair", "--data", missing, "--out", self.path("out"), "--time-budget", "1")
        self.refused(["medical.txt"], *self.pair("out", more={"domains": "general,medical"}))
        self.refused(["'physics'", "not among"], *self.pair("out", more={"general": "physics"}))
        self.refused(["--weight", "physics"], *self.pair("out", more={"weight": "physics=2"}))
        for content, words in ((b"", ["empty"]), (b"short", ["5 bytes", "16384"]), (toy_text("law").encode() + b"\xff", ["UTF-8", "byte"])):
            with open(os.path.join(self.data, "law.txt"), "wb") as file:
                file.write(content)
            self.refused(["law.txt", *words], *self.pair("out"))
        os.remove(os.path.join(self.data, "law.txt"))
        named = os.path.join(self.data.encode(), b"l\xff\x1b[31m.txt")
        shutil.copy(os.path.join(self.data, "general.txt"), named)
        done = self.refused(["l\\xff\\x1b[31m", "rename"], *self.pair("out"))
        self.assertTrue(done.stderr.startswith("drift-train: "), done.stderr)
        os.remove(named)
        os.remove(os.path.join(self.data, "general.txt"))
        self.refused(["no .txt"], *self.pair("out"))

    def test_flags(self):
        self.refused(["--time-budget"], *self.pair("out", steps={}))
        self.refused(["exclude each other"], *self.pair("out", more={"time-budget": 1}))
        self.refused(["give all", "--steps-target, --steps-draft, --steps-samples and --steps-distil"], *self.pair("out", steps={"steps-target": 5}))
        self.refused(["--target-width 48", "32"], *self.pair("out", more={"target-width": 48}))  # before anything is trained
        self.refused(["--draft-ffn 50", "32"], *self.pair("out", more={"draft-ffn": 50}))
        self.refused(["'law'", "twice"], *self.pair("out", more={"domains": "general,law,law"}))
        self.refused(["File name too long"], *self.pair("x" * 300), code=1)
        self.assertFalse(os.path.exists(self.path("out")))  # what is refused leaves nothing
        self.refused(["--vocab", "320"], *self.pair("out", more={"vocab": 100}))
        self.refused(["--context", "--window"], *self.pair("out", more={"context": 32}))
        self.refused(["heads"], *self.pair("out", more={"target-heads": 3}))
        self.refused(["--data"], "pair", "--out", self.path("out"))
        self.refused(["learn"], "learn")

    def test_vocabulary_larger_than_the_text_gives(self):
        self.refused(["repeats too little", "8000"], *self.pair("out", more={"vocab": 8000}))

    def test_checkpoints(self):
        self.worked(*self.pair("out"))
        self.refused(["another recipe", "steps"], *self.pair("out", more={"steps-distil": 41}))
        self.refused(["another recipe", "seed"], *self.pair("out", more={"seed": 2}))
        path = os.path.join(self.path("out"), "checkpoint.safetensors")
        content = read(path)
        with open(path, "wb") as file:
            file.write(content[:len(content) // 2])
        self.refused(["damaged", "--fresh"], *self.pair("out"))
        self.worked(*self.pair("out"), "--fresh")
        self.refused(["neither"], "show", self.data)

    def test_a_folder_in_place_of_a_result_is_seen_before_training(self):
        os.makedirs(os.path.join(self.path("out"), "recipe.json"))
        done = self.refused(["recipe.json is a folder"], *self.pair("out"))
        self.assertNotIn("target: step", done.stdout)

    def test_a_general_text_of_which_little_is_held_out(self):
        rng = random.Random(3)
        text = ""
        while len(text) < 16_384:
            text += " ".join(rng.choice(WORDS["general"]) for _ in range(9)) + ". "
        with open(os.path.join(self.data, "general.txt"), "w", encoding="utf-8") as file:
            file.write(text[:16_384] + "a b c")  # two chunks to learn from; the third is held out
        done = self.worked(*self.pair("out", steps={"steps-target": 2, "steps-draft": 2, "steps-samples": 2, "steps-distil": 2}, more={"vocab": 330}))
        self.assertRegex(done.stdout, "general: .* [34] held out")

    def test_recipes_that_cannot_be_shown(self):
        os.mkdir(self.path("shown"))
        for content, words in ((b"{", ["shown/recipe.json", "damaged"]), (b"[]", ["damaged"]), (b'{"recipe": {}}', ["recipe.json is not", "not found"])):
            self.path("shown/recipe.json", content)
            done = self.refused(words, "show", self.path("shown"))
            self.assertNotIn("json.exception", done.stderr)

    def test_two_runs_in_one_folder(self):
        process = start(*self.pair("out", steps={"time-budget": 10}))
        while not os.path.exists(os.path.join(self.path("out"), "checkpoint.safetensors")):
            time.sleep(0.05)
        self.assertEqual(program.drift(*self.pair("out", steps={"time-budget": 10})).returncode, 1)
        process.send_signal(signal.SIGINT)
        process.communicate()

    def test_a_full_disk(self):
        self.worked(*self.pair("out"))
        before = read(os.path.join(self.path("out"), "checkpoint.safetensors"))
        limited = subprocess.run([os.environ["DRIFT_PROGRAM"], *self.pair("full")], capture_output=True, encoding="utf-8", timeout=300,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
        self.assertEqual(limited.returncode, 1, limited.stderr)
        self.assertIn("cannot write", limited.stderr)
        self.assertNotIn("terminate", limited.stderr)
        self.assertEqual(read(os.path.join(self.path("out"), "checkpoint.safetensors")), before)


if __name__ == "__main__":
    if os.path.exists("/proc/cpuinfo") and fitting_blas_kernels():
        os.environ.setdefault("OPENBLAS_CORETYPE", fitting_blas_kernels())
    program.main()
