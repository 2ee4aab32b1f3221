// A program that links liblanemalloc.a (plain, whole archive, fully static): its malloc is the
// library's, not glibc's. Built as C, where the archive must need nothing of libstdc++, and as C++,
// by static_link_cxx.cc.

#include "../child.h"
#include "../run_threads.h"
#ifdef __cplusplus
#include <string>
#include <thread>
#include <vector>
#endif

CHILD(work) {
  for (size_t size = 1; size < 1000000; size = size * 3 + 1) {
    char* object = (char*)malloc(size);
    REQUIRE(object);
    memset(object, 1, size);
    free(realloc(object, size * 2));
  }
}
CHILD(free_on_stack) {
  char on_stack[64];
  free(hide(on_stack + 16));
}

CASE(lanemalloc_malloc_is_the_librarys) {
  run_child_with("work", "stats=exit");
  CHECK_CHILD(child_succeeded() && child_stat("allocations") >= 13);
  run_child_with("free_on_stack", "bad_pointer=report");
  CHECK_CHILD(child_succeeded() &&
              lines_with("lanemalloc: free(0x", "not a pointer of this allocator") == 1);
}

static void* use_in_thread(void* argument) {
  for (size_t size = 1; size < 100000; size += size / 3 + 1) free(memset(malloc(size), 1, size));
  return argument;
}
CASE(threads_and_forks_work) {
  for (int round = 0; round < 50; round++) {
    pthread_t threads[3];
    start_threads(threads, 3, use_in_thread);
    pid_t pid = fork();
    if (pid == 0) {
      use_in_thread(NULL);
      _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
    join_threads(threads, 3);
  }
}

// Threads take call stacks all the time while the process forks. The child must not wait for what
// these threads hold for that.
static int stacks_end;
static void* take_stacks(void* argument) {
  while (!__atomic_load_n(&stacks_end, __ATOMIC_RELAXED)) free(hide(malloc(1000)));
  return argument;
}
CHILD(fork_while_stacks_are_taken) {
  pthread_t threads[3];
  start_threads(threads, 3, take_stacks);
  for (int round = 0; round < 400; round++) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(20);
      for (int i = 0; i < 20; i++) free(hide(malloc(1000)));
      _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
    if (status != 0) break;
  }
  __atomic_store_n(&stacks_end, 1, __ATOMIC_RELAXED);
  join_threads(threads, 3);
}
CASE(lanemalloc_a_fork_waits_for_no_stack_that_is_taken) {
  run_child_with("fork_while_stacks_are_taken", "sample=1k");
  CHECK_CHILD(child_succeeded());
}

CASE(every_function_works) {
  void* object = NULL;
  CHECK(posix_memalign(&object, 4096, 100) == 0 && (uintptr_t)object % 4096 == 0);
  free(object);
  free(aligned_alloc(64, 100));
  free(memalign(256, 100));
  free(valloc(10));
  free(pvalloc(10));
  free(reallocarray(calloc(3, 5), 100, 100));
  free(strdup("text of the C library"));
  malloc_trim(0);
  CHECK(mallopt(M_ARENA_MAX, 1) == 1);
  CHECK(mallinfo2().arena + mallinfo2().hblkhd > 0);
  CHECK(malloc(hide_size(SIZE_MAX - 10)) == NULL && errno == ENOMEM);
}

#ifdef __cplusplus
CASE(cxx_objects_work) {
  std::vector<std::string> texts(1000, std::string(100, 'x'));
  std::thread([&] { texts.resize(5000, std::string(200, 'y')); }).join();
  CHECK(texts[4999].size() == 200);
  bool thrown = false;
  try {
    hide(::operator new(hide_size(SIZE_MAX / 2)));
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown);
}
#endif
