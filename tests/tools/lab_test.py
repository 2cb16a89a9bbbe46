"""The lab without a model: plans, the choice of requests, what is repeated, and every table from reports made up here."""

import contextlib
import io
import json
import os
import random
import re
import stat
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "lab"), os.path.join(ROOT, "tools")]
import compare_report  # noqa: E402
import page  # noqa: E402
import plan  # noqa: E402
import prompts  # noqa: E402
import public_prompts  # noqa: E402
import runs  # noqa: E402
import tables  # noqa: E402

COST = {"draft_cost": 1 / 30, "verify_cost": 1.05}
BLOCK = 5


def fold(parts):
    """A report's fold of (blocks, accepted, copied) triples: blocks of five, one token of the target's own each."""
    blocks, accepted, copied = (sum(column) for column in zip(*parts))
    drafted = BLOCK * blocks
    return {"tokens": blocks + accepted, "steps": blocks, "drafted": drafted, "accepted": accepted, "accepted_bank": 0, "copied": copied, "accepted_copied": 0,
            "acceptance": accepted / drafted if drafted else 0.0, "acceptance_conditional": 0.5, "mean_accepted_per_block": accepted / blocks if blocks else 0.0, "time_ms": 10.0 * blocks,
            "tokens_per_s": 100.0, "speedup": 1.0}


def plain(count):
    return {**fold([(0, 0, 0)]), "tokens": 60 * count, "steps": 60 * count, "time_ms": 600.0 * count}


def a_report(domains, accepted, ids=None):
    """A stream whose requests are of `domains`; accepted: method -> accepted tokens of each request (20 blocks), None for plain decoding."""
    segments = []
    for i, domain in enumerate(domains):
        if not segments or segments[-1]["domain"] != domain:
            segments.append({"domain": domain, "first_prompt": i, "prompts": 0})
        segments[-1]["prompts"] += 1
    modes, requests = [], [{"id": ids[i] if ids else f"{d}-{i}", "domain": d, "kind": "prefix", "split": "eval", "prompt_tokens": 9, "prefill_ms": [1.0], "runs": []} for i, d in enumerate(domains)]
    for label, counts in accepted.items():
        copies = 20 if label == "draft+suffix" else 0
        of = (lambda points, c=counts, n=copies: plain(len(points)) if c is None else fold([(20, c[i], n) for i in points]))
        whole = of(range(len(domains)))
        curve, total = [], 0
        for i, domain in enumerate(domains):
            one = of([i])
            total += one["tokens"]
            curve.append({"prompt": i, "domain": domain, "tokens": one["tokens"], "drafted": one["drafted"], "accepted": one["accepted"], "cumulative_tokens": total})
            requests[i]["runs"].append({**one, "label": label, "repeat": 0, "ending": "length", "first_difference": None, "divergence_margin": None})
        modes.append({**whole, "label": label, "mode": "off" if counts is None else label, "draft": None if counts is None or label == "lookup" else 0, "per_position": [0.5] * BLOCK,
                      "mean_length": whole["tokens"] / whole["steps"], "predicted_accepted": 0.97, "overhead_fraction": 0.01, "diverged_prompts": 0, "divergence_beyond_margin": False, "allowed_divergence_margin": 0.1,
                      "modelled_speedup": compare_report.modelled_speedup(whole, 0 if counts is None else whole["steps"], COST), "repeat_32": 0.3, "curve": curve,
                      "segments": [{"domain": s["domain"], **of(range(s["first_prompt"], s["first_prompt"] + s["prompts"]))} for s in segments]})
    return {"schema": "drift.compare/1", "schema_minor": 2, "drift_version": "v", "partial": False, "machine": {"cpu": "C", "threads": 1, "ggml_flags": "F", "highway_target": "H"},
            "load_average_before": [1.0], "load_average_after": [2.0], "wall_s": 3.0, "target": {"name": "T"}, "draft": {"name": "D"}, "modelled_at": COST, "segments": segments,
            "modes": modes, "prompts": requests}


def a_scenario(name, segments, **more):
    return plan.Scenario(**{"name": name, "title": "Title of " + name, "what": "", "place": 1, "role": "shift", "segments": segments, **more})


class Lab(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="drift-lab-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.methods = plan.read_methods()

    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        if content is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def rows(self, domain, count, **more):
        self.path(domain + ".jsonl", "".join(json.dumps({"id": f"{domain}-{i}", "domain": domain, "prompt": f"{domain} {i}", "split": "eval", **more}) + "\n" for i in range(count)))

    def measured(self, scenario, report, temperature=0.5, judge="match"):
        labels = [m["label"] for m in report["modes"]]
        return tables.Measured(plan.Run(scenario, temperature, judge, tuple(m for m in self.methods if m.label in labels)), report)

    def quietly(self, call, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            result = call(*arguments)
        return result, said.getvalue()


class Plans(Lab):
    def test_the_files_of_the_project_can_be_read(self):
        scenarios = plan.read_scenarios()
        self.assertEqual([s.place for s in scenarios], sorted(s.place for s in scenarios))
        self.assertEqual(sum(bool(s.opening) for s in scenarios), 1)
        self.assertEqual(sum(s.role == "home" for s in scenarios), 1)
        self.assertTrue(set(plan.SMOKE_SCENARIOS) <= {s.name for s in scenarios})
        known = {m.label for m in self.methods}
        for scenario in scenarios:
            self.assertTrue(set(scenario.methods) | set(scenario.opening) <= known, scenario.name)
        grid = next(s for s in scenarios if s.role == "grid")
        self.assertEqual(set(grid.points), {(t, j) for t in (0.0, 0.5, 1.0) for j in ("match", "rejection")})

    def test_what_cannot_be_used_is_refused_by_name(self):
        good = 'title = "T"\nwhat = "W"\nplace = 1\nrole = "home"\nsegments = ["a"]\n'
        for change, word in (("surprise = 1", "surprise"), ('order = "random"', "order"), ('points = [[0.5, "guess"]]', "points"), ("= =", "s.toml")):
            self.path("s.toml", good + change)
            with self.assertRaisesRegex(plan.Unusable, word):
                plan.read_scenarios(self.folder)
        self.path("s.toml", good.replace('title = "T"\n', ""))
        with self.assertRaisesRegex(plan.Unusable, "lacks the field title"):
            plan.read_scenarios(self.folder)

    def test_methods_that_are_not_possible_are_left_out_with_the_reason(self):
        scenario = a_scenario("s", ("law",))
        able, missing = plan.possible(self.methods, scenario, "full", {"torch"})
        labels = [m.label for m in able]
        self.assertIn("online-kd", labels)
        self.assertIn("drift", labels)
        self.assertEqual(missing["chain"], ["levels"])
        self.assertEqual(missing["tuned"], ["tuned-draft"])
        able, missing = plan.possible(self.methods, scenario, "quick", {"levels", "tuned-draft"})
        self.assertIn("chain", [m.label for m in able])
        self.assertNotIn("online-kd", [m.label for m in able] + list(missing))  # not of this size, so it is not missed
        oracle = next(m for m in self.methods if m.label == "oracle")
        self.assertEqual(oracle.as_mode({"target": "T.gguf"}), "oracle=static:model-draft=T.gguf")


class Requests(Lab):
    def test_the_hash_is_the_programs(self):
        self.assertEqual(prompts.fnv1a(""), 0xCBF29CE484222325)
        self.assertEqual(prompts.fnv1a("a"), 0xAF63DC4C8601EC8C)

    def test_a_domain_that_comes_again_brings_further_requests(self):
        self.rows("a", 7)
        self.rows("b", 3)
        rows, notes = prompts.chosen(a_scenario("s", ("a", "b", "a")), self.folder, "eval", ("prefix",), 3)
        self.assertEqual([r["domain"] for r in rows], list("aaabbbaaa"))
        self.assertEqual(len({r["id"] for r in rows}), 9)
        self.assertEqual(notes, [])
        alone, _ = prompts.chosen(a_scenario("t", ("b",)), self.folder, "eval", ("prefix",), 3)
        self.assertEqual(alone, rows[3:6])
        turns, _ = prompts.chosen(a_scenario("u", ("a", "b"), order="turns"), self.folder, "eval", ("prefix",), 2)
        self.assertEqual([r["domain"] for r in turns], list("abab"))

    def test_too_few_rows_are_told_and_none_is_a_reason(self):
        self.rows("a", 5)
        rows, notes = prompts.chosen(a_scenario("s", ("a", "a")), self.folder, "eval", ("prefix",), 4)
        self.assertEqual(len(rows), 4)
        self.assertIn("2 requests a segment of a instead of 4", notes[0])
        for domain, split, kinds in (("a", "tune", ("prefix",)), ("a", "eval", ("instruction",)), ("z", "eval", ("prefix",))):
            rows, notes = prompts.chosen(a_scenario("s", (domain,)), self.folder, split, kinds, 4)
            self.assertIsNone(rows)
            self.assertIn("rows of " + domain, notes[0])

    def test_kinds_take_turns(self):
        rows = [{"id": str(i), "kind": "instruction" if i < 8 else "prefix"} for i in range(10)]
        self.assertEqual([r["kind"] for r in prompts.balanced(rows)][:5], ["instruction", "prefix", "instruction", "prefix", "instruction"])

    def test_the_public_set_of_a_small_machine(self):
        os.makedirs(self.path("usr/share/common-licenses"))
        dice = random.Random(2)
        licence = "\n".join(" ".join(dice.choice(["licence", "shall", "copy", "warranty", "party"]) for _ in range(9)) for _ in range(120))
        self.path("usr/share/common-licenses/Some-1", licence)
        os.makedirs(self.path("usr/share/doc/p"))
        self.path("usr/share/doc/p/changelog.Debian", "".join(f"p (1) stable; urgency=low\n\n  * {licence[i:i + 600]}\n\n -- A <a@b>  Mon, 01 Jan {year} 00:00:00 +0000\n\n" for i, year in enumerate((2025, 2019))))
        domains = public_prompts.built(self.folder)
        kept = public_prompts.write(domains, self.path("out"))
        self.assertEqual(kept["clinical"], 14)
        self.assertGreater(kept["law"], 14)
        self.assertNotIn("codeswitch", kept)
        self.assertNotIn("2019", "".join(r["prompt"] for r in domains["temporal"].rows))
        rows, _ = prompts.chosen(a_scenario("s", ("law",)), self.path("out"), "eval", ("prefix",), 8)
        self.assertEqual(len(rows), 8)
        self.assertEqual(len({r["prompt"] for r in domains["law"].rows}), len(domains["law"].rows))
        self.assertIn("usr/share/common-licenses/Some-1", json.loads(self.read("out/manifest.json"))["domains"]["law"]["sources"])

    def test_roff_becomes_text(self):
        self.assertEqual(public_prompts.of_roff('.\\" c\n.TH X 1\n.SH NAME\nx \\- a \\fBbold\\fP thing\n.PP\nna\\[:i]ve\n').split(), ["NAME", "x", "-", "a", "bold", "thing", "nave"])


PROGRAM = """#!/bin/sh
case "$*" in
  *--help*) echo "options" ;;
  *--version*) echo "drift 1 (stub)" ;;
  *online-kd*) echo "mode 'online-kd' needs LibTorch" >&2; exit 2 ;;
  *) echo called >> "$0.calls"; cp "$0.report" "$(echo "$*" | sed 's/.*--json //')"; exit $(cat "$0.code") ;;
esac
"""


class Running(Lab):
    def setUp(self):
        super().setUp()
        self.program = self.path("drift", PROGRAM)
        os.chmod(self.program, stat.S_IRWXU)
        self.path("drift.report", a_report(["law"] * 4, {"off": None, "static": [20] * 4, "drift": [30] * 4}))
        self.path("drift.code", "0")
        self.rows("law", 4)
        for name in ("t.gguf", "d.gguf"):
            self.path(name, name)

    def job(self, **more):
        os.makedirs(self.path("out"), exist_ok=True)
        lab = runs.Lab(self.program, self.path("t.gguf"), self.path("d.gguf"), self.folder, self.path("out"), "quick", **more)
        return lab.job(a_scenario("s", ("law",)), 0.5, "match", self.methods)[0]

    def calls(self):
        return len(self.read("drift.calls").splitlines()) if os.path.exists(self.path("drift.calls")) else 0

    def test_what_is_there_is_not_repeated_unless_something_changed(self):
        self.quietly(runs.run_all, [self.job()])
        self.quietly(runs.run_all, [self.job()])
        self.assertEqual(self.calls(), 1)
        self.path("d.gguf", "another draft")
        self.quietly(runs.run_all, [self.job()])
        self.assertEqual(self.calls(), 2)
        self.rows("law", 3)
        self.quietly(runs.run_all, [self.job()])
        self.assertEqual(self.calls(), 3)

    def test_a_partial_report_is_run_again(self):
        job = self.job()
        self.quietly(runs.run_all, [job])
        report = json.loads(self.read(job.path))
        self.path("out/" + os.path.basename(job.path), {**report, "partial": True})
        self.assertFalse(job.done)

    def test_ends_of_the_program(self):
        self.path("drift.code", "3")
        odd, said = self.quietly(runs.run_all, [self.job()])
        self.assertEqual(odd, ["s-t0.5-match"])
        self.assertIn("not plain decoding's", said)
        self.path("t.gguf", "another target")
        self.path("drift.code", "1")
        with self.assertRaisesRegex(runs.Failed, "ended with 1"):
            self.quietly(runs.run_all, [self.job()])
        self.assertFalse(self.job().done)

    def test_an_adapted_target_needs_its_file(self):
        lab = runs.Lab(self.program, self.path("t.gguf"), self.path("d.gguf"), self.folder, self.folder, "quick")
        job, notes = lab.job(a_scenario("s", ("law",), target="target-law.gguf"), 0.5, "match", self.methods)
        self.assertIsNone(job)
        self.assertIn("target-law.gguf", notes[0])


class Tables(Lab):
    HOME = {"off": None, "static": [60] * 8, "drift": [60] * 8, "draft+suffix": [50] * 8, "lookup": [20] * 8, "oracle": [100] * 8}
    LAW = {"off": None, "static": [20, 22] * 4, "drift": [30, 34] * 4, "draft+suffix": [40, 46] * 4, "lookup": [10] * 8, "tuned": [40, 42] * 4, "oracle": [100] * 8}

    def all(self):
        home = self.measured(a_scenario("home", ("general",), role="home"), a_report(["general"] * 8, self.HOME))
        law = self.measured(a_scenario("law", ("law",)), a_report(["law"] * 8, self.LAW))
        back = self.measured(a_scenario("back", ("law", "code", "law")), a_report(["law"] * 4 + ["code"] * 4 + ["law"] * 4,
                             {"off": None, "static": [20] * 12, "drift": [30] * 4 + [20] * 4 + [25] * 4}))
        ids = [f"law-{i // 2}" if i % 2 == 0 else f"code-{i}" for i in range(16)]
        turns = self.measured(a_scenario("turns", ("law", "code"), order="turns"), a_report(["law", "code"] * 8, {"off": None, "static": [20, 10, 22, 10] * 4, "drift": [25, 10, 29, 10] * 4}, ids))
        grid = [self.measured(a_scenario("grid", ("law",), role="grid"), a_report(["law"] * 8, {k: self.LAW[k] for k in ("off", "static", "drift")}), t, j)
                for t, j in ((0.0, "match"), (1.0, "rejection"))]
        return [home, law, back, turns, *grid]

    def record(self, table, **wanted):
        return next(r for r in table.records if all(r[k] == v for k, v in wanted.items()))

    def test_the_main_table(self):
        table = tables.main_table(self.all())
        self.assertNotIn("grid", {r["scenario"] for r in table.records})
        drift = self.record(table, scenario="law", method="drift")
        self.assertAlmostEqual(drift["acceptance"], 0.32)
        value, low, high = drift["against_static_points"]
        self.assertAlmostEqual(value, 11.0)
        self.assertTrue(10 <= low <= value <= high <= 12)
        self.assertEqual(drift["gap_to"], "tuned")
        self.assertAlmostEqual(drift["gap_closed"][0], 0.55)
        self.assertAlmostEqual(drift["tokens_per_pass"], 2.6)
        self.assertAlmostEqual(drift["tokens_per_pass_against_static"][0], 0.55)
        static = self.record(table, scenario="law", method="static")
        home = self.record(table, scenario="home", method="static")
        self.assertAlmostEqual(static["shift_penalty_modelled"], 1 - static["modelled_speedup"] / home["modelled_speedup"])
        self.assertIsNone(home["shift_penalty_modelled"])
        self.assertEqual(self.record(table, scenario="home", method="drift")["gap_to"], "oracle")
        self.assertIsNone(self.record(table, scenario="law", method="lookup")["gap_closed"])
        self.assertTrue(all(len(row) == len(table.head) for row in table.rows))
        text = next(row for row in table.rows if row[1] == "drift" and row[3] == "0.320")
        self.assertIn("▲", text[4])

    def test_what_is_lost_is_listed(self):
        rivals, lost = tables.rivals_table(self.all())
        self.assertEqual([(r["scenario"], r["method"], r["against"]) for r in lost.records], [("law", "drift", "draft+suffix")])
        self.assertEqual(lost.rows[0][0], "Title of law")
        self.assertIn("1 lost", rivals.reading)
        self.assertIn("▼", lost.rows[0][4])
        worse = self.measured(a_scenario("home", ("general",), role="home"), a_report(["general"] * 8, {"off": None, "static": [60] * 8, "drift": [58] * 8}))
        _, lost = tables.rivals_table([worse])
        self.assertEqual([(r["against"], r["in"]) for r in lost.records], [("static", "tokens per pass"), ("static", "acceptance, points")])

    def test_halves_segments_banks_and_temperatures(self):
        everything = self.all()
        halves = self.record(tables.adaptation_table(everything), scenario="law", method="drift")
        self.assertEqual(halves["acceptance_by_half"], [0.32, 0.32])
        self.assertEqual(len(halves["curve"]), 8)
        segments = tables.segments_table(everything)
        self.assertEqual({r["scenario"] for r in segments.records}, {"back"})
        self.assertEqual([round(self.record(segments, segment=n, method="drift")["against_static_points"][0], 6) for n in (1, 2, 3)], [10, 0, 5])
        bank = self.record(tables.one_bank_table(everything), domain="law", method="drift")
        self.assertEqual((bank["requests"], round(bank["difference_points"][0], 6)), (8, -5))
        grid = tables.temperatures_table(everything)
        self.assertEqual([(r["temperature"], r["judge"]) for r in grid.records if r["method"] == "drift"], [(0.0, "match"), (1.0, "rejection")])

    def test_few_requests_bear_no_interval(self):
        few = self.measured(a_scenario("law", ("law",)), a_report(["law"] * 3, {"off": None, "static": [20] * 3, "drift": [30] * 3}))
        self.assertEqual(few.against("drift")[1:], (None, None))
        self.assertNotIn("(", tables.main_table([few]).rows[2][4])

    def test_a_report_that_contradicts_itself_is_refused(self):
        report = a_report(["law"] * 4, {"off": None, "static": [20] * 4})
        report["prompts"][2]["runs"][1]["accepted"] += 1
        with self.assertRaisesRegex(compare_report.Unreadable, "do not add up"):
            self.measured(a_scenario("law", ("law",)), report)

    def test_copies_cost_no_draft_pass_in_a_segment_either(self):
        report = a_report(["law"] * 4, {"off": None, "static": [20] * 4, "draft+suffix": [20] * 4})
        row = compare_report.mode(report, "draft+suffix")
        part = compare_report.within(report, row, 0, report["prompts"])
        self.assertAlmostEqual(part["modelled_speedup"], row["modelled_speedup"])
        self.assertGreater(part["modelled_speedup"], compare_report.mode(report, "static")["modelled_speedup"])

    def test_blocks_where_nothing_was_accepted(self):
        self.assertEqual(compare_report.blocks({"accepted": 0, "drafted": 12, "steps": 50}, 5), 3)
        self.assertEqual(compare_report.blocks({"accepted": 0, "drafted": 0, "steps": 50}, 5), 0)
        self.assertEqual(compare_report.blocks({"accepted": 6, "mean_accepted_per_block": 1.5, "drafted": 20, "steps": 50}), 4)

    def test_an_interval_is_the_same_every_time_and_holds_its_value(self):
        rows = [(i % 5, 10, i % 3, 10) for i in range(20)]
        found = compare_report.paired_difference(rows)
        self.assertEqual(found, compare_report.paired_difference(rows))
        self.assertTrue(found[1] < found[0] < found[2])
        # What all methods share falls out: the same interval when a constant is added to both.
        moved = compare_report.paired_difference([(a + 3, d, b + 3, e) for a, d, b, e in rows])
        for one, other in zip(found, moved):
            self.assertAlmostEqual(one, other)


class Pages(Lab):
    def test_the_files_of_a_report(self):
        jobs = []
        for name, segments, role, domains, accepted in (
                ("home", ("general",), "home", ["general"] * 8, Tables.HOME), ("law", ("law",), "shift", ["law"] * 8, Tables.LAW),
                ("stream", ("general", "law", "general"), "shift", ["general"] * 4 + ["law"] * 4 + ["general"] * 4,
                 {"off": None, "static": [60] * 4 + [20] * 4 + [60] * 4, "drift": [60] * 4 + [24, 28, 32, 36] + [60] * 4})):
            run = plan.Run(a_scenario(name, segments, role=role, opening=("static", "drift") if name == "stream" else ()), 0.5, "match", tuple(m for m in self.methods if m.label in accepted))
            report = a_report(domains, accepted)
            report["prompts"][0]["id"] = "</script><b>"
            jobs.append(runs.Job(run, ["drift", "compare", "--data", "<b>&"], self.path(name + ".json", report), "key", 1, len(domains), {}))

        class Options:
            size, split, out, version = "quick", "eval", self.folder, "drift v"
        paths, said = self.quietly(page.write_all, Options, jobs, ["method <x>: why"], ["lab.py", "--out", "a b"], True)
        names = {os.path.basename(path) for path in paths}
        self.assertLessEqual({"lab.html", "lab.json", "lab.md"}, names)
        html, numbers = self.read("lab.html"), json.loads(self.read("lab.json"))
        self.assertEqual((numbers["schema"], numbers["left_out"]), ("drift.lab/1", ["method <x>: why"]))
        self.assertLessEqual({"main", "rivals", "lost", "adaptation", "segments", "scenarios", "methods", "runs"}, {t["name"] for t in numbers["tables"]})
        for table in numbers["tables"]:
            self.assertIn(f'<h2 id="{table["name"]}">', html)
        self.assertIn("lab.py --out &#x27;a b&#x27;", html)
        self.assertIn("&lt;b&gt;&amp;", html)
        self.assertNotIn("</script><b>", html)
        if "opening.png" not in names:
            raise unittest.SkipTest(said.strip())
        script = html[html.index("<script>"):html.index("</script>")]  # vega's own code: it speaks of addresses, and fetches none by itself
        self.assertGreater(len(script), 500_000)
        self.assertIsNone(re.search(r"src=|href=|@import|https?://(?!vega\.github\.io/schema/)", html.replace(script, "")))
        self.assertEqual(html.count("vegaEmbed(\"#picture"), 3)
        with open(self.path("opening.png"), "rb") as file:
            self.assertEqual(file.read(4), b"\x89PNG")


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=2).result
    for _, reason in outcome.skipped:
        print("SKIPPED:", reason)
    sys.exit(0 if outcome.wasSuccessful() else 1)
