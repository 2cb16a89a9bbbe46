/* The C API, from C11: what it promises about options, errors, positions and files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drift/drift.h"

static int failures = 0;
#define EXPECT(condition)                                                                                           \
  do {                                                                                                              \
    if (!(condition)) {                                                                                             \
      fprintf(stderr, "%s:%d: expected %s (last error: %s)\n", __FILE__, __LINE__, #condition, drift_last_error()); \
      ++failures;                                                                                                   \
    }                                                                                                               \
  } while (0)

enum { WIDTH = 8, VOCAB = 20, ROOM = 8 * 32 };

static drift_options small(void) {
  drift_options o;
  drift_options_default(&o);
  o.hidden_width = WIDTH;
  o.vocab = VOCAB;
  o.capacity = 16;
  o.support = 4;
  o.gain = DRIFT_GAIN_FIXED;
  o.lambda = 1.0f;
  return o;
}

static void rows(float* draft, float* target) {
  for (int v = 0; v < VOCAB; ++v) draft[v] = target[v] = (float)(v % 5);
  draft[3] = 9.0f;  /* the draft wants 3 */
  target[7] = 9.0f; /* the target wants 7 */
}

static void test_options(void) {
  drift_options o = small();
  drift_bank* bank = NULL;
  EXPECT(o.size == sizeof o);
  EXPECT(drift_create(NULL, &bank) == DRIFT_INVALID && bank == NULL);
  EXPECT(drift_create(&o, NULL) == DRIFT_INVALID);
  o.lambda = NAN;
  EXPECT(drift_create(&o, &bank) == DRIFT_INVALID && strstr(drift_last_error(), "lambda") != NULL);
  o = small();
  o.tau = 2.0f;
  EXPECT(drift_create(&o, &bank) == DRIFT_INVALID && strstr(drift_last_error(), "tau") != NULL);
  o = small();
  o.gain = 7;
  EXPECT(drift_create(&o, &bank) == DRIFT_INVALID && strstr(drift_last_error(), "gain") != NULL);
  o = small();
  o.capacity = 0;
  EXPECT(drift_create(&o, &bank) == DRIFT_INVALID);
  o = small();
  o.capacity = 65536;
  o.hidden_width = 16384;
  EXPECT(drift_create(&o, &bank) == DRIFT_LIMIT || drift_create(&o, &bank) == DRIFT_INVALID);
  o = small();
  o.size = sizeof o + 8;
  EXPECT(drift_create(&o, &bank) == DRIFT_INVALID && strstr(drift_last_error(), "size") != NULL);
  o.size = 3;
  EXPECT(drift_create(&o, &bank) == DRIFT_INVALID);
  o = small(); /* an older header ends before clip: the default stands in */
  o.size = offsetof(drift_options, clip);
  o.clip = NAN;
  EXPECT(drift_create(&o, &bank) == DRIFT_OK && bank != NULL);
  drift_destroy(bank);
  drift_destroy(NULL);
}

static void test_step(const char* folder) {
  drift_options o = small();
  drift_bank* bank = NULL;
  EXPECT(drift_create(&o, &bank) == DRIFT_OK);
  float hidden[WIDTH] = {1, 2, 3, 4, 0, 0, 0, 1}, draft[VOCAB], target[VOCAB], values[ROOM];
  int32_t tokens[ROOM];
  size_t count = 99;
  uint32_t position = 99;
  rows(draft, target);

  EXPECT(drift_lookup(bank, hidden, WIDTH, NULL, tokens, values, ROOM, &count, &position) == DRIFT_OK);
  EXPECT(count == 0 && position == 0); /* an empty bank has nothing to say */
  EXPECT(drift_observe(bank, 1, draft, target, VOCAB, NULL) == DRIFT_INVALID);
  EXPECT(drift_observe(bank, position, draft, target, VOCAB - 1, NULL) == DRIFT_INVALID);
  draft[0] = INFINITY;
  EXPECT(drift_observe(bank, position, draft, target, VOCAB, NULL) == DRIFT_INVALID);
  rows(draft, target);
  EXPECT(drift_observe(bank, position, draft, target, VOCAB, NULL) == DRIFT_OK);
  EXPECT(drift_observe(bank, position, draft, target, VOCAB, NULL) == DRIFT_INVALID); /* once */
  EXPECT(drift_commit(bank) == DRIFT_OK);
  EXPECT(drift_observe(bank, position, draft, target, VOCAB, NULL) == DRIFT_INVALID); /* positions end at a commit */

  EXPECT(drift_lookup(bank, hidden, WIDTH, NULL, tokens, values, ROOM, &count, &position) == DRIFT_OK);
  EXPECT(count > 0);
  float corrected[VOCAB];
  memcpy(corrected, draft, sizeof draft);
  for (size_t i = 0; i < count; ++i) {
    EXPECT(tokens[i] >= 0 && tokens[i] < VOCAB && (i == 0 || tokens[i] > tokens[i - 1]));
    corrected[tokens[i]] += values[i];
  }
  int best = 0;
  for (int v = 1; v < VOCAB; ++v) best = corrected[v] > corrected[best] ? v : best;
  EXPECT(best == 7); /* same state again: now the draft says what the target said */

  hidden[0] = NAN;
  EXPECT(drift_lookup(bank, hidden, WIDTH, NULL, tokens, values, ROOM, &count, &position) == DRIFT_INVALID);
  hidden[0] = 1;
  EXPECT(drift_lookup(bank, hidden, WIDTH - 1, NULL, tokens, values, ROOM, &count, &position) == DRIFT_INVALID);
  EXPECT(drift_lookup(bank, hidden, WIDTH, NULL, tokens, values, 1, &count, &position) == DRIFT_LIMIT);
  const float zero[WIDTH] = {0};
  EXPECT(drift_lookup(bank, zero, WIDTH, NULL, tokens, values, ROOM, &count, &position) == DRIFT_INVALID);

  EXPECT(drift_discard(bank) == DRIFT_OK);
  for (int i = 0; i < DRIFT_MAX_POSITIONS; ++i) {
    EXPECT(drift_lookup(bank, hidden, WIDTH, NULL, tokens, values, ROOM, &count, &position) == DRIFT_OK);
  }
  EXPECT(drift_lookup(bank, hidden, WIDTH, NULL, tokens, values, ROOM, &count, &position) == DRIFT_LIMIT);
  EXPECT(drift_discard(bank) == DRIFT_OK);

  drift_stats stats;
  stats.size = sizeof stats;
  EXPECT(drift_get_stats(bank, &stats) == DRIFT_OK);
  EXPECT(stats.entries == 1 && stats.capacity == 16 && stats.bytes > 0 && stats.allocated == 1);

  char path[4096];
  snprintf(path, sizeof path, "%s/capi-test.bank", folder);
  remove(path);
  EXPECT(drift_load(bank, path, "t", "d") == DRIFT_NOT_FOUND);
  EXPECT(drift_save(bank, path, "t", NULL) == DRIFT_INVALID);
  EXPECT(drift_save(bank, path, "t", "d") == DRIFT_OK);
  drift_bank* other = NULL;
  EXPECT(drift_create(&o, &other) == DRIFT_OK);
  EXPECT(drift_load(other, path, "t", "another draft") == DRIFT_FOREIGN);
  EXPECT(drift_load(other, path, "t", "d") == DRIFT_OK);
  int32_t tokens2[ROOM];
  float values2[ROOM];
  size_t count2 = 0;
  EXPECT(drift_lookup(bank, hidden, WIDTH, NULL, tokens, values, ROOM, &count, &position) == DRIFT_OK);
  EXPECT(drift_lookup(other, hidden, WIDTH, NULL, tokens2, values2, ROOM, &count2, &position) == DRIFT_OK);
  EXPECT(count == count2 && memcmp(tokens, tokens2, count * sizeof *tokens) == 0 &&
         memcmp(values, values2, count * sizeof *values) == 0);
  drift_destroy(other);
  o.support = 5;
  EXPECT(drift_create(&o, &other) == DRIFT_OK);
  EXPECT(drift_load(other, path, "t", "d") == DRIFT_FOREIGN); /* another configuration */
  drift_destroy(other);
  remove(path);
  drift_destroy(bank);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FOLDER (for a bank file)\n", argv[0]);
    return 2;
  }
  EXPECT(strlen(drift_version()) > 0);
  test_options();
  test_step(argv[1]);
  printf("C API, version %s: %s\n", drift_version(), failures == 0 ? "all expectations met" : "FAILED");
  return failures == 0 ? 0 : 1;
}
