"""The lab's tables, from reports of drift compare. A figure that a report holds is taken from it; intervals and what a report cannot know
(shift penalty, gap closed, one run against another) are reckoned here from the counts of its requests, once.
"""
import dataclasses

import compare_report
from compare_report import counts, mode, paired_difference, paired_interval

REQUESTS_MIN = 4  # for an interval
RIVALS = ("static", "seed", "lookup", "suffix", "draft+suffix", "draft+suffix3", "online-kd")


@dataclasses.dataclass
class Table:
    name: str
    title: str
    reading: str  # what it says and how to read it
    head: list
    rows: list  # of lists of texts
    records: list  # the same as numbers, for lab.json
    runs: list  # names of the runs it is made from


class Measured:
    """A run and its report."""

    def __init__(self, run, report):
        self.run, self.report, self.scenario = run, report, run.scenario
        self.labels = [m.label for m in run.methods if mode(report, m.label)]
        self.family = {m.label: m.family for m in run.methods}
        self.prompts = report["prompts"]
        self.kept = {}
        for label in self.labels:  # the folds of a report must agree with each other
            row = self.mode(label)
            for name in ("tokens", "steps", "drafted", "accepted"):
                if sum(self.counts(i, label)[name] for i in range(len(self.prompts))) != row[name]:
                    raise compare_report.Unreadable(f"{run.name}: {label}: {name} of the requests do not add up to the mode's")

    def mode(self, label):
        return mode(self.report, label)

    def counts(self, i, label):
        if (i, label) not in self.kept:
            self.kept[i, label] = counts(self.prompts[i], label)
        return self.kept[i, label]

    def of(self, family):
        return [label for label in self.labels if self.family[label] == family]

    def accepted(self, i, label):
        found = self.counts(i, label)
        return found["accepted"], found["drafted"]

    def per_pass(self, i, label):
        found = self.counts(i, label)
        return found["tokens"], found["steps"]

    def acceptance(self, label, points):
        accepted, drafted = (sum(column) for column in zip(*(self.accepted(i, label) for i in points)))
        return accepted / drafted if drafted else None

    def against(self, label, other="static", points=None):
        """Acceptance against another mode's, in points, over the requests `points`."""
        points = range(len(self.prompts)) if points is None else points
        return enough(paired_difference([self.accepted(i, label) + self.accepted(i, other) for i in points]), points)

    def passes_against(self, label, other):
        """Tokens per pass of the target against another mode's: comparable between methods that propose more or less often."""
        return enough(paired_interval([self.per_pass(i, label) + self.per_pass(i, other) for i in range(len(self.prompts))],
                                      lambda t, s, t0, s0: t / s - t0 / s0 if s and s0 else None), self.prompts)

    @property
    def bound(self):
        """What gaps are measured to: the draft tuned on the domain where there is one, else the oracle."""
        return next((label for label in ("tuned", "oracle") if label in self.labels), None)

    def gap_closed(self, label):
        """(method - static) / (bound - static) in acceptance, where the bound is above static."""
        bound = self.bound
        if bound is None or label in (bound, "static", "oracle") or self.mode(label)["draft"] is None:  # without a draft acceptance is of fewer, surer proposals
            return None

        def figure(a, d, a0, d0, a1, d1):
            return (a / d - a0 / d0) / (a1 / d1 - a0 / d0) if d and d0 and d1 and a1 * d0 > a0 * d1 else None
        return enough(paired_interval([self.accepted(i, label) + self.accepted(i, "static") + self.accepted(i, bound) for i in range(len(self.prompts))], figure), self.prompts)

    def segments(self):
        """[(number, domain, indices of requests)]"""
        return [(n, s["domain"], range(s["first_prompt"], s["first_prompt"] + s["prompts"])) for n, s in enumerate(self.report["segments"])]


def enough(found, requests):
    """Few requests bear a figure and no interval."""
    return found if not found or len(requests) >= REQUESTS_MIN else (found[0], None, None)


# ----------------------------------------------------------------------------------------------------------- texts

def number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def share(value):
    return "-" if value is None else f"{round(100 * value)} %"


def mark(found):
    """▲ where the interval lies above zero, ▼ where it lies below."""
    if not found or found[1] is None:
        return ""
    return " ▲" if found[1] > 0 else " ▼" if found[2] < 0 else ""


def interval(found, digits, scale=1, unit=""):
    if not found:
        return "-"
    value, low, high = (None if v is None else v * scale for v in found)
    if low is None:
        return f"{value:+.{digits}f}{unit}"
    between = f"{low:+.{digits}f} .. {high:+.{digits}f}"
    return f"{value:+.{digits}f}{unit} ({between}){mark(found)}"


def case(measured):
    return {"scenario": measured.scenario.name, "temperature": measured.run.temperature, "judge": measured.run.judge}


def texts_differ(row):
    return "-" if row["diverged_prompts"] is None else str(row["diverged_prompts"]) + (" beyond noise" if row.get("divergence_beyond_margin") else "")


# ---------------------------------------------------------------------------------------------------------- tables

def home_of(all_measured, measured):
    """The run in distribution under the same temperature and judge."""
    return next((m for m in all_measured if m.scenario.role == "home" and m.run.temperature == measured.run.temperature and m.run.judge == measured.run.judge), None)


def main_table(all_measured):
    rows, records, used = [], [], []
    for measured in all_measured:
        if measured.scenario.role == "grid":
            continue
        used.append(measured.run.name)
        home, name = home_of(all_measured, measured), measured.scenario.title
        before = home.mode("static") if home and measured.scenario.role == "shift" else None
        static, bound = measured.mode("static"), measured.mode(measured.bound) if measured.bound else None
        for label in measured.labels:
            row, plain = measured.mode(label), measured.family[label] == "plain"
            record = {**case(measured), "method": label, "requests": len(measured.prompts), "tokens": row["tokens"], "tokens_per_pass": row["mean_length"],
                      "tokens_per_s": row["tokens_per_s"], "speedup": row["speedup"]}
            if not plain:
                gap = measured.gap_closed(label)
                speed_gap = None
                if gap and bound["modelled_speedup"] > static["modelled_speedup"]:
                    speed_gap = (row["modelled_speedup"] - static["modelled_speedup"]) / (bound["modelled_speedup"] - static["modelled_speedup"])
                record |= {"acceptance": row["acceptance"], "against_static_points": None if label == "static" else measured.against(label),
                           "acceptance_conditional": row["acceptance_conditional"], "accepted_per_block": row["mean_accepted_per_block"],
                           "predicted_per_block": row["predicted_accepted"],
                           "tokens_per_pass_against_static": None if label == "static" else measured.passes_against(label, "static"),
                           "modelled_speedup": row["modelled_speedup"],
                           "shift_penalty_modelled": 1 - row["modelled_speedup"] / before["modelled_speedup"] if before else None,
                           "shift_penalty": 1 - row["speedup"] / before["speedup"] if before and row["speedup"] and before["speedup"] else None,
                           "gap_closed": gap, "gap_closed_modelled_speedup": speed_gap, "gap_to": measured.bound if gap else None,
                           "overhead": row["overhead_fraction"], "texts_that_differ": row["diverged_prompts"]}
            records.append(record)
            dash = "-" if plain else None
            rows.append([name, label, str(row["tokens"]), dash or number(row["acceptance"], 3), dash or interval(record["against_static_points"], 1),
                         dash or number(row["acceptance_conditional"], 3), dash or f"{row['mean_accepted_per_block']:.2f} / {row['predicted_accepted']:.2f}",
                         number(row["mean_length"], 2), dash or interval(record["tokens_per_pass_against_static"], 2), number(row["tokens_per_s"], 0),
                         number(row["speedup"], 2), dash or number(row["modelled_speedup"], 2),
                         dash or f"{share(record['shift_penalty_modelled'])} ({share(record['shift_penalty'])})",
                         dash or (f"{interval(record['gap_closed'], 0, 100, ' %')} of {measured.bound}" if gap else "-"), dash or share(record["gap_closed_modelled_speedup"]),
                         dash or ("-" if row["overhead_fraction"] is None else f"{100 * row['overhead_fraction']:.1f} %"), texts_differ(row)])
            name = ""
    return Table("main", "Every scenario, every method",
                 "Acceptance is accepted / drafted; conditional counts a proposal only if all before it in its block stood. Methods that copy propose only where something "
                 "matches, so compare them with the others by tokens per pass of the target. Accepted per block: measured / the geometric sum of the conditional acceptance. "
                 "Speed-up over plain decoding: measured here, and what the counts would give at the seed's costs (a draft pass 1/30 of a target's, verification 1.05). Shift "
                 "penalty: share of the static draft's speed-up in distribution that is gone, at the seed's costs (measured). Gap closed: the share of the way from the static draft "
                 "to the tuned one, or to the oracle where none was tuned, in acceptance and in speed-up at the seed's costs. Intervals: 95 %, paired by request; "
                 "▲ wholly above zero, ▼ wholly below; none where there are fewer than " f"{REQUESTS_MIN} requests.",
                 ["scenario", "method", "tokens", "acceptance", "against static, points", "conditional", "per block / predicted", "tokens per pass", "against static", "tokens/s", "speed-up",
                  "at the seed's costs", "shift penalty", "gap closed", "in speed-up", "overhead", "texts that differ"], rows, records, used)


def rivals_table(all_measured):
    """Ours against everything that could be used instead, and the list of all cases that are lost."""
    rows, records, used, lost = [], [], [], []
    rivals = [r for r in RIVALS if any(r in m.labels for m in all_measured)]
    clear = {"won": 0, "lost": 0, "open": 0}
    for measured in all_measured:
        if not measured.of("ours"):
            continue
        used.append(measured.run.name)
        name = title = measured.scenario.title + (f", T {measured.run.temperature:g}, {measured.run.judge}" if measured.scenario.role == "grid" else "")
        for label in measured.of("ours"):
            found = {r: measured.passes_against(label, r) if r in measured.labels and r != label else None for r in rivals}
            records.append({**case(measured), "method": label, "tokens_per_pass_against": found})
            rows.append([name, label, number(measured.mode(label)["mean_length"], 2)] + [interval(found[r], 2) for r in rivals])
            for rival, cell in found.items():
                if cell and cell[1] is not None:
                    outcome = "won" if cell[1] > 0 else "lost" if cell[2] < 0 else "open"
                    clear[outcome] += 1
                    if outcome == "lost":
                        lost.append((measured, title, label, rival, "tokens per pass", cell, 2))
            points = None if measured.mode(label)["copied"] else measured.against(label)  # with copies, acceptance is of other proposals
            if points and points[1] is not None and points[2] < 0:
                lost.append((measured, title, label, "static", "acceptance, points", points, 1))
            name = ""
    table = Table("rivals", "Ours against what could be used instead",
                  f"Difference in tokens per pass of the target, 95 %, paired by request. Of {sum(clear.values())} comparisons {clear['won']} are won (▲), {clear['lost']} lost (▼), "
                  f"{clear['open']} open.", ["scenario", "method", "tokens per pass"] + ["against " + r for r in rivals], rows, records, used)
    losses = Table("lost", "Where ours loses",
                   "Every comparison of the table above whose interval lies wholly below zero; and acceptance against the static draft where that of a method without copies does.",
                   ["scenario", "method", "loses against", "in", "difference"], [[title, label, rival, what, interval(cell, digits)] for _, title, label, rival, what, cell, digits in lost],
                   [{**case(m), "method": label, "against": rival, "in": what, "difference": cell} for m, _, label, rival, what, cell, _ in lost], used)
    return table, losses


def adaptation_table(all_measured):
    """Halves of the requests of one domain, and the curve itself for lab.json."""
    rows, records, used = [], [], []
    for measured in all_measured:
        count = len(measured.prompts)
        if measured.scenario.role == "grid" or len(set(measured.scenario.segments)) > 1 or count < 2:
            continue
        used.append(measured.run.name)
        name, halves = measured.scenario.title, (range(count // 2), range(count // 2, count))
        for label in measured.labels:
            if measured.family[label] in ("plain", "bound"):
                continue
            values = [measured.acceptance(label, half) for half in halves]
            found = [None if label == "static" else measured.against(label, points=half) for half in halves]
            records.append({**case(measured), "method": label, "acceptance_by_half": values, "against_static_points_by_half": found,
                            "curve": [{"tokens": point["cumulative_tokens"], "drafted": point["drafted"], "accepted": point["accepted"]} for point in measured.mode(label)["curve"]]})
            rows.append([name, label, number(values[0], 3), interval(found[0], 1), number(values[1], 3), interval(found[1], 1)])
            name = ""
    return Table("adaptation", "What is learnt in the course of a stream",
                 "Acceptance in the first and the second half of the requests, and against the static draft on the same requests, in points. A memory that learns gains more in the "
                 "second half; request by request it is in the curves and in lab.json. Memories begin empty.",
                 ["scenario", "method", "first half", "against static", "second half", "against static"], rows, records, used)


def segments_table(all_measured):
    """Streams in which a domain comes again."""
    rows, records, used = [], [], []
    for measured in all_measured:
        segments = measured.segments()
        if measured.scenario.order != "blocks" or len(segments) < 3 or measured.scenario.role == "grid":
            continue
        used.append(measured.run.name)
        for n, domain, points in segments:
            name = f"{measured.scenario.name}: {n + 1} {domain}"
            for label in measured.labels:
                if measured.family[label] in ("plain", "bound"):
                    continue
                part = measured.mode(label)["segments"][n]
                found = None if label == "static" else measured.against(label, points=points)
                first = points[:2]
                records.append({**case(measured), "segment": n + 1, "domain": domain, "method": label, "acceptance": part["acceptance"], "acceptance_conditional": part["acceptance_conditional"],
                                "against_static_points": found, "acceptance_of_first_two_requests": measured.acceptance(label, first)})
                rows.append([name, label, number(part["acceptance"], 3), interval(found, 1), number(part["acceptance_conditional"], 3), number(measured.acceptance(label, first), 3)])
                name = ""
    return Table("segments", "There and back: A, B, A",
                 "Acceptance segment by segment, against the static draft on the same requests, in points. Forgetting: a gain that is smaller when the domain comes again. Lag: the first two "
                 "requests of a segment below all of it. Requests differ between segments, so compare the differences, not the levels.",
                 ["stream: segment", "method", "acceptance", "against static", "conditional", "first two requests"], rows, records, used)


def one_bank_table(all_measured):
    """The same requests through a bank shared with other domains, and through one of their own."""
    rows, records, used = [], [], set()
    for shared in all_measured:
        if shared.scenario.order != "turns":
            continue
        for domain in shared.scenario.segments:
            alone = next((m for m in all_measured if m.scenario.segments == (domain,) and m.scenario.role != "grid" and not m.scenario.target
                          and (m.run.temperature, m.run.judge) == (shared.run.temperature, shared.run.judge)), None)
            if alone is None:
                continue
            place = {p["id"]: i for i, p in enumerate(alone.prompts)}
            pairs = [(i, place[p["id"]]) for i, p in enumerate(shared.prompts) if p["domain"] == domain and p["id"] in place]
            if not pairs:
                continue
            used |= {shared.run.name, alone.run.name}
            name = domain
            for label in shared.labels:
                if shared.family[label] in ("plain", "bound") or label == "lookup" or label not in alone.labels:
                    continue
                found = enough(paired_difference([shared.accepted(i, label) + alone.accepted(j, label) for i, j in pairs]), pairs)
                values = shared.acceptance(label, [i for i, _ in pairs]), alone.acceptance(label, [j for _, j in pairs])
                records.append({**case(shared), "domain": domain, "method": label, "shared": values[0], "own": values[1], "difference_points": found, "requests": len(pairs)})
                rows.append([name, label, number(values[1], 3), number(values[0], 3), interval(found, 1)])
                name = ""
    return Table("one-bank", "Several domains through one bank",
                 "Acceptance on the same requests with a memory of the domain's own and with one that all domains share, taking turns; the difference in points. The static draft has no "
                 "memory: its row shows what is not memory.", ["domain", "method", "own", "shared", "difference"], rows, records, sorted(used))


def temperatures_table(all_measured):
    rows, records, used = [], [], []
    for measured in all_measured:
        if measured.scenario.role != "grid":
            continue
        used.append(measured.run.name)
        name = f"{measured.run.temperature:g}, {measured.run.judge}"
        for label in measured.labels:
            if measured.family[label] == "plain":
                continue
            row = measured.mode(label)
            found = None if label == "static" else measured.against(label)
            per_pass = None if label == "static" else measured.passes_against(label, "static")
            records.append({**case(measured), "method": label, "acceptance": row["acceptance"], "against_static_points": found, "acceptance_conditional": row["acceptance_conditional"],
                            "accepted_per_block": row["mean_accepted_per_block"], "tokens_per_pass": row["mean_length"], "tokens_per_pass_against_static": per_pass,
                            "modelled_speedup": row["modelled_speedup"], "texts_that_differ": row["diverged_prompts"]})
            rows.append([name, label, number(row["acceptance"], 3), interval(found, 1), number(row["acceptance_conditional"], 3), number(row["mean_accepted_per_block"], 2),
                         number(row["mean_length"], 2), interval(per_pass, 2), number(row["modelled_speedup"], 2), texts_differ(row)])
            name = ""
    return Table("temperatures", "Temperatures and judges",
                 "One shifted domain, the same requests. With the match judge, and at temperature 0, every method's text is plain decoding's; with rejection above 0 it is another one of the same "
                 "distribution, so requests are paired but texts are not, and differences there are noisier.",
                 ["temperature, judge", "method", "acceptance", "against static, points", "conditional", "per block", "tokens per pass", "against static", "at the seed's costs", "texts that differ"],
                 rows, records, used)


def words_tables(all_measured):
    """What the scenarios and methods that ran are."""
    scenarios = {m.scenario.name: m.scenario for m in all_measured}.values()
    methods = {method.label: method for m in all_measured for method in m.run.methods}.values()
    names = [m.run.name for m in all_measured]
    return (Table("scenarios", "The scenarios", "", ["scenario", "name", "segments", "what"], [[s.title, s.name, ", ".join(s.segments), s.what] for s in scenarios],
                  [{"scenario": s.name, "title": s.title, "segments": s.segments, "order": s.order, "draft": s.draft, "what": s.what} for s in scenarios], names),
            Table("methods", "The methods", "", ["method", "mode", "what"], [[m.label, m.mode, m.what] for m in methods],
                  [{"method": m.label, "mode": m.mode, "family": m.family, "what": m.what} for m in methods], names))


def runs_table(jobs, all_measured):
    rows, records = [], []
    for job, measured in zip(jobs, all_measured):
        report = measured.report
        repeats = next((m for m in report["modes"] if m["label"] == "off"), {}).get("repeat_32")
        loads = [report[f"load_average_{when}"][0] for when in ("before", "after")]
        rows.append([job.run.name, str(len(measured.prompts)), ", ".join(measured.labels), number(repeats, 2), f"{loads[0]:.1f} / {loads[1]:.1f}", number(report["wall_s"], 0)])
        records.append({"name": job.run.name, "command": job.command, "key": job.key, "requests": len(measured.prompts), "methods": measured.labels,
                        "load_average": loads, "wall_s": report["wall_s"], "drift_version": report["drift_version"], "repeat_32": repeats,
                        "target": report["target"], "draft": report["draft"]})
    return Table("runs", "The runs", "Repeats: share of plain decoding's tokens that are among the 32 before them; loops flatter every memory. Where the load was high, trust no time.",
                 ["run", "requests", "methods", "repeats", "load before / after", "seconds"], rows, records, [job.run.name for job in jobs])


def all_tables(jobs):
    measured = [Measured(job.run, compare_report.read(job.path)) for job in jobs]
    tables = [main_table(measured), *rivals_table(measured), adaptation_table(measured), segments_table(measured), one_bank_table(measured), temperatures_table(measured)]
    return measured, [t for t in tables if t.rows or t.name == "lost"] + [*words_tables(measured), runs_table(jobs, measured)]

