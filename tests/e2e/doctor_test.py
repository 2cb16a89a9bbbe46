"""drift doctor and drift models convert: what they say about models, what they make of them, what they refuse."""

import json
import os

import program
from program import ProgramTest, target


class Doctor(ProgramTest):
    def test_refusals(self):
        self.refused(["-md"], "doctor", "-m", "x")
        self.refused(["-m", "no such file"], "doctor", "-m", self.path("none.gguf"), "-md", "x")
        self.refused(["--repeat is '0'"], "doctor", "-m", "x", "-md", "x", "--repeat", "0")

    def test_what_it_says(self):
        m = target()
        done = self.worked("doctor", "-m", m, "-md", m, "--repeat", "2", "--depth", "16")
        for word in ("tokens in common", "hidden width", "bank", "memory", "rows:", "break-even", "rafting"):
            self.assertIn(word, done.stdout)

    def test_json(self):
        m = target()
        out = json.loads(self.worked("doctor", "-m", m, "-md", m, "--repeat", "2", "--depth", "16", "--json").stdout)
        self.assertEqual(out["schema"], "drift.doctor/1")
        self.assertEqual([row["draft"] for row in out["break_even"]], [1, 3, 5, 7])
        self.assertEqual(len(out["cost_curve"]["target"]), 8)
        # Keys and values of 256 numbers in each of 5 layers (SmolLM2-135M: of 192 in 30), 2 bytes each.
        layers, width = (5, 256) if "drift-mini" in m else (30, 192)
        self.assertEqual(out["target"]["kv_bytes"], out["context"] * layers * width * 2 * 2)
        self.assertTrue(out["verdict"])


class Convert(ProgramTest):
    def test_it_is_the_same_model_in_another_type(self):
        m, out = target(), self.path("small.gguf")
        self.worked("models", "convert", "-m", m, "--out", out, "--type", "q4_0")
        self.assertLess(os.path.getsize(out), os.path.getsize(m))
        self.assertEqual(os.listdir(self.folder.name), ["small.gguf"])
        done = json.loads(self.worked("run", "-m", m, "-md", out, "--raw", "-p", "The river walked", "-n", "48", "--temp", "0", "--json").stdout)
        self.assertGreater(done["acceptance"], 0.5)  # rounded weights: nearly the same model

    def test_refusals(self):
        m, junk = target(), self.path("junk.gguf", "no model")
        self.refused(["'q3'", "q8_0"], "models", "convert", "-m", m, "--out", self.path("x"), "--type", "q3")
        self.refused(["junk.gguf", "GGUF"], "models", "convert", "-m", junk, "--out", self.path("x"), "--type", "q8_0")
        self.refused(["same file"], "models", "convert", "-m", junk, "--out", junk, "--type", "q8_0")
        self.refused(["/dev/null"], "models", "convert", "-m", m, "--out", "/dev/null", "--type", "q8_0")
        self.refused(["no such file"], "models", "convert", "-m", self.path("none.gguf"), "--out", self.path("x"), "--type", "q8_0")
        self.assertEqual(os.listdir(self.folder.name), ["junk.gguf"])


if __name__ == "__main__":
    program.main()
