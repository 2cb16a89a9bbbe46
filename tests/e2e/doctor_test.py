"""drift doctor: what it says about a pair, and what it refuses."""

import json

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


if __name__ == "__main__":
    program.main()
