"""A trace (docs/trace-format.md) as numpy arrays, and the draws of drift on its rows: the same uniform numbers, the same inverse CDF."""
import dataclasses
import os
import sqlite3

from replays import numpy

np = numpy()
MASK = (1 << 64) - 1


@dataclasses.dataclass
class Rows:
    """Of n positions: the largest logits of each, best first."""
    tokens: "np.ndarray"  # int32 [n, kept]
    logits: "np.ndarray"  # float32 [n, kept]
    log_z: "np.ndarray"   # float64 [n], log-sum-exp over the whole vocabulary
    rest: "np.ndarray"    # float64 [n], log-sum-exp of what was left out, -inf where nothing was
    hidden: "np.ndarray"  # float32 [n, width], or None

    def log_probs(self):
        """[n, kept], at temperature 1."""
        return self.logits - self.log_z[:, None]


@dataclasses.dataclass
class Trace:
    """The emitted positions of all prompts, prompt after prompt."""
    prompt: "np.ndarray"    # int32 [n], which prompt
    position: "np.ndarray"  # int32 [n]
    token: "np.ndarray"     # int32 [n], the emitted one: the target's draw
    uniform: "np.ndarray"   # float64 [n], the number that decided it
    target: Rows
    draft: Rows
    prompt_tokens: list     # int32 arrays, of each prompt
    ids: list
    temperature: float
    top_k: int
    vocab: int

    def index(self):
        """{(prompt, position): place in the arrays}"""
        return {key: i for i, key in enumerate(zip(self.prompt.tolist(), self.position.tolist()))}


def mix(x):
    """SplitMix64's finaliser, as drift/base/rng.cpp has it."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(seed, sequence, position):
    """The number of a position's draw, in [0, 1)."""
    return (mix(mix(mix(mix(seed) ^ (sequence & MASK)) ^ (position & 0xFFFFFFFF))) >> 11) * 2.0 ** -53


def _rows(db, table, count, kept, hidden_width):
    tokens, logits = np.empty((count, kept), np.int32), np.empty((count, kept), np.float32)
    rest = np.full(count, -np.inf)
    hidden = np.empty((count, hidden_width), np.float32) if hidden_width else None
    columns = "tokens, logits, rest" + (", hidden" if hidden_width else "")
    for i, row in enumerate(db.execute(f"SELECT {columns} FROM {table} ORDER BY prompt, position")):
        tokens[i], logits[i] = np.frombuffer(row[0], "<i4"), np.frombuffer(row[1], "<f4")
        if row[2] is not None:
            rest[i] = row[2]
        if hidden_width:
            hidden[i] = np.frombuffer(row[3], "<f2")
    top = logits[:, :1].astype(np.float64)
    inside = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    return Rows(tokens, logits, np.logaddexp(inside, rest), rest, hidden)


def read(path):
    db = sqlite3.connect(f"file:{os.path.abspath(path)}?mode=ro&immutable=1", uri=True)
    try:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        seed, kept = int(meta["seed"]), int(meta["row_tokens"])
        prompts = db.execute("SELECT sequence, tokens, id FROM prompts ORDER BY prompt").fetchall()
        emitted = db.execute("SELECT prompt, position, token FROM tokens ORDER BY prompt, position").fetchall()
        prompt, position, token = (np.array(column, np.int32) for column in zip(*emitted))
        numbers = np.array([uniform(seed, prompts[p][0], at) for p, at, _ in emitted])
        target = _rows(db, "target_rows", len(emitted), min(kept, int(meta["target_vocab"])), 0)
        draft = _rows(db, "draft_rows", len(emitted), min(kept, int(meta["draft_vocab"])), int(meta["hidden_width"]))
    finally:
        db.close()
    return Trace(prompt, position, token, numbers, target, draft, [np.frombuffer(p[1], "<i4") for p in prompts], [p[2] for p in prompts],
                 float(meta["temperature"]), int(meta["top_k"]), int(meta["target_vocab"]))


def best(logits, top_k):
    """Logits with all but the top_k largest of each row at -inf (0: all stay). Of equal ones at the edge all stay."""
    if not 0 < top_k < logits.shape[1]:
        return logits
    edge = np.partition(logits, -top_k, axis=1)[:, -top_k][:, None]
    return np.where(logits >= edge, logits, -np.inf)


def draws(tokens, logits, numbers, temperature, top_k):
    """The token each row gives with its number: [n]. Rows are of candidates in any order; what is left out of them cannot be drawn."""
    rows = np.arange(len(tokens))
    if temperature == 0:
        return np.where(logits == logits.max(axis=1, keepdims=True), tokens, np.iinfo(np.int32).max).min(axis=1)
    by_id = np.argsort(tokens, axis=1, kind="stable")
    ordered = np.take_along_axis(best(logits, top_k), by_id, axis=1).astype(np.float64)
    weights = np.exp((ordered - ordered.max(axis=1, keepdims=True)) / temperature)
    cdf = np.cumsum(weights, axis=1)
    at = np.minimum((cdf <= (numbers * cdf[:, -1])[:, None]).sum(axis=1), tokens.shape[1] - 1)
    return tokens[rows, by_id[rows, at]]


def dense(rows, vocab, left_out):
    """Log-probabilities over the whole vocabulary, float32 [n, vocab]; logits left out share their mass evenly, or stand at left_out."""
    out = np.empty((len(rows.tokens), vocab), np.float32)
    if left_out is None:
        many = max(1, vocab - rows.tokens.shape[1])
        out[:] = np.where(np.isfinite(rows.rest), rows.rest - np.log(many) - rows.log_z, -40.0)[:, None]
    else:
        out[:] = left_out
    np.put_along_axis(out, rows.tokens.astype(np.int64), rows.log_probs().astype(np.float32), axis=1)
    return out
