"""Several domains and tenants through memories: what one domain's lessons do to another, what is forgotten, private memories beside one for all."""
import dataclasses

from compare_report import paired_difference
from replays import by_label, paired
from tables import Table, interval, number

DRAFT = ("--draft", "5")
MODES = {"static": "static", "drift": "drift", "small": "drift:capacity=512", "chain": "drift:levels=all"}
OURS = ("drift", "small", "chain")
TENANTS = 3  # of each domain


def only(replayed, domain, numbers=None):
    """The part of a replay that is of one domain (and of some of its requests)."""
    keep = [i for i, place in enumerate(replayed.places) if place.domain == domain and (numbers is None or place.prompt in numbers)]
    return dataclasses.replace(replayed, places=[replayed.places[i] for i in keep], prompts=[replayed.prompts[i] for i in keep])


def tables(context):
    domains = context.domains()
    half = {d: len(context.places(d)) // 2 for d in domains}
    first = {d: context.places(d)[:half[d]] for d in domains}
    second = {d: context.places(d)[half[d]:] for d in domains}
    # For the first half of a as the teacher: b's second half after it; b's second half from empty; and a, b, a.
    alone = {d: by_label(context.corpus.replay("eval", [second[d]], MODES, DRAFT)) for d in domains}
    rows, records = [], []
    for label in OURS:
        name = label
        for teacher in domains:
            cells = []
            for learner in domains:
                after = by_label(context.corpus.replay("eval", [first[teacher] + second[learner]], MODES, DRAFT))
                numbers = {place.prompt for place in second[learner]}
                points = paired_difference(paired(only(after[label], learner, numbers), alone[learner][label]))
                records.append({"method": label, "teacher": teacher, "learner": learner, "points": points})
                cells.append(interval(points, 1))
            rows.append([name, teacher, *cells])
            name = ""
    out = [Table("interference", "What one domain's lessons do to another",
                 f"Acceptance on the second half of the column's requests after the first half of the row's has been through the same memory, against the same requests from an empty memory: points, "
                 f"95 % by request. The diagonal is what a domain teaches itself. small: a bank of 512 entries.", ["method", "taught by", *domains], rows, records, [])]
    out += [there_and_back(context, first, second), tenants(context)]
    return out


def there_and_back(context, first, second):
    rows, records = [], []
    domains = context.domains()
    for a, b in zip(domains, domains[1:] + domains[:1]):
        if a == b:
            continue
        kept = by_label(context.corpus.replay("eval", [first[a] + second[a]], MODES, DRAFT))
        between = by_label(context.corpus.replay("eval", [first[a] + first[b] + second[b] + second[a]], MODES, DRAFT))
        numbers = {place.prompt for place in second[a]}
        name = f"{a}, {b}, {a}"
        for label in OURS:
            parts = only(kept[label], a, numbers), only(between[label], a, numbers)
            lost = paired_difference(paired(parts[1], parts[0]))
            gain = paired_difference(paired(parts[1], only(between["static"], a, numbers)))
            records.append({"first": a, "between": b, "method": label, "without": parts[0].acceptance(), "with": parts[1].acceptance(), "forgotten_points": lost, "against_static_points": gain})
            rows.append([name, label, number(parts[0].acceptance(), 3), number(parts[1].acceptance(), 3), interval(lost, 1), interval(gain, 1)])
            name = ""
    return Table("there-and-back", "There and back", "Acceptance on the second half of A's requests, right after the first half, and with all of B in between; the difference is what is forgotten. And "
                 "against the static draft. Points, 95 % by request.", ["stream", "method", "A, A", "A, B, A", "forgotten", "against static"], rows, records, [])


def tenants(context):
    """Tenants of every domain, one request each in turn: memories of their own, one for each domain, one for all."""
    domains = context.domains()
    share = max(1, context.requests // TENANTS)
    queue = [(d, t, i) for i in range(share) for t in range(TENANTS) for d in domains if t * share + i < len(context.places(d))]
    orders = []
    for memory in (lambda d, t: f"{d}{t}", lambda d, t: d, lambda d, t: ""):
        orders.append([dataclasses.replace(context.places(d)[t * share + i], memory=memory(d, t)) for d, t, i in queue])
    found = context.corpus.replay("eval", orders, MODES, DRAFT)
    own, by_domain, shared = (by_label(found, n) for n in range(3))
    rows, records = [], []
    for label in OURS:
        points = [paired_difference(paired(x[label], own["static"])) for x in (own, by_domain, shared)]
        record = {"method": label, "tenants": TENANTS * len(domains), "requests": len(queue), "static": own["static"].acceptance(), "private": points[0], "a_domain": points[1], "one": points[2],
                  "one_against_private": paired_difference(paired(shared[label], own[label])), "one_against_a_domain": paired_difference(paired(shared[label], by_domain[label]))}
        records.append(record)
        rows.append([label, number(record["static"], 3), *(interval(p, 1) for p in points), interval(record["one_against_private"], 1), interval(record["one_against_a_domain"], 1)])
    return Table("tenants", f"{TENANTS * len(domains)} tenants interleaved", f"{TENANTS} tenants of each domain, {share} requests each, one in turn. Against the static draft, points, 95 % by request: with memories of "
                 "their own, one a domain, one for all; then one for all against the other two.",
                 ["method", "static", "of their own", "one a domain", "one for all", "one for all - own", "one for all - one a domain"], rows, records, [])
