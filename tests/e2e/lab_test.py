"""lab/lab.py on the built-in pair, at its smallest size: runs, tables that agree with the reports, a report, and nothing done twice."""

import json
import os
import subprocess
import sys
import unittest

import program
from program import BUILT_IN, ROOT, ProgramTest, read

sys.path.insert(0, os.path.join(ROOT, "tools"))
import compare_report  # noqa: E402


class Lab(ProgramTest):
    def lab(self, *arguments):
        return subprocess.run([sys.executable, os.path.join(ROOT, "lab", "lab.py"), "--program", os.environ["DRIFT_PROGRAM"], "--out", self.path("out"), "--size", "smoke", *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)

    def test_the_smallest_lab(self):
        if not os.path.exists(os.path.join(BUILT_IN, "drift-mini-target.gguf")):
            raise unittest.SkipTest(f"no built-in pair in {BUILT_IN}")
        done = self.lab()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("SKIPPED rows of kind instruction", done.stderr)
        numbers = json.loads(read(self.path("out/lab.json")))
        tables = {table["name"]: table for table in numbers["tables"]}
        scenarios = {record["scenario"] for record in tables["main"]["records"]}
        self.assertLessEqual({"in-distribution", "stream", "shift-law"}, scenarios)
        for run in tables["runs"]["records"]:
            report = compare_report.read(self.path(f"out/{run['name']}.json"))
            for record in tables["main"]["records"]:
                if run["name"].startswith(record["scenario"] + "-t"):
                    row = compare_report.mode(report, record["method"])
                    self.assertEqual(record["tokens"], row["tokens"])
                    self.assertEqual(record.get("acceptance", row["acceptance"]), row["acceptance"])
                    # The program's modelled speed-up and the one that is reckoned from counts for a part are one figure.
                    if row["mode"] != "off":
                        longest = len(row["per_position"]) or None
                        blocks = sum(compare_report.prompt_blocks(prompt, row["label"], longest) for prompt in report["prompts"])
                        self.assertAlmostEqual(compare_report.modelled_speedup(row, blocks, report["modelled_at"]), row["modelled_speedup"], delta=0.01 * row["modelled_speedup"])
                    if record["method"] == "oracle":
                        self.assertGreater(record["acceptance"], 0.95)  # the target agrees with itself
        self.assertIn("segments", tables)
        page = read(self.path("out/lab.html"))
        self.assertIn(b"the commands that made it", page)
        if "SKIPPED the pictures" not in done.stderr:
            self.assertTrue(read(self.path("out/opening.png")).startswith(b"\x89PNG"))

        before = {name: os.stat(self.path(f"out/{name}")).st_mtime_ns for name in os.listdir(self.path("out")) if name.endswith("match.json")}
        again = self.lab()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stderr.count("there already"), len(before))
        self.assertEqual(before, {name: os.stat(self.path(f"out/{name}")).st_mtime_ns for name in before})

    def test_the_smallest_studies(self):
        if not os.path.exists(os.path.join(BUILT_IN, "drift-mini-target.gguf")):
            raise unittest.SkipTest(f"no built-in pair in {BUILT_IN}")
        os.mkdir(self.path("data"))
        for domain in ("general", "law"):
            with open(self.path(f"data/{domain}.jsonl"), "w", encoding="utf-8") as file:
                for i in range(4):
                    file.write(json.dumps({"id": f"{domain}-{i}", "domain": domain, "split": "eval" if i < 2 else "tune", "prompt": f"The {domain} of number {i} says that the"}) + "\n")

        def called(name, *arguments):
            return subprocess.run([sys.executable, os.path.join(ROOT, "lab", name), "--program", os.environ["DRIFT_PROGRAM"], *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
        corpus, out = self.path("corpus"), self.path("studies")
        recorded = ("--out", corpus, "--data", self.path("data"), "--requests", "2", "--tokens", "12", "--domains", "general,law")
        done = called("corpus.py", *recorded)
        self.assertEqual(done.returncode, 0, done.stderr)
        manifest = json.loads(read(corpus + "/manifest.json"))
        self.assertEqual(len(manifest["traces"]), 4)
        again = called("corpus.py", *recorded, "--check", corpus + "/manifest.json")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stderr.count("there already"), 4)
        # A recording made anew has the same content, whatever time it took.
        os.unlink(corpus + "/law-eval-t0.5-match.trace")
        with open(self.path("kept.json"), "w", encoding="utf-8") as file:
            json.dump(manifest, file)
        again = called("corpus.py", *recorded, "--check", self.path("kept.json"))
        self.assertEqual((again.returncode, again.stderr.count("there already")), (0, 3), again.stderr)
        self.assertEqual(called("studies.py", "--corpus", self.path("nowhere"), "--out", out).returncode, 2)

        studies = ("--corpus", corpus, "--out", out, "--size", "smoke", "--grid", "ends", "--only", "orders", "--only", "cold", "--only", "oracles", "--only", "gains")
        done = called("studies.py", *studies)
        self.assertEqual(done.returncode, 0, done.stderr)
        tables = {table["name"]: table for table in json.loads(read(out + "/studies.json"))["tables"]}
        orders = {(record["stream"], record["method"]): record for record in tables["orders"]["records"]}
        self.assertEqual(len(set(orders["law", "static"]["acceptance"])), 1)  # no memory, so no order
        self.assertIn(b"the commands that made it", read(out + "/studies.html"))
        if "SKIPPED study oracles" not in done.stderr:  # without numpy
            for record in tables["oracles"]["records"]:
                self.assertEqual(record["rates"]["target as draft"], 1)
                self.assertGreaterEqual(record["rates"]["best gain of each position"], record["rates"]["bank, gain 1"])
        else:
            print("SKIPPED: the studies of rows need numpy")

    def test_refusals(self):
        for words, arguments in ((["there is no scenario"], ("--only", "nowhere")), (["is not a folder"], ("--data", self.path("no"))), (["is not there"], ("--target", self.path("no.gguf")))):
            done = self.lab(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)


if __name__ == "__main__":
    program.main()
