"""The spectrum of the residual: of how few directions it is made, against a control; and what share of the static draft's rejections so
many directions would fix if their coefficients were known."""
import traces
from tables import Table
from traces import np

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SUPPORT, CLIP = 32, 12.0  # as a bank stores residuals by default


def residuals(trace):
    """float32 [n, vocab]: log p - log q, clipped, on the union of both rows' first SUPPORT tokens, 0 elsewhere; and which are stored."""
    p = traces.dense(trace.target, trace.vocab, None)
    q = traces.dense(trace.draft, trace.vocab, None)
    stored = np.zeros(p.shape, bool)
    for rows in (trace.target, trace.draft):
        np.put_along_axis(stored, rows.tokens[:, :SUPPORT].astype(np.int64), True, axis=1)
    return np.where(stored, np.clip(p - q, -CLIP, CLIP), 0.0).astype(np.float32), stored, p, q


def row_centred(r, stored):
    mean = r.sum(axis=1, keepdims=True) / stored.sum(axis=1, keepdims=True)
    return np.where(stored, r - mean, 0.0)


def permuted(r, dice):
    """Each token's values go to other positions: what is left is how often a token is stored and how large its values are."""
    out = r.copy()
    for column in out.T:
        dice.shuffle(column)
    return out


def energies(r):
    """Share of the squares in the first directions: {rank: share}."""
    small = r @ r.T if r.shape[0] <= r.shape[1] else r.T @ r
    values = np.linalg.eigvalsh(small.astype(np.float64))[::-1].clip(0)
    return {rank: float(values[:rank].sum() / values.sum()) for rank in RANKS}


def directions(r, rank):
    """[vocab, rank], orthonormal."""
    _, vectors = np.linalg.eigh((r.T @ r).astype(np.float64))
    return vectors[:, ::-1][:, :rank].astype(np.float32)


def fixed_by(trace, q, corrections):
    """Of the positions at which the static draft's draw is not the target's, the share where it is with these logits added."""
    static = traces.draws(trace.draft.tokens, trace.draft.logits, trace.uniform, trace.temperature, trace.top_k)
    wrong = static != trace.token
    everything = np.broadcast_to(np.arange(trace.vocab, dtype=np.int32), (int(wrong.sum()), trace.vocab))
    now = traces.draws(everything, (q + corrections)[wrong], trace.uniform[wrong], trace.temperature, trace.top_k)
    return float((now == trace.token[wrong]).mean()), int(wrong.sum())


def cut(trace, positions):
    """The trace of some of its positions."""
    def rows(r):
        return traces.Rows(r.tokens[positions], r.logits[positions], r.log_z[positions], r.rest[positions], None if r.hidden is None else r.hidden[positions])
    return traces.Trace(trace.prompt[positions], trace.position[positions], trace.token[positions], trace.uniform[positions], rows(trace.target), rows(trace.draft), trace.prompt_tokens, trace.ids,
                        trace.temperature, trace.top_k, trace.vocab)


def tables(context):
    dice = np.random.default_rng(1)
    rows, records, fix_rows, fix_records = [], [], [], []
    for domain in context.domains():
        trace = traces.read(context.corpus.path(domain, "eval"))
        trace = cut(trace, np.flatnonzero(trace.prompt < context.requests))
        if trace.vocab > 8192:
            trace = narrowed(trace)
        r, stored, p, q = residuals(trace)
        centred = row_centred(r, stored)
        both = centred - centred.mean(axis=0, keepdims=True)
        frequent = centred * np.sqrt(np.exp(p).mean(axis=0, keepdims=True))
        name = f"{domain} ({len(r)})"
        for label, matrix in (("raw", r), ("rows centred", centred), ("rows and columns centred", both), ("weighted by frequency", frequent), ("permuted", permuted(centred, dice))):
            found = energies(matrix)
            records.append({"domain": domain, "positions": len(r), "matrix": label, "energy": found})
            rows.append([name, label, *(f"{100 * found[rank]:.0f} %" for rank in RANKS)])
            name = ""
        # Directions of the first half of the requests; oracle coefficients on the second.
        half = np.unique(trace.prompt)[len(np.unique(trace.prompt)) // 2:]
        later = np.isin(trace.prompt, half)
        basis = directions(centred[~later], max(RANKS))
        test, rest = cut(trace, np.flatnonzero(later)), centred[later]
        whole, wrong = fixed_by(test, q[later], rest)
        shares = {rank: fixed_by(test, q[later], (rest @ basis[:, :rank]) @ basis[:, :rank].T)[0] for rank in RANKS}
        own = directions(rest, max(RANKS))
        inside = {rank: fixed_by(test, q[later], (rest @ own[:, :rank]) @ own[:, :rank].T)[0] for rank in RANKS}
        fix_records.append({"domain": domain, "wrong": wrong, "directions_of_first_half": shares, "directions_of_same_half": inside, "whole_residual": whole})
        fix_rows.append([domain, str(wrong), "first half", *(f"{100 * shares[rank]:.0f} %" for rank in RANKS), f"{100 * whole:.0f} %"])
        fix_rows.append(["", "", "same half", *(f"{100 * inside[rank]:.0f} %" for rank in RANKS), ""])
    return [Table("spectrum", "The spectrum of the residual",
                  f"Share of the residual's squares that lies in its first directions, one matrix [positions, vocabulary] a domain: log p - log q clipped to {CLIP:g}, on the union of both first {SUPPORT} "
                  "tokens, 0 elsewhere. Centred by row: less its mean over what is stored; by column as well: less the mean residual (the global bias). Permuted: each token's values sent to "
                  "other positions, so a low rank beyond token frequency shows as the distance from that row.", ["domain (positions)", "matrix", *map(str, RANKS)], rows, records, []),
            Table("directions", "What so many directions would fix",
                  "Of the positions at which the static draft would not draw the target's token: the share it draws with the residual's projection on the first directions added, that is, with the "
                  "best coefficients there are. Directions are those of the first half of the requests, tried on the second; beside them, directions of the second half itself. "
                  "All: the whole stored residual. Exact draws, with the recorded numbers.", ["domain", "wrong draws", "directions of the", *map(str, RANKS), "all"], fix_rows, fix_records, [])]


def narrowed(trace, kept=4096):
    """A large vocabulary cut to its tokens most often among the first of a row; others keep their mass as what is left out."""
    first = np.concatenate([trace.target.tokens[:, :SUPPORT].ravel(), trace.draft.tokens[:, :SUPPORT].ravel(), np.repeat(trace.token, SUPPORT)])
    names, counts = np.unique(first, return_counts=True)
    names = np.sort(names[np.argsort(-counts, kind="stable")[:kept]])
    width = len(names)

    def rows(r):
        at = np.searchsorted(names, r.tokens).clip(0, width - 1)
        there = names[at] == r.tokens
        logits = np.full((len(r.tokens), width), -1e4, np.float32)
        i, j = np.nonzero(there)
        logits[i, at[i, j]] = r.logits[i, j]
        tokens = np.broadcast_to(np.arange(width, dtype=np.int32), logits.shape).copy()
        best = np.argsort(-logits, axis=1, kind="stable")
        return traces.Rows(np.take_along_axis(tokens, best, 1), np.take_along_axis(logits, best, 1), r.log_z, np.full(len(r.tokens), -np.inf), r.hidden)
    token = np.searchsorted(names, trace.token).clip(0, width - 1)
    known = np.flatnonzero(names[token] == trace.token)
    out = traces.Trace(trace.prompt, trace.position, token.astype(np.int32), trace.uniform, rows(trace.target), rows(trace.draft), trace.prompt_tokens, trace.ids, trace.temperature, trace.top_k, width)
    return cut(out, known)


def pictures(alt, tables_by_name):
    values = [{"domain": record["domain"], "matrix": record["matrix"], "directions": rank, "energy": share} for record in tables_by_name["spectrum"].records for rank, share in record["energy"].items()]
    chart = alt.Chart(alt.Data(values=values)).mark_line(point=True).encode(
        x=alt.X("directions:Q", scale=alt.Scale(type="log", base=2)), y=alt.Y("energy:Q", axis=alt.Axis(format="%")), color=alt.Color("matrix:N", legend=alt.Legend(orient="top", title=None)),
        facet=alt.Facet("domain:N", columns=4, title=None)).properties(width=220, height=170)
    return [("spectrum", "The spectrum of the residual", "Share of the residual's squares in its first directions.", chart)]
