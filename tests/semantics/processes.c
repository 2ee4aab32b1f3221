// fork, vfork, posix_spawn, system, popen, daemon: children that allocate, and parents that go on.
#include <pthread.h>
#include <spawn.h>

#include "child.h"

static void allocate_and_free(void) {
  for (size_t size = 1; size < ((size_t)2 << 20); size = size * 3 + 1) {
    char* object = (char*)malloc(size);
    REQUIRE(object);
    object[0] = object[size - 1] = 1;
    free(object);
  }
}

static int exit_status(pid_t pid) {
  int status = -1;
  REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
  return status;
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
    CHECK(exit_status(pid) == 0);
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
  for (int i = 0; i < 3; i++)
    REQUIRE(pthread_create(&threads[i], NULL, allocate_until_stopped, NULL) == 0);
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
      exit(exit_status(grandchild) != 0);
    }
    int status = exit_status(pid);
    CHECK_MSG(status == 0, "round %d: status 0x%x", round, status);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static char* const kEcho[] = {"sh", "-c", "exit 7", NULL};

CASE(vfork_and_exec) {
  for (volatile int round = 0; round < 50; round++) {
    allocate_and_free();
    pid_t pid = vfork();
    if (pid == 0) {
      execv("/bin/sh", kEcho);
      _exit(127);
    }
    CHECK(WEXITSTATUS(exit_status(pid)) == 7);
    pid = vfork();
    if (pid == 0) _exit(5);
    CHECK(WEXITSTATUS(exit_status(pid)) == 5);
  }
  allocate_and_free();
}

CASE(posix_spawn_while_other_threads_allocate) {
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    REQUIRE(pthread_create(&threads[i], NULL, allocate_until_stopped, NULL) == 0);
  for (int round = 0; round < 50; round++) {
    pid_t pid = 0;
    CHECK(posix_spawnp(&pid, "sh", NULL, NULL, kEcho, environ) == 0);
    CHECK(WEXITSTATUS(exit_status(pid)) == 7);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
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

// The daemon answers by the pipe; the pipe closes when the daemon ends.
CASE(daemon_goes_on_allocating) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  char* inherited = strdup("inherited by the daemon");
  pid_t pid = fork();
  if (pid == 0) {
    if (daemon(1, 1)) _exit(1);
    alarm(60);
    allocate_and_free();
    inherited = (char*)realloc(inherited, 100000);
    pthread_t thread;
    int created =
        pthread_create(&thread, NULL, in_grandchild, NULL) == 0 && pthread_join(thread, NULL) == 0;
    const char* answer = created && strcmp(inherited, "inherited by the daemon") == 0 ? "y" : "n";
    free(inherited);
    ssize_t written = write(ends[1], answer, 1);
    exit(written != 1);
  }
  close(ends[1]);
  CHECK(exit_status(pid) == 0);
  char answer = 0;
  CHECK(read(ends[0], &answer, 1) == 1 && answer == 'y');
  CHECK(read(ends[0], &answer, 1) == 0);
  free(inherited);
}

static void* fork_in_thread(void* argument) {
  pid_t pid = fork();
  if (pid == 0) {
    allocate_and_free();
    exit(0);  // by the only thread of the child, which is not the first one
  }
  CHECK(exit_status(pid) == 0);
  return argument;
}
CASE(fork_from_threads) {
  for (int round = 0; round < 20; round++) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
      REQUIRE(pthread_create(&threads[i], NULL, fork_in_thread, NULL) == 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
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
  CHECK(exit_status(pid) == 0);
}
