/* embed.c - how another inference engine embeds DRIFT, in C.
 *
 * The "engine" here is two little functions: a target that knows the language, and a draft that is wrong in a systematic way
 * in half of its states. Everything that touches DRIFT is what a real engine would do: look up, add, propose, verify,
 * observe, commit. Build it against an installed libdrift:
 *     cc embed.c $(pkg-config --static --cflags --libs drift) -lm -o embed
 */
#include <drift/drift.h>
#include <stdio.h>
#include <stdlib.h>

enum { VOCAB = 64, WIDTH = 16, BLOCK = 4, STEPS = 600, REPORT = 100 };

/* A repeatable number in [-1, 1). */
static float noise(unsigned a, unsigned b) {
  unsigned x = a * 2654435761u ^ (b + 0x9e3779b9u) * 40503u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return (float)(x % 20000u) / 10000.0f - 1.0f;
}

/* The target's logits after a token. */
static void target_row(int token, float* logits) {
  for (int v = 0; v < VOCAB; ++v) logits[v] = 4.0f * noise((unsigned)token, (unsigned)v);
}

/* The draft's logits and hidden state after a token: every other token it prefers the wrong continuation. */
static void draft_row(int token, float* logits, float* hidden) {
  target_row(token, logits);
  if (token % 2 == 0) logits[(token * 7 + 3) % VOCAB] += 9.0f;
  for (int i = 0; i < WIDTH; ++i) hidden[i] = noise((unsigned)token + 1000u, (unsigned)i);
}

static int best(const float* logits) {
  int top = 0;
  for (int v = 1; v < VOCAB; ++v) {
    if (logits[v] > logits[top]) top = v;
  }
  return top;
}

static void must(drift_status status, const char* what) {
  if (status == DRIFT_OK) return;
  fprintf(stderr, "%s: %s\n", what, drift_last_error());
  exit(1);
}

int main(void) {
  drift_options options;
  drift_options_default(&options);
  options.hidden_width = WIDTH;
  options.vocab = VOCAB;
  options.capacity = 256;
  drift_bank* bank = NULL;
  must(drift_create(&options, &bank), "drift_create");

  drift_judging greedy;
  drift_judging_default(&greedy);

  static float draft[BLOCK][VOCAB], target[VOCAB], hidden[WIDTH], corrected[VOCAB];
  static int32_t tokens[8 * 32]; /* neighbors * support pairs always suffice */
  static float values[8 * 32];
  unsigned accepted = 0, drafted = 0;
  int last = 1;
  for (int step = 1; step <= STEPS; ++step) {
    int proposal[BLOCK];
    uint32_t position[BLOCK];
    int at = last;
    for (int i = 0; i < BLOCK; ++i) { /* 1. draft, with what the bank adds */
      draft_row(at, draft[i], hidden);
      size_t count = 0;
      must(drift_lookup(bank, hidden, WIDTH, &greedy, tokens, values, sizeof tokens / sizeof *tokens, &count, &position[i]),
           "drift_lookup");
      for (int v = 0; v < VOCAB; ++v) corrected[v] = draft[i][v];
      for (size_t j = 0; j < count; ++j) corrected[tokens[j]] += values[j];
      at = proposal[i] = best(corrected);
    }
    int i = 0, decided = last;
    for (; i < BLOCK; ++i) { /* 2. verify; 3. observe up to and including the first rejected position */
      target_row(decided, target);
      must(drift_observe(bank, position[i], draft[i], target, VOCAB, &greedy), "drift_observe");
      ++drafted;
      decided = best(target);
      if (decided != proposal[i]) break;
      ++accepted;
    }
    drafted += (unsigned)(BLOCK - i - (i < BLOCK ? 1 : 0));
    must(drift_commit(bank), "drift_commit"); /* 4. learn */
    last = (decided * 5 + step) % VOCAB;      /* new text, so that the toy does not fall into a loop */
    if (step % REPORT == 0) {
      printf("steps %3d-%3d: accepted %3u of %3u drafted (%.0f %%)\n", step - REPORT + 1, step, accepted, drafted,
             100.0 * accepted / drafted);
      accepted = drafted = 0;
    }
  }

  drift_stats stats;
  stats.size = sizeof stats;
  must(drift_get_stats(bank, &stats), "drift_get_stats");
  printf("bank: %u entries, %llu bytes, %llu commits\n", stats.entries, (unsigned long long)stats.bytes,
         (unsigned long long)stats.commits);
  drift_destroy(bank);
  return 0;
}
