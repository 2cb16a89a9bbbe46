"""Oracles, position by position: the best gain, the residual of the earlier position that had the nearest one, the whole residual; and what
a key made from the hidden state by a fixed map is worth. A plain model of the hidden level in numpy: every emitted position teaches an entry of its own, so
these are rates per position, not acceptances of blocks."""
import traces
from compare_report import paired_interval
from study_spectrum import cut, narrowed
from tables import Table, interval, number
from traces import np

GAINS = (0.0, 0.3, 0.6, 1.0, 1.5)
SUPPORT, CLIP, NEIGHBORS, SIGMA, REDUCED = 32, 12.0, 8, 0.1, 64
FLOOR = 1e-6  # of a mass outside the support, as the program has it


def centred_residuals(trace):
    """(r, log q), float32 [n, vocab]: relative to all tokens outside the support, clipped; 0 outside."""
    p, q = traces.dense(trace.target, trace.vocab, None), traces.dense(trace.draft, trace.vocab, None)
    stored = np.zeros(p.shape, bool)
    for rows in (trace.target, trace.draft):
        np.put_along_axis(stored, rows.tokens[:, :SUPPORT].astype(np.int64), True, axis=1)
    outside = [np.maximum(FLOOR, 1 - np.where(stored, np.exp(x), 0).sum(axis=1, keepdims=True)) for x in (p, q)]
    return np.where(stored, np.clip(p - q - np.log(outside[0] / outside[1]), -CLIP, CLIP), 0).astype(np.float32), q


def hits(trace, logits):
    """Whether each row, every token at its place, gives the target's draw with the recorded number."""
    if trace.temperature == 0:
        return logits.argmax(axis=1) == trace.token
    logits = traces.best(logits, trace.top_k)
    weights = np.exp(((logits - logits.max(axis=1, keepdims=True)) / trace.temperature).astype(np.float64))
    cdf = np.cumsum(weights, axis=1)
    return np.minimum((cdf <= (trace.uniform * cdf[:, -1])[:, None]).sum(axis=1), logits.shape[1] - 1) == trace.token


def unit(keys):
    return keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-12)


def bias_of(keys, r, sigma=SIGMA):
    """The correction at each position from the NEIGHBORS nearest earlier ones, weights scaled to sum to the largest."""
    cosine = keys @ keys.T
    cosine[np.triu_indices(len(keys))] = -2
    k = min(NEIGHBORS, len(keys) - 1)
    nearest = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
    near = np.take_along_axis(cosine, nearest, axis=1)
    weights = np.where(near > -1.5, np.exp(-((1 - near) ** 2) / (2 * sigma ** 2)), 0)
    total = weights.sum(axis=1, keepdims=True)
    weights = np.where(total > 0, weights / np.maximum(total, 1e-30) * weights.max(axis=1, keepdims=True), 0).astype(np.float32)
    out = np.zeros_like(r)
    for j in range(k):
        out += weights[:, j:j + 1] * r[nearest[:, j]]
    return out


def nearest_residual(r):
    """The earlier residual that is nearest to each position's own; 0 at the first one."""
    squares = (r * r).sum(axis=1)
    distance = squares[None, :] - 2 * (r @ r.T)
    distance[np.triu_indices(len(r))] = np.inf
    out = r[distance.argmin(axis=1)].copy()
    out[0] = 0
    return out


def maps(context):
    """{name: map of unit hidden states}, fitted on tune rows of all domains."""
    if not context.domains("tune"):
        return {}
    states = []
    for domain in context.domains("tune"):
        trace = traces.read(context.corpus.path(domain, "tune"))
        states.append(unit(trace.draft.hidden[trace.prompt < context.requests]))
    states = np.concatenate(states)
    mean, deviation = states.mean(axis=0), states.std(axis=0) + 1e-6
    values, vectors = np.linalg.eigh(np.cov((states - mean).T).astype(np.float64))
    first = np.argsort(-values)[:REDUCED]
    basis, scale = vectors[:, first].astype(np.float32), (1 / np.sqrt(values[first] + 1e-9)).astype(np.float32)
    return {"centred": lambda u: u - mean, "standardised": lambda u: (u - mean) / deviation, f"PCA-{REDUCED}": lambda u: (u - mean) @ basis, f"whitened-{REDUCED}": lambda u: ((u - mean) @ basis) * scale}


def against(trace, ours, other):
    """Points, paired by request."""
    rows = [(int(ours[at].sum()), int(other[at].sum()), int(at.sum())) for at in (trace.prompt == p for p in np.unique(trace.prompt))]
    return paired_interval(rows, lambda a, b, n: 100 * (a - b) / n if n else None)


def tables(context):
    rows, records, key_rows, key_records = [], [], [], []
    made = maps(context)
    for domain in context.domains():
        trace = traces.read(context.corpus.path(domain, "eval"))
        trace = cut(trace, np.flatnonzero(trace.prompt < context.requests))
        if trace.vocab > 8192:
            trace = narrowed(trace)
        r, q = centred_residuals(trace)
        keys = unit(trace.draft.hidden)
        b = bias_of(keys, r)
        by_gain = [hits(trace, q + gain * b) for gain in GAINS]
        static, full = by_gain[0], by_gain[GAINS.index(1.0)]
        found = {"static": static, "bank, gain 1": full, "best gain of each position": np.any(by_gain, axis=0), "nearest true residual": hits(trace, q + nearest_residual(r)),
                 "its own residual": hits(trace, q + r), "target as draft": np.ones(len(static), bool)}
        records.append({"domain": domain, "positions": len(static), "rates": {k: float(v.mean()) for k, v in found.items()},
                        "against_static_points": {k: against(trace, v, static) for k, v in found.items() if k != "static"}})
        rows.append([f"{domain} ({len(static)})", number(float(static.mean()), 3), *(f"{v.mean():.3f}, {interval(against(trace, v, static), 1)}" for k, v in found.items() if k not in ("static", "target as draft"))])
        for name, mapped in {"raw": lambda u: u, **made}.items():
            mapped_keys = unit(mapped(keys))
            # Cosines of other keys are on another scale: the kernel's width is given the best of a few on these very rows, raw keys as well.
            best = max(((hits(trace, q + bias_of(mapped_keys, r, sigma)), sigma) for sigma in (0.1, 0.3, 1.0)), key=lambda pair: pair[0].mean())
            key_records.append({"domain": domain, "key": name, "rate": float(best[0].mean()), "sigma": best[1], "against_raw_points": None if name == "raw" else against(trace, best[0], raw)})
            if name == "raw":
                raw = best[0]
            key_rows.append([domain if name == "raw" else "", name, f"{best[1]:g}", number(float(best[0].mean()), 3), "-" if name == "raw" else interval(against(trace, best[0], raw), 1)])
    out = [Table("oracles", "Oracles, position by position",
                 f"The share of positions whose draw is the target's, in a plain model of the hidden level (every position teaches, gain 1, k {NEIGHBORS}, sigma {SIGMA:g}, support {SUPPORT}; eval rows). Best gain: "
                 f"of {', '.join(f'{g:g}' for g in GAINS)}, chosen knowing the answer. Nearest true residual: of all earlier residuals the one nearest to the position's own, which a perfect key would find. Its own "
                 "residual: what the support can hold. The target as draft has 1. After the comma: against static, points, 95 % by request.",
                 ["domain (positions)", "static", "bank, gain 1", "best gain of each position", "nearest true residual", "its own residual"], rows, records, [])]
    if made:
        out.append(Table("keys", "Keys: raw, standardised, reduced", f"The same model at gain 1 with keys made by maps that are fitted on tune rows of all domains; the kernel's width is the best of 0.1, 0.3 and 1 for each. "
                         "Against raw keys: points, 95 % by request.", ["domain", "key", "sigma", "rate", "against raw"], key_rows, key_records, []))
    return out
