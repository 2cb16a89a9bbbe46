/* drift.h - DRIFT for any inference engine, in C11. The one ABI promise of libdrift.
 *
 * What it does: your engine drafts and verifies; this library remembers how the target disagreed with the draft and gives
 * back what to add to the draft's logits. One decoding step of your engine:
 *
 *   for each draft position:    drift_lookup(bank, hidden, ...)  -> tokens and values: add them to the draft's logits,
 *                               then sample from what that gives, and keep that very distribution for your judge;
 *   verify with the target as you always do;
 *   for each verified position: drift_observe(bank, position, draft_logits, target_logits, ...)
 *                               (those up to and including the first rejected one; RAW draft logits, without what was added);
 *   once, at the end:           drift_commit(bank)
 *
 * The bank is frozen between commits. The output distribution stays the target's, whatever the bank holds, as long as your
 * judge uses the distribution a token was really drawn from.
 *
 * Conventions: every function that can fail returns a drift_status; drift_last_error() says why, in words, for the calling
 * thread, until its next failing call. Nothing throws, nothing prints, no input makes the process end. Options structs begin
 * with their size and are filled by a _default function. On failure outputs are untouched and the bank is unchanged.
 * Threads: a drift_bank belongs to one thread at a time; different banks are independent.
 * Strings are UTF-8, NUL-terminated. Floats must be finite.
 */
#ifndef DRIFT_DRIFT_H
#define DRIFT_DRIFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum drift_status {
  DRIFT_OK = 0,
  DRIFT_INVALID = 1,     /* an argument is malformed or out of its documented bounds */
  DRIFT_NOT_FOUND = 2,   /* no such file */
  DRIFT_CORRUPT = 3,     /* a bank file disagrees with its checksum or its bounds */
  DRIFT_FOREIGN = 4,     /* well-formed, but of another model pair, another program or a newer version */
  DRIFT_BUSY = 5,        /* another writer holds the file */
  DRIFT_LIMIT = 6,       /* a documented limit would be exceeded */
  DRIFT_IO = 7,          /* the operating system refused: disk, permission, memory */
  DRIFT_UNSUPPORTED = 8, /* this build cannot do it */
  DRIFT_INTERNAL = 9     /* a dependency failed */
} drift_status;

typedef enum drift_key_type { DRIFT_KEY_F32 = 0, DRIFT_KEY_F16 = 1 } drift_key_type;
typedef enum drift_rate_rule { DRIFT_RATE_FIXED = 0, DRIFT_RATE_COUNT = 1, DRIFT_RATE_ERROR = 2 } drift_rate_rule;
typedef enum drift_gain_rule { DRIFT_GAIN_FIXED = 0, DRIFT_GAIN_EARNED = 1 } drift_gain_rule;
typedef enum drift_weight_rule {
  DRIFT_WEIGHTS_SUM = 0,
  DRIFT_WEIGHTS_NORMALISED = 1,
  DRIFT_WEIGHTS_KRIGED = 2
} drift_weight_rule;
typedef enum drift_support_rule {
  DRIFT_SUPPORT_UNION = 0,
  DRIFT_SUPPORT_TARGET = 1,
  DRIFT_SUPPORT_DRAFT = 2,
  DRIFT_SUPPORT_INTERSECTION = 3
} drift_support_rule;

typedef struct drift_options {
  size_t size;           /* sizeof(drift_options), set by drift_options_default */
  uint32_t hidden_width; /* required: floats in the draft's last hidden state (the lm_head input); 1..16384 */
  uint32_t vocab;        /* required: tokens of the logits rows; 1..2^24 */
  uint32_t capacity;     /* entries, N; 1..65536 */
  uint32_t support;      /* tokens an entry may hold, m; 1..1024 */
  uint32_t neighbors;    /* entries that make one bias, k; 1..256 */
  uint32_t key_type;     /* drift_key_type */
  uint32_t int8_scan;    /* 0 or 1: scan a rounded copy first */
  uint32_t standardise;  /* 0 or 1: standardise keys, statistics learned from the first 1,024 */
  uint32_t rate;         /* drift_rate_rule */
  uint32_t gain;         /* drift_gain_rule */
  uint32_t weights;      /* drift_weight_rule */
  uint32_t support_rule; /* drift_support_rule */
  uint32_t renormalise;  /* 0 or 1: renormalise log-probabilities on the support */
  uint32_t centre;       /* 0 or 1: residuals relative to all tokens outside the support; not with renormalise */
  float sigma;           /* kernel width over cosine distance; (0, 10] */
  float tau;             /* cosine from which an entry is updated; [-1, 1] */
  float eta;             /* update rate; (0, 1] */
  float lambda;          /* gain; [0, 10] */
  float clip;            /* bound of a residual in nats; (0, 100] */
} drift_options;

/* How a position is judged and sampled: the earned gain counts what would have been accepted under it. */
typedef struct drift_judging {
  size_t size;        /* sizeof(drift_judging) */
  uint32_t rejection; /* 0: the draft token must equal the target's own draw; 1: accept with min(1, p/q) */
  int32_t top_k;      /* 0 = off */
  float temperature;  /* 0 = greedy */
  float top_p;        /* 1 = off */
  float min_p;        /* 0 = off */
} drift_judging;

typedef struct drift_stats {
  size_t size; /* in: sizeof(drift_stats) */
  uint32_t entries;
  uint32_t capacity;
  uint64_t
      bytes; /* memory of the bank itself, exactly; what is staged between observe and commit, some KB a position, is apart */
  uint64_t commits;
  uint64_t allocated;
  uint64_t updated;
  uint64_t evicted;
} drift_stats;

typedef struct drift_bank drift_bank;

/* Most positions one step may look up before it commits. */
#define DRIFT_MAX_POSITIONS 4096

const char* drift_version(void);
/* Why the last failing call of this thread failed; never NULL. Valid until this thread's next failing call. */
const char* drift_last_error(void);

void drift_options_default(drift_options* options);
/* The seed's own rule: lambda 0.6 everywhere, plain kernel sum, shared support. */
void drift_options_seed(drift_options* options);
void drift_judging_default(drift_judging* judging); /* greedy, match */

/* Allocates everything the bank itself will ever need; positions and staged observations grow to the largest step and stay. */
drift_status drift_create(const drift_options* options, drift_bank** out);
void drift_destroy(drift_bank* bank); /* NULL is fine */

/* What to add to the draft's logits at a position with this hidden state: *count pairs, tokens ascending. Where nothing helps
 * *count is 0. At most `room` pairs are written; neighbors * support always suffice (fewer fail with DRIFT_LIMIT).
 * *position names the position for drift_observe, until the next commit or discard.
 * Cost: one scan of the bank. */
drift_status drift_lookup(drift_bank* bank, const float* hidden, size_t hidden_len, const drift_judging* judging, int32_t* tokens,
                          float* values, size_t room, size_t* count, uint32_t* position);

/* One verified position: the raw logits both models gave there. Cost: a few passes over the vocabulary. */
drift_status drift_observe(drift_bank* bank, uint32_t position, const float* draft_logits, const float* target_logits,
                           size_t vocab, const drift_judging* judging);

/* Learns from what was observed since the last commit; positions end. */
drift_status drift_commit(drift_bank* bank);
/* Forgets what was observed since the last commit; positions end. */
drift_status drift_discard(drift_bank* bank);

/* A bank file is bound to a model pair: give content hashes of both models' files, not their names (1..128 characters).
 * save replaces the file atomically: a crash leaves the old content or the new. */
drift_status drift_save(const drift_bank* bank, const char* path, const char* target_hash, const char* draft_hash);
/* Replaces the bank's content. The file's configuration must equal the bank's. */
drift_status drift_load(drift_bank* bank, const char* path, const char* target_hash, const char* draft_hash);

drift_status drift_get_stats(const drift_bank* bank, drift_stats* out);

#ifdef __cplusplus
}
#endif

#endif
