"""tools/picture.py and tools/compare_table.py on a small fixed report of a stream, and on every report they must refuse."""

import copy
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tools")
sys.path.insert(0, TOOLS)
import picture  # noqa: E402

DOMAINS = ["general", "general", "law", "law", "general"]
ACCEPTED = {"off": [0] * 5, "static": [30, 30, 10, 10, 30], "drift": [30, 30, 10, 30, 40]}


def a_report():
    """Five prompts of 100 tokens; 100 drafted in each by the modes that draft."""
    segments = [{"domain": "general", "first_prompt": 0, "prompts": 2}, {"domain": "law", "first_prompt": 2, "prompts": 2},
                {"domain": "general", "first_prompt": 4, "prompts": 1}]
    modes = []
    for label, accepted in ACCEPTED.items():
        drafted = [0 if label == "off" else 100] * 5

        def fold(points):
            counts = {"tokens": 100 * len(points), "steps": 50 * len(points), "drafted": sum(drafted[i] for i in points),
                      "accepted": sum(accepted[i] for i in points)}
            return {**counts, "acceptance": counts["accepted"] / max(1, counts["drafted"]), "acceptance_conditional": 0.5,
                    "mean_accepted_per_block": 0.5, "tokens_per_s": 10.0, "speedup": 1.0}
        modes.append({**fold(range(5)), "label": label, "mode": label, "speedup_quartiles": [1.0, 1.0], "modelled_speedup": 1.5,
                      "overhead_fraction": 0.01, "diverged_prompts": 0, "max_divergence_margin": 0.0, "allowed_divergence_margin": 0.1,
                      "segments": [{"domain": s["domain"], **fold(range(s["first_prompt"], s["first_prompt"] + s["prompts"]))} for s in segments],
                      "curve": [{"prompt": i, "domain": DOMAINS[i], "tokens": 100, "drafted": drafted[i], "accepted": accepted[i],
                                 "cumulative_tokens": 100 * (i + 1)} for i in range(5)]})
    prompts = [{"id": f"p{i}", "domain": DOMAINS[i],
                "runs": [{"label": label, "drafted": 0 if label == "off" else 100, "accepted": ACCEPTED[label][i], "speedup": 1.0,
                          "first_difference": None, "divergence_margin": None} for label in ACCEPTED]} for i in range(5)]
    return {"schema": "drift.compare/1", "schema_minor": 1, "partial": False, "drift_version": "0", "segments": segments, "modes": modes,
            "prompts": prompts, "target": {"name": "big"}, "draft": {"name": "small"}, "sampler": {"temperature": 0.5},
            "modelled_at": {"draft_cost": 0.1, "verify_cost": 1.0}, "cost_curve": {"target": None, "draft": None},
            "machine": {"cpu": "c", "threads": 1, "ggml_flags": "g", "highway_target": "h"}, "load_average_before": [0.0]}


class Tools(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="drift-picture-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name, content=None):
        path = os.path.join(self.folder.name, name)
        if content is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def tool(self, name, *arguments):
        return subprocess.run([sys.executable, os.path.join(TOOLS, name), *arguments], capture_output=True, text=True, timeout=600)


class Refusals(Tools):
    def refused(self, why, content):
        done = self.tool("picture.py", self.path("r.json", content), self.path("out"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("r.json: ", done.stderr)
        self.assertIn(why, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(os.listdir(self.folder.name), ["r.json"])

    def changed(self, change):
        report = a_report()
        change(report)
        return report

    def test_files(self):
        done = self.tool("picture.py", self.path("none.json"), self.path("out"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("No such file", done.stderr)
        self.refused("not JSON", '{"schema": ')
        self.refused("not JSON", "[" * 100_000)
        self.refused("schema is not drift.compare/1", "[]")
        self.refused("schema is not drift.compare/1", {"schema": "drift.compare/2"})

    def test_reports_that_cannot_be_drawn(self):
        for why, change in (
                ("was interrupted", lambda r: r.update(partial=True)),
                ('report: the field "modes" is missing', lambda r: r.pop("modes")),
                ('report: the field "prompts" is missing', lambda r: r.pop("prompts")),
                ('modes[1]: the field "curve" is missing', lambda r: r["modes"][1].pop("curve")),
                ('modes[1]: the field "curve" must be a list', lambda r: r["modes"][1].update(curve={"a": 1})),
                ('modes[2]: the field "label" must be a text', lambda r: r["modes"][2].update(label=3)),
                ('modes[1].curve[3]: the field "drafted" is missing', lambda r: r["modes"][1]["curve"][3].pop("drafted")),
                ('modes[1].curve[0]: the field "tokens" must be a whole number', lambda r: r["modes"][1]["curve"][0].update(tokens=1.5)),
                ('modes[1].curve[0]: the field "tokens" is missing', lambda r: r["modes"][1]["curve"][0].update(tokens=float("nan"))),
                ("modes[1].curve[4]: tokens, drafted and accepted are", lambda r: r["modes"][1]["curve"][4].update(accepted=101)),
                ("must not be negative", lambda r: r["modes"][1]["curve"][4].update(tokens=-1)),
                ("modes[1]: the curve is empty; make the report with drift compare --stream", lambda r: r["modes"][1].update(curve=[])),
                ("modes[2]: the curve is over other prompts", lambda r: r["modes"][2]["curve"].pop()),
                ("modes[1]: nothing was drafted", lambda r: [p.update(drafted=0, accepted=0) for p in r["modes"][1]["curve"]]),
                ("no tokens were generated", lambda r: [p.update(tokens=0) for m in r["modes"] for p in m["curve"]]),
                ("there is no mode that drafts", lambda r: r.update(modes=r["modes"][:1])),
                ("two modes have the same label", lambda r: r["modes"][2].update(label="static")),
                ("10 modes draft; this tool draws up to 6", lambda r: r.update(modes=[dict(r["modes"][1], label=str(i)) for i in range(10)]))):
            with self.subTest(why):
                self.refused(why, self.changed(change))

    def test_the_window(self):
        for bad in ("0", "-5", "x", "1.5", "1000001"):
            done = self.tool("picture.py", self.path("r.json", a_report()), self.path("out"), "--window", bad)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--window", done.stderr)

    def test_missing_packages_are_named(self):
        environment = dict(os.environ, DRIFT_DEPS=self.folder.name)
        done = subprocess.run([sys.executable, "-S", "-E", os.path.join(TOOLS, "picture.py"), self.path("r.json", a_report()), self.path("out")],
                              capture_output=True, text=True, timeout=600, env=environment)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("picture-requirements.txt", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class Figures(Tools):
    def stream(self, report, window=512):
        return picture.read(self.path("r.json", report), window)

    def test_segments_and_moving_acceptance(self):
        stream = self.stream(a_report(), window=150)
        self.assertEqual([(s.domain, list(s.points)) for s in stream.segments], [("general", [0, 1]), ("law", [2, 3]), ("general", [4])])
        self.assertEqual(stream.ends, [100, 200, 300, 400, 500])
        static, drift = stream.modes
        self.assertEqual(static.moving, [0.3, 0.3, 0.1, 0.1, 0.3])
        self.assertEqual(drift.moving, [0.3, 0.3, 0.1, 0.2, 0.4])
        self.assertEqual(self.stream(a_report(), window=100).modes[1].moving, [0.3, 0.3, 0.1, 0.3, 0.4])
        # Anew at each shift: a window longer than the stream never reaches back over one.
        self.assertEqual(self.stream(a_report(), window=1_000_000).modes[1].moving, [0.3, 0.3, 0.1, 0.2, 0.4])

    def test_a_prompt_without_drafts_has_no_acceptance(self):
        report = a_report()
        report["modes"][1]["curve"][2].update(drafted=0, accepted=0)
        static = self.stream(report).modes[0]
        self.assertIsNone(static.moving[2])
        self.assertEqual(static.moving[3], 0.1)

    def test_the_words_have_this_runs_figures(self):
        stream = self.stream(a_report())
        self.assertEqual(picture.title_of(stream), "Drafted tokens that the target accepts: static 30 % on general and 10 % on law; drift 33 % and 20 %")
        words = " ".join(picture.subtitle_of(stream, 512))
        self.assertIn("drift +10.0 points (+0.0 to +20.0)", words)
        self.assertIn("big drafted for by small, temperature 0.5, 5 prompts, 500 tokens a mode", words)

    def test_one_domain_has_no_shift(self):
        report = a_report()
        for mode in report["modes"]:
            for point in mode["curve"]:
                point["domain"] = ""
        stream = self.stream(report)
        self.assertEqual(picture.title_of(stream), "Drafted tokens that the target accepts: static 22 % on (no domain); drift 28 %")
        self.assertIn("over the stream", picture.subtitle_of(stream, 512)[0])

    def test_the_table_tells_segments_and_the_whole(self):
        done = self.tool("compare_table.py", self.path("r.json", a_report()))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]
        names = [row[0] for row in rows if row[1] == "off"]
        self.assertEqual(names, ["1 general", "2 law", "3 general", "whole stream"])
        drift = [row for row in rows if row[1] == "drift"]
        self.assertEqual([row[3] for row in drift], ["0.300", "0.200", "0.400", "0.280"])
        self.assertTrue(drift[1][4].startswith("+10.0 "), drift[1])

    def test_a_report_of_minor_version_0_is_still_read_by_the_table(self):
        report = a_report()
        for name in ("schema_minor", "segments"):
            report.pop(name)
        for mode in report["modes"]:
            mode.pop("segments"), mode.pop("curve")
        done = self.tool("compare_table.py", self.path("r.json", report))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| mixed | off | 500 |", done.stdout)


class Pictures(Tools):
    def draw(self, report):
        done = self.tool("picture.py", self.path("r.json", report), self.path("out"))
        if done.returncode == 3:
            raise unittest.SkipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["out.html", "out.png", "r.json"])
        with open(self.path("out.html"), encoding="utf-8") as page, open(self.path("out.png"), "rb") as image:
            return page.read(), image.read()

    def test_one_page_that_needs_no_network_and_one_image(self):
        page, image = self.draw(a_report())
        bundle = page[page.index("<script>"):page.index("</script>")]  # vega's own code: it speaks of addresses, and fetches none by itself
        self.assertGreater(len(bundle), 500_000)
        self.assertIsNone(re.search(r"src=|href=|@import|https?://(?!vega\.github\.io/schema/)", page.replace(bundle, "")))
        spec = json.loads(re.search(r'vegaEmbed\("#picture", (\{.*\}), \{renderer', page).group(1))
        self.assertNotIn('"url"', json.dumps(spec))
        self.assertIn("static 30 % on general and 10 % on law; drift 33 % and 20 %", " ".join(spec["title"]["text"]))
        self.assertEqual(image[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(struct.unpack(">II", image[16:24]), (2 * picture.WIDTH, 2 * picture.HEIGHT))

    def test_names_cannot_end_the_script(self):
        report = a_report()
        for mode in report["modes"]:
            for point in mode["curve"]:
                point["domain"] = "</script><b>" if point["domain"] == "law" else point["domain"]
        report["prompts"][0]["id"] = "</script><b>"
        page, _ = self.draw(report)
        self.assertNotIn("</script><b>", page)
        self.assertEqual(page.count("</script>"), 2)

    def test_six_modes_of_one_prompt_and_names_of_any_length(self):
        report = a_report()
        for mode in report["modes"]:
            mode["curve"] = [dict(mode["curve"][0], domain="d" * 256)]
        report["modes"] = [dict(copy.deepcopy(report["modes"][1]), label="m" * 31 + str(i)) for i in range(6)]
        self.draw(report)


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=2).result
    for _, reason in outcome.skipped:
        print("SKIPPED:", reason)
    sys.exit(0 if outcome.wasSuccessful() else 1)
