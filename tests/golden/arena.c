// Resets arenas whose blocks come from lanes of our choice, so that callgrind can count what that
// takes. Holds the hit of an allocation between marks, so that its instructions can be read. Used
// by: tests/golden/arena.py.
// Usage: arena own|other|two|pieces BLOCKS BLOCK_SIZE [thread]. `pieces` also frees BLOCKS objects
// of another lane one by one. With `thread`, a process with one thread has had another one before.
#include <lanemalloc/arena.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/measure.h"

void* any_size(struct lane_arena* arena, size_t size) {
  __asm__ volatile("# any size" ::: "memory");
  void* piece = lane_arena_alloc(arena, size);
  __asm__ volatile("# ends" ::"r"(piece));
  return piece;
}

void* one_size(struct lane_arena* arena) {
  __asm__ volatile("# one size" ::: "memory");
  void* piece = lane_arena_alloc(arena, 48);
  __asm__ volatile("# ends" ::"r"(piece));
  return piece;
}

static struct lane_arena arena;
static pthread_barrier_t ready, end;
static size_t wanted;
static void* pieces[1000];

static void* add_blocks(void* argument) {
  while (arena.block_count < wanted)
    if (lane_arena_alloc(&arena, arena.block_size / 5) == NULL) abort();
  if (argument != NULL)
    for (size_t i = 0; i < wanted; ++i) pieces[i] = malloc(arena.block_size);
  return NULL;
}

// A thread that stays, so that its lane remains its own.
static void* add_and_stay(void* argument) {
  add_blocks(argument);
  pthread_barrier_wait(&ready);
  pthread_barrier_wait(&end);
  return NULL;
}

static pthread_t add_elsewhere(int with_pieces) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, add_and_stay, with_pieces ? &arena : NULL) != 0) abort();
  pthread_barrier_wait(&ready);
  return thread;
}

__attribute__((noinline)) void free_pieces(void) {
  for (size_t i = 0; i < wanted; ++i) free(pieces[i]);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const char* from = argv[1];
  const size_t blocks = strtoul(argv[2], NULL, 10);
  if (lane_arena_init(&arena, strtoul(argv[3], NULL, 10)) != 0) return 2;
  const int threads = strcmp(from, "two") == 0 ? 2 : strcmp(from, "own") == 0 ? 0 : 1;
  pthread_barrier_init(&ready, NULL, 2);
  pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
  free(malloc(1));
  pthread_t running[2];
  if (argc > 4) {
    pthread_create(&running[0], NULL, add_blocks, NULL);
    pthread_join(running[0], NULL);
  }
  for (int i = 0; i < threads; ++i) {
    wanted = blocks * (size_t)(i + 1) / (size_t)threads;
    running[i] = add_elsewhere(strcmp(from, "pieces") == 0);
  }
  wanted = blocks;
  add_blocks(NULL);
  if (any_size(&arena, 1) == NULL || one_size(&arena) == NULL) abort();
  if (strcmp(from, "pieces") == 0) free_pieces();
  lane_arena_reset(&arena);
  void* base;
  const char* file = malloc_file(&base);
  printf("blocks=%zu base=%p library=%s\n", arena.block_count, base, file);
  pthread_barrier_wait(&end);
  for (int i = 0; i < threads; ++i) pthread_join(running[i], NULL);
  lane_arena_destroy(&arena);
  return 0;
}
