"""Ablations by replay: one setting at a time around the default, on `tune` rows, over streams that differ in how fast they shift; then the
best value of each on `eval` rows. What the program has no setting for is listed as not there."""
from compare_report import paired_difference
from replays import by_label, paired
from tables import Table, interval, number

DRAFT = ("--draft", "5")
# setting: values, the default among them. {} is what stands in the mode.
GRID = {
    "support": ("4", "8", "16", "32", "64", "256", "1024"),
    "lambda": ("0", "0.25", "0.5", "0.75", "1", "1.25", "1.5"),
    "clip": ("2", "4", "12", "40"),
    "capacity": ("256", "1024", "4096", "16384", "65536"),
    "eta": ("0.05", "0.1", "0.3", "0.6", "1"),
    "rate": ("fixed", "count", "error"),
    "tau": ("0.9", "0.95", "0.98", "0.99", "0.999"),
    "neighbors": ("1", "2", "4", "8", "16", "64"),
    "sigma": ("0.02", "0.05", "0.1", "0.2", "0.5"),
    "support-rule": ("union", "target", "draft", "intersection"),
    "centre": ("on", "off"),
    "weights": ("normalised", "sum"),
    "gain": ("earned", "fixed"),
    "standardise": ("off", "on"),
    "key-type": ("f32", "f16"),
    "int8-scan": ("off", "on"),
    "levels": ("hidden", "global", "global,hidden", "hidden,ngram1,ngram2,ngram3,ngram4", "all"),
}
DEFAULTS = {"support": "32", "lambda": "1", "clip": "12", "capacity": "4096", "eta": "0.3", "rate": "fixed", "tau": "0.99", "neighbors": "8", "sigma": "0.1", "support-rule": "union", "centre": "on",
            "weights": "normalised", "gain": "earned", "standardise": "off", "key-type": "f32", "int8-scan": "off", "levels": "hidden"}
ALIKE = ("key-type", "int8-scan")  # of which only the difference from the default matters
CYCLE = 4  # requests of a domain before the next one comes


def streams(context, split):
    """{name: order}: each domain alone; all of them, one request each in turn (fast shifts); and in blocks that come again (a cycle)."""
    domains = context.domains(split)
    alone = {domain: context.places(domain, split) for domain in domains}
    longest = max(len(places) for places in alone.values())
    share = max(1, -(-longest // 3))  # of each domain in a mixed stream
    turns = [alone[d][i] for i in range(share) for d in domains if i < len(alone[d])]
    cycle = [place for start in range(0, share, CYCLE) for d in domains for place in alone[d][start:min(start + CYCLE, share)]]
    return {**alone, "turns": turns, "cycle": cycle}


def variants(context):
    """{label: (setting, value, mode)}"""
    out = {"default": (None, None, "drift")}
    for setting, values in GRID.items():
        if context.options.settings and setting not in context.options.settings:
            continue
        if context.grid == "ends":
            values = (values[0], values[-1])
        for value in values:
            if value != DEFAULTS[setting]:
                out[f"{setting}-{value}".replace(",", "+")[:32]] = (setting, value, f"drift:{setting}={value}")
    return out


def measured(context, split, orders, modes):
    """{stream: {label: Replayed}}"""
    return {name: by_label(context.corpus.replay(split, [order], {"static": "static", **modes}, DRAFT)) for name, order in orders.items()}


def best_of(found, candidates):
    """The label with the highest acceptance."""
    return max(candidates, key=lambda label: found[label].acceptance() or 0.0)


def tables(context):
    split = "tune" if context.domains("tune") else "eval"
    orders, grid = streams(context, split), variants(context)
    found = measured(context, split, orders, {label: mode for label, (_, _, mode) in grid.items()})
    mean = {label: sum(100 * (by[label].acceptance() - by["static"].acceptance()) for by in found.values()) / len(found) for label in grid}
    rows, records = [], []
    for setting in [None, *GRID]:
        labels = [label for label, (name, _, _) in grid.items() if name == setting]
        name = "default" if setting is None else f"{setting} ({DEFAULTS[setting]})"
        for label in labels:
            cells = []
            for stream, by in found.items():
                points = paired_difference(paired(by[label], by["static" if setting is None else "default"]))
                cells.append(interval(points, 1))
                records.append({"setting": setting, "value": grid[label][1], "stream": stream, "split": split, "acceptance": by[label].acceptance(),
                                "against": "static" if setting is None else "default", "points": points, "entries": by[label].entries})
            rows.append([name, grid[label][1] or "against static", f"{mean[label]:+.2f}" if setting is None else f"{mean[label] - mean['default']:+.2f}", *cells])
            name = ""
    out = [Table("ablations", f"One setting at a time ({split} rows)",
                 "Difference in acceptance, in points, 95 %, paired by request: the default against the static draft, then each value against the default, on the same stream. `mean` is over the streams. "
                 f"turns: all domains, one request each in turn; cycle: blocks of {CYCLE} requests that come again; the others one domain. Not there, for the program has no setting for it: "
                 "which positions teach, eviction by value (it is least recently used), keys reduced on line (study of oracles: reduced keys, fitted on tune rows).",
                 ["setting (default)", "value", "mean", *found], rows, records, [])]
    out += confirmed(context, split, grid, found, mean)
    return out


def confirmed(context, split, grid, found, mean):
    """The best value of each setting, by the mean on tune rows, on eval rows; and what one setting for all loses."""
    if split != "tune" or not context.domains("eval"):
        return []
    chosen = {}
    for setting in GRID:
        if setting in ALIKE:
            continue
        labels = [label for label, (name, _, _) in grid.items() if name == setting] + ["default"]
        best = max(labels, key=lambda label: mean[label])
        if best != "default":
            chosen[setting] = best
    together = "drift:" + ",".join(f"{grid[label][0]}={grid[label][1]}" for label in chosen.values() if grid[label][0] != "levels") if any(s != "levels" for s in chosen) else None
    modes = {"default": "drift", **{label: grid[label][2] for label in chosen.values()}}
    if together:
        modes["together"] = together
    each = {stream: best_of(by, grid) for stream, by in found.items()}
    modes |= {label: grid[label][2] for label in each.values()}
    orders = streams(context, "eval")
    seen = measured(context, "eval", orders, modes)
    rows, records = [], []
    for label in [*dict.fromkeys([*chosen.values(), *(["together"] if together else [])])]:
        points = {stream: paired_difference(paired(by[label], by["default"])) for stream, by in seen.items()}
        average = sum(p[0] for p in points.values() if p) / len(points)
        records.append({"choice": label, "mode": modes[label], "mean_points": average, "points": points})
        rows.append([modes[label], f"{average:+.2f}", *(interval(p, 1) for p in points.values())])
    out = [Table("ablations-eval", "What tune rows choose, on eval rows",
                 "The value of each setting with the highest mean over the streams of tune rows, alone and all together (but for levels), against the default on eval rows: acceptance, points. "
                 "Settings whose default was best are not listed.", ["choice", "mean", *seen], rows, records, [])]
    rows, records = [], []
    for stream, label in each.items():
        if stream not in seen:
            continue
        by = seen[stream]
        points = paired_difference(paired(by[label], by["default"]))
        records.append({"stream": stream, "best": label, "mode": modes[label], "default": by["default"].acceptance(), "points": points})
        rows.append([stream, modes[label], number(by["static"].acceptance(), 3), number(by["default"].acceptance(), 3), number(by[label].acceptance(), 3), interval(points, 1)])
    out.append(Table("best-per-stream", "The best setting of each stream, and what one setting for all loses",
                     "The one change from the default that was best on the stream's tune rows, on its eval rows: what the default loses to it, in points. ▼: what tune rows chose is worse on eval rows.",
                     ["stream", "best on tune rows", "static", "default", "best", "one setting for all loses"], rows, records, []))
    return out


def pictures(alt, tables_by_name):
    """The mean over streams of each value against the default."""
    sums = {}
    for record in tables_by_name["ablations"].records:
        if record["setting"] and record["points"]:
            sums.setdefault((record["setting"], record["value"]), []).append(record["points"][0])
    values = [{"setting": setting, "value": value, "points": sum(points) / len(points)} for (setting, value), points in sums.items()]
    values += [{"setting": setting, "value": DEFAULTS[setting], "points": 0.0} for setting in dict.fromkeys(v["setting"] for v in values)]
    charts = []
    for setting in dict.fromkeys(v["setting"] for v in values):
        mine = [v for v in values if v["setting"] == setting]
        order = [value for value in GRID[setting] if any(v["value"] == value for v in mine)]
        charts.append(alt.Chart(alt.Data(values=mine)).mark_bar(size=14).encode(x=alt.X("value:N", sort=order, title=None), y=alt.Y("points:Q", title=None), tooltip=["value:N", "points:Q"])
                      .properties(width=190, height=130, title=f"{setting} ({DEFAULTS[setting]})"))
    return [("ablations", "One setting at a time", "Mean over the streams of the difference in acceptance from the default, in points; the default, in brackets, is 0.", alt.concat(*charts, columns=5))] if charts else []
