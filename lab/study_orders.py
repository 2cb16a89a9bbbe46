"""Acceptance over several orders of the same requests, each through one bank: what the choice of an order is worth beside what the
choice of requests is worth."""
import random
import statistics

from compare_report import paired_difference, paired_interval
from replays import by_label, paired
from tables import Table, interval, number

ORDERS = 5
MODES = {"static": "static", "seed": "drift:preset=seed", "drift": "drift", "chain": "drift:levels=all", "draft+suffix": "draft+suffix", "drift+suffix": "drift+suffix"}
DRAFT = ("--draft", "5")
ALL = "all domains, mixed"


def shuffled(places, number):
    """The first order is the file's."""
    places = list(places)
    if number:
        random.Random(number).shuffle(places)
    return places


def per_pass(rows):
    return paired_interval(rows, lambda t, s, t0, s0: t / s - t0 / s0 if s and s0 else None)


def tables(context):
    rows, records = [], []
    streams = {domain: context.places(domain) for domain in context.domains()}
    streams[ALL] = [place for places in streams.values() for place in places[:max(1, context.requests // 2)]]
    for stream, places in streams.items():
        if len(places) < 2:
            continue
        found, _ = context.corpus.replay("eval", [shuffled(places, n) for n in range(ORDERS)], MODES, DRAFT, proposals=True)  # which the study of cold starts reads
        orders = [by_label(found, n) for n in range(ORDERS)]
        name = f"{stream} ({len(places)})"
        for label in MODES:
            ours, static = [o[label] for o in orders], [o["static"] for o in orders]
            values = [one.acceptance() for one in ours]
            gains = [100 * (one.acceptance() - other.acceptance()) for one, other in zip(ours, static)]
            points = None if label == "static" else paired_difference(paired(ours, static))
            passes = None if label == "static" else per_pass(paired(ours, static, ("tokens", "steps")))
            spread = statistics.stdev(gains) if label != "static" else None
            records.append({"stream": stream, "requests": len(places), "method": label, "acceptance": values, "against_static_points": points, "points_by_order": gains,
                            "tokens_per_pass_against_static": passes})
            rows.append([name, label, number(statistics.fmean(values), 3), f"{min(values):.3f} .. {max(values):.3f}", interval(points, 1), "-" if spread is None else f"{min(gains):+.1f} .. {max(gains):+.1f}",
                         number(spread, 2), interval(passes, 2)])
            name = ""
    return [Table("orders", f"{ORDERS} orders of the same requests",
                  "Each order goes through memories that begin empty. Acceptance: the mean over orders, the least and the most. Against static, in points: all orders' counts together, 95 % over "
                  "requests; then the least and the most of one order, and the standard deviation between orders. What has no memory is the same in every order.",
                  ["stream (requests)", "method", "acceptance", "over orders", "against static, points", "over orders", "sd of orders", "tokens per pass, against static"], rows, records, [])]
