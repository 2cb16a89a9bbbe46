"""Where the gain comes from: acceptance of tested proposals by what is known of their position, static beside drift; and whether the draft
makes the same mistake again."""
import csv

import traces
from compare_report import paired_interval
from tables import Table, interval, number
from traces import np

MODES = {"static": "static", "seed": "drift:preset=seed", "drift": "drift"}
OURS = ("seed", "drift")
DRAFT = ("--draft", "5")
ENTROPY = ((0.0, "below 0.1"), (0.1, "0.1 - 0.5"), (0.5, "0.5 - 1"), (1.0, "1 - 2"), (2.0, "2 - 4"), (4.0, "4 and more"))
SURPRISE = ((0.0, "below 0.5"), (0.5, "0.5 - 1"), (1.0, "1 - 2"), (2.0, "2 - 4"), (4.0, "4 - 8"), (8.0, "8 and more"))
RANK = ((1, "1"), (2, "2"), (3, "3 - 5"), (6, "6 - 20"), (21, "21 - 100"), (101, "beyond 100"))
SIMILARITY = ((-2.0, "no entry"), (-1.0, "below 0.5"), (0.5, "0.5 - 0.8"), (0.8, "0.8 - 0.9"), (0.9, "0.9 - 0.95"), (0.95, "0.95 - 0.99"), (0.99, "0.99 and more"))
NGRAM = 3
PERMUTATIONS = 20


def binned(value, edges):
    name = edges[0][1]
    for low, text in edges:
        if value >= low:
            name = text
    return name


def entropy(rows):
    """Nats at temperature 1; what was left out of a row counts as one token."""
    p = np.exp(rows.log_probs().astype(np.float64))
    rest = np.exp(rows.rest - rows.log_z)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -(p * rows.log_probs()).sum(axis=1) - np.where(rest > 0, rest * np.log(rest), 0.0)


def of_token(rows, token):
    """(rank from 1, surprise in nats) of a token in each row; beyond the row both are those of its edge."""
    same = rows.tokens == token[:, None]
    there = same.any(axis=1)
    at = np.where(there, same.argmax(axis=1), rows.tokens.shape[1] - 1)
    return np.where(there, at + 1, rows.tokens.shape[1] + 1), -rows.log_probs()[np.arange(len(token)), at]


def copied(trace):
    """Whether each emitted token ends an n-gram that stands earlier in its request or in an earlier answer of the stream."""
    out, before = np.zeros(len(trace.token), bool), set()
    for p, prompt in enumerate(trace.prompt_tokens):
        here = np.flatnonzero(trace.prompt == p)
        text = prompt.tolist() + trace.token[here].tolist()
        seen = {tuple(text[i:i + NGRAM]) for i in range(len(prompt) - NGRAM + 1)}
        for n, i in enumerate(here):
            end = len(prompt) + n + 1
            gram = tuple(text[end - NGRAM:end])
            out[i] = gram in seen or gram in before
            seen.add(gram)
        before |= {tuple(text[i:i + NGRAM]) for i in range(len(prompt), len(text) - NGRAM + 1)}
    return out


def tested(path):
    """{label: [(prompt, position, proposed token, accepted, similarity)]}: each block up to its first rejection."""
    out, fallen = {}, None
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            step = (row["label"], row["prompt"], row["step"])
            if fallen == step:
                continue
            if row["accepted"] == "0":
                fallen = step
            if row["token"] == "-1":  # behind an end of the text: nobody judged it
                continue
            out.setdefault(row["label"], []).append((int(row["prompt"]), int(row["position"]), int(row["token"]), int(row["accepted"]), float(row["similarity"])))
    return out


def conditional(sums):
    return paired_interval(sums, lambda a, n, a0, n0: 100 * (a / n - a0 / n0) if n and n0 else None)


def repeats(trace, rejected, dice):
    """Of the rejections: how often the nearest earlier one (cosine of hidden states) had the same wrong token, the same right one, and both;
    and the same against earlier rejections drawn at random."""
    if len(rejected) < 20 or trace.draft.hidden is None:
        return None
    at = np.array([i for i, _ in rejected])
    wrong = np.array([w for _, w in rejected])
    right = trace.token[at]
    keys = trace.draft.hidden[at]
    keys = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    cosine = keys @ keys.T
    cosine[np.triu_indices(len(at))] = -2
    nearest = cosine.argmax(axis=1)[1:]
    here = np.arange(1, len(at))

    def shares(of):
        return np.array([(wrong[of] == wrong[here]).mean(), (right[of] == right[here]).mean(), ((wrong[of] == wrong[here]) & (right[of] == right[here])).mean()])
    control = np.mean([shares((dice.random(len(here)) * here).astype(int)) for _ in range(PERMUTATIONS)], axis=0)
    return shares(nearest), control, float(np.median(cosine.max(axis=1)[1:]))


def tables(context):
    by_class, repeated, ceiling = {}, [], []
    dice = np.random.default_rng(1)
    for domain in context.domains():
        places = context.places(domain)
        _, files = context.corpus.replay("eval", [places], MODES, DRAFT, proposals=True)
        found = tested(files[0])
        trace = traces.read(context.corpus.path(domain, "eval"))
        index = trace.index()
        uncertain = entropy(trace.target)
        rank, surprise = of_token(trace.draft, trace.token)
        again = copied(trace)
        for label, rows in found.items():
            for prompt, position, _, accepted, similarity in rows:
                i = index[prompt, position]
                for kind, name in (("target entropy", binned(uncertain[i], ENTROPY)), ("surprise of the target's token in the draft", binned(surprise[i], SURPRISE)),
                                   ("its rank in the draft", binned(rank[i], RANK)), (f"{NGRAM}-gram", "copied" if again[i] else "new")):
                    sums = by_class.setdefault((kind, name), {}).setdefault((domain, prompt), {})
                    one = sums.setdefault(label, [0, 0])
                    one[0] += accepted
                    one[1] += 1
                if label in OURS:
                    one = by_class.setdefault(("similarity of the nearest entry", binned(similarity if similarity > -1 else -2.0, SIMILARITY)), {}).setdefault((domain, prompt), {}).setdefault(label, [0, 0])
                    one[0] += accepted
                    one[1] += 1
        rejected = [(index[prompt, position], token) for prompt, position, token, accepted, _ in found["static"] if not accepted]
        share = repeats(trace, rejected, dice)
        if share:
            repeated.append((domain, len(rejected), *share))
        out_of_reach = [float((rank[[i for i, _ in rejected]] > edge).mean()) for edge in (2, 5, 32, 256)] if rejected else []
        ceiling.append((domain, len(rejected), out_of_reach))
    return [classes_table(by_class), repeats_table(repeated), ceiling_table(ceiling)]


def classes_table(by_class):
    rows, records = [], []
    orders = {"target entropy": ENTROPY, "surprise of the target's token in the draft": SURPRISE, "its rank in the draft": RANK, f"{NGRAM}-gram": ((0, "copied"), (1, "new")),
              "similarity of the nearest entry": SIMILARITY}
    for kind, edges in orders.items():
        name = kind
        for _, text in edges:
            requests = by_class.get((kind, text))
            if not requests:
                continue
            total = {label: [sum(r.get(label, (0, 0))[i] for r in requests.values()) for i in (0, 1)] for label in MODES}
            shares, points = {}, {}
            for label in MODES:
                accepted, count = total[label]
                shares[label] = accepted / count if count else None
                if label in OURS and total["static"][1]:
                    points[label] = conditional([tuple(r.get(label, (0, 0))) + tuple(r.get("static", (0, 0))) for r in requests.values()])
            records.append({"by": kind, "class": text, "tested": {label: total[label][1] for label in MODES}, "acceptance_conditional": shares, "against_static_points": points})
            rows.append([name, text, str(total["drift"][1]), *(number(shares[label], 3) for label in MODES), *(interval(points.get(label), 1) for label in OURS)])
            name = ""
    return Table("gains", "Where the gain comes from",
                 "Of proposals that were tested (all before them in their block stood): the share that stood, by what is known of the position; all domains together, each through a bank of its own. "
                 "Entropies and surprises in nats at temperature 1. Modes test other positions, so a class is compared as a rate. A token beyond the draft's first few ranks is what only memory can bring.",
                 ["by", "class", "tested by drift", *MODES, *(f"{label} against static, points" for label in OURS)], rows, records, [])


def repeats_table(repeated):
    rows, records = [], []
    for domain, count, near, control, cosine in repeated:
        records.append({"domain": domain, "rejections": count, "same_wrong": near[0], "same_right": near[1], "same_pair": near[2], "control_wrong": control[0], "control_right": control[1],
                        "control_pair": control[2], "median_cosine": cosine})
        rows.append([domain, str(count), number(cosine, 3), *(f"{100 * near[i]:.0f} % ({100 * control[i]:.0f} %)" for i in range(3))])
    for record in records:
        record.update({k: float(v) for k, v in record.items() if isinstance(v, np.floating)})
    return Table("repeats", "Does the draft make the same mistake again?",
                 "At rejections of the static draft: how often the nearest earlier rejection of the stream (cosine of the draft's hidden states; its median is given) had the same wrong token, the same "
                 f"right token, and both. In brackets the control: an earlier rejection drawn at random, the mean of {PERMUTATIONS} draws.",
                 ["domain", "rejections", "cosine of the nearest", "same wrong token", "same right token", "same pair"], rows, records, [])


def ceiling_table(ceiling):
    rows = [[domain, str(count), *(f"{100 * share:.0f} %" for share in shares)] for domain, count, shares in ceiling if shares]
    records = [{"domain": domain, "rejections": count, "beyond_rank": dict(zip(("2", "5", "32", "256"), shares))} for domain, count, shares in ceiling if shares]
    return Table("ranks", "How far down the draft's list the right token stands",
                 "At rejections of the static draft, the share whose right token is beyond the draft's first 2, 5, 32 and 256: a correction has to lift it over all of them.",
                 ["domain", "rejections", "beyond 2", "beyond 5", "beyond 32", "beyond 256"], rows, records, [])


def pictures(alt, tables_by_name):
    values = []
    for record in tables_by_name["gains"].records:
        for label, share in record["acceptance_conditional"].items():
            if share is not None:
                values.append({"by": record["by"], "class": record["class"], "method": label, "acceptance": share, "place": len(values)})
    base = alt.Chart(alt.Data(values=values)).mark_bar().encode(
        x=alt.X("class:N", sort=alt.EncodingSortField("place", op="min"), title=None), xOffset=alt.XOffset("method:N", sort=list(MODES)), y=alt.Y("acceptance:Q", axis=alt.Axis(format="%"), title="of tested proposals"),
        color=alt.Color("method:N", sort=list(MODES), legend=alt.Legend(orient="top", title=None))).properties(width=330, height=190)
    charts = [base.transform_filter(alt.datum.by == by).properties(title=by) for by in dict.fromkeys(v["by"] for v in values)]
    return [("gains", "Where the gain comes from", "Share of tested proposals that stood, by what is known of the position.", alt.concat(*charts, columns=3))]
