/*
 * Runs a model from a cold start, for `benchmarks.start_up`.
 *
 *     start_up MODEL.tar RUNS
 *
 * Prints one line of JSON: the clock's nanoseconds when the model was loaded, when its instance was
 * made, and when output 1, 2, 5 and 20 were there; and the process's peak memory after the first
 * output and its memory after all runs, in KiB.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tvm_interop/runtime.h>

static void check(tvi_status status) {
  if (status == TVI_OK) return;
  fprintf(stderr, "start_up: %s\n", tvi_last_error());
  exit(1);
}

static long long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* The number of KiB that /proc says after `name`. */
static long memory_kib(const char* name) {
  char line[256];
  long found = 0;
  FILE* file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    if (strncmp(line, name, strlen(name)) == 0) sscanf(line + strlen(name), ": %ld", &found);
  }
  if (file != NULL) fclose(file);
  return found;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  tvi_model* model = NULL;
  tvi_instance* instance = NULL;
  check(tvi_model_load(argv[1], NULL, &model));
  const long long loaded = now_ns();
  check(tvi_instance_create(model, 0, &instance));
  const long long made = now_ns();
  long long at[4] = {0};
  long peak = 0;
  for (int run = 1; run <= atoi(argv[2]); ++run) {
    check(tvi_run(instance, NULL, NULL));
    if (run == 1) peak = memory_kib("VmHWM");
    if (run == 1) at[0] = now_ns();
    if (run == 2) at[1] = now_ns();
    if (run == 5) at[2] = now_ns();
    if (run == 20) at[3] = now_ns();
  }
  printf("{\"made_ns\": [%lld, %lld], \"at_ns\": [%lld, %lld, %lld, %lld], ", loaded, made, at[0],
         at[1], at[2], at[3]);
  printf("\"peak_kib\": %ld, \"steady_kib\": %ld}\n", peak, memory_kib("VmRSS"));
  return 0;
}
