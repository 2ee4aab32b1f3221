// fork, system, popen: children that allocate, and parents that go on. tests/stress has forks from
// threads and posix_spawn, tests/borders has vfork and daemon.
#include "child.h"
#include "run_threads.h"

static void allocate_and_free(void) {
  for (size_t size = 1; size < ((size_t)2 << 20); size = size * 3 + 1) {
    char* object = (char*)malloc(size);
    REQUIRE(object);
    object[0] = object[size - 1] = 1;
    free(object);
  }
}

CASE(fork_children_use_and_free_what_they_inherit) {
  char* objects[1000];
  for (unsigned i = 0; i < 1000; i++) fill(objects[i] = (char*)malloc(i * 20 + 1), i * 20 + 1, i);
  for (int round = 0; round < 50; round++) {
    pid_t pid = fork();
    if (pid == 0) {
      for (unsigned i = 0; i < 1000; i++) {
        if (!filled(objects[i], i * 20 + 1, i)) _exit(2);
        objects[i] = (char*)realloc(objects[i], i * 30 + 1);
        if (!filled(objects[i], i * 20 + 1, i)) _exit(3);
        free(objects[i]);
      }
      allocate_and_free();
      _exit(0);
    }
    CHECK(status_of(pid) == 0);
    free(objects[round]);
    fill(objects[round] = (char*)malloc((unsigned)round * 20 + 1), (unsigned)round * 20 + 1,
         (unsigned)round);
  }
}

static int stop;
static void* allocate_until_stopped(void* argument) {
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) allocate_and_free();
  return argument;
}
static void* in_grandchild(void* argument) {
  allocate_and_free();
  return argument;
}

CASE(fork_while_other_threads_allocate) {
  pthread_t threads[3];
  start_threads(threads, 3, allocate_until_stopped);
  for (int round = 0; round < 200; round++) {
    pid_t pid = fork();
    if (pid == 0) {
      alarm(30);
      allocate_and_free();
      pthread_t thread;
      if (pthread_create(&thread, NULL, in_grandchild, NULL)) _exit(2);
      pthread_join(thread, NULL);
      pid_t grandchild = fork();
      if (grandchild == 0) {
        allocate_and_free();
        exit(0);
      }
      exit(status_of(grandchild) != 0);
    }
    int status = status_of(pid);
    CHECK_MSG(status == 0, "round %d: status 0x%x", round, status);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join_threads(threads, 3);
}

CASE(system_and_popen) {
  for (int round = 0; round < 20; round++) {
    CHECK(WEXITSTATUS(system("exit 9")) == 9);
    FILE* pipe = popen("echo one two; seq 1000", "r");
    REQUIRE(pipe);
    char* line = NULL;
    size_t capacity = 0;
    int lines = 0;
    while (getline(&line, &capacity, pipe) > 0) lines++;
    CHECK(lines == 1001);
    CHECK(pclose(pipe) == 0);
    free(line);
  }
}

CASE(closed_standard_files_do_no_harm) {
  pid_t pid = fork();
  if (pid == 0) {
    close(0);
    close(1);
    close(2);
    allocate_and_free();
    int file = open("/dev/null", O_RDWR);
    _exit(file == 0 ? 0 : 4);  // no descriptor was taken in between
  }
  CHECK(status_of(pid) == 0);
}
