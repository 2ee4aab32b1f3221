// Threads allocate while the process forks, and the children allocate too. Prints "ok". Built by
// musl.sh.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 8, kForks = 20, kRounds = 100000 };

static void* work(void* unused) {
  char* kept[64] = {0};
  for (int i = 0; i < kRounds; ++i) {
    const size_t size = 1 + (size_t)i * 37 % 5000;
    char** place = &kept[i % 64];
    if (*place != NULL && (*place)[0] != (char)(i % 64)) abort();
    free(*place);
    *place = realloc(malloc(size), 2 * size);
    if (*place == NULL) abort();
    memset(*place, i % 64, 2 * size);
  }
  for (int i = 0; i < 64; ++i) free(kept[i]);
  return unused;
}

int main(void) {
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i)
    if (pthread_create(&threads[i], NULL, work, NULL) != 0) return 1;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      work(NULL);
      _exit(7);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
      return 2;
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  puts("ok");
  return 0;
}
