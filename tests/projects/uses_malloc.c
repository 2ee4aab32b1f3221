// A program of another project: its malloc must be lanemalloc's. Prints "ok". Built by run.sh, by
// each way that a project has to find the library.
#include <lanemalloc/stats.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  struct lane_statistics before, after;
  if (lane_stats(&before, sizeof before) != 0) return 1;
  void* volatile objects[100];
  for (int i = 0; i < 100; ++i) objects[i] = malloc(100);
  if (lane_stats(&after, sizeof after) != 0) return 1;
  for (int i = 0; i < 100; ++i) free(objects[i]);
  if (after.live_objects - before.live_objects != 100) return 1;
  puts("ok");
  return 0;
}
