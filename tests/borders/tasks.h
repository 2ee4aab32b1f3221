// The threads of the process, as the kernel counts them. Included after check.h.
#ifndef TESTS_BORDERS_TASKS_H_
#define TESTS_BORDERS_TASKS_H_

#include <dirent.h>

// Calls visit with the number of each thread, and returns the sum of the results.
UNUSED static int for_each_task(int (*visit)(pid_t task, const void* argument),
                                const void* argument) {
  int n = 0;
  DIR* tasks = opendir("/proc/self/task");
  REQUIRE(tasks);
  for (struct dirent* entry; (entry = readdir(tasks));)
    if (entry->d_name[0] != '.') n += visit(atoi(entry->d_name), argument);
  closedir(tasks);
  return n;
}

UNUSED static int is_task(pid_t task, const void* unused) {
  (void)unused;
  return task > 0;
}
UNUSED static int threads(void) { return for_each_task(is_task, NULL); }

UNUSED static int has_policy(pid_t task, const void* policy) {
  return sched_getscheduler(task) == *(const int*)policy;
}
UNUSED static int threads_with_policy(int policy) { return for_each_task(has_policy, &policy); }

#endif  // TESTS_BORDERS_TASKS_H_
