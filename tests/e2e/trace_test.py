"""trace_test.py - drift trace: recorded runs are compare's, tables are read by others, refusals, Ctrl-C."""

import json
import os
import signal
import sqlite3
import time

import program
from program import ProgramTest, drift, pair, read, start

PROMPTS = [{"id": "a", "domain": "law", "kind": "prefix", "prompt": "The court held that the"},
           {"id": "b", "domain": "code", "kind": "prefix", "prompt": "def add(a, b):\n    return"},
           {"id": "c, \"quoted\"", "domain": "law", "kind": "prefix", "prompt": "This agreement is made"}]
COUNTS = ["tokens", "steps", "drafted", "accepted", "accepted_bank", "copied", "accepted_copied"]


class Trace(ProgramTest):
    def setUp(self):
        super().setUp()
        self.target, self.draft = pair()
        self.prompts = self.path("p.jsonl", "\n".join(map(json.dumps, PROMPTS)))
        self.trace = self.path("run.trace")

    def arguments(self, *more):
        return ["-m", self.target, "-md", self.draft, "--prompts", self.prompts, "-n", "24", "-c", "256", "-t", "1", *more]

    def record(self, *more):
        self.worked("trace", "record", *self.arguments(*more), "-o", self.trace)
        self.worked("trace", "verify", self.trace)
        return json.loads(self.worked("trace", "stats", self.trace, "--json").stdout)

    def compared(self, mode, *more):
        out = self.path("out.json")
        self.worked("compare", *self.arguments("--modes", mode, "--json", out, *more))
        return json.loads(read(out))["modes"][0]

    def test_the_figures_are_those_of_compare(self):
        for more in ([], ["--temp", "0.8", "--top-k", "40"]):
            stats = self.record(*more)
            mode = self.compared("static", *more)
            for name in [*COUNTS, "acceptance", "acceptance_conditional", "mean_accepted_per_block", "per_position", "accepted_histogram", "mean_length",
                         "predicted_accepted", "modelled_speedup"]:
                there = stats["total"][name]
                self.assertEqual(there, mode[name], name)
            for domain, figures in mode["domains"].items():
                for name in COUNTS:
                    self.assertEqual(stats["domains"][domain][name], figures[name], name)
            self.assertGreater(stats["total"]["accepted"], 0)

    def test_others_read_it(self):
        self.record("--mode", "drift:draft=2")
        db = sqlite3.connect(f"file:{self.trace}?mode=ro", uri=True)
        count = lambda sql: db.execute(sql).fetchone()[0]
        emitted = count("SELECT sum(emitted) FROM prompts")
        self.assertEqual(count("SELECT count(*) FROM prompts"), 3)
        for table in ("tokens", "target_rows", "draft_rows"):
            self.assertEqual(count(f"SELECT count(*) FROM {table}"), emitted)
        width = int(count("SELECT value FROM meta WHERE key = 'hidden_width'"))
        kept = min(1024, int(count("SELECT value FROM meta WHERE key = 'target_vocab'")))
        self.assertEqual(count("SELECT min(length(hidden)) FROM draft_rows"), 2 * width)
        self.assertEqual(count("SELECT min(length(logits)) FROM target_rows"), 4 * kept)
        # At temperature 0 every emitted token is the target's best.
        best = "SELECT count(*) FROM target_rows r JOIN tokens t USING (prompt, position) WHERE substr(r.tokens, 1, 4) = ?"
        tokens = {token for (token,) in db.execute("SELECT token FROM tokens")}
        self.assertEqual(sum(db.execute(best + " AND t.token = ?", (t.to_bytes(4, "little"), t)).fetchone()[0] for t in tokens), emitted)
        self.assertEqual(count("SELECT max(place) FROM proposals"), 1)
        db.close()
        for table in ("prompts", "steps", "proposals", "tokens"):
            lines = self.worked("trace", "export", self.trace, "--table", table, "--format", "jsonl").stdout.splitlines()
            csv = self.worked("trace", "export", self.trace, "--table", table).stdout.splitlines()
            self.assertEqual(len(csv), len(lines) + 1)
            self.assertEqual(csv[0].split(","), [k for k in json.loads(lines[0]) if table != "prompts" or k != "tokens"])
        self.assertIn('"c, ""quoted"""', self.worked("trace", "export", self.trace, "--table", "prompts").stdout)
        row = json.loads(self.worked("trace", "export", self.trace, "--table", "draft_rows", "--format", "jsonl").stdout.splitlines()[0])
        self.assertEqual((len(row["tokens"]), len(row["logits"]), len(row["hidden"])), (kept, kept, width))
        shown = self.worked("trace", "show", self.trace).stdout
        for word in ("drift", "law 2", "code 1", "largest logits"):
            self.assertIn(word, shown)
        self.assertEqual(json.loads(self.worked("trace", "show", self.trace, "--json").stdout)["emitted"], emitted)

    def test_replayed(self):
        for more in ([], ["--temp", "0.8", "--top-k", "40"]):
            for mode in ("static", "drift"):
                stats = self.record("--mode", mode, *more)
                out = self.path("replay.json")
                self.worked("trace", "replay", self.trace, "--modes", "off,static,drift,drift:draft=5,lookup".replace(",drift:", ",d5=drift:"), "--json", out)
                modes = {one["label"]: one for one in json.loads(read(out))["modes"]}
                for name in COUNTS:
                    self.assertEqual(modes[mode]["total"][name], stats["total"][name], name)
                self.assertEqual({one["total"]["tokens"] for one in modes.values()}, {stats["total"]["tokens"]})
                self.assertEqual([one["id"] for one in modes["d5"]["prompts"]], [one["id"] for one in PROMPTS])
        self.refused(["rejection", "match judge"], "trace", "replay", self.trace, "--modes", "drift:judge=rejection")
        self.refused(["learns"], "trace", "replay", self.trace, "--modes", "online-kd")
        self.refused(["no other"], "trace", "replay", self.trace, "--modes", f"static:model-draft={self.draft}")

    def test_orders_memories_and_proposals(self):
        self.record("--temp", "0.8", "--top-k", "40")
        other = self.path("other.trace")
        self.worked("trace", "record", *self.arguments("--temp", "0.8", "--top-k", "40", "--limit", "1"), "-o", other)
        out, csv = self.path("replay.json"), self.path("proposals.csv")
        orders = self.path("orders.txt", "0:0 0:1 0:2 1:0\n2:0\n")
        self.refused(["orders.txt:2", "no 2:0"], "trace", "replay", self.trace, other, "--order", orders)
        orders = self.path("orders.txt", "# one memory, then one each\n0:0 0:1 0:2 1:0\n0:0@a 0:1@b 0:2@c 1:0@d\n0:2\n")
        self.worked("trace", "replay", self.trace, other, "--modes", "static,drift", "--order", orders, "--json", out, "--proposals", csv)
        found = {(one["order"], one["label"]): one for one in json.loads(read(out))["modes"]}
        self.assertEqual(sorted(found), [(o, m) for o in range(3) for m in ("drift", "static")])
        for order, places in enumerate(([0, 1, 2, 0], [0, 1, 2, 0], [2])):
            self.assertEqual([p["prompt"] for p in found[order, "drift"]["prompts"]], places)
        same = lambda a, b: [[p[name] for name in COUNTS] for p in a["prompts"]] == [[p[name] for name in COUNTS] for p in b["prompts"]]
        self.assertTrue(same(found[0, "static"], found[1, "static"]))  # what has no memory does not know whose it is
        self.assertEqual(found[1, "drift"]["prompts"][0], {**found[0, "drift"]["prompts"][0], "memory": "a"})
        # A memory of its own is an empty one: as if the request were alone.
        self.assertEqual([found[1, "drift"]["prompts"][2][name] for name in COUNTS], [found[2, "drift"]["prompts"][0][name] for name in COUNTS])
        self.assertGreater(found[1, "drift"]["bank_entries"], found[2, "drift"]["bank_entries"])
        lines = read(csv).decode().splitlines()
        self.assertEqual(lines[0], "label,order,trace,prompt,step,place,position,token,q,accepted,from_bank,gain,similarity,match")
        rows = [dict(zip(lines[0].split(","), line.split(","))) for line in lines[1:]]
        for (order, label), one in found.items():
            mine = [row for row in rows if row["label"] == label and row["order"] == str(order)]
            self.assertEqual(len(mine), one["total"]["drafted"])
            self.assertEqual(sum(int(row["accepted"]) for row in mine), one["total"]["accepted"])
        self.worked("trace", "record", *self.arguments("--temp", "0.8", "--top-k", "40", "--seed", "2", "--limit", "1"), "-o", other)
        self.refused(["another sampler, seed"], "trace", "replay", self.trace, other)

    def test_refusals(self):
        out = ["-o", self.trace]
        self.refused(["--mode", "2 modes"], "trace", "record", *self.arguments("--mode", "static,off"), *out)
        self.refused(["online-kd"], "trace", "record", *self.arguments("--mode", "online-kd"), *out)
        self.refused(["--top-k"], "trace", "record", *self.arguments("--temp", "1", "--top-k", "0"), *out)
        self.refused(["the same file", "name another"], "trace", "record", *self.arguments(), "-o", self.prompts)
        self.refused(["does not exist"], "trace", "record", *self.arguments(), "-o", self.path("none/run.trace"))
        self.refused(["device"], "trace", "record", *self.arguments(), "-o", "/dev/null")
        self.refused(["needs a draft"], "trace", "record", "-m", self.target, "--prompts", self.prompts, *out)
        self.assertFalse(os.path.exists(self.trace))
        self.refused(["does not exist"], "trace", "show", self.trace)
        self.refused(["is not a trace"], "trace", "stats", self.prompts)
        self.worked("trace", "record", "-m", self.target, "--prompts", self.prompts, "-n", "4", "-c", "256", "--mode", "off", "--limit", "1", *out)
        self.refused(["no table", "steps"], "trace", "export", self.trace, "--table", "rows")
        self.refused(["without a draft"], "trace", "export", self.trace, "--table", "draft_rows")
        self.refused(["csv or jsonl"], "trace", "export", self.trace, "--table", "steps", "--format", "xml")
        self.refused(["the same file"], "trace", "export", self.trace, "--table", "steps", "-o", self.trace)
        cut = self.path("cut.trace", read(self.trace)[:-100])
        self.refused(["cut"], "trace", "verify", cut)

    def test_interrupted(self):
        many = self.path("many.jsonl", "\n".join(json.dumps({"prompt": f"Number {i} is"}) for i in range(5_000)))
        running = start("trace", "record", "-m", self.target, "-md", self.draft, "--prompts", many, "-n", "24", "-c", "256", "-t", "1",
                        "-o", self.trace)
        time.sleep(8)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=120)
        self.assertEqual(running.returncode, 130, said)
        left = [name for name in os.listdir(self.folder.name) if ".part-" in name]
        self.assertEqual(left, [])
        if not os.path.exists(self.trace):  # a slow machine: not even one prompt
            self.assertIn(b"no prompt was done", said)
            return
        self.worked("trace", "verify", self.trace)
        held = json.loads(drift("trace", "show", self.trace, "--json").stdout)
        self.assertTrue(held["partial"])
        self.assertGreater(held["prompts"], 0)
        self.assertLess(held["prompts"], 5_000)


if __name__ == "__main__":
    program.main()
