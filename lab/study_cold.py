"""A cold start token by token, and how long a stream takes to its plateau."""
import csv

from compare_report import paired_interval
from study_orders import DRAFT, MODES, ORDERS, shuffled
from tables import Table, interval, number

EDGES = (0, 64, 128, 256, 512, 1024, 2048, 4096)
SHOWN = ("seed", "drift", "chain")
WINDOW = 20  # requests of a stream's moving acceptance
LONG = 240  # requests of a stream that may show a plateau


def windowed(path, places, replayed):
    """{(label, window): {request: [accepted, drafted]}} by the token of the stream at which a block began; orders together."""
    begins = {}  # (label, order, domain place) -> tokens of the stream before the request
    for one in replayed:
        tokens = 0
        for place, prompt in zip(one.places, one.prompts):
            begins[one.label, one.order, place.prompt] = tokens
            tokens += prompt["tokens"]
    out, first = {}, {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            label, order, prompt, position = row["label"], int(row["order"]), int(row["prompt"]), int(row["position"])
            start = first.setdefault((label, order, prompt), position)  # the first block's first position is where the answer begins
            at = begins[label, order, prompt] + position - int(row["place"]) - start
            window = max(i for i, edge in enumerate(EDGES) if at >= edge)
            sums = out.setdefault((label, window), {}).setdefault(prompt, [0, 0])
            sums[0] += int(row["accepted"])
            sums[1] += 1
    return out


def plateau(curve):
    """curve: [(tokens, accepted, drafted)] by request. (mean of the second half, first request from which the moving acceptance has covered 90 %
    of the way from its first window to there), or None where the way is not clear of what windows of the second half differ by."""
    half = len(curve) // 2
    moving = [sum(c[1] for c in curve[i - WINDOW:i]) / max(1, sum(c[2] for c in curve[i - WINDOW:i])) for i in range(WINDOW, len(curve) + 1)]
    top = sum(c[1] for c in curve[half:]) / max(1, sum(c[2] for c in curve[half:]))
    late = moving[half:]
    spread = (max(late) - min(late)) / 2 if late else 0
    if top - moving[0] <= spread:
        return top, None
    aim = moving[0] + 0.9 * (top - moving[0])
    return top, next(i + WINDOW for i, value in enumerate(moving) if value >= aim)


def tables(context):
    rows, records = [], []
    for domain in context.domains():
        places = context.places(domain)
        if len(places) < 2:
            continue
        orders = [shuffled(places, n) for n in range(ORDERS)]
        replayed, files = context.corpus.replay("eval", orders, MODES, DRAFT, proposals=True)
        found = windowed(files[0], places, replayed)
        name = domain
        for label in SHOWN:
            cells = []
            for window in range(len(EDGES)):
                ours, static = found.get((label, window), {}), found.get(("static", window), {})
                pairs = [tuple(ours.get(p, (0, 0))) + tuple(static.get(p, (0, 0))) for p in {**ours, **static}]
                points = paired_interval(pairs, lambda a, d, a0, d0: 100 * (a / d - a0 / d0) if d and d0 else None) if len(pairs) >= 4 else None
                cells.append(interval(points, 1))
                records.append({"domain": domain, "method": label, "from_token": EDGES[window], "against_static_points": points})
            rows.append([name, label, *cells])
            name = ""
    heads = [f"{low} - {high}" for low, high in zip(EDGES, EDGES[1:])] + [f"from {EDGES[-1]}"]
    keep = [i for i in range(len(EDGES)) if any(row[2 + i] != "-" for row in rows)]
    return [Table("cold", "A cold start, token by token",
                  f"Acceptance against the static draft on the same requests, in points, 95 % by request, by the token of the stream at which a block began; {ORDERS} orders together, memories "
                  "empty at the start of each. Prompts do not teach.", ["domain", "method", *(heads[i] for i in keep)], [row[:2] + [row[2 + i] for i in keep] for row in rows], records, []),
            *long_tables(context)]


def long_tables(context):
    """Of domains that have streams long enough."""
    rows, records = [], []
    for domain in [d for d in context.corpus.domains("long") if not context.options.domains or d in context.options.domains]:
        places = context.corpus.places(domain, "long")
        if len(places) < LONG:
            continue
        modes = {label: MODES[label] for label in ("static", *SHOWN)}
        for one in context.corpus.replay("long", [places], modes, DRAFT):
            curve, tokens, steps = [], 0, 0
            ends = []
            for prompt in one.prompts:
                tokens += prompt["tokens"]
                steps += prompt["steps"]
                curve.append((tokens, prompt["accepted"], prompt["drafted"]))
                ends.append((tokens, steps))
            top, reached = plateau(curve)
            quarter = len(curve) // 4
            parts = [sum(c[1] for c in curve[i * quarter:(i + 1) * quarter]) / max(1, sum(c[2] for c in curve[i * quarter:(i + 1) * quarter])) for i in range(4)]
            first = sum(c[1] for c in curve[:WINDOW]) / max(1, sum(c[2] for c in curve[:WINDOW]))
            records.append({"domain": domain, "method": one.label, "requests": len(curve), "first": first, "quarters": parts, "plateau": top, "reached_request": reached,
                            "reached_tokens": ends[reached - 1][0] if reached else None, "reached_steps": ends[reached - 1][1] if reached else None, "entries": one.entries,
                            "curve": [{"tokens": e[0], "steps": e[1], "accepted": c[1], "drafted": c[2]} for e, c in zip(ends, curve)]})
            rows.append([domain if one.label == "static" else "", one.label, str(len(curve)), number(first, 3), *(number(p, 3) for p in parts),
                         "-" if one.label == "static" else f"request {reached}, {ends[reached - 1][0]} tokens, {ends[reached - 1][1]} steps" if reached else "no way clear of noise", str(one.entries)])
    if not rows:
        return []
    return [Table("plateau", f"Long streams: {LONG} requests and more of one domain",
                  f"Acceptance in the first {WINDOW} requests and in quarters of the stream. 90 % of the way: the first request at which the acceptance over the last {WINDOW} requests has covered 90 % of the way "
                  "from the first such window to the mean of the second half; none where that way is within half the range of the windows of the second half. Static's row shows what the requests differ by.",
                  ["domain", "method", "requests", f"first {WINDOW}", "1st quarter", "2nd", "3rd", "4th", "90 % of the way", "entries"], rows, records, [])]


def pictures(alt, tables_by_name):
    import picture
    table = tables_by_name.get("plateau")
    if table is None:
        return []
    values = []
    for record in table.records:
        curve = record["curve"]
        for i in range(WINDOW, len(curve) + 1):
            part = curve[i - WINDOW:i]
            drafted = sum(c["drafted"] for c in part)
            if drafted:
                values.append({"domain": record["domain"], "method": record["method"], "tokens": curve[i - 1]["tokens"], "acceptance": sum(c["accepted"] for c in part) / drafted})
    chart = alt.Chart(alt.Data(values=values)).mark_line().encode(
        x=alt.X("tokens:Q", title="tokens of the stream"), y=alt.Y("acceptance:Q", axis=alt.Axis(format="%"), title=f"acceptance over {WINDOW} requests"),
        color=alt.Color("method:N", scale=alt.Scale(range=[style[0] for style in picture.STYLES]), legend=alt.Legend(orient="top", title=None)), strokeDash="method:N", column=alt.Column("domain:N", title=None)).properties(width=420, height=260)
    return [("plateau", "Adaptation over long streams", f"Acceptance over the last {WINDOW} requests against the tokens of the stream.", chart)]
