"""drift compare --stream on the built-in pair (else on SmolLM2 as its own draft): segments, curves, the live line, and the picture."""

import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import program
from program import ROOT, ProgramTest, pair, read

CURVE_FIELDS = {"prompt", "domain", "tokens", "drafted", "accepted", "cumulative_tokens"}


def a_short_stream():
    """Two prompts of each of the demo's segments, in its order."""
    with open(os.path.join(ROOT, "examples", "demo-stream.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    kept, seen = [], {}
    for row in rows:
        segment = row["id"].rsplit("-", 1)[0]
        seen[segment] = seen.get(segment, 0) + 1
        if seen[segment] <= 2:
            kept.append(row)
    return kept


class Stream(ProgramTest):
    def arguments(self, rows, *more):
        target, draft = pair()
        prompts = self.path("p.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return ("compare", "-m", target, "-md", draft, "--prompts", prompts, "--stream", "-n", "12", "--json", self.path("out.json"), *more)

    def test_segments_and_curves_add_up(self):
        rows = a_short_stream()
        done = self.worked(*self.arguments(rows, "--temp", "0.5", "--verify-rows-one-by-one"))
        out = json.loads(read(self.path("out.json")))
        self.assertTrue(out["settings"]["stream"])
        self.assertEqual([s["domain"] for s in out["segments"]], ["general", "law", "clinical", "code", "general"])
        self.assertEqual([s["first_prompt"] for s in out["segments"]], [0, 2, 4, 6, 8])
        self.assertEqual([p["id"] for p in out["prompts"]], [row["id"] for row in rows])
        for mode in out["modes"]:
            self.assertEqual(mode["diverged_prompts"], 0)
            self.assertEqual(len(mode["curve"]), len(rows))
            total = 0
            for i, point in enumerate(mode["curve"]):
                self.assertEqual(set(point), CURVE_FIELDS)
                self.assertEqual((point["prompt"], point["domain"]), (i, rows[i]["domain"]))
                total += point["tokens"]
                self.assertEqual(point["cumulative_tokens"], total)
            for name in ("tokens", "drafted", "accepted"):
                self.assertEqual(sum(point[name] for point in mode["curve"]), mode[name])
                self.assertEqual(sum(segment[name] for segment in mode["segments"]), mode[name])
            for number, segment in enumerate(mode["segments"]):
                self.assertEqual(segment["accepted"], sum(point["accepted"] for point in mode["curve"][2 * number:2 * number + 2]))
        self.assertGreater(out["modes"][1]["drafted"], 0)
        self.assertGreater(out["modes"][2]["bank_entries"], 0)
        for word in ("1 general", "3 clinical", "5 general"):
            self.assertIn(word, done.stdout)

    def test_a_curve_is_of_the_first_repeat(self):
        rows = a_short_stream()[:3]
        self.worked(*self.arguments(rows, "--repeat", "2", "--modes", "off,static"))
        out = json.loads(read(self.path("out.json")))
        for mode in out["modes"]:
            self.assertEqual([point["prompt"] for point in mode["curve"]], [0, 1, 2])
            self.assertEqual(2 * mode["curve"][-1]["cumulative_tokens"], mode["tokens"])

    def test_the_live_line_fits_a_terminal_and_shows_acceptance(self):
        arguments = self.arguments(a_short_stream())
        master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
        process = subprocess.Popen([os.environ["DRIFT_PROGRAM"], *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other end has gone
                break
            if not part:
                break
            shown += part
        os.close(master)
        self.assertEqual(process.wait(timeout=300), 0, shown)
        lines = [line for line in shown.decode().replace("\n", "\r").split("\r") if "runs," in line]
        self.assertTrue(lines, shown)
        for line in lines:
            self.assertLess(len(line.replace("\x1b[K", "")), 90, line)
        self.assertTrue(any(re.search(r"\((law|clinical|code) [12]/2\)  static 0\.\d{3}  drift 0\.\d{3}", line) or
                            re.search(r"static 1\.000", line) for line in lines), lines)

    def test_the_picture_of_a_real_report(self):
        self.worked(*self.arguments(a_short_stream()))
        done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "picture.py"), self.path("out.json"), self.path("picture")],
                              capture_output=True, text=True, timeout=300)
        if done.returncode == 3:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(read(self.path("picture.png")).startswith(b"\x89PNG"))
        self.assertIn(b"static ", read(self.path("picture.html")))
        table = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "compare_table.py"), self.path("out.json")],
                               capture_output=True, text=True, timeout=300)
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn("| 5 general | off |", table.stdout)


if __name__ == "__main__":
    program.main()
